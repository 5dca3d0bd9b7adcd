"""Lambda's Runtime API, from which one environment takes its invocations.

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

import asyncio
import base64
import binascii
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sealane.local.errors import FunctionError
from sealane.local.http_server import Server, listen

RESPONSE_LIMIT = 6_291_556
"""Bytes of an answer that is not streamed: 6 MB and what wraps it.

https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html; the exact number is in Lambda's own error.
"""
_PREFIX = "/2018-06-01/runtime"


class Invocation:
    """One event on its way through an environment, and the answer that comes back in chunks.

    Args:
        event: the event as JSON.
        arn: ARN of the function.
        trace_id: X-Ray trace header.
        client_context: what the caller says of itself, as JSON.

    Attributes:
        request_id: Lambda's request id.
        deadline_ms: Unix time in milliseconds at which the function will be stopped, 0 before it starts.
        content_type: media type of the answer, once a chunk of it is there.
        answering: the answer has begun.
        ended: the answer is complete or has failed.
    """

    def __init__(self, event: bytes, arn: str, trace_id: str, client_context: str | None = None) -> None:
        self.request_id = str(uuid.uuid4())
        self.event = event
        self.arn = arn
        self.trace_id = trace_id
        self.client_context = client_context
        self.deadline_ms = 0
        self.content_type = ""
        self.answering = False
        self.ended = False
        self._error: FunctionError | None = None
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, chunk: bytes) -> None:
        """Adds to the answer."""
        if chunk and not self.ended:
            self._chunks.put_nowait(chunk)

    def end(self, error: FunctionError | None = None) -> None:
        """Completes the answer, or says why it failed; what comes first counts."""
        if not self.ended:
            self.ended = True
            self._error = error
            self._chunks.put_nowait(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer as it comes, for one reader.

        Raises:
            FunctionError: the function failed, before its answer or in the middle of it.
        """
        while (chunk := await self._chunks.get()) is not None:
            yield chunk
        if self._error:
            raise self._error


