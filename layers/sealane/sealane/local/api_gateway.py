"""A REST API of Amazon API Gateway: HTTP in, a payload 1.0 event to the function, its answer out as HTTP.

The API is served at the root, not under its stage. Differences from AWS: a request body that is neither UTF-8 nor of
a binary media type arrives base64-encoded (AWS damages it), and a throttled function is answered 429 (AWS: 500).
"""

import asyncio
import base64
import json
import re
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as StarletteRoute
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sealane.local.environment import Outcome
from sealane.local.errors import FunctionError, Throttled
from sealane.local.records import Call, Record
from sealane.local.template import ACCOUNT_ID, Json, RestApi, Route

BODY_LIMIT = 10 * 1024 * 1024
"""Bytes of a request body.

https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-execution-service-limits-table.html
"""
_API_ID = "local"
_RESOURCE_ID = "local"
_ANSWER_KEYS = {"statusCode", "headers", "multiValueHeaders", "body", "isBase64Encoded"}
_NOT_PASSED_ON = {"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"}
_REMAPPED = {"connection", "content-length", "date", "server", "transfer-encoding", "www-authenticate"}
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

Invoke = Callable[[str, bytes, str], Awaitable[Outcome]]
"""Calls a function: logical id, event as JSON, trace header."""


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP, which also keeps the header lines as they were sent, in `scope["state"]["header_lines"]`."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for every header line."""
        super().on_header(name, value)
        self.scope["state"].setdefault("header_lines", []).append((name.decode("latin-1"), value.decode("latin-1")))


class MalformedAnswer(Exception):
    """A function's answer that API Gateway cannot turn into HTTP; the text says why."""


