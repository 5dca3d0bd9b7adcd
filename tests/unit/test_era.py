"""Which era a request speaks: `is_legacy_request`, and the handler that decides by the same rule."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.types import Message

from sealane import RequestContext, create_mcp_handler, is_legacy_request
from sealane.options import Legacy
from tests.events import LEGACY, MODERN, SHAPES, Answer, Headers, Shape, ask, legacy, modern
from tests.unit.asgi import fetch, starlette_request

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
UNKNOWN = "2027-01-01"
HEADER_MISMATCH, UNSUPPORTED_VERSION, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR = (
    -32020,
    -32022,
    -32602,
    -32600,
    -32700,
)


@dataclass(frozen=True)
class Case:
    """One request, its era, and the answer of a server that serves both eras.

    Attributes:
        code: code of the JSON-RPC error, `None` where there is none.
    """

    headers: Headers
    body: Any
    legacy: bool
    status: int
    code: int | None = None
    method: str = "POST"


def with_headers(request: tuple[dict[str, str], Any], **changes: str | list[str]) -> tuple[Headers, Any]:
    """A request with further or other headers; an empty list leaves one out."""
    headers, body = request
    names = {name.lower().replace("-", "_"): name for name in headers}
    return {**headers, **{names.get(name, name.replace("_", "-")): value for name, value in changes.items()}}, body


def claiming(version: object, header: str | list[str], **meta: object) -> tuple[Headers, Any]:
    """A `tools/list` whose body claims `version` and whose header says `header`."""
    headers, body = with_headers(modern("tools/list"), mcp_protocol_version=header)
    body["params"]["_meta"].update({PROTOCOL_VERSION: version, **meta})
    return headers, body


def without_meta(request: tuple[dict[str, str], Any], *keys: str) -> tuple[dict[str, str], Any]:
    """A request without its `_meta`, or without these keys of it."""
    headers, body = request
    for key in keys:
        del body["params"]["_meta"][key]
    if not keys:
        del body["params"]["_meta"]
    return headers, body


POSTED_RESPONSE = {"jsonrpc": "2.0", "id": 1, "result": {}}
LEGACY_HEADERS, PING = legacy("ping")
TWICE = '{"jsonrpc": "2.0", "id": 1, "method": "ping", "method": "tools/list"}'
STRIPPED: dict[str, list[str]] = {"mcp_protocol_version": [], "mcp_method": [], "mcp_name": []}

CASES: dict[str, Case] = {
    # legacy
    "initialize": Case(*legacy("initialize"), legacy=True, status=200),
    "request of 2025": Case(*legacy("tools/list"), legacy=True, status=200),
    "request without a version": Case(*legacy("tools/list", version=None), legacy=True, status=200),
    "request with a progress token": Case(*legacy("ping", _meta={"progressToken": 1}), legacy=True, status=200),
    "notification of 2025": Case(*legacy("notifications/initialized"), legacy=True, status=202),
    "posted response": Case(LEGACY_HEADERS, POSTED_RESPONSE, legacy=True, status=202),
    "all-legacy batch": Case(LEGACY_HEADERS, [PING, PING], legacy=True, status=400, code=INVALID_REQUEST),
    "empty batch": Case(LEGACY_HEADERS, [], legacy=True, status=400, code=INVALID_REQUEST),
    "empty body": Case(LEGACY_HEADERS, "", legacy=True, status=400, code=PARSE_ERROR),
    "unparsable body": Case(LEGACY_HEADERS, '{"jsonrpc":', legacy=True, status=400, code=PARSE_ERROR),
    "unparsable body under a modern header": Case(modern("ping")[0], "}", legacy=True, status=400, code=PARSE_ERROR),
    "body that is not UTF-8": Case(LEGACY_HEADERS, b"\xff\xfe\xff", legacy=True, status=400, code=PARSE_ERROR),
    "body nested too deep": Case(LEGACY_HEADERS, "[" * 100_000, legacy=True, status=400, code=PARSE_ERROR),
    "member named twice": Case(LEGACY_HEADERS, TWICE, legacy=True, status=400, code=PARSE_ERROR),
    "member named twice under a modern header": Case(
        modern("ping")[0], TWICE, legacy=True, status=400, code=PARSE_ERROR
    ),
    "byte order mark": Case(LEGACY_HEADERS, "\ufeff{}", legacy=True, status=400, code=PARSE_ERROR),
    "body of a JSON scalar": Case(LEGACY_HEADERS, "1", legacy=True, status=400, code=INVALID_REQUEST),
    "GET": Case({"Accept": "text/event-stream"}, "", legacy=True, status=405, code=INVALID_REQUEST, method="GET"),
    "GET under a modern header": Case(
        {"Accept": "text/event-stream", "MCP-Protocol-Version": MODERN},
        "",
        legacy=True,
        status=405,
        code=INVALID_REQUEST,
        method="GET",
    ),
    "DELETE": Case({"Mcp-Session-Id": "1"}, "", legacy=True, status=405, code=INVALID_REQUEST, method="DELETE"),
    # modern
    "request of 2026": Case(*modern("tools/list"), legacy=False, status=200),
    "notification of 2026": Case(*modern("notifications/cancelled", id=None), legacy=False, status=202),
    "claim of an unknown revision": Case(
        *claiming(UNKNOWN, UNKNOWN), legacy=False, status=400, code=UNSUPPORTED_VERSION
    ),
    "claim of a handshake revision": Case(
        *claiming(LEGACY, LEGACY), legacy=False, status=400, code=UNSUPPORTED_VERSION
    ),
    "claim of no revision": Case(*claiming(None, MODERN), legacy=False, status=400, code=HEADER_MISMATCH),
    "envelope without capabilities": Case(
        *without_meta(modern("tools/list"), CLIENT_CAPABILITIES), legacy=False, status=400, code=INVALID_PARAMS
    ),
    "envelope with malformed capabilities": Case(
        *claiming(MODERN, MODERN, **{CLIENT_CAPABILITIES: "all"}), legacy=False, status=400, code=INVALID_PARAMS
    ),
    "modern header without an envelope": Case(
        *without_meta(modern("tools/list")), legacy=False, status=400, code=INVALID_PARAMS
    ),
    "modern header without the claim": Case(
        *without_meta(modern("tools/list"), PROTOCOL_VERSION), legacy=False, status=400, code=INVALID_PARAMS
    ),
    "unknown header without an envelope": Case(
        *with_headers(legacy("tools/list"), mcp_protocol_version=UNKNOWN),
        legacy=False,
        status=400,
        code=INVALID_PARAMS,
    ),
    "modern body under a legacy header": Case(
        *claiming(MODERN, LEGACY), legacy=False, status=400, code=HEADER_MISMATCH
    ),
    "modern header over a legacy claim": Case(
        *claiming(LEGACY, MODERN), legacy=False, status=400, code=HEADER_MISMATCH
    ),
    "modern body without any protocol header": Case(
        *with_headers(modern("tools/list"), **STRIPPED), legacy=False, status=400, code=HEADER_MISMATCH
    ),
    "modern body without a version header": Case(
        *with_headers(modern("tools/list"), mcp_protocol_version=[]), legacy=False, status=400, code=HEADER_MISMATCH
    ),
    "claim inside a batch": Case(
        LEGACY_HEADERS, [PING, modern("tools/list")[1]], legacy=False, status=400, code=INVALID_REQUEST
    ),
    "modern batch": Case(
        modern("tools/list")[0], [modern("tools/list")[1]], legacy=False, status=400, code=INVALID_REQUEST
    ),
}


PARSED = {name: case for name, case in CASES.items() if isinstance(case.body, dict | list)}
"""Those that another framework could have parsed."""


class Served:
    """A factory that notes the era of each request it is called for."""

    def __init__(self) -> None:
        self.eras: list[str] = []

    def __call__(self, context: RequestContext) -> MCPServer:
        self.eras.append(context.era)
        return MCPServer("era-server")


def error_of(answer: Answer) -> int | None:
    """The code of the answer's JSON-RPC error."""
    if not answer.body:
        return None
    code: int | None = answer.json.get("error", {}).get("code")
    return code


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_is_legacy_request_tells_the_era(case: Case) -> None:
    request = starlette_request((case.headers, case.body), case.method)
    assert asyncio.run(is_legacy_request(request)) is case.legacy


