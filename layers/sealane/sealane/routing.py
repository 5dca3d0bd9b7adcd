"""One URL, two lanes: modern requests are served here, legacy ones by the function that keeps sessions."""

import base64
import functools
import json
import logging
import math
import os
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any, Final, Literal, Self, get_args

import anyio
import anyio.to_thread
from mangum.types import LambdaContext
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from sealane import snapshot, telemetry
from sealane.era import decode, era_of
from sealane.errors import INTERNAL_ERROR, INVALID_REQUEST, RequestId, RequestRejected, error_response
from sealane.gateway.buffered import BufferedGateway
from sealane.gateway.events import BUFFERED_KEY, DEADLINE_KEY
from sealane.gateway.observed import observed
from sealane.gateway.remaining import client_context, seconds_to_answer
from sealane.handler import McpHandler
from sealane.policy.body import read_body, receive_again
from sealane.policy.cors import cors_middleware

__all__ = ["DrainTo", "LegacyFunction", "RoutedHandler", "route_by_era"]

logger = logging.getLogger(__name__)

DrainTo = Literal["refuse", "compatibility"]

FUNCTION_VARIABLE: Final = "SEALANE_LEGACY_FUNCTION"
"""Name or ARN of the function that keeps sessions, for `LegacyFunction.configured()`. Default: there is none."""
LANE_VARIABLE: Final = "SEALANE_LEGACY_LANE"
"""Whether the legacy lane takes new sessions: `on` or `drain`. Both lanes read it. Default: `on`."""
DRAIN_TO_VARIABLE: Final = "SEALANE_LEGACY_DRAIN_TO"
"""Who answers clients without a session while the lane drains: `refuse` or `compatibility`. Default: `refuse`."""

_CONNECT_TIMEOUT: Final = 1.0
"""Seconds."""
_GATEWAY_WAITS: Final = 28.0
"""Seconds for an answer that leaves as a whole: API Gateway waits 29, whatever the function may take."""
_METADATA_END: Final = bytes(8)
"""Between status and headers (JSON) and the body of a streamed answer. JSON has no NUL in it."""
_THROTTLED: Final = ("TooManyRequestsException", "EC2ThrottledException")
_RETRY_AFTER: Final = "1"


def route_by_era(stateless: McpHandler, legacy: "LegacyFunction | None") -> "McpHandler | RoutedHandler":
    """Put the legacy lane behind the URL of the stateless one.

        handler = route_by_era(create_mcp_handler(create_server), LegacyFunction.configured())

    What speaks which era is decided as `is_legacy_request` decides it. Legacy POST, GET and DELETE requests of the
    route go to the function, with the event that this one was given (the verified caller is in it), and its answer is
    passed on unread. All else is for `stateless`: modern requests, preflights, the documents about signing in.

    Args:
        stateless: serves modern requests. With a lane it gets legacy ones only while that is drained to compatibility,
            so `legacy="reject"` is the right option for it, except then.
        legacy: the function with the sessions; `None` where there is none, and `stateless` serves everything.

    Raises:
        ValueError: `legacy` is drained to compatibility, and `stateless` refuses what speaks legacy.
    """
    return stateless if legacy is None else RoutedHandler(stateless, legacy)


