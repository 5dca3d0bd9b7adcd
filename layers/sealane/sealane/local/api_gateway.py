"""What every API of this machine does with a request: an event to the function, its answer out as HTTP.

What differs from one kind of API to the other is in `rest_api` and `http_api`.
"""

import asyncio
import base64
import json
import re
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import ClassVar, Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sealane.local.environment import Outcome, ResponseStream
from sealane.local.errors import FunctionError, Throttled
from sealane.local.json_rpc import rpc_of
from sealane.local.json_values import Json, as_mapping
from sealane.local.records import Call, Record
from sealane.local.security import Authorizer, Nobody
from sealane.local.template import Api, Route

BODY_LIMIT: Final = 10 * 1024 * 1024
"""Bytes of a request body that API Gateway takes.

https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-quotas.html
https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-execution-service-limits-table.html
"""
EVENT_LIMIT: Final = 6 * 1024 * 1024
"""Bytes of an event (JSON) that Lambda takes.

https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
"""
HEADER_LIMIT: Final = 10_240
"""Bytes of all headers together that API Gateway takes; what counts differs, see `header_size`.

https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-quotas.html
https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-execution-service-limits-table.html
"""
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade"})
_REMAPPED: Final = frozenset(
    {"connection", "content-length", "date", "server", "transfer-encoding", "www-authenticate"}
)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

STREAM_IDLE_LIMIT: Final = 300
"""Seconds that a stream may be silent, before its first byte and after it (regional endpoints).

https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode.html
"""
_METADATA_END: Final = b"\0" * 8
_METADATA_LIMIT: Final = 16 * 1024
"""Bytes of a stream in which its metadata must have ended.

https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode-lambda.html
"""

Invoke = Callable[[str, bytes, str], Awaitable[Outcome]]
"""Calls a function: logical id, event as JSON, trace header."""
Stream = Callable[[str, bytes, str], ResponseStream]
"""The same for an answer that is read as it comes."""


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP, which also keeps the header lines as they were sent, in `scope["state"]["header_lines"]`.

    `scope["state"]["abort"]()` breaks the connection off.
    """

    def on_message_begin(self) -> None:
        """Called by the parser for every request."""
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for every header line."""
        super().on_header(name, value)
        self.scope["state"].setdefault("header_lines", []).append((name.decode("latin-1"), value.decode("latin-1")))


class MalformedAnswer(Exception):
    """A function's answer that the API cannot turn into HTTP; the text says why."""


class Failure(Enum):
    """Why an API answers in the function's place."""

    NO_ROUTE = auto()
    HEADERS_TOO_LONG = auto()
    BODY_TOO_LONG = auto()
    EVENT_TOO_LONG = auto()
    TIMEOUT = auto()
    """The API waited for the function as long as it does."""
    THROTTLED = auto()
    FUNCTION = auto()
    """The function failed, exceeded its own time-out, or gave an answer that is none."""
    UNAUTHORIZED = auto()
    """The request has no credentials, or bad ones."""
    NO_SIGNATURE = auto()
    """The request is not signed for IAM."""
    NO_API_KEY = auto()
    DENIED = auto()
    """Nothing allows the caller to do this."""
    DENIED_EXPLICITLY = auto()
    AUTHORIZER = auto()
    """The authorizer failed, or gave an answer that is none."""
    AUTHORIZER_TIMEOUT = auto()


NOBODY: Final = {
    Nobody.IAM: Failure.NO_SIGNATURE,
    Nobody.USER_POOL: Failure.UNAUTHORIZED,
    Nobody.API_KEY: Failure.NO_API_KEY,
    Nobody.FUNCTION: Failure.AUTHORIZER,
}
"""What the routes answer whose authorization is not emulated."""


@dataclass(frozen=True)
class OwnAnswer:
    """An answer of an API itself.

    Attributes:
        status: HTTP status.
        content: the body: text, or a mapping for JSON.
    """

    status: int
    content: str | Mapping[str, str | None]

    @property
    def message(self) -> str | None:
        """Its text."""
        return self.content if isinstance(self.content, str) else next(iter(self.content.values()))

    def response(self) -> Response:
        """The answer as HTTP."""
        if isinstance(self.content, str):
            return Response(self.content, self.status, media_type="text/plain")
        return JSONResponse(self.content, self.status)


