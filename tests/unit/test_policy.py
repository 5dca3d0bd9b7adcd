"""Who may speak: Host, Origin, CORS and the size of the body, on every way in."""

import asyncio
import http.client
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp.server.mcpserver import MCPServer

from sealane import Cors, McpHandler, create_mcp_handler
from tests.events import SHAPES, Answer, Headers, Shape, ask, legacy, make_event, modern
from tests.unit.asgi import fetch, serving, starlette_request

Request = tuple[Headers, Any]

OWN = "a1b2c3d4e5.execute-api.eu-west-1.amazonaws.com"
OTHER = "z9y8x7w6v5.execute-api.eu-west-1.amazonaws.com"
FUNCTION_URL = "abcdefghijklmnopqrstuvwxyz012345.lambda-url.eu-west-1.on.aws"
CUSTOM = "mcp.example.com"
PAGE = "https://app.example.com"
NAMED: tuple[Shape, ...] = ("rest", "http", "http-v1", "url")
"""The shapes whose events say which name of the endpoint was reached."""


def make_server() -> MCPServer:
    """A server with one tool."""
    server = MCPServer("policy-server")

    @server.tool()
    def echo(text: str) -> str:
        return text

    return server


HANDLER = create_mcp_handler(make_server)


def request_from(method: str = "tools/list", **headers: str | list[str]) -> Request:
    """A request that is served if the policy lets it through, with further headers (`_` for `-`)."""
    sent, body = modern(method)
    return {**sent, **{name.replace("_", "-"): value for name, value in headers.items()}}, body


def preflight(*names: str, origin: str = PAGE, method: str = "POST", **headers: str) -> Request:
    """A browser's question whether it may send these headers."""
    sent = {"Origin": origin, "Access-Control-Request-Method": method, **headers}
    if names:
        sent["Access-Control-Request-Headers"] = ",".join(names)
    return sent, None


def listed(value: str) -> set[str]:
    """The items of a list header, in lower case."""
    return {item.strip().lower() for item in value.split(",")}


def cors_headers(answer: Answer) -> dict[str, str]:
    """The CORS headers of an answer."""
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def by_fetch(handler: McpHandler, request: Request, host: str | list[str], server: str) -> int:
    """The status of a request through `fetch` whose connection reached `server`."""
    headers, body = request
    return fetch(handler, starlette_request(({**headers, "host": host}, body), server=server)).status


# Host


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize("endpoint", [OWN, FUNCTION_URL])
@pytest.mark.parametrize("spell", ["{}", "{}:443", "{}:8443"])
@pytest.mark.parametrize("upper", [False, True])
def test_c1_own_aws_name_is_served(upper: bool, spell: str, endpoint: str, shape: Shape) -> None:
    host = spell.format(endpoint.upper() if upper else endpoint)
    assert ask(HANDLER, request_from(Host=host), shape, domain_name=endpoint).status == 200


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize("host", [OTHER, FUNCTION_URL, "evil.example", f"{OWN}.evil.example", f"evil@{OWN}", "", []])
def test_c1_other_name_at_an_aws_named_endpoint_is_misdirected(host: str | list[str], shape: Shape) -> None:
    answer = ask(HANDLER, request_from(Host=host), shape, domain_name=OWN)
    assert answer.status == 421
    assert answer.json["error"]["code"] == -32600


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize("host", [CUSTOM, CUSTOM.upper(), f"{CUSTOM}:443"])
def test_c1_custom_domain_is_served_by_default(host: str, shape: Shape) -> None:
    assert ask(HANDLER, request_from(Host=host), shape, domain_name=CUSTOM).status == 200


@pytest.mark.parametrize("shape", ["alb", "alb-multi"])
def test_c1_load_balancer_which_names_no_endpoint_is_served(shape: Shape) -> None:
    assert ask(HANDLER, request_from(Host=CUSTOM), shape).status == 200


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("allowed", [[CUSTOM], [CUSTOM.upper()], {CUSTOM, "other.example.com"}])
@pytest.mark.parametrize(
    ("host", "status"),
    [
        (CUSTOM, 200),
        (CUSTOM.upper(), 200),
        (f"{CUSTOM}:443", 200),
        (OWN, 421),
        ("evil.example", 421),
        (f"x{CUSTOM}", 421),
    ],
)
def test_c1_list_is_in_force_on_every_shape(host: str, status: int, allowed: Any, shape: Shape) -> None:
    handler = create_mcp_handler(make_server, allowed_hostnames=allowed)
    assert ask(handler, request_from(Host=host), shape, domain_name=OWN).status == status


