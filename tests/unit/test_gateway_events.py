"""Every shape of event that AWS sends, with the field cases E1 to E4, E6, E7 and P4 on each.

The events themselves are the files of events/; see tests/events.py.
"""

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

import pytest
from mcp.server.mcpserver import MCPServer
from starlette.types import Receive, Scope, Send

from app import handler
from sealane import Catalog, McpHandler, RequestContext, create_mcp_handler
from sealane.gateway.buffered import BufferedGateway
from sealane.gateway.loop import environment_loop
from server import create_server
from tests.events import (
    NO_CONTEXT,
    SHAPES,
    Headers,
    Shape,
    answer,
    ask,
    event_names,
    legacy,
    load_event,
    make_event,
    modern,
)

EVERY_SHAPE: Final = {
    "discover": 200,
    "call-hello": 200,
    "legacy-initialize": 200,
    "legacy-initialized": 202,
    "legacy-call-hello": 200,
    "trailing-slash": 200,
    "body-base64": 200,
    "get": 405,
}
"""Status by case, for each shape."""
STAGES: Final = {
    "http-stage-prod": 200,
    "http-stage-prod-default-route": 200,
    "http-stage-prod-trailing-slash": 200,
    "http-v1-stage-prod": 200,
    "http-v1-stage-prod-default-route": 200,
    "http-not-the-stage": 404,
    "http-v1-not-the-stage": 404,
    "http-default-stage-prod-path": 404,
    "url-prod-path": 404,
}
"""What an HTTP API puts before the path, in both payloads, and what only looks like it."""
BASE_PATHS: Final = {
    "rest-base-path": 200,
    "rest-proxy-resource": 200,
    "http-base-path": 200,
    "http-v1-base-path": 200,
}
"""A custom domain's base path, and the resource that finds it."""
METHODS: Final = {
    "rest-delete": 405,
    "http-delete": 405,
    "rest-preflight": 200,
    "http-preflight": 200,
    "url-preflight": 200,
}
MALFORMED: Final = {
    "empty": 400,
    "rest-all-headers-null": 421,
    "http-headers-null": 421,
    "url-headers-null": 421,
    "alb-headers-null": 415,
    "alb-multi-headers-null": 415,
    "rest-body-not-base64": 400,
    "http-body-not-base64": 400,
    "alb-body-not-base64": 400,
    "alb-multi-body-not-base64": 400,
    "rest-body-null": 400,
    "http-body-null": 400,
    "alb-body-null": 400,
    "rest-host-ipv6": 421,
    "http-host-ipv6": 421,
}
"""What is refused, and how."""
UNUSUAL: Final = {
    "rest-query": 200,
    "http-v1-query": 200,
    "http-query-and-cookies": 200,
    "alb-query": 200,
    "alb-multi-query": 200,
    "rest-headers-null": 200,
    "rest-multi-value-headers-null": 200,
    "alb-host-ipv6": 200,
    "sam-local-host-ipv6": 200,
    "scheduled-ping": 204,
}
"""What is unusual but says enough."""
STATUSES: Final = {
    **{f"{shape}-{case}": status for shape in SHAPES for case, status in EVERY_SHAPE.items()},
    **STAGES,
    **BASE_PATHS,
    **METHODS,
    **MALFORMED,
    **UNUSUAL,
}

every_shape = pytest.mark.parametrize("shape", SHAPES)