class Refused(Exception):
    """The API answers in the function's place.

    Args:
        failure: why.
        problem: the same in words, None for what needs none.
        outcome: the function's, where it was called.
        headers: further headers of the answer.
        authorizer: what an authorizer told of the caller.
    """

    def __init__(
        self,
        failure: Failure,
        problem: str | None,
        outcome: Outcome | None = None,
        headers: Mapping[str, str] | None = None,
        authorizer: Json = None,
    ) -> None:
        super().__init__(problem)
        self.failure = failure
        self.problem = problem
        self.outcome = outcome
        self.headers = headers or {}
        self.authorizer = authorizer


@dataclass(frozen=True)
class Match:
    """The route of a request.

    Attributes:
        route: the route.
        parameters: values of the path's parameters, as the URL has them.
    """

    route: Route
    parameters: Mapping[str, str]


class ApiGateway(ABC):
    """An API as an ASGI application.

    Args:
        api: what it serves.
        invoke: calls a function.
        stream: calls a function whose answer is passed on as it comes.
        observe: gets one `Call` for each request.
    """

    own_answers: ClassVar[Mapping[Failure, OwnAnswer]]
    body_limit: ClassVar[int] = BODY_LIMIT
    header_limit: ClassVar[int | None] = HEADER_LIMIT

    def __init__(self, api: Api, invoke: Invoke, stream: Stream, observe: Callable[[Record], None]) -> None:
        self.api = api
        self._invoke = invoke
        self._stream = stream
        self._observe = observe
        self._invocations: set[asyncio.Future[Outcome]] = set()

    @abstractmethod
    def match(self, request: Request) -> Match | None:
        """The route that serves the request, None when there is none."""

    @abstractmethod
    def event(self, request: Request, body: bytes, match: Match, request_id: str, trace_id: str) -> dict[str, Json]:
        """The event that the function gets.

        `requestContext.domainName` is `localhost` whatever the Host header says: it names the endpoint, not the
        request.

        Args:
            request: the HTTP request; its body is not read.
            body: its body.
            match: the route that was reached.
            request_id: the API's request id.
            trace_id: X-Ray trace header.
        """

    @abstractmethod
    def response(self, answer: bytes, request: Request, match: Match) -> Response:
        """The HTTP response that the API makes of a function's answer (JSON).

        Raises:
            MalformedAnswer: the answer has not the form that the API asks for.
        """

    async def authorize(
        self, authorizer: Authorizer, request: Request, match: Match, request_id: str, trace_id: str
    ) -> Json:
        """What the event tells of the caller, in `requestContext.authorizer`.

        Args:
            authorizer: the route's.
            request: the HTTP request.
            match: the route that was reached.
            request_id: the API's request id.
            trace_id: X-Ray trace header.

        Raises:
            Refused: the caller may not do this.
        """
        failure = NOBODY[authorizer] if isinstance(authorizer, Nobody) else Failure.AUTHORIZER
        raise Refused(failure, "its authorization is not emulated: everybody is refused")

    def refusal(self, refused: Refused, request: Request, request_id: str) -> Response:
        """The answer of the API itself."""
        response = self.own_answers[refused.failure].response()
        response.headers.update(refused.headers)
        return response

    def header_size(self, headers: Iterable[tuple[bytes, bytes]]) -> int:
        """Bytes that count towards `header_limit`: those of the values."""
        return sum(len(value) for _, value in headers)

    def request_size(self, request: Request) -> int:
        """Bytes of a request that count towards `header_limit`."""
        return self.header_size(request.scope["headers"])

    def new_request_id(self) -> str:
        """An id for the next request."""
        return str(uuid.uuid4())

    def id_headers(self, request_id: str) -> Mapping[str, str]:
        """Headers that tell the client the request id."""
        return {"x-amzn-RequestId": request_id}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        request, started, request_id = Request(scope, receive), time.perf_counter(), self.new_request_id()
        answer = await self._answer(request, request_id)
        answer.response.headers.update(self.id_headers(request_id))
        if answer.stream is not None:
            answer = await self._pass_on(answer, answer.stream, scope, receive, send)
        rpc, era = rpc_of(answer.body)
        self._observe(
            Call(
                method=request.method,
                path=scope["path"],
                status=answer.response.status_code,
                duration_ms=(time.perf_counter() - started) * 1000,
                request_id=request_id,
                environment=answer.outcome.environment if answer.outcome else None,
                init_ms=answer.outcome.init_ms if answer.outcome else None,
                problem=answer.problem,
                memory=answer.outcome.memory if answer.outcome else None,
                message=rpc,
                era=era,
            )
        )
        if answer.stream is None:
            await answer.response(scope, receive, send)

    async def _pass_on(
        self, answer: "_Answer", stream: ResponseStream, scope: Scope, receive: Receive, send: Send
    ) -> "_Answer":
        """Sends a stream as it comes. One that fails half way breaks the connection off: it must not look whole."""
        problem = None
        try:
            await answer.response(scope, receive, send)
        except ClientDisconnect:
            problem = "the client went away"
        except (FunctionError, TimeoutError) as error:
            problem = str(error) or f"nothing came for {STREAM_IDLE_LIMIT} s"
            scope["state"]["abort"]()
            while (await receive())["type"] != "http.disconnect":
                pass
        return replace(answer, outcome=await stream.outcome(), problem=problem)

    async def _answer(self, request: Request, request_id: str) -> "_Answer":
        body = b""
        try:
            match = self._match(request)
            body = await self._body(request)
            return replace(await self._serve(request, body, match, request_id), body=body)
        except ClientDisconnect:
            return _Answer(Response(status_code=400), None, "the client went away")
        except Refused as refused:
            response = self.refusal(refused, request, request_id)
            return _Answer(response, refused.outcome, refused.problem, body)

    def _match(self, request: Request) -> Match:
        if self.header_limit is not None and (size := self.request_size(request)) > self.header_limit:
            raise Refused(Failure.HEADERS_TOO_LONG, f"the headers have {size} bytes, more than {self.header_limit}")
        match = self.match(request)
        if match is None:
            raise Refused(Failure.NO_ROUTE, None)
        return match

    async def _body(self, request: Request) -> bytes:
        body = await _read_body(request, self.body_limit)
        if body is None:
            raise Refused(Failure.BODY_TOO_LONG, f"the body is over {self.body_limit} bytes")
        return body

    async def _serve(self, request: Request, body: bytes, match: Match, request_id: str) -> "_Answer":
        trace_id = f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)}"
        fields = self.event(request, body, match, request_id, trace_id)
        if match.route.authorizer is not None:
            caller = await self.authorize(match.route.authorizer, request, match, request_id, trace_id)
            fields["requestContext"] = {**as_mapping(fields["requestContext"], "requestContext"), "authorizer": caller}
        event = json.dumps(fields, ensure_ascii=False).encode()
        if len(event) > EVENT_LIMIT:
            raise Refused(Failure.EVENT_TOO_LONG, f"the event has {len(event)} bytes, Lambda takes {EVENT_LIMIT}")
        if match.route.streams:
            return await self._serve_stream(match, event, trace_id)
        # A function goes on when the gateway or the client no longer waits for it.
        invocation = asyncio.ensure_future(self._invoke(match.route.function.name, event, trace_id))
        self._invocations.add(invocation)
        invocation.add_done_callback(self._invocations.discard)
        try:
            outcome = await asyncio.wait_for(asyncio.shield(invocation), match.route.timeout)
        except TimeoutError:
            raise Refused(Failure.TIMEOUT, f"no answer within {match.route.timeout:g} s") from None
        except Throttled as error:
            raise Refused(Failure.THROTTLED, str(error)) from None
        if isinstance(outcome.answer, FunctionError):
            raise Refused(Failure.FUNCTION, str(outcome.answer), outcome)
        try:
            response = self.response(outcome.answer, request, match)
            self._check_headers(response)
        except MalformedAnswer as error:
            raise Refused(Failure.FUNCTION, f"malformed answer: {error}", outcome) from None
        return _Answer(response, outcome)

    async def _serve_stream(self, match: Match, event: bytes, trace_id: str) -> "_Answer":
        try:
            stream = self._stream(match.route.function.name, event, trace_id)
        except Throttled as error:
            raise Refused(Failure.THROTTLED, str(error)) from None
        chunks = aiter(stream)
        try:
            response = await streamed_response(chunks)
            self._check_headers(response)
        except TimeoutError:
            raise Refused(Failure.TIMEOUT, f"nothing came for {STREAM_IDLE_LIMIT} s") from None
        except FunctionError as error:
            raise Refused(Failure.FUNCTION, str(error), await stream.outcome()) from None
        except MalformedAnswer as error:
            raise Refused(Failure.FUNCTION, f"malformed answer: {error}", await stream.outcome()) from None
        return _Answer(response, stream=stream)

    def _check_headers(self, response: Response) -> None:
        """The limit counts for answers too: AWS's quotas give it without a direction.

        What AWS answers then: no source found; an answer beyond a limit is treated as one that is malformed.
        """
        size = self.header_size(response.raw_headers)
        if self.header_limit is not None and size > self.header_limit:
            raise MalformedAnswer(f"its headers have {size} bytes, more than {self.header_limit}")