class LegacyFunction:
    """The function of the legacy lane.

    It is asked once: a call that runs twice does more harm than one that fails.

    Args:
        name: its name or ARN.
        drain: `None` while the lane takes new clients. When it takes no more, who answers those that have no session
            yet: `"refuse"`, the function itself, by a refusal that names the stateless endpoint; `"compatibility"`, the
            stateless handler, without a session.

    Raises:
        ValueError: for a value that there is not.
    """

    def __init__(self, name: str, *, drain: DrainTo | None = None) -> None:
        if not name:
            raise ValueError("the name of the legacy function is empty: give its name or ARN")
        if drain is not None and drain not in get_args(DrainTo):
            raise ValueError(f"drain is one of {(None, *get_args(DrainTo))}: got {drain!r}")
        self.name = name
        self.drain = drain

    @classmethod
    def configured(cls) -> Self | None:
        """What `SEALANE_LEGACY_FUNCTION`, `SEALANE_LEGACY_LANE` and `SEALANE_LEGACY_DRAIN_TO` say, as the template
        sets them; `None` where no function is named.

        Raises:
            ValueError: one of them has a value that there is not.
        """
        name = os.environ.get(FUNCTION_VARIABLE)
        if not name:
            return None
        lane = os.environ.get(LANE_VARIABLE) or "on"
        if lane not in ("on", "drain"):
            raise ValueError(f"{LANE_VARIABLE} is 'on' or 'drain': got {lane!r}")
        drain_to: Any = os.environ.get(DRAIN_TO_VARIABLE) or "refuse"
        return cls(name, drain=drain_to if lane == "drain" else None)

    async def answer(self, event: Mapping[str, Any], seconds: float, *, streamed: bool) -> AsyncGenerator[bytes, None]:
        """The function's answer as it comes: either JSON, or the metadata and the body of a stream.

        Whoever leaves early leaves a thread behind, which ends with the function's next word or after `seconds`.

        Args:
            event: what the function is to answer.
            seconds: how long the function may take.
            streamed: read the answer while it is made.

        Raises:
            RequestRejected: there is no answer, or it ends in the middle; the status says why.
        """
        # The function ends its answer in good order before that; whoever cuts it off cannot.
        pieces = self._pieces(_json(event), client_context(seconds), math.ceil(seconds), streamed)
        while (piece := await anyio.to_thread.run_sync(next, pieces, None, abandon_on_cancel=True)) is not None:
            yield piece

    def _pieces(self, event: bytes, context: str, seconds: int, streamed: bool) -> Iterator[bytes]:
        # Imported here: a server without this lane does not pay for it.
        import urllib3.exceptions
        from botocore import exceptions as botocore  # type: ignore[import-untyped]

        try:
            with _making:
                client = _client(seconds)
            if streamed:
                answer = client.invoke_with_response_stream(
                    FunctionName=self.name, ClientContext=context, Payload=event
                )
                yield from _stream(answer["EventStream"])
                return
            answer = client.invoke(FunctionName=self.name, ClientContext=context, Payload=event)
            payload: bytes = answer["Payload"].read()
            if "FunctionError" in answer:
                raise _crashed(payload)
            yield payload
        except (botocore.ReadTimeoutError, urllib3.exceptions.ReadTimeoutError):
            raise _too_slow(f"nothing came from it for {seconds} s") from None
        except botocore.ClientError as error:
            raise _refused(error.response.get("Error", {}).get("Code", "")) from None
        except (botocore.BotoCoreError, urllib3.exceptions.HTTPError) as error:
            raise _unavailable(type(error).__name__) from None