@pytest.mark.parametrize("shape", ["rest", "http", "fetch"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_handler_serves_the_era_that_is_legacy_request_tells(case: Case, shape: Any) -> None:
    served = Served()
    handler = create_mcp_handler(served)
    if shape == "fetch":
        answer = fetch(handler, starlette_request((case.headers, case.body), case.method))
    else:
        answer = ask(handler, (case.headers, case.body), shape, method=case.method)
    assert (answer.status, error_of(answer)) == (case.status, case.code)
    assert set(served.eras) <= {"legacy" if case.legacy else "modern"}
    if answer.status == 200:
        assert len(served.eras) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_unknown_revision_is_told_what_is_supported(shape: Shape) -> None:
    answer = ask(create_mcp_handler(Served()), claiming(UNKNOWN, UNKNOWN), shape)
    assert answer.status == 400
    assert answer.json["error"]["data"] == {"supported": [MODERN], "requested": UNKNOWN}
    assert answer.json["id"] == 1


@pytest.mark.parametrize("shape", ["rest", "http", "http-v1", "url", "alb-multi", "sam-local", "fetch"])
@pytest.mark.parametrize("repeated", [[MODERN, MODERN], [MODERN, LEGACY], [LEGACY, MODERN]])
def test_duplicated_version_header_is_refused(repeated: list[str], shape: Any) -> None:
    request = claiming(MODERN, repeated)
    handler = create_mcp_handler(Served())
    answer = fetch(handler, starlette_request(request)) if shape == "fetch" else ask(handler, request, shape)
    assert (answer.status, error_of(answer)) == (400, HEADER_MISMATCH)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_request_stays_readable_after_the_question(case: Case) -> None:
    handler = create_mcp_handler(Served())

    async def question_then_answer() -> int:
        request = starlette_request((case.headers, case.body), case.method)
        await is_legacy_request(request)
        return (await handler.fetch(request)).status_code

    assert asyncio.run(question_then_answer()) == case.status


@pytest.mark.parametrize("case", PARSED.values(), ids=PARSED)
def test_question_with_a_parsed_body_does_not_read(case: Case) -> None:
    scope = starlette_request((case.headers, case.body), case.method).scope

    async def receive() -> Message:
        raise AssertionError("the body was read")

    assert asyncio.run(is_legacy_request(Request(scope, receive), case.body)) is case.legacy


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_reject_refuses_initialize_and_names_what_is_supported(version: str, shape: Shape) -> None:
    served = Served()
    answer = ask(create_mcp_handler(served, legacy="reject"), legacy("initialize", id="i", version=version), shape)
    assert (answer.status, error_of(answer)) == (400, UNSUPPORTED_VERSION)
    assert answer.json["error"]["data"] == {"supported": [MODERN], "requested": version}
    assert answer.json["id"] == "i"
    assert served.eras == []


@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25", None])
@pytest.mark.parametrize("method", ["tools/list", "ping", "no/such-method"])
def test_reject_refuses_every_legacy_request(method: str, version: str | None) -> None:
    answer = ask(create_mcp_handler(Served(), legacy="reject"), legacy(method, version=version))
    assert (answer.status, error_of(answer)) == (400, UNSUPPORTED_VERSION)
    assert answer.json["error"]["data"]["supported"] == [MODERN]


@pytest.mark.parametrize("shape", SHAPES)
def test_reject_accepts_legacy_notifications(shape: Shape) -> None:
    answer = ask(create_mcp_handler(Served(), legacy="reject"), legacy("notifications/initialized"), shape)
    assert (answer.status, answer.body) == (202, "")


@pytest.mark.parametrize("mode", ["stateless", "reject"])
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH"])
def test_other_methods_are_told_to_post(method: str, mode: Legacy) -> None:
    served = Served()
    answer = ask(create_mcp_handler(served, legacy=mode), ({}, None), method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    assert served.eras == []


def test_reject_serves_modern_requests() -> None:
    served = Served()
    assert ask(create_mcp_handler(served, legacy="reject"), modern("tools/list")).status == 200
    assert served.eras == ["modern"]


@pytest.mark.parametrize("name", ["empty body", "unparsable body", "all-legacy batch", "posted response"])
def test_reject_refuses_what_is_no_request_with_an_error(name: str) -> None:
    case = CASES[name]
    answer = ask(create_mcp_handler(Served(), legacy="reject"), (case.headers, case.body))
    assert answer.status == 400
    assert answer.json["id"] is None
