"""Lambda's Invoke API, as boto3's client `lambda` uses it, so that one function can call another.

https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html
https://docs.aws.amazon.com/lambda/latest/api/API_InvokeWithResponseStream.html

Differences from AWS: a request has to be signed, but who signed it does not matter; there are no versions and aliases,
only `$LATEST`; an asynchronous event that has failed three times is dropped (no dead-letter queue, no destination).
"""

import asyncio
import base64
import binascii
import json
import re
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sealane.local.environment import Outcome, Pool, ResponseStream
from sealane.local.errors import FunctionError, Throttled
from sealane.local.http_server import Server, listen
from sealane.local.records import Call, Record
from sealane.local.template import ACCOUNT_ID, REGION, Function

EVENT_LIMIT = 6_291_456
"""Bytes that an event must be smaller than: 6 MB. The exact number is in Lambda's own error.

https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
"""
ASYNC_EVENT_LIMIT = 1_048_576
"""Bytes of an event of type `Event`: 1 MB.

https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html
"""
ASYNC_RETRY_DELAYS = (1.0, 2.0)
"""Seconds before an asynchronous event that failed is tried again; on AWS these are minutes.

https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html
"""
THROTTLED_RETRY_DELAY = 0.1
"""Seconds before a throttled asynchronous event is tried again; on AWS from 1 second up to 5 minutes, for 6 hours."""
_VERSION = "$LATEST"
_NAME = re.compile(
    r"(?:arn:aws:lambda:(?P<region>[a-z0-9-]+):)?(?:(?P<account>\d{12}):)?(?:function:)?"
    r"(?P<name>[a-zA-Z0-9-_.]+)(?::(?P<qualifier>\$LATEST|[a-zA-Z0-9-_]+))?"
)