class RoutedHandler:
    """Serves MCP to Lambda (call it) and as an ASGI application (`app`), in two lanes. Made by `route_by_era`.

    Attributes:
        app: the ASGI application. Legacy requests are forwarded as Lambda events, so they have to be some.
        notify: publishes changes to open subscriptions of the stateless lane.
    """

    def __init__(self, stateless: McpHandler, legacy: LegacyFunction) -> None:
        options = stateless._options
        if legacy.drain == "compatibility" and options.legacy == "reject":
            raise ValueError(
                'the legacy lane is drained to compatibility: the stateless handler needs legacy="stateless"'
            )
        self._stateless = stateless
        self._legacy = legacy
        self._route = options.route.rstrip("/")
        self._cors = options.cors
        self._max_body_size = options.max_request_body_size
        self.app: ASGIApp = observed(self._serve)
        self.notify = stateless.notify

    def __call__(self, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        """Answer one Lambda event of API Gateway (REST or HTTP API), a function URL or an ALB. Never raises."""
        return self.gateway(event, context)

    @cached_property
    def gateway(self) -> BufferedGateway:
        """What turns Lambda's events into requests to `app`."""
        return BufferedGateway(self.app)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._is_of_sessions(scope):
            await self._stateless.app(scope, receive, send)
            return
        ids: list[RequestId] = []
        answer = _PassedOn(send)
        try:
            # As the stateless lane has them (RFC 9110 section 5.5): both must decide alike.
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
            request = Request(scope, receive)
            body = await read_body(request, self._max_body_size) if request.method == "POST" else b""
            message = decode(body)
            ids = _request_ids(message)
            if era_of(request.method, request.headers, message) == "modern" or self._is_drained(request):
                await self._stateless.app(scope, receive_again(body, receive), send)
                return
            exchange = telemetry.current()
            exchange.describe(message, request.headers, era="legacy", lane="legacy")
            exchange.forwarded = True
            await self._forward(scope, receive, answer)
        except ClientDisconnect:
            telemetry.current().left = True
        except RequestRejected as rejection:
            self._stateless._endpoint.report(rejection)
            if answer.started:
                await answer.break_off(rejection, ids)
            else:
                refusal: ASGIApp = error_response(rejection, ids[0] if len(ids) == 1 else None)
                await (refusal if self._cors is False else cors_middleware(refusal, self._cors))(scope, receive, send)

    def _is_of_sessions(self, scope: Scope) -> bool:
        """Whether a request can be one that the session lane serves, by its route and method."""
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        return path.rstrip("/") == self._route and scope["method"] in ("POST", "GET", "DELETE")

    def _is_drained(self, request: Request) -> bool:
        """Whether a legacy request is left to compatibility: its client has no session, and can have none any more."""
        return self._legacy.drain == "compatibility" and "mcp-session-id" not in request.headers

    async def _forward(self, scope: Scope, receive: Receive, answer: "_PassedOn") -> None:
        """Let the function answer, for as long as there is time and somebody to wait for it.

        Raises:
            RequestRejected: there was no answer, or no more of it.
            ClientDisconnect: nobody waits any more.
        """
        event = scope.get("aws.event")
        if not isinstance(event, Mapping):
            raise _unavailable("the request did not come as a Lambda event, and cannot be forwarded as one")
        now = anyio.current_time()
        streamed = DEADLINE_KEY in scope
        deadline = scope[DEADLINE_KEY] if streamed else now + _buffered_seconds(scope)
        left = False
        with anyio.CancelScope(deadline=deadline) as waiting:
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    nonlocal left
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    left = True
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                failure: RequestRejected | None = None
                pieces = self._legacy.answer(event, max(deadline - now, 0.1), streamed=streamed)
                try:
                    async with aclosing(pieces):
                        async for piece in pieces:
                            await answer.pass_on(piece)
                    await answer.end()
                except RequestRejected as rejection:
                    # Not through the task group, which would make a group of it.
                    failure = rejection
                except Exception:
                    logger.exception("a request could not be forwarded")
                    failure = _failed("the legacy function could not be asked")
                tasks.cancel_scope.cancel()
        if answer.ended:
            return
        if left:
            raise ClientDisconnect
        if waiting.cancelled_caught:
            raise _too_slow("the time of the invocation is up")
        if failure is not None:
            raise failure


class _PassedOn:
    """The function's answer on its way to the client: its head is read, its body is not.

    Attributes:
        started: the client has a status.
        ended: the client has the whole answer.
    """

    def __init__(self, send: Send) -> None:
        self.started = False
        self.ended = False
        self._send = send
        self._head = bytearray()
        self._is_event_stream = False
        self._tail = b""

    async def pass_on(self, piece: bytes) -> None:
        """Take a piece of the answer.

        Raises:
            RequestRejected: it is no answer.
        """
        if self.started:
            await self._body(piece)
            return
        searched = max(len(self._head) - len(_METADATA_END), 0)
        self._head += piece
        end = self._head.find(_METADATA_END, searched)
        if end >= 0:
            await self._start(_answer(bytes(self._head[:end])))
            await self._body(bytes(self._head[end + len(_METADATA_END) :]))

    async def end(self) -> None:
        """The function has said everything.

        Raises:
            RequestRejected: it was no answer.
        """
        if not self.started:
            answer = _answer(bytes(self._head))
            body = _body(answer)
            await self._start(answer)
            await self._body(body)
        self.ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def break_off(self, rejection: RequestRejected, ids: list[RequestId]) -> None:
        """End an answer of which no more will come, so that nobody takes it for whole, or waits for the rest.

        An event stream says so: with an error for each request, or, where none was sent with a request, by its end,
        after which clients come back. Of anything else the connection is broken.

        Raises:
            RuntimeError: to break the connection.
        """
        if not self._is_event_stream:
            raise RuntimeError("the legacy function's answer is not whole")
        told = [bytes(error_response(rejection, request_id).body) for request_id in ids]
        errors = b"".join(b"event: message\r\ndata: %b\r\n\r\n" % each for each in told)
        if errors and not self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
            # What has begun of an event would swallow the next one.
            errors = b"\r\n\r\n" + errors
        self.ended = True
        await self._send({"type": "http.response.body", "body": errors, "more_body": False})

    async def _start(self, answer: Mapping[str, Any]) -> None:
        headers = _headers(answer)
        self.started = True
        self._is_event_stream = any(
            name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers
        )
        await self._send({"type": "http.response.start", "status": answer["statusCode"], "headers": headers})

    async def _body(self, piece: bytes) -> None:
        if piece:
            self._tail = (self._tail + piece)[-4:]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


_making: Final = threading.Lock()


@functools.lru_cache(maxsize=2)
def _client(seconds: int) -> Any:
    """A client that waits so long for each piece of an answer; in an environment it is nearly always the same."""
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.session import get_session  # type: ignore[import-untyped]

    # At DEBUG it logs whole events.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    return get_session().create_client(
        "lambda",
        config=Config(
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=seconds,
            retries={"mode": "standard", "total_max_attempts": 1},
            tcp_keepalive=True,
        ),
    )


snapshot.after_restore(_client.cache_clear)


def _stream(events: Any) -> Iterator[bytes]:
    """The pieces of a streamed answer.

    Raises:
        RequestRejected: the function failed, or the stream ended without saying that it was whole.
    """
    try:
        for event in events:
            if "PayloadChunk" in event:
                # None is the end, to whoever reads.
                yield event["PayloadChunk"].get("Payload", b"")
            elif "InvokeComplete" in event:
                complete = event["InvokeComplete"]
                if "ErrorCode" in complete:
                    raise _crashed(complete.get("ErrorDetails", "").encode(), complete["ErrorCode"])
                return
    finally:
        events.close()
    raise _unavailable("the stream broke off")


