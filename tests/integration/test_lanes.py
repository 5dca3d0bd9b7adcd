"""The sample deployment with its legacy lane: one URL, two generations of the SDK."""

import http.client
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult
from tests.events import legacy, modern

from sealane.local.testing import ObservedGateway

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
LANES = {
    "hurried": {"LegacyLane": "on", "ResponseStreaming": "true", "Timeout": "6"},
    "hurried, buffered": {"LegacyLane": "on", "Timeout": "6"},
    "streaming": {"LegacyLane": "on", "ResponseStreaming": "true"},
    "buffered": {"LegacyLane": "on"},
    "refuse": {"LegacyLane": "drain", "PublicUrl": "https://mcp.example.com"},
    "compatibility": {"LegacyLane": "drain", "LegacyDrainTo": "compatibility"},
}


@pytest.fixture(scope="module", params=["streaming", "buffered"])
def gateway(request: pytest.FixtureRequest) -> Iterator[ObservedGateway]:
    """The lane is on."""
    yield from running(request.param)


@pytest.fixture(scope="module", params=["refuse", "compatibility"])
def drained(request: pytest.FixtureRequest) -> Iterator[tuple[ObservedGateway, str]]:
    """The lane is drained, to what is said."""
    for gateway in running(request.param):
        yield gateway, request.param


def running(lane: str) -> Iterator[ObservedGateway]:
    """The first run installs the other SDK, which takes half a minute."""
    parameters = {"LegacyTable": "keep", **LANES[lane]}
    with ObservedGateway(ROOT / "template.yaml", concurrency=3, parameters=parameters) as gateway:
        yield gateway


def ask(gateway: ObservedGateway, request: tuple[Any, Any], method: str = "POST", **headers: str) -> Any:
    """The response, as soon as its head is there."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(gateway.url).netloc, timeout=30)
    given, body = request
    connection.request(method, "/mcp", None if body is None else json.dumps(body), {**given, **headers})
    return connection.getresponse()


def functions(gateway: ObservedGateway) -> set[str]:
    """Those that Lambda was asked for by a function so far."""
    return {call.path.split("/")[3] for call in gateway.calls if "/functions/" in call.path}


def test_a_sessions_life(gateway: ObservedGateway) -> None:
    opened = ask(gateway, legacy("initialize"), Origin="http://localhost:6274")
    assert json.loads(opened.read())["result"]["serverInfo"]["name"] == "restaurant"
    # C3
    assert "Mcp-Session-Id" in opened.getheader("Access-Control-Expose-Headers")
    session = {"Mcp-Session-Id": opened.getheader("Mcp-Session-Id")}
    accepted = ask(gateway, legacy("notifications/initialized"), **session)
    assert (accepted.status, accepted.read()) == (202, b"")
    called = ask(gateway, legacy("tools/call", name="hello", arguments={"name": "Ada"}), **session)
    assert b"Hello, Ada!" in called.read()
    assert ask(gateway, (session, None), "DELETE").status in (200, 204)
    assert ask(gateway, legacy("tools/list"), **session).status == 404
    assert functions(gateway) == {"LegacyFunction"}


@pytest.mark.parametrize("lane", ["hurried", "hurried, buffered"])
def test_the_function_ends_a_call_that_takes_too_long_before_the_router_does(lane: str) -> None:
    for gateway in running(lane):
        opened = ask(gateway, legacy("initialize"))
        opened.read()
        session = {"Mcp-Session-Id": opened.getheader("Mcp-Session-Id")}
        slow = legacy("tools/call", id="slow", name="cook", arguments={"dish": "risotto", "steps": 60})
        *_, last = ask(gateway, slow, **session).read().decode().strip().split("\r\n\r\n")
        error = json.loads(last.rpartition("data:")[2])
        assert error["id"] == "slow"
        assert error["error"]["message"] == "The request took longer than this server may run"
        # Kept for whoever comes back, which only the function can do.
        assert "id: " in last


def test_modern_requests_never_get_there() -> None:
    for gateway in running("streaming"):
        assert b"sealane-sample" in ask(gateway, modern("server/discover")).read()
        assert functions(gateway) == set()


async def test_the_sdks_client_is_asked_by_a_tool(gateway: ObservedGateway) -> None:
    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada", "people": 4, "outside": True})

    async with Client(gateway.url, mode="legacy", elicitation_callback=answer) as client:
        result = await client.call_tool("book_table", {"day": "Friday"})
    assert "A table for 4 is booked for Ada, outside." in str(result.content)


async def test_the_sdks_modern_client_is_served_beside(gateway: ObservedGateway) -> None:
    async with Client(gateway.url) as client:
        assert client.protocol_version == "2026-07-28"
        assert "Ada" in str((await client.call_tool("hello", {"name": "Ada"})).content)


def test_a_lane_that_is_drained(drained: tuple[ObservedGateway, str]) -> None:
    gateway, to = drained
    response = ask(gateway, legacy("initialize"))
    body = json.loads(response.read())
    if to == "refuse":
        assert response.status == 400
        assert "https://mcp.example.com/mcp" in body["error"]["message"]
    else:
        assert response.status == 200
        assert response.getheader("Mcp-Session-Id") is None
        assert functions(gateway) == set()
    # Who has a session is still heard there: this one is over.
    assert ask(gateway, legacy("tools/list"), **{"Mcp-Session-Id": "x" * 32}).status == 404
    assert functions(gateway) == {"LegacyFunction"}
    assert ask(gateway, modern("server/discover")).status == 200