@pytest.mark.parametrize(
    ("host", "server", "status"),
    [
        ("localhost:3000", "127.0.0.1", 200),
        ("LOCALHOST", "localhost", 200),
        ("[::1]:3000", "::1", 200),
        ("evil.example", "127.0.0.1", 421),
        ("127.0.0.1.evil.example", "127.0.0.1", 421),
        (["localhost", "evil.example"], "127.0.0.1", 421),
        ([], "127.0.0.1", 421),
        (CUSTOM, "10.0.0.7", 200),
    ],
)
def test_c1_through_fetch(host: str | list[str], server: str, status: int) -> None:
    assert by_fetch(HANDLER, request_from(), host, server) == status


@pytest.mark.parametrize(("host", "status"), [(CUSTOM, 200), ("localhost", 421)])
def test_c1_list_is_in_force_through_fetch(host: str, status: int) -> None:
    handler = create_mcp_handler(make_server, allowed_hostnames=[CUSTOM])
    assert by_fetch(handler, request_from(), host, "127.0.0.1") == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:3000", 200),
        ("127.0.0.1:3000", 200),
        ("[::1]:3000", 200),
        ("evil.example", 421),
        ("evil.example:3000", 421),
        ("localhost.evil.example", 421),
    ],
)
def test_local_endpoint_of_sam_serves_only_localhost_names(
    host: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SAM_LOCAL", "true")
    assert ask(HANDLER, request_from(Host=host), "sam-local").status == status


def test_name_that_sam_copies_from_the_host_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SAM_LOCAL", "true")
    assert ask(HANDLER, request_from(), "sam-local", domain_name="evil.example:3000").status == 421


@pytest.mark.parametrize("shape", ["rest", "http", "http-v1", "url", "sam-local"])
def test_events_of_every_shape_are_served_by_sam_local_invoke(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SAM_LOCAL", "true")
    assert ask(HANDLER, request_from(), shape).status == 200


def test_local_endpoint_under_uvicorn_serves_only_localhost_names() -> None:
    with serving(HANDLER.app) as address:
        port = urlsplit(address).port
        statuses = {
            host: over_http(address, Host=host) for host in (f"127.0.0.1:{port}", f"localhost:{port}", "evil.example")
        }
    assert list(statuses.values()) == [200, 200, 421]


def over_http(address: str, **headers: str) -> int:
    """The status of a request over a real connection."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    sent, body = request_from(**headers)
    try:
        connection.request("POST", "/mcp", make_event("url", body=body)["body"], {k: str(v) for k, v in sent.items()})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("shape", ["rest", "http", "alb"])
@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        (["::1"], "[::1]:3000", 200),
        (["[::1]"], "[::1]", 200),
        (["2001:db8::1"], "[2001:DB8::1]:443", 200),
        (["::1"], "[::2]:3000", 421),
        (["::1"], "::1", 421),
    ],
)
def test_ipv6_hosts(allowed: list[str], host: str, status: int, shape: Shape) -> None:
    handler = create_mcp_handler(make_server, allowed_hostnames=allowed)
    assert ask(handler, request_from(Host=host), shape).status == status


# Origin


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ([], 200),
        (f"https://{OWN}", 200),
        (f"https://{OWN.upper()}:443", 200),
        ("http://localhost:6274", 200),
        ("http://127.0.0.1", 200),
        ("http://[::1]:6274", 200),
        ("null", 403),
        ("", 403),
        (PAGE, 403),
        (f"https://{OTHER}", 403),
        ("//evil", 403),
        (f"//{OWN}", 403),
        (OWN, 403),
        (f"ftp://{OWN}", 403),
        (f"https://evil@{OWN}", 403),
        (f"https://{OWN}@evil.example", 403),
        (f"https://{OWN}/", 403),
        (f"https://{OWN}/path", 403),
        (f"https://{OWN}?query", 403),
        (f"https://{OWN}.evil.example", 403),
        ("https://localhost.evil.example", 403),
        (f"https://{OWN} https://{OWN}", 403),
        ([f"https://{OWN}", f"https://{OWN}"], 403),
        ([f"https://{OWN}", PAGE], 403),
    ],
)
def test_origin_by_default(origin: str | list[str], status: int, shape: Shape) -> None:
    answer = ask(HANDLER, request_from(Origin=origin), shape, domain_name=OWN)
    assert answer.status == status
    if status == 403:
        assert answer.json["error"]["code"] == -32600


def test_origin_of_a_concrete_cors_origin_is_served() -> None:
    handler = create_mcp_handler(make_server, cors=Cors(origins=(PAGE,)))
    assert ask(handler, request_from(Origin=PAGE), domain_name=OWN).status == 200
    assert ask(handler, request_from(Origin="https://other.example.com"), domain_name=OWN).status == 403


@pytest.mark.parametrize("origin", [PAGE, "null", "//evil", "https://evil.example/path"])
def test_origin_check_can_be_switched_off(origin: str) -> None:
    handler = create_mcp_handler(make_server, allowed_origin_hostnames="*")
    assert ask(handler, request_from(Origin=origin), domain_name=OWN).status == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (PAGE, 200),
        (PAGE.upper(), 200),
        (f"{PAGE}:8443", 200),
        (f"https://{OWN}", 403),
        ("http://localhost", 403),
        ([], 200),
    ],
)
def test_origin_list_replaces_the_default(origin: str | list[str], status: int) -> None:
    handler = create_mcp_handler(make_server, allowed_origin_hostnames=["app.example.com"])
    assert ask(handler, request_from(Origin=origin), domain_name=OWN).status == status


@pytest.mark.parametrize(("origin", "status"), [(PAGE, 403), ("null", 403), ("http://localhost", 200), ([], 200)])
def test_origin_through_fetch(origin: str | list[str], status: int) -> None:
    assert fetch(HANDLER, starlette_request(request_from(Origin=origin))).status == status


# CORS


PROTOCOL_HEADERS = (
    "accept",
    "authorization",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-param-region",
    "mcp-param-another.one",
    "mcp-protocol-version",
    "mcp-session-id",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_c2_preflight_allows_every_header_of_the_protocol(shape: Shape) -> None:
    answer = ask(HANDLER, preflight(*PROTOCOL_HEADERS), shape, method="OPTIONS")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert listed(answer.headers["access-control-allow-headers"]) >= set(PROTOCOL_HEADERS)
    assert listed(answer.headers["access-control-allow-methods"]) >= {"get", "post", "delete"}
    assert int(answer.headers["access-control-max-age"]) > 0


def test_c2_preflight_through_fetch() -> None:
    request = starlette_request((preflight(*PROTOCOL_HEADERS)[0], ""), "OPTIONS")
    answer = fetch(HANDLER, request)
    assert answer.status == 200
    assert listed(answer.headers["access-control-allow-headers"]) >= set(PROTOCOL_HEADERS)


@pytest.mark.parametrize("names", [("mcp-param-",), ("mcp-param-a b",), ("x-other",), ("mcp-method", "x-other")])
def test_preflight_for_a_header_that_is_not_allowed_is_refused(names: tuple[str, ...]) -> None:
    assert ask(HANDLER, preflight(*names), method="OPTIONS").status == 400


def test_preflight_for_configured_headers_origins_and_age() -> None:
    cors = Cors(origins=(PAGE,), headers=("X-Tenant",), expose_headers=("X-Trace",), max_age=60)
    handler = create_mcp_handler(make_server, cors=cors)
    answer = ask(handler, preflight("x-tenant", "mcp-param-region"), method="OPTIONS")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-max-age"] == "60"
    assert ask(handler, preflight(origin="https://evil.example"), method="OPTIONS").status == 400
    served = ask(handler, request_from(Origin=PAGE), domain_name=OWN)
    assert listed(served.headers["access-control-expose-headers"]) >= {"x-trace", "mcp-session-id"}
    assert served.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("shape", SHAPES)
def test_c3_initialize_of_a_browser_exposes_session_and_challenge(shape: Shape) -> None:
    headers, body = legacy("initialize")
    answer = ask(HANDLER, ({**headers, "Origin": "http://localhost:6274"}, body), shape)
    assert answer.status == 200
    assert listed(answer.headers["access-control-expose-headers"]) >= {"mcp-session-id", "www-authenticate"}


def failing_server() -> MCPServer:
    """A factory that fails."""
    raise RuntimeError("the table is gone")


ERRORS: dict[str, tuple[Request, dict[str, Any], int]] = {
    "origin": (request_from(Origin=PAGE), {"domain_name": OWN}, 403),
    "path": (request_from(Origin=PAGE), {"path": "/other"}, 404),
    "unknown method": (request_from("no/such", Origin="http://localhost"), {}, 404),
    "HTTP method": (({"Origin": "http://localhost"}, None), {"method": "GET"}, 405),
    "accept": (request_from(Origin="http://localhost", Accept="text/html"), {}, 406),
    "size": (request_from(Origin="http://localhost", Content_Length="99999999"), {}, 413),
    "media type": (request_from(Origin="http://localhost", Content_Type="text/plain"), {}, 415),
    "host": (request_from(Origin=PAGE, Host=OTHER), {"domain_name": OWN}, 421),
    "envelope": (request_from(Origin="http://localhost", Mcp_Method="ping"), {}, 400),
}


@pytest.mark.parametrize("shape", NAMED)
@pytest.mark.parametrize(("request_", "event", "status"), ERRORS.values(), ids=ERRORS)
def test_c3_errors_carry_the_cors_headers(request_: Request, event: dict[str, Any], status: int, shape: Shape) -> None:
    answer = ask(HANDLER, request_, shape, **event)
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == "*"
    assert listed(answer.headers["access-control-expose-headers"]) >= {"mcp-session-id", "www-authenticate"}


def test_c3_internal_error_carries_the_cors_headers() -> None:
    answer = ask(create_mcp_handler(failing_server), request_from(Origin="http://localhost"))
    assert answer.status == 500
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}, {"Host": "evil.example"}])
def test_c4_preflight_is_answered_without_a_token_and_before_the_policy(headers: dict[str, str], shape: Shape) -> None:
    answer = ask(HANDLER, preflight("authorization", **headers), shape, method="OPTIONS", domain_name=OWN)
    assert answer.status == 200
    assert "authorization" in listed(answer.headers["access-control-allow-headers"])


@pytest.mark.parametrize(
    ("request_", "event"),
    [
        (request_from(Origin="http://localhost"), {}),
        (preflight("authorization"), {"method": "OPTIONS"}),
        *[(request_, event) for request_, event, _ in ERRORS.values()],
    ],
)
def test_cors_false_removes_every_cors_header(request_: Request, event: dict[str, Any]) -> None:
    answer = ask(create_mcp_handler(make_server, cors=False), request_, **event)
    assert cors_headers(answer) == {}


def test_request_without_an_origin_gets_no_permission() -> None:
    assert "access-control-allow-origin" not in ask(HANDLER, request_from()).headers


# Size of the body


def sized(size: int, declared: str | None = None) -> Request:
    """A request of exactly `size` bytes."""
    headers, body = modern("tools/call", name="echo", arguments={"text": ""})
    empty = len(make_event("url", body=body)["body"])
    body["params"]["arguments"]["text"] = "x" * (size - empty)
    text = make_event("url", body=body)["body"]
    assert len(text) == size
    return {**headers, **({"Content-Length": declared} if declared else {})}, text


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413), (5000, 413)])
def test_body_larger_than_the_limit_is_refused(size: int, status: int, shape: Shape) -> None:
    handler = create_mcp_handler(make_server, max_request_body_size=1000)
    answer = ask(handler, sized(size), shape)
    assert answer.status == status
    if status == 413:
        assert (answer.json["jsonrpc"], answer.json["id"], answer.json["error"]["code"]) == ("2.0", None, -32600)
        assert answer.headers["content-type"] == "application/json"
        assert not answer.was_base64


def test_limit_counts_bytes_not_characters_nor_base64() -> None:
    handler = create_mcp_handler(make_server, max_request_body_size=1000)
    headers, text = sized(1000)
    assert ask(handler, (headers, text.encode())).status == 200
    assert ask(handler, (headers, text.replace("xx", "ü", 1))).status == 200
    assert ask(handler, (headers, text.replace("x", "ü", 1))).status == 413


@pytest.mark.parametrize("declared", ["1001", "99999999999999999999999999"])
def test_declared_size_is_enough_to_refuse_before_reading(declared: str) -> None:
    handler = create_mcp_handler(make_server, max_request_body_size=1000)
    request = starlette_request(sized(500, declared))

    async def receive() -> Any:
        raise AssertionError("the body was read")

    request._receive = receive
    answer = fetch(handler, request)
    assert (answer.status, answer.json["error"]["code"]) == (413, -32600)


@pytest.mark.parametrize("declared", ["1", "-5", "abc", "٣", ""])
def test_declared_size_that_lies_does_not_help(declared: str) -> None:
    handler = create_mcp_handler(make_server, max_request_body_size=1000)
    assert fetch(handler, starlette_request(sized(1001, declared or None))).status == 413


def test_limit_larger_than_the_default_is_in_force() -> None:
    handler = create_mcp_handler(make_server, max_request_body_size=5 * 1024 * 1024)
    assert ask(handler, sized(4 * 1024 * 1024 + 1)).status == 200
    assert ask(HANDLER, sized(4 * 1024 * 1024 + 1)).status == 413
    assert ask(HANDLER, sized(4 * 1024 * 1024)).status == 200


def test_endless_body_is_refused_without_being_read_to_its_end() -> None:
    handler = create_mcp_handler(make_server, max_request_body_size=1000)
    request = starlette_request(request_from())
    chunks = 0

    async def receive() -> Any:
        nonlocal chunks
        chunks += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    request._receive = receive
    assert fetch(handler, request).status == 413
    assert chunks == 11


def test_event_loop_of_fetch_is_the_callers() -> None:
    async def twice() -> list[int]:
        requests = [starlette_request(request_from()) for _ in range(2)]
        return [response.status_code for response in await asyncio.gather(*map(HANDLER.fetch, requests))]

    assert asyncio.run(twice()) == [200, 200]