def _json(event: Mapping[str, Any]) -> bytes:
    """The event as it was, not larger: Lambda takes 6 MB."""
    try:
        return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(event, separators=(",", ":")).encode()


def _buffered_seconds(scope: Scope) -> float:
    """How long a whole answer can be waited for, so that there is time left to say that it did not come."""
    seconds: float = scope.get(BUFFERED_KEY, math.inf)
    return max(min(seconds_to_answer(seconds), _GATEWAY_WAITS), 0.1)


def _answer(payload: bytes) -> Mapping[str, Any]:
    """What a function has answered, as API Gateway reads it.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html

    Raises:
        RequestRejected: it is nothing that API Gateway reads.
    """
    try:
        answer = json.loads(payload)
    except ValueError:
        answer = None
    status = answer.get("statusCode") if isinstance(answer, dict) else None
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        raise _malformed("it has no status")
    return {**answer, "statusCode": status}


def _headers(answer: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer: of a name that is in both fields, those of `multiValueHeaders` count.

    Raises:
        RequestRejected: they are none.
    """
    try:
        multiple = {name.lower(): values for name, values in (answer.get("multiValueHeaders") or {}).items()}
        single = {name.lower(): [value] for name, value in (answer.get("headers") or {}).items()}
        named = [*{**single, **multiple}.items(), ("set-cookie", answer.get("cookies") or [])]
        return [
            (name.encode("ascii"), str(value).encode("latin-1"))
            for name, values in named
            for value in values
            # Whoever sends the answer counts its bytes.
            if name != "content-length"
        ]
    except (AttributeError, TypeError, UnicodeEncodeError):
        raise _malformed("its headers are none") from None


def _body(answer: Mapping[str, Any]) -> bytes:
    """The body of a whole answer.

    Raises:
        RequestRejected: it is none.
    """
    body = answer.get("body") or ""
    try:
        return base64.b64decode(body, validate=True) if answer.get("isBase64Encoded") else body.encode()
    except (AttributeError, TypeError, ValueError):
        raise _malformed("its body is none") from None


def _request_ids(message: object) -> list[RequestId]:
    """The ids of the requests in a message, which may be a batch."""
    ids = [
        item["id"]
        for item in (message if isinstance(message, list) else [message])
        if isinstance(item, Mapping) and "method" in item and "id" in item
    ]
    return [each for each in ids if isinstance(each, str | int) and not isinstance(each, bool)]


# What clients are told. Why it is so is for the log, which gets neither the event nor the answer.


def _too_slow(reason: str) -> RequestRejected:
    """The answer is 504 for a legacy request while its function has not answered in time."""
    text = "The request took longer than this server may run"
    return RequestRejected(504, INTERNAL_ERROR, text, reason=f"the legacy function is too slow: {reason}")


def _unavailable(reason: str) -> RequestRejected:
    """The answer is 503 for a legacy request whose function cannot be called."""
    text = "Sessions are not available at the moment. Send the same request again in a few seconds"
    return RequestRejected(503, INTERNAL_ERROR, text, reason=f"the legacy function cannot be used: {reason}")


def _refused(code: str) -> RequestRejected:
    """What an error of the Invoke API means to a client.

    That is 503 for a legacy request while Lambda throttles its function; 413 for a legacy request that is too large for
    Lambda.
    """
    if code in _THROTTLED:
        text = "Too many requests at the moment. Send the same request again in a few seconds"
        headers = {"Retry-After": _RETRY_AFTER}
        return RequestRejected(503, INTERNAL_ERROR, text, reason=f"the legacy function: {code}", headers=headers)
    if code == "RequestTooLargeException":
        return RequestRejected(
            413, INVALID_REQUEST, "Content too large: send less in one request", reason=f"the legacy function: {code}"
        )
    return _unavailable(code)


def _crashed(report: bytes, code: str = "Unhandled") -> RequestRejected:
    """What a function's failure means to a client; its report has a stack trace, of which only the type is logged."""
    try:
        failure = json.loads(report)
    except ValueError:
        failure = None
    type, text = (failure.get("errorType"), failure.get("errorMessage")) if isinstance(failure, dict) else (code, "")
    if type == "Sandbox.Timedout" or "Task timed out after" in str(text):
        return _too_slow("its own time is up")
    return _failed(f"the legacy function has failed: {type or code}")


def _malformed(reason: str) -> RequestRejected:
    return _failed(f"the legacy function's answer: {reason}")


def _failed(reason: str) -> RequestRejected:
    """The answer is 502 for a legacy request whose function has failed."""
    return RequestRejected(502, INTERNAL_ERROR, "Internal server error", reason=reason)