@dataclass(frozen=True)
class _Answer:
    response: Response
    outcome: Outcome | None = None
    problem: str | None = None
    body: bytes = b""
    """The request's."""
    stream: ResponseStream | None = None
    """Where the response's body comes from, unless it is there already."""


def message(status: int, text: str) -> OwnAnswer:
    """An answer as API Gateway writes its own: `{"message": text}`."""
    return OwnAnswer(status, {"message": text})


# Requests


def by_precision(routes: Iterable[Route]) -> list[Route]:
    """Routes in the order in which they are tried: the exact ones first, greedy parameters last.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-routes.html
    """
    return sorted(routes, key=lambda route: (route.path.count("+}"), route.path.count("{"), route.any_method))


def path_parameters(template: str, path: str) -> dict[str, str] | None:
    """Values of the parameters in a route's path (`/users/{id}`, `/{proxy+}`), None when `path` is not the route's.

    A slash at the end is not part of it: `/mcp/` reaches `/mcp`, and `proxy` of `/a/` is `a`.
    """
    names = re.findall(r"\{([^{}+]+)\+?\}", template)
    pattern = re.sub(
        r"\\\{[^{}]+?(\\\+)?\\\}",
        lambda parameter: "(.+?)" if parameter[1] else "([^/]+)",
        re.escape(template.rstrip("/")),
    )
    found = re.fullmatch(f"{pattern}/?", path)
    return dict(zip(names, found.groups(), strict=True)) if found else None