class Interrupted(Exception):
    """Raised by a signal handler, as time-limit libraries do."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Call it to be interrupted a moment later."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda: _set_timer(0.05)
    _set_timer(0)
    signal.signal(signal.SIGALRM, before)


def _set_timer(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def failing_handler(cleaned_up: list[str]) -> McpHandler:
    """A handler whose tools fail in the ways that tools fail."""
    catalog = Catalog()

    @catalog.tool()
    async def raises() -> str:
        raise ValueError("a tool failed")

    @catalog.tool()
    async def exits() -> str:
        sys.exit(3)

    @catalog.tool()
    def exits_in_thread() -> str:
        sys.exit(3)

    @catalog.tool()
    async def is_cancelled() -> str:
        raise asyncio.CancelledError

    @catalog.tool()
    async def raises_base_exception() -> str:
        raise GeneratorExit

    @catalog.tool()
    async def waits() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append("waits")
        return "never"

    @catalog.tool()
    async def hello() -> str:
        return "Hello!"

    return create_mcp_handler(lambda: catalog.server("failing"))


def environment_tasks() -> int:
    return len(asyncio.all_tasks(environment_loop()._loop))


def test_every_event_file_is_used() -> None:
    assert set(event_names()) == STATUSES.keys()


@pytest.mark.parametrize("name", STATUSES)
def test_e1_each_event_is_answered_and_answered_the_same_when_sent_again(name: str) -> None:
    first, second = (handler(load_event(name), NO_CONTEXT) for _ in range(2))

    assert answer(first).status == STATUSES[name]
    assert first == second


@pytest.mark.parametrize("name", [name for name, status in STATUSES.items() if status == 200])
def test_what_is_served_is_what_was_asked_for(name: str) -> None:
    event = load_event(name)
    served = answer(handler(event, NO_CONTEXT))

    if name.endswith("preflight"):
        assert "mcp-param-region" in served.headers["access-control-allow-headers"]
    elif name.endswith(("discover", "legacy-initialize")):
        assert "tools" in served.json["result"]["capabilities"]
    else:
        assert served.json["result"]["content"][0]["text"] == "Hello, Ada!"


@pytest.mark.parametrize("failing", ["raises", "exits", "exits_in_thread", "is_cancelled", "raises_base_exception"])
@pytest.mark.parametrize("request_for", [modern, legacy])
def test_e1_served_after_an_invocation_that_failed(
    failing: str, request_for: Callable[..., tuple[Headers, Any]]
) -> None:
    tools = failing_handler([])
    failed = ask(tools, request_for("tools/call", name=failing, arguments={}))
    after = [ask(tools, request_for("tools/call", name="hello", arguments={})) for _ in range(2)]

    assert failed.body, "an answer that says nothing"
    assert failed.status == 500 or "error" in failed.json or failed.json["result"]["isError"]
    assert [each.messages[-1]["result"]["content"][0]["text"] for each in after] == ["Hello!", "Hello!"]


@pytest.mark.parametrize("error", [ValueError("a-secret"), asyncio.CancelledError("a-secret")])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_e1_an_application_that_fails_is_answered_with_an_error(
    shape: Shape, begun: bool, error: BaseException
) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"half an ", "more_body": True})
        raise error

    failed = answer(BufferedGateway(application)(make_event(shape, body={}), NO_CONTEXT))
    assert (failed.status, failed.headers["content-type"]) == (500, "application/json")
    assert failed.json["error"] == {"code": -32603, "message": "Internal server error"}


def test_e1_an_application_that_fails_after_its_answer_has_answered() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a whole answer"})
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.body", "body": b" and more"})
        raise ValueError

    served = answer(BufferedGateway(application)(make_event("rest", body={"a": 1}), NO_CONTEXT))
    assert (served.status, served.body) == (200, "a whole answer")


def test_e1_served_after_an_invocation_that_a_signal_interrupted(alarm: Callable[[], None]) -> None:
    cleaned_up: list[str] = []
    tools = failing_handler(cleaned_up)
    ask(tools, modern("tools/call", name="hello", arguments={}))
    before = environment_tasks()
    for _ in range(3):
        alarm()
        interrupted = ask(tools, modern("tools/call", name="waits", arguments={}))
        after = ask(tools, modern("tools/call", name="hello", arguments={}))

        assert interrupted.status == 500
        assert after.json["result"]["content"][0]["text"] == "Hello!"

    assert cleaned_up == ["waits"] * 3
    assert environment_tasks() == before


def test_e1_served_after_a_signal_that_interrupted_a_tool_in_a_thread(alarm: Callable[[], None]) -> None:
    released = threading.Event()
    catalog = Catalog()

    @catalog.tool()
    def blocks() -> str:
        released.wait()
        return "late"

    @catalog.tool()
    def hello() -> str:
        return "Hello!"

    tools = create_mcp_handler(lambda: catalog.server("blocking"))
    alarm()
    try:
        interrupted = ask(tools, modern("tools/call", name="blocks", arguments={}))
        after = ask(tools, modern("tools/call", name="hello", arguments={}))
    finally:
        released.set()

    assert interrupted.status == 500
    assert after.json["result"]["content"][0]["text"] == "Hello!"


@pytest.mark.parametrize(("name", "status"), STAGES.items())
def test_e2_only_a_stage_that_is_the_whole_first_segment_is_taken_off(name: str, status: int) -> None:
    assert answer(handler(load_event(name), NO_CONTEXT)).status == status


def test_e2_a_route_of_one_slash_is_found_under_a_stage() -> None:
    at_root = create_mcp_handler(create_server, route="/")
    headers, body = modern("tools/call", name="hello", arguments={})
    for path in ("/prod", "/prod/"):
        event = make_event("http", path=path, headers=headers, body=body)
        event["routeKey"] = event["requestContext"]["routeKey"] = "$default"
        event["requestContext"]["stage"] = "prod"

        assert answer(at_root(event, NO_CONTEXT)).status == 200


@pytest.mark.parametrize("path", ["/mcp", "/mcp/mcp"])
def test_e2_a_stage_with_the_name_of_the_route_is_told_from_it(path: str) -> None:
    headers, body = modern("tools/call", name="hello", arguments={})
    event = make_event("http", path=path, headers=headers, body=body)
    event["requestContext"]["stage"] = "mcp"

    assert answer(handler(event, NO_CONTEXT)).status == 200


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("rest-query", "region=eu&tag=a&tag=b+c"),
        ("http-v1-query", "region=eu&tag=a&tag=b+c"),
        ("http-query-and-cookies", "region=eu&tag=a&tag=b%20c"),
        ("alb-query", "region=eu&tag=b+c"),
        ("alb-multi-query", "region=eu&tag=a&tag=b+c"),
    ],
)
def test_the_factory_gets_the_query_and_the_event(name: str, query: str) -> None:
    seen: list[RequestContext] = []

    def watching(context: RequestContext) -> MCPServer:
        seen.append(context)
        return create_server()

    create_mcp_handler(watching)(load_event(name), NO_CONTEXT)

    assert seen[0].request.url.query == query
    assert seen[0].event == load_event(name)


@every_shape
@pytest.mark.parametrize("request_for", [modern, legacy])
def test_e3_a_trailing_slash_is_served_and_not_redirected(
    shape: Shape, request_for: Callable[..., tuple[Headers, Any]]
) -> None:
    served = ask(handler, request_for("tools/call", name="hello", arguments={}), shape, path="/mcp/")

    assert served.status == 200
    assert "location" not in served.headers


@pytest.mark.parametrize("name", MALFORMED)
def test_e4_what_is_malformed_is_refused_with_an_error_that_a_client_can_read(name: str) -> None:
    refused = answer(handler(load_event(name), NO_CONTEXT))

    assert 400 <= refused.status < 500
    assert refused.headers["content-type"] == "application/json"
    assert refused.json["error"]["code"] in (-32600, -32700)


@pytest.mark.parametrize("event", [None, [], "text", 1, {"requestContext": None}, {"requestContext": {"http": {}}}])
def test_e4_what_is_no_http_event_at_all_is_refused(event: object) -> None:
    assert handler(event, NO_CONTEXT)["statusCode"] == 400  # type: ignore[arg-type]


@every_shape
@pytest.mark.parametrize("host", ["[::1]:3000", "[::1", "::1", ":", "", "host:port", "a b", "host:99999999999"])
def test_e4_no_host_is_a_server_error(shape: Shape, host: str) -> None:
    headers, body = modern("tools/call", name="hello", arguments={})

    assert ask(handler, ({**headers, "Host": host}, body), shape).status in (200, 421)


@every_shape
@pytest.mark.parametrize("port", ["²", "9" * 5000, "-1", "https", ""])
def test_e4_no_forwarded_port_is_a_server_error(shape: Shape, port: str) -> None:
    headers, body = modern("tools/call", name="hello", arguments={})

    assert ask(handler, ({**headers, "X-Forwarded-Port": port}, body), shape).status == 200


@every_shape
def test_e6_p4_a_notification_is_accepted_with_an_empty_and_untyped_answer(shape: Shape) -> None:
    accepted = answer(handler(load_event(f"{shape}-legacy-initialized"), NO_CONTEXT))

    assert accepted.status == 202
    assert accepted.body == ""
    assert "content-type" not in accepted.headers


@every_shape
def test_e6_p4_the_answer_stays_untyped_without_cors(shape: Shape) -> None:
    without_cors = create_mcp_handler(create_server, cors=False)
    accepted = ask(without_cors, legacy("notifications/initialized"), shape)

    assert (accepted.status, accepted.body, dict(accepted.headers)) == (202, "", {})


REFUSALS: Final[dict[int, tuple[str, str, dict[str, str]]]] = {
    403: ("POST", "/mcp", {"Origin": "https://attacker.example"}),
    404: ("POST", "/other", {}),
    405: ("GET", "/mcp", {}),
    406: ("POST", "/mcp", {"Accept": "text/html"}),
    413: ("POST", "/mcp", {}),
    415: ("POST", "/mcp", {"Content-Type": "text/plain"}),
    421: ("POST", "/mcp", {"Host": "attacker.example"}),
}
"""Method, path and headers by the status that they are refused with."""


@every_shape
@pytest.mark.parametrize("status", REFUSALS)
def test_e6_the_text_of_a_refusal_is_not_base64(shape: Shape, status: int) -> None:
    strict = create_mcp_handler(
        create_server,
        # A load balancer's event does not prove its name.
        allowed_hostnames=["example.elb.amazonaws.com"] if shape.startswith("alb") else None,
        max_request_body_size=10 if status == 413 else 1000,
    )
    method, path, wrong = REFUSALS[status]
    headers, body = modern("tools/call", name="hello", arguments={})
    own = {"Host": "example.elb.amazonaws.com"} if shape.startswith("alb") else {}
    refused = ask(strict, ({**headers, **own, **wrong}, body), shape, method=method, path=path)

    assert refused.status == status
    assert not refused.was_base64
    assert refused.headers["content-type"] == "application/json"
    assert refused.json["error"]["message"]


@every_shape
def test_e6_a_preflight_answer_is_text(shape: Shape) -> None:
    headers = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}
    allowed = ask(handler, (headers, None), shape, method="OPTIONS")

    assert (allowed.status, allowed.was_base64) == (200, False)


@every_shape
@pytest.mark.parametrize(
    ("method", "path", "request_made"),
    [
        ("POST", "/mcp", modern("server/discover")),
        ("POST", "/mcp", modern("resources/list")),
        ("POST", "/mcp/", legacy("initialize")),
        ("POST", "/other", modern("tools/list")),
        ("GET", "/mcp", ({}, None)),
        ("GET", "/.well-known/oauth-protected-resource/mcp", ({}, None)),
        ("POST", "/mcp", ({}, "{")),
    ],
)
def test_e7_no_answer_holds_what_the_request_says_about_our_name(
    shape: Shape, method: str, path: str, request_made: tuple[Headers, Any]
) -> None:
    headers, body = request_made
    forwarded = {"X-Forwarded-Host": "attacker.example", "Forwarded": "host=attacker.example;proto=http"}
    event = make_event(shape, method, path, headers={**headers, **forwarded}, body=body, domain_name="attacker.example")
    result = json.dumps(handler(event, NO_CONTEXT))

    assert "attacker.example" not in result
    assert "http://" not in result
    assert "https://" not in result


@every_shape
@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_e7_a_refused_name_is_not_repeated(shape: Shape, name: str) -> None:
    listed = create_mcp_handler(create_server, allowed_hostnames=["mcp.example.com"])
    headers, body = modern("tools/list")
    own = {"Host": "mcp.example.com", name: {"Host": "attacker.example", "Origin": "https://attacker.example"}[name]}
    result = listed(make_event(shape, headers={**headers, **own}, body=body), NO_CONTEXT)

    assert answer(result).status in (403, 421)
    assert "attacker.example" not in json.dumps(result)


ANSWERED: Final[dict[str, tuple[Headers, Any]]] = {
    "result": modern("tools/call", name="hello", arguments={}),
    "accepted": legacy("notifications/initialized"),
    "refused": legacy("no/such/method"),
    "not parsable": ({"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}, "{"),
    "not base64": ({}, b"\0"),
}


@every_shape
@pytest.mark.parametrize("kind", ANSWERED)
def test_an_answer_has_the_form_that_its_sender_reads(shape: Shape, kind: str) -> None:
    headers, body = ANSWERED[kind]
    event = make_event(shape, headers=headers, body=body)
    if kind == "not base64":
        event["body"] = "é"
    result = handler(event, NO_CONTEXT)

    required, optional = {"statusCode", "body", "isBase64Encoded"}, set[str]()
    if shape == "alb-multi":
        required |= {"multiValueHeaders"}
    elif shape in ("alb", "http", "url"):
        required |= {"headers"}
    else:
        optional |= {"headers", "multiValueHeaders"}
    assert required <= result.keys() <= required | optional
    assert isinstance(result["statusCode"], int)
    assert isinstance(result["body"], str)
    assert result["isBase64Encoded"] is False
    assert all(isinstance(value, str) for value in result.get("headers", {}).values())
    for values in result.get("multiValueHeaders", {}).values():
        assert isinstance(values, list)
        assert all(isinstance(value, str) for value in values)
    content_type = None if kind == "accepted" else "application/json"
    assert answer(result).headers.get("content-type") == content_type
