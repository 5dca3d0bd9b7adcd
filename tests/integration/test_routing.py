"""One URL, two lanes: a router and a function behind it, through the local gateway."""

import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.events import legacy, modern

from sealane.local.testing import ObservedGateway

FUNCTION = Path(__file__).parent / "routing_function"
EVENT = b'event: message\nid: 1_1\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'


@pytest.fixture(scope="module")
def gateway() -> Iterator[ObservedGateway]:
    with ObservedGateway(FUNCTION / "template.yaml", concurrency=1) as running:
        yield running


@pytest.fixture(params=["buffered", "mixed", "streaming"])
def route(request: pytest.FixtureRequest) -> str:
    return f"/{request.param}"


def ask(
    gateway: ObservedGateway, route: str, request: tuple[Any, Any], method: str = "POST", **headers: str
) -> http.client.HTTPResponse:
    """The response, as soon as its head is there. An environment may be busy with the one before."""
    given, body = request
    sent = None if body is None else json.dumps(body)
    while True:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(gateway.url).netloc, timeout=30)
        connection.request(method, route, sent, {**given, **headers})
        response = connection.getresponse()
        if response.status != 429:
            return response
        time.sleep(0.05)


def messages(body: bytes) -> list[Any]:
    """The JSON-RPC messages of an event stream."""
    assert body.endswith((b"\n\n", b"\r\n\r\n"))
    return [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]


def said(gateway: ObservedGateway, text: str) -> bool:
    """Whether a function has logged this."""
    return any(text in line.text for line in gateway.lines)


def test_modern_requests_are_served_by_the_stateless_lane(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, modern("tools/call", name="hello", arguments={"name": "Ada"}))
    assert json.loads(response.read())["result"]["content"][0]["text"] == "Hello, Ada!"


def test_the_legacy_function_gets_the_event_as_it_came(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, legacy("test/event", text="café"), **{"Mcp-Session-Id": "s1", "X-Own": "é"})
    event = json.loads(response.read())
    assert json.loads(event["body"])["params"] == {"text": "café"}
    assert (event["httpMethod"], event["path"], event["resource"]) == ("POST", route, route)
    assert event["requestContext"]["identity"]["sourceIp"] == "127.0.0.1"
    # The names as the gateway has them, Host too: not what Mangum needs.
    assert "Host" in event["headers"] or "host" in event["headers"]
    assert event["multiValueHeaders"]["Mcp-Session-Id"] == ["s1"]


def test_an_event_stream(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, legacy("test/sse"))
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/event-stream"
    assert response.getheader("Mcp-Session-Id") == "s1"
    arrived, body = [], b""
    while piece := response.read1():
        body += piece
        arrived += [time.monotonic()] * piece.count(b"data:")
    assert body == EVENT * 3
    if route == "/streaming":
        assert arrived[0] < arrived[2], "all at once"


def test_a_standalone_stream(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, ({"Accept": "text/event-stream"}, None), "GET")
    assert (response.status, response.read()) == (200, EVENT * 3)


def test_the_end_of_a_session(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, ({}, None), "DELETE")
    assert (response.status, response.read()) == (204, b"")


def test_a_notification(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, legacy("notifications/initialized"))
    assert (response.status, response.read()) == (202, b"")


def test_a_status_of_its_own(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, legacy("test/missing", id=7))
    assert (response.status, json.loads(response.read())["id"]) == (404, 7)


def test_headers_and_cookies(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, legacy("test/cookies"))
    assert response.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    assert (response.getheader("X-Own"), response.read()) == ("1", b"{}")


def test_bytes(gateway: ObservedGateway, route: str) -> None:
    response = ask(gateway, route, legacy("test/binary"), Accept="image/png")
    assert (response.getheader("Content-Type"), response.read()) == ("image/png", b"\x89PNG\0\xff")


def test_a_large_answer(gateway: ObservedGateway, route: str) -> None:
    assert len(ask(gateway, route, legacy("test/large")).read()) == 4_000_002


def test_a_preflight_never_gets_to_the_legacy_function(gateway: ObservedGateway, route: str) -> None:
    before = len(gateway.calls)
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "DELETE"}
    response = ask(gateway, route, (headers, None), "OPTIONS")
    assert (response.status, response.read()) == (200, b"OK")
    assert ask(gateway, route, modern("server/discover")).status == 200
    assert not [call.path for call in gateway.calls[before:] if "/functions/" in call.path]


def test_a_slow_function(gateway: ObservedGateway, route: str) -> None:
    started = time.monotonic()
    response = ask(gateway, route, legacy("test/slow", id="a"))
    assert time.monotonic() - started < 4.8
    error = json.loads(response.read())
    assert (response.status, error["id"], error["error"]["code"]) == (504, "a", -32603)
    wait_for_rest(gateway)


def wait_for_rest(gateway: ObservedGateway) -> None:
    """The legacy functions are done with what nobody waits for."""
    for route in ("/buffered", "/streaming"):
        while ask(gateway, route, legacy("notifications/initialized")).status == 503:
            time.sleep(0.1)


def test_a_stream_that_falls_silent(gateway: ObservedGateway) -> None:
    started = time.monotonic()
    response = ask(gateway, "/streaming", legacy("test/silent", id="a"))
    first, error = messages(response.read())
    assert time.monotonic() - started < 4.8
    assert first["method"] == "notifications/x"
    assert (error["id"], error["error"]["code"]) == ("a", -32603)
    wait_for_rest(gateway)


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_a_function_that_crashes(gateway: ObservedGateway, route: str, how: str) -> None:
    response = ask(gateway, route, legacy(f"test/{how}", id="a"))
    body = response.read()
    assert b"secret" not in body
    if how == "exit":
        assert (response.status, json.loads(body)["id"]) == (502, "a")
        assert said(gateway, "the legacy function has failed: Runtime.ExitError")
    else:
        # Its own gateway answers for an application that raises.
        assert response.status == 500
    assert ask(gateway, route, legacy("notifications/initialized")).status == 202


def test_a_function_that_crashes_in_its_answer(gateway: ObservedGateway) -> None:
    response = ask(gateway, "/streaming", legacy("test/exit-later", id="a"))
    assert response.status == 200
    first, error = messages(response.read())
    assert first["method"] == "notifications/x"
    assert (error["id"], error["error"]["code"]) == ("a", -32603)
    assert ask(gateway, "/streaming", legacy("notifications/initialized")).status == 202


def test_a_function_without_a_free_environment(gateway: ObservedGateway) -> None:
    holding = ask(gateway, "/streaming", legacy("test/sse"))
    response = ask(gateway, "/mixed", legacy("notifications/initialized"))
    error = json.loads(response.read())
    assert (response.status, response.getheader("Retry-After")) == (503, "1")
    assert (error["id"], error["error"]["code"]) == (None, -32603)
    assert holding.read() == EVENT * 3


def test_a_function_that_is_gone(gateway: ObservedGateway) -> None:
    response = ask(gateway, "/gone", legacy("initialize"))
    body = response.read()
    assert (response.status, json.loads(body)["id"]) == (503, 1)
    assert b"nobody" not in body
    assert said(gateway, "ResourceNotFoundException")


def test_a_client_that_hangs_up(gateway: ObservedGateway) -> None:
    response = ask(gateway, "/streaming", legacy("test/sse"))
    assert response.read1()
    response.close()
    assert ask(gateway, "/streaming", modern("server/discover")).status == 200