def rest_event(
    request: Request, body: bytes, api: RestApi, route: Route, request_id: str, trace_id: str
) -> dict[str, Json]:
    """The event of a Lambda proxy integration.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html

    `requestContext.domainName` is `localhost` whatever the Host header says: it names the endpoint, not the request.

    Args:
        request: the HTTP request; its body is not read.
        body: its body.
        api: the API.
        route: the route that was reached.
        request_id: the gateway's request id.
        trace_id: X-Ray trace header.
    """
    headers = _event_headers(request, trace_id)
    query = _grouped(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    source_ip = request.client.host if request.client else "127.0.0.1"
    now = time.time()
    text, is_base64 = _event_body(body, request.headers.get("content-type", ""), api)
    return {
        "resource": route.path,
        "path": request.scope["path"],
        "httpMethod": request.method,
        "headers": {name: values[-1] for name, values in headers.items()},
        "multiValueHeaders": {name: list(values) for name, values in headers.items()},
        "queryStringParameters": {name: values[-1] for name, values in query.items()} or None,
        "multiValueQueryStringParameters": {name: list(values) for name, values in query.items()} or None,
        "pathParameters": dict(request.path_params) or None,
        "stageVariables": None,
        "requestContext": {
            "accountId": ACCOUNT_ID,
            "apiId": _API_ID,
            "domainName": "localhost",
            "domainPrefix": "localhost",
            "extendedRequestId": _extended_request_id(request_id),
            "httpMethod": request.method,
            "identity": {
                "accessKey": None,
                "accountId": None,
                "caller": None,
                "cognitoAuthenticationProvider": None,
                "cognitoAuthenticationType": None,
                "cognitoIdentityId": None,
                "cognitoIdentityPoolId": None,
                "principalOrgId": None,
                "sourceIp": source_ip,
                "user": None,
                "userAgent": request.headers.get("user-agent"),
                "userArn": None,
            },
            "path": f"/{api.stage}{request.scope['path']}",
            "protocol": f"HTTP/{request.scope['http_version']}",
            "requestId": request_id,
            "requestTime": datetime.fromtimestamp(now, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000"),
            "requestTimeEpoch": int(now * 1000),
            "resourceId": _RESOURCE_ID,
            "resourcePath": route.path,
            "stage": api.stage,
        },
        "body": text,
        "isBase64Encoded": is_base64,
    }


def http_response(answer: bytes, accept: str, api: RestApi) -> Response:
    """The HTTP response that API Gateway makes of a function's answer.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html

    A base64 body is decoded only where the API has a binary media type that fits the request's Accept header:
    https://docs.aws.amazon.com/apigateway/latest/developerguide/lambda-proxy-binary-media.html

    Args:
        answer: the function's answer as JSON.
        accept: the request's Accept header.
        api: the API.

    Raises:
        MalformedAnswer: the answer has not the form that API Gateway asks for.
    """
    fields = _answer_fields(answer)
    status, body = fields["statusCode"], fields.get("body")
    if not isinstance(status, int | str) or not re.fullmatch("[2-5][0-9]{2}", str(status)):
        raise MalformedAnswer(f"statusCode must be an HTTP status, not {status!r}")
    if not isinstance(body, str | None):
        raise MalformedAnswer(f"body must be text, not {_kind(body)}")
    content = (body or "").encode()
    if fields.get("isBase64Encoded") and _is_binary(accept.split(",")[0], api):
        try:
            content = base64.b64decode(content, validate=True)
        except ValueError:
            raise MalformedAnswer("isBase64Encoded is true, but body is not base64") from None
    headers = _answer_headers(fields)
    if not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", "application/json"))
    response = Response(content, int(status))
    response.raw_headers += [(name.encode("latin-1"), value.encode("utf-8")) for name, value in headers]
    return response


class ApiGateway:
    """The API as an ASGI application.

    Args:
        api: what it serves.
        invoke: calls a function.
        observe: gets one `Call` for each request.

    Attributes:
        app: the application.
    """

    def __init__(self, api: RestApi, invoke: Invoke, observe: Callable[[Record], None]) -> None:
        self._api = api
        self._invoke = invoke
        self._observe = observe
        self._invocations: set[asyncio.Future[Outcome]] = set()
        # Fixed segments go before parameters, greedy parameters come last.
        routes = sorted(api.routes, key=lambda route: (route.path.count("+}"), route.path.count("{")))
        self.app = Starlette(
            routes=[starlette_route for route in routes for starlette_route in self._starlette_routes(route)],
            exception_handlers={404: self._no_route, 405: self._no_route},
        )
        self.app.router.redirect_slashes = False

    def _starlette_routes(self, route: Route) -> list[StarletteRoute]:
        async def endpoint(request: Request) -> Response:
            return await self._serve(request, route)

        path = route.path.replace("+}", ":path}").rstrip("/")
        return [StarletteRoute(each, endpoint, methods=list(route.methods)) for each in (path or "/", f"{path}/")]

    async def _no_route(self, request: Request, error: Exception) -> Response:
        answer = _own_answer(403, "Missing Authentication Token")
        return self._finish(request, answer, str(uuid.uuid4()), time.perf_counter())

    async def _serve(self, request: Request, route: Route) -> Response:
        started, request_id = time.perf_counter(), str(uuid.uuid4())
        return self._finish(request, await self._answer(request, route, request_id), request_id, started)

    async def _answer(self, request: Request, route: Route, request_id: str) -> "_Answer":
        try:
            body = await _read_body(request)
        except ClientDisconnect:
            return _own_answer(400, "Bad Request", "the client went away")
        if body is None:
            return _own_answer(413, "Request Too Long", f"the body is over {BODY_LIMIT} bytes")
        trace_id = f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)}"
        event = rest_event(request, body, self._api, route, request_id, trace_id)
        # A function goes on when the gateway or the client no longer waits for it.
        invocation = asyncio.ensure_future(self._invoke(route.function.name, json.dumps(event).encode(), trace_id))
        self._invocations.add(invocation)
        invocation.add_done_callback(self._invocations.discard)
        try:
            outcome = await asyncio.wait_for(asyncio.shield(invocation), route.timeout)
        except TimeoutError:
            return _own_answer(504, "Endpoint request timed out", f"no answer within {route.timeout:g} s")
        except Throttled as error:
            return _own_answer(429, "Too Many Requests", str(error))
        if isinstance(outcome.answer, FunctionError):
            return _own_answer(502, "Internal server error", str(outcome.answer), outcome)
        try:
            return _Answer(http_response(outcome.answer, request.headers.get("accept", "*/*"), self._api), outcome)
        except MalformedAnswer as error:
            return _own_answer(502, "Internal server error", f"malformed answer: {error}", outcome)

    def _finish(self, request: Request, answer: "_Answer", request_id: str, started: float) -> Response:
        answer.response.headers["x-amzn-RequestId"] = request_id
        answer.response.headers["x-amz-apigw-id"] = _extended_request_id(request_id)
        self._observe(
            Call(
                method=request.method,
                path=request.scope["path"],
                status=answer.response.status_code,
                duration_ms=(time.perf_counter() - started) * 1000,
                request_id=request_id,
                environment=answer.outcome.environment if answer.outcome else None,
                init_ms=answer.outcome.init_ms if answer.outcome else None,
                problem=answer.problem,
            )
        )
        return answer.response