class RuntimeApi:
    """A Runtime API server for one environment, on a free port of 127.0.0.1.

    Args:
        code_dir: the function's folder, to say where in it an error comes from.

    Attributes:
        address: `host:port`, for `AWS_LAMBDA_RUNTIME_API`.
        waiting: done while the environment waits for an invocation; holds a `FunctionError` when it never will.
    """

    def __init__(self, code_dir: Path) -> None:
        self._code_dir = code_dir
        self._loop = asyncio.get_running_loop()
        self.waiting: asyncio.Future[None] = self._loop.create_future()
        self._invocations: asyncio.Queue[Invocation | None] = asyncio.Queue()
        self._current: Invocation | None = None
        self._socket = listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        app = Starlette(
            routes=[
                Route(f"{_PREFIX}/invocation/next", self._next),
                Route(f"{_PREFIX}/invocation/{{request_id}}/response", self._response, methods=["POST"]),
                Route(f"{_PREFIX}/invocation/{{request_id}}/error", self._error, methods=["POST"]),
                Route(f"{_PREFIX}/init/error", self._init_error, methods=["POST"]),
            ]
        )
        config = uvicorn.Config(
            app,
            http="httptools",  # Of Uvicorn's two parsers the one that keeps trailers, see _response.
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=24 * 3600,
        )
        self._server = Server(config)
        self._serving = self._loop.create_task(self._server.serve(sockets=[self._socket]))

    def hand(self, invocation: Invocation) -> None:
        """Answers the environment's request for an invocation; `waiting` is then for the next one."""
        self.waiting = self._loop.create_future()
        self._current = invocation
        self._invocations.put_nowait(invocation)

    def fail(self, error: FunctionError) -> None:
        """The environment is gone: nobody needs to wait for it any longer."""
        if self._current:
            self._current.end(error)
        if not self.waiting.done():
            self.waiting.set_exception(error)
            self.waiting.exception()  # Marks it as seen: nobody may be waiting any more.

    async def close(self) -> None:
        """Ends the server and closes its port."""
        self._invocations.put_nowait(None)
        self._server.should_exit = self._server.force_exit = True
        await self._serving
        self._socket.close()

    async def _next(self, request: Request) -> Response:
        if self._current and not self._current.ended:
            if not self._current.answering:
                text = "The last invocation has no answer yet"
                return JSONResponse({"errorType": "InvalidStateTransition", "errorMessage": text}, 403)
            self._current.end(FunctionError("Runtime.TruncatedResponse", "the answer broke off"))
        if not self.waiting.done():
            self.waiting.set_result(None)
        invocation = await self._invocations.get()
        if invocation is None:
            return Response(status_code=410)
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
            "Lambda-Runtime-Deadline-Ms": str(invocation.deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
            "Lambda-Runtime-Trace-Id": invocation.trace_id,
        }
        if invocation.client_context is not None:
            headers["Lambda-Runtime-Client-Context"] = invocation.client_context
        return Response(invocation.event, media_type="application/json", headers=headers)

    async def _response(self, request: Request) -> Response:
        """https://docs.aws.amazon.com/lambda/latest/dg/runtimes-custom.html#runtimes-custom-response-streaming"""
        # Uvicorn's own list, to which it adds the trailers after the body; `request.headers` works on a copy.
        lines = request.scope["headers"]
        invocation = self._take(request)
        if invocation is None:
            return _unknown_request_id()
        invocation.content_type = request.headers.get("content-type", "application/json")
        streamed = request.headers.get("lambda-runtime-function-response-mode", "").lower() == "streaming"
        body = bytearray()
        try:
            async for chunk in request.stream():
                if streamed:
                    invocation.put(chunk)
                elif len(body) <= RESPONSE_LIMIT:
                    body += chunk
        except ClientDisconnect:
            return Response()  # Whether its process is gone or the answer alone broke off shows later.
        if len(body) > RESPONSE_LIMIT:
            invocation.end(too_large())
            text = f"Exceeded maximum allowed payload size ({RESPONSE_LIMIT} bytes)."
            return JSONResponse({"errorType": "RequestEntityTooLarge", "errorMessage": text}, 413)
        invocation.put(bytes(body))
        invocation.end(self._trailing_error(lines))
        return _accepted()

    async def _error(self, request: Request) -> Response:
        error = await self._function_error(request)
        invocation = self._take(request)
        if invocation is None:
            return _unknown_request_id()
        invocation.end(error)
        return _accepted()

    async def _init_error(self, request: Request) -> Response:
        self.fail(await self._function_error(request))
        return _accepted()

    async def _function_error(self, request: Request) -> FunctionError:
        return self._reported(await request.body(), request.headers.get("lambda-runtime-function-error-type", ""))

    def _trailing_error(self, lines: Iterable[tuple[bytes, bytes]]) -> FunctionError | None:
        trailers = {name: value.decode("latin-1") for name, value in lines}
        type, body = (trailers.get(b"lambda-runtime-function-error-" + part) for part in (b"type", b"body"))
        if type is None and body is None:
            return None
        try:
            report = base64.b64decode(body or "", validate=True)
        except binascii.Error:
            report = (body or "").encode()
        return self._reported(report, type or "")

    def _reported(self, report: bytes, type: str) -> FunctionError:
        """The error that a runtime has reported, whatever it made of the form that is asked for."""
        try:
            fields = json.loads(report)
            stack = fields.get("stackTrace") or []
            where = failing_line(map(str, stack), self._code_dir)
            return FunctionError(
                str(fields.get("errorType") or type), str(fields.get("errorMessage", "")), where, report
            )
        except (ValueError, AttributeError):
            text = report.decode("utf-8", "replace")
            written = json.dumps({"errorType": type, "errorMessage": text}).encode()
            return FunctionError(type or "Runtime.UnknownReason", text, report=written)

    def _take(self, request: Request) -> Invocation | None:
        """The invocation that the request answers, if it is the one being served and not answered yet."""
        invocation = self._current
        if invocation is None or invocation.request_id != request.path_params["request_id"]:
            return None
        if invocation.answering or invocation.ended:
            return None
        invocation.answering = True
        return invocation


def too_large() -> FunctionError:
    """An answer that is over the limit."""
    type = "Function.ResponseSizeTooLarge"
    text = f"Response payload size exceeded maximum allowed payload size ({RESPONSE_LIMIT} bytes)."
    return FunctionError(type, text, report=json.dumps({"errorType": type, "errorMessage": text}).encode())


def failing_line(stack: Iterable[str], code_dir: Path) -> str | None:
    """`file:line` of the last frame in the function's own folder, else of the last frame, in lines of a traceback."""
    frames = [(Path(file), line) for file, line in re.findall(r'File "([^<].*?)",? [Ll]ine (\d+)', "\n".join(stack))]
    if not frames:
        return None
    file, line = next((frame for frame in reversed(frames) if frame[0].is_relative_to(code_dir)), frames[-1])
    return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{line}"


def _accepted() -> Response:
    return JSONResponse({"status": "OK"}, status_code=202)


def _unknown_request_id() -> Response:
    return JSONResponse({"errorType": "InvalidRequestID", "errorMessage": "Invalid request ID"}, status_code=400)