def raw_path(request: Request) -> str:
    """The path as the client sent it, with its percent signs."""
    path: bytes = request.scope["raw_path"]
    return path.decode("latin-1")


def raw_query(request: Request) -> str:
    """The query as the client sent it, without its question mark."""
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def query_parameters(request: Request) -> dict[str, list[str]]:
    """Every value of every query parameter, decoded."""
    return grouped(parse_qsl(raw_query(request), keep_blank_values=True))


def source_ip(request: Request) -> str:
    """Address of the client."""
    return request.client.host if request.client else "127.0.0.1"


def event_headers(request: Request, trace_id: str, dropped: Iterable[str] = ()) -> dict[str, list[str]]:
    """Every value of every header, under the name as it was first written, with what the gateway adds.

    Args:
        request: the HTTP request.
        trace_id: X-Ray trace header.
        dropped: further names, in lower case, that functions do not see.
    """
    lines: list[tuple[str, str]] = request.scope["state"].get("header_lines", [])
    added = {
        "X-Amzn-Trace-Id": trace_id,
        "X-Forwarded-For": ", ".join([*request.headers.getlist("x-forwarded-for"), source_ip(request)]),
        "X-Forwarded-Port": str(request.scope["server"][1]),
        "X-Forwarded-Proto": request.scope["scheme"],
    }
    hidden = {*_HOP_BY_HOP, *dropped, *(name.lower() for name in added)}
    kept = grouped((name, value) for name, value in lines if name.lower() not in hidden)
    return {**kept, **{name: [value] for name, value in added.items()}}