@dataclass(frozen=True)
class _Answer:
    response: Response
    outcome: Outcome | None = None
    problem: str | None = None


def _own_answer(status: int, message: str, problem: str | None = None, outcome: Outcome | None = None) -> _Answer:
    """https://docs.aws.amazon.com/apigateway/latest/developerguide/supported-gateway-response-types.html"""
    return _Answer(JSONResponse({"message": message}, status), outcome, problem)


async def _read_body(request: Request) -> bytes | None:
    """The body, or None when it is too long; in any case it is read to its end, so that the client gets the answer."""
    body = bytearray()
    async for chunk in request.stream():
        if len(body) <= BODY_LIMIT:
            body += chunk
    return bytes(body) if len(body) <= BODY_LIMIT else None


def _event_headers(request: Request, trace_id: str) -> dict[str, list[str]]:
    """Every value of every header, under the name as it was first written, with what the gateway adds."""
    lines: list[tuple[str, str]] = request.scope["state"].get("header_lines", [])
    headers = _grouped((name, value) for name, value in lines if name.lower() not in _NOT_PASSED_ON)
    host = request.client.host if request.client else "127.0.0.1"
    added = {
        "X-Amzn-Trace-Id": trace_id,
        "X-Forwarded-For": ", ".join([*request.headers.getlist("x-forwarded-for"), host]),
        "X-Forwarded-Port": str(request.scope["server"][1]),
        "X-Forwarded-Proto": request.scope["scheme"],
    }
    names = {name.lower() for name in added}
    kept = {name: values for name, values in headers.items() if name.lower() not in names}
    return {**kept, **{name: [value] for name, value in added.items()}}


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, value in pairs:
        grouped.setdefault(name, []).append(value)
    return grouped


def _event_body(body: bytes, content_type: str, api: RestApi) -> tuple[str | None, bool]:
    if not body:
        return None, False
    if not _is_binary(content_type, api):
        try:
            return body.decode("utf-8"), False
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode("ascii"), True


def _is_binary(media_type: str, api: RestApi) -> bool:
    wanted = media_type.partition(";")[0].strip().lower()
    return not api.binary_media_types.isdisjoint({"*/*", wanted, f"{wanted.partition('/')[0]}/*"})


def _extended_request_id(request_id: str) -> str:
    return base64.b64encode(uuid.UUID(request_id).bytes[:11]).decode("ascii")


def _answer_fields(answer: bytes) -> dict[str, Json]:
    fields: Json = json.loads(answer)
    if not isinstance(fields, dict):
        raise MalformedAnswer(f"it must be an object, not {_kind(fields)}")
    if unknown := fields.keys() - _ANSWER_KEYS:
        raise MalformedAnswer(f"it cannot have {', '.join(sorted(unknown))}")
    if "statusCode" not in fields:
        raise MalformedAnswer("it has no statusCode")
    return fields


def _answer_headers(fields: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Header lines, names in lower case. `headers` and `multiValueHeaders` are merged; a pair in both counts once."""
    single, multiple = fields.get("headers") or {}, fields.get("multiValueHeaders") or {}
    if not isinstance(single, dict):
        raise MalformedAnswer(f"headers must be an object, not {_kind(single)}")
    if not isinstance(multiple, dict) or not all(isinstance(values, list) for values in multiple.values()):
        raise MalformedAnswer("multiValueHeaders must be an object of lists")
    pairs = [(name, value) for name, values in multiple.items() if isinstance(values, list) for value in values]
    pairs += [pair for pair in single.items() if pair not in pairs]
    return [_header_line(name, value) for name, value in pairs]


def _header_line(name: str, value: Json) -> tuple[str, str]:
    if not _HEADER_NAME.fullmatch(name):
        raise MalformedAnswer(f"{name!r} cannot be the name of a header")
    if not isinstance(value, str | int | float):
        raise MalformedAnswer(f"header {name} must be text, not {_kind(value)}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "\r" in text or "\n" in text:
        raise MalformedAnswer(f"header {name} has a line break")
    name = name.lower()
    return (f"x-amzn-remapped-{name}" if name in _REMAPPED else name), text


def _kind(value: Json) -> str:
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