class Refusal(Exception):
    """A request that Lambda answers with an error instead of running the function.

    Args:
        status: HTTP status.
        code: name of the exception in Lambda's API.
        message: what is wrong.
        more: further fields of the answer.
    """

    def __init__(self, status: int, code: str, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.fields = {"Type": "User", ("Message" if status == 404 else "message"): message, **more}


class InvokeApi:
    """The Invoke API of a template's functions, on a free port of 127.0.0.1 for as long as `serving()` lasts.

    Args:
        functions: what can be invoked.
        pool: gives the environments of a function, by its logical id.
        observe: gets one `Call` for each invocation, also for each try of an asynchronous one.
    """

    def __init__(
        self, functions: Iterable[Function], pool: Callable[[str], Pool], observe: Callable[[Record], None]
    ) -> None:
        self._functions = {function.physical_name: function for function in functions}
        self._pool = pool
        self._observe = observe
        self._events: set[asyncio.Task[None]] = set()
        self._app = Starlette(
            routes=[
                Route("/2015-03-31/functions/{name}/invocations", self._answering(self._invoke), methods=["POST"]),
                Route(
                    "/2021-11-15/functions/{name}/response-streaming-invocations",
                    self._answering(self._invoke_with_response_stream),
                    methods=["POST"],
                ),
            ]
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serves until the block ends; gives the URL."""
        config = uvicorn.Config(
            self._app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=24 * 3600
        )
        server = Server(config)
        with listen("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                for event in self._events:
                    event.cancel()
                server.should_exit = server.force_exit = True
                with anyio.CancelScope(shield=True):
                    await asyncio.gather(serving, *self._events, return_exceptions=True)

    def _answering(
        self, endpoint: Callable[[Request, "_Wanted"], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request, await self._read(request))
            except Refusal as refusal:
                return JSONResponse(refusal.fields, refusal.status, {"x-amzn-ErrorType": refusal.code})
            except ClientDisconnect:
                return Response(status_code=400)

        return answer

    async def _invoke(self, request: Request, wanted: "_Wanted") -> Response:
        if wanted.type == "DryRun":
            return Response(status_code=204, headers={"X-Amz-Executed-Version": _VERSION})
        if wanted.type == "Event":
            event = asyncio.create_task(self._run_event(request, wanted))
            self._events.add(event)
            event.add_done_callback(self._events.discard)
            return Response(status_code=202)
        started = time.perf_counter()
        try:
            outcome = await self._pool(wanted.function.name).invoke(wanted.event, wanted.trace_id, wanted.context)
        except Throttled as throttled:
            self._tell(request, 429, started, None, str(throttled))
            raise _too_many_requests() from None
        headers = {"X-Amz-Executed-Version": _VERSION, "x-amzn-RequestId": outcome.request_id}
        if wanted.log:
            headers["X-Amz-Log-Result"] = base64.b64encode(outcome.log.encode()).decode("ascii")
        answer = outcome.answer
        if isinstance(answer, FunctionError):
            headers["X-Amz-Function-Error"] = "Unhandled"
            self._tell(request, 200, started, outcome, str(answer))
            answer = answer.payload(outcome.request_id)
        else:
            self._tell(request, 200, started, outcome)
        return Response(answer, headers=headers, media_type="application/json")

    async def _run_event(self, request: Request, wanted: "_Wanted") -> None:
        """https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html"""
        for delay in (*ASYNC_RETRY_DELAYS, None):
            started = time.perf_counter()
            outcome = await self._run_when_possible(wanted)
            if not isinstance(outcome.answer, FunctionError):
                self._tell(request, 202, started, outcome)
                return
            self._tell(request, 202, started, outcome, str(outcome.answer))
            if delay is not None:
                await asyncio.sleep(delay)

    async def _run_when_possible(self, wanted: "_Wanted") -> Outcome:
        while True:
            try:
                # "Lambda passes the ClientContext object to your function for synchronous invocations only."
                return await self._pool(wanted.function.name).invoke(wanted.event, wanted.trace_id)
            except Throttled:
                await asyncio.sleep(THROTTLED_RETRY_DELAY)

    async def _invoke_with_response_stream(self, request: Request, wanted: "_Wanted") -> Response:
        if wanted.type == "Event":
            raise Refusal(400, "InvalidParameterValueException", "A response cannot be streamed to an Event invocation")
        if wanted.type == "DryRun":
            return Response(status_code=204, headers={"X-Amz-Executed-Version": _VERSION})
        started = time.perf_counter()
        try:
            stream = self._pool(wanted.function.name).stream(wanted.event, wanted.trace_id, wanted.context)
        except Throttled as throttled:
            self._tell(request, 429, started, None, str(throttled))
            raise _too_many_requests() from None
        headers = {"X-Amz-Executed-Version": _VERSION, "x-amzn-RequestId": stream.request_id}
        frames = self._frames(stream, request, started, wanted)
        return StreamingResponse(frames, headers=headers, media_type="application/vnd.amazon.eventstream")

    async def _frames(
        self, stream: ResponseStream, request: Request, started: float, wanted: "_Wanted"
    ) -> AsyncIterator[bytes]:
        complete: dict[str, str] = {}
        problem = None
        try:
            async for chunk in stream:
                yield event_frame("PayloadChunk", "application/octet-stream", chunk)
        except FunctionError as error:
            problem = str(error)
            complete = {"ErrorCode": "Unhandled", "ErrorDetails": error.payload(stream.request_id).decode()}
        outcome = await stream.outcome()
        self._tell(request, 200, started, outcome, problem)
        if wanted.log:
            complete["LogResult"] = base64.b64encode(outcome.log.encode()).decode("ascii")
        yield event_frame("InvokeComplete", "application/json", json.dumps(complete).encode())

    async def _read(self, request: Request) -> "_Wanted":
        """What a request asks for.

        Raises:
            Refusal: it is none that Lambda takes.
        """
        headers = request.headers
        if "authorization" not in headers:
            raise Refusal(403, "MissingAuthenticationTokenException", "Missing Authentication Token")
        function = self._function(request.path_params["name"], request.query_params.get("Qualifier"))
        type = headers.get("x-amz-invocation-type", "RequestResponse")
        if type not in ("RequestResponse", "Event", "DryRun"):
            raise Refusal(400, "InvalidParameterValueException", f"{type} is no invocation type")
        body = bytearray()
        async for chunk in request.stream():
            if len(body) < EVENT_LIMIT:
                body += chunk
        _check_event(body, type)
        trace_id = headers.get("x-amzn-trace-id") or f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)}"
        log = headers.get("x-amz-log-type", "").lower() == "tail"
        return _Wanted(function, type, bytes(body) or b"{}", trace_id, _client_context(headers), log)

    def _function(self, text: str, qualifier: str | None) -> Function:
        match = _NAME.fullmatch(text)
        if match is None:
            problem = f"Value '{text}' at 'functionName' failed to satisfy constraint: "
            problem += "Member must be a function's name, partial ARN or ARN"
            raise Refusal(400, "ValidationException", f"1 validation error detected: {problem}")
        if qualifier and match["qualifier"] not in (None, qualifier):
            text = "The derived qualifier from the function name does not match the specified qualifier."
            raise Refusal(400, "InvalidParameterValueException", text)
        version = qualifier or match["qualifier"] or _VERSION
        here = match["region"] in (None, REGION) and match["account"] in (None, ACCOUNT_ID)
        function = self._functions.get(match["name"])
        if function is None or not here or version != _VERSION:
            place = f"{match['region'] or REGION}:{match['account'] or ACCOUNT_ID}"
            arn = f"arn:aws:lambda:{place}:function:{match['name']}"
            arn += "" if version == _VERSION else f":{version}"
            raise Refusal(404, "ResourceNotFoundException", f"Function not found: {arn}")
        return function

    def _tell(
        self, request: Request, status: int, started: float, outcome: Outcome | None, problem: str | None = None
    ) -> None:
        self._observe(
            Call(
                method=request.method,
                path=request.scope["path"],
                status=status,
                duration_ms=(time.perf_counter() - started) * 1000,
                request_id=outcome.request_id if outcome else "",
                environment=outcome.environment if outcome else None,
                init_ms=outcome.init_ms if outcome else None,
                problem=problem,
            )
        )


@dataclass(frozen=True)
class _Wanted:
    """A request that can be served; `log` asks for the end of the log."""

    function: Function
    type: str
    event: bytes
    trace_id: str
    context: str | None
    log: bool


def event_frame(type: str, content_type: str, payload: bytes) -> bytes:
    """One event of `application/vnd.amazon.eventstream`.

    https://smithy.io/2.0/aws/amazon-eventstream.html
    """
    headers = b"".join(
        len(name).to_bytes(1, "big") + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
        for name, value in ((":event-type", type), (":content-type", content_type), (":message-type", "event"))
    )
    prelude = (16 + len(headers) + len(payload)).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    message = prelude + zlib.crc32(prelude).to_bytes(4, "big") + headers + payload
    return message + zlib.crc32(message).to_bytes(4, "big")


def _check_event(body: bytearray, type: str) -> None:
    if len(body) >= EVENT_LIMIT:
        text = f"Request must be smaller than {EVENT_LIMIT} bytes for the InvokeFunction operation"
        raise Refusal(413, "RequestTooLargeException", text)
    if type == "Event" and len(body) > ASYNC_EVENT_LIMIT:
        text = f"{len(body)} byte payload is too large for the Event invocation type (limit {ASYNC_EVENT_LIMIT} bytes)"
        raise Refusal(413, "RequestTooLargeException", text)
    try:
        json.loads(body or b"{}")
    except ValueError as error:
        text = f"Could not parse request body into json: {error}"
        raise Refusal(400, "InvalidRequestContentException", text) from None


def _client_context(headers: Mapping[str, str]) -> str | None:
    encoded = headers.get("x-amz-client-context")
    if encoded is None:
        return None
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8")
        json.loads(text)
    except (ValueError, binascii.Error):
        text = "Client context must be a valid Base64-encoded JSON object."
        raise Refusal(400, "InvalidRequestContentException", text) from None
    return json.dumps(json.loads(text))


def _too_many_requests() -> Refusal:
    reason = "ReservedFunctionConcurrentInvocationLimitExceeded"
    return Refusal(429, "TooManyRequestsException", "Rate Exceeded.", Reason=reason)