def request_time() -> tuple[str, int]:
    """The time in the form that events have it, and in milliseconds since 1970."""
    now = time.time()
    return datetime.fromtimestamp(now, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000"), int(now * 1000)


def extended_request_id(request_id: str) -> str:
    """A request id in API Gateway's own form, made of a UUID."""
    return base64.b64encode(uuid.UUID(request_id).bytes[:11]).decode("ascii")


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Values by name, in their order."""
    groups: dict[str, list[str]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return groups


def event_body(body: bytes, *, binary: bool) -> tuple[str | None, bool]:
    """A body as events have it, and whether that is base64. What is not UTF-8 is base64 in any case."""
    if not body:
        return None, False
    if not binary:
        try:
            return body.decode("utf-8"), False
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode("ascii"), True


async def _read_body(request: Request, limit: int) -> bytes | None:
    """The body, or None when it is too long; in any case it is read to its end, so that the client gets the answer."""
    body = bytearray()
    async for chunk in request.stream():
        if len(body) <= limit:
            body += chunk
    return bytes(body) if len(body) <= limit else None


# Answers


def answer_json(answer: bytes) -> Json:
    """A function's answer.

    Raises:
        MalformedAnswer: it is not JSON.
    """
    try:
        value: Json = json.loads(answer)
    except ValueError:
        raise MalformedAnswer("it is not JSON") from None
    return value


def status_code(value: Json) -> int:
    """The status of an answer.

    Raises:
        MalformedAnswer: it is none.
    """
    if not isinstance(value, int | str) or not re.fullmatch("[2-5][0-9]{2}", str(value)):
        raise MalformedAnswer(f"statusCode must be an HTTP status, not {value!r}")
    return int(value)


def answer_body(body: Json, *, is_base64: bool) -> bytes:
    """The body of an answer.

    Raises:
        MalformedAnswer: it is not text, or not the base64 that it should be.
    """
    if not isinstance(body, str | None):
        raise MalformedAnswer(f"body must be text, not {kind_of(body)}")
    if not is_base64:
        return (body or "").encode()
    try:
        return base64.b64decode(body or "", validate=True)
    except ValueError:
        raise MalformedAnswer("isBase64Encoded is true, but body is not base64") from None


def answer_headers(single: Json, multiple: Json = None) -> list[tuple[str, str]]:
    """Header lines of an answer, names in lower case.

    `headers` and `multiValueHeaders` are merged; a pair in both counts once.
    https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html

    `WWW-Authenticate` and some others are renamed to `x-amzn-remapped-…` by all kinds of API:
    https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-known-issues.html (REST API),
    https://github.com/anthropics/claude-ai-mcp/issues/748 (seen with REST API and HTTP API); for function URLs no page
    of AWS says so, but those who deployed MCP servers behind one report it.

    Raises:
        MalformedAnswer: they are no headers.
    """
    single, multiple = single or {}, multiple or {}
    if not isinstance(single, dict):
        raise MalformedAnswer(f"headers must be an object, not {kind_of(single)}")
    if not isinstance(multiple, dict) or not all(isinstance(values, list) for values in multiple.values()):
        raise MalformedAnswer("multiValueHeaders must be an object of lists")
    pairs = [(name, value) for name, values in multiple.items() if isinstance(values, list) for value in values]
    pairs += [pair for pair in single.items() if pair not in pairs]
    return [_header_line(name, value) for name, value in pairs]


def http_response(
    status: int, content: bytes, headers: Iterable[tuple[str, str]], content_type: str | None
) -> Response:
    """The HTTP response; `content_type` is for an answer that names none. 204 and 304 have no body in HTTP."""
    response = Response(b"" if status in (204, 304) else content, status)
    response.raw_headers += [(name.encode("latin-1"), value.encode("utf-8")) for name, value in headers]
    if content_type is not None and "content-type" not in response.headers:
        response.headers["content-type"] = content_type
    return response


async def streamed_response(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    """The HTTP response of a streamed answer: JSON metadata, eight NUL bytes, then the body as it comes.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode-lambda.html

    Raises:
        MalformedAnswer: it does not begin like that.
        FunctionError: the function failed before its body (when read: in the middle of it).
        TimeoutError: nothing came for too long.
    """
    begun = b""
    while _METADATA_END not in begun[:_METADATA_LIMIT]:
        chunk = await _next_chunk(chunks)
        if chunk is None or len(begun) > _METADATA_LIMIT:
            raise MalformedAnswer(f"a stream begins with JSON metadata and eight NUL bytes, in {_METADATA_LIMIT} bytes")
        begun += chunk
    metadata, _, rest = begun.partition(_METADATA_END)
    fields = answer_json(metadata)
    if not isinstance(fields, dict):
        raise MalformedAnswer(f"its metadata must be an object, not {kind_of(fields)}")
    headers = answer_headers(fields.get("headers"), fields.get("multiValueHeaders"))
    cookies = fields.get("cookies") or []
    if not isinstance(cookies, list):
        raise MalformedAnswer(f"cookies must be a list, not {kind_of(cookies)}")
    headers += answer_headers(None, {"set-cookie": cookies})

    async def body() -> AsyncIterator[bytes]:
        chunk: bytes | None = rest
        while chunk is not None:
            yield chunk
            chunk = await _next_chunk(chunks)

    response = StreamingResponse(body(), status_code(fields.get("statusCode", 200)))
    response.raw_headers += [(name.encode("latin-1"), value.encode("utf-8")) for name, value in headers]
    return response


async def _next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    """The next chunk, None at the end."""
    async with asyncio.timeout(STREAM_IDLE_LIMIT):
        return await anext(chunks, None)


def kind_of(value: Json) -> str:
    """What a JSON value is, for an error text."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


def _header_line(name: str, value: Json) -> tuple[str, str]:
    if not _HEADER_NAME.fullmatch(name):
        raise MalformedAnswer(f"{name!r} cannot be the name of a header")
    if not isinstance(value, str | int | float):
        raise MalformedAnswer(f"header {name} must be text, not {kind_of(value)}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "\r" in text or "\n" in text:
        raise MalformedAnswer(f"header {name} has a line break")
    name = name.lower()
    return (f"x-amzn-remapped-{name}" if name in _REMAPPED else name), text
