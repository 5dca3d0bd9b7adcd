"""Changes that reach the listeners of every environment, and what flows on a request's own stream."""

import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated
from mcp.server.mcpserver import Context, MCPServer
from tests.events import Message, legacy, modern
from tests.unit.asgi import serving

from sealane import create_mcp_handler
from sealane.local.gateway import LocalGateway
from sealane.local.testing import ObservedGateway

ROOT = Path(__file__).parents[2]
FUNCTION = Path(__file__).parent / "subscriptions_function"
PATIENCE = 120.0
"""Seconds; nothing here takes as long."""
LIMIT_REACHED = {"code": -32603, "message": "Subscription limit reached"}


@pytest.fixture(scope="module")
def sample() -> Iterator[ObservedGateway]:
    """The sample deployment with streaming on."""
    parameters = {"ResponseStreaming": "true", "Timeout": "120"}
    with ObservedGateway(ROOT / "template.yaml", concurrency=6, parameters=parameters) as running:
        yield running


@pytest.fixture(scope="module")
def gateway() -> Iterator[ObservedGateway]:
    """A function made for these tests."""
    with ObservedGateway(FUNCTION / "template.yaml", concurrency=11) as running:
        yield running


def post(gateway: LocalGateway, headers: dict[str, str], body: Any, path: str = "") -> http.client.HTTPResponse:
    """The response, as soon as its head is there."""
    url = urllib.parse.urlsplit(gateway.url)
    connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE)
    connection.request("POST", path or "/mcp", json.dumps(body), headers)
    return connection.getresponse()


def call(gateway: ObservedGateway, tool: str, **arguments: Any) -> tuple[Any, int]:
    """The structured result of a tool, and the environment that has given it, which is free again."""
    response = post(gateway, *modern("tools/call", name=tool, arguments=arguments))
    body = json.loads(response.read())
    assert not body["result"].get("isError"), body
    return body["result"]["structuredContent"], environment_of(gateway, response.headers["x-amzn-RequestId"])


def environment_of(gateway: ObservedGateway, request_id: str) -> int:
    """Who has served a request, once that is done with it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for known in list(gateway.calls):
            if known.request_id == request_id:
                assert known.environment is not None
                return known.environment
        time.sleep(0.005)
    raise TimeoutError(request_id)


class Listener:
    """A client that listens, in a thread of its own.

    Attributes:
        environment: who serves it.
        events: the changes so far, each with the time of its arrival.
        result: the end that the protocol wants.
        lost: how the stream broke off instead.
    """

    def __init__(self, gateway: ObservedGateway, uris: list[str], path: str = "") -> None:
        self.events: list[tuple[float, str]] = []
        self.result: Message | None = None
        self.lost: BaseException | None = None
        request = modern("subscriptions/listen", id="l", notifications={"resourceSubscriptions": uris})
        before = len(gateway.aws.calls("dynamodb", "PutItem"))
        self._response = post(gateway, *request, path)
        self.request_id = self._response.headers["x-amzn-RequestId"]
        self.refusal = None
        if self._response.headers["Content-Type"] == "application/json":
            self.refusal = json.loads(self._response.read())["error"]
            return
        assert self._next()["method"] == "notifications/subscriptions/acknowledged"
        # Its place among the listeners is the only thing that is written meanwhile.
        [place] = gateway.aws.calls("dynamodb", "PutItem")[before:]
        self.environment = place.environment
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heard(self, count: int) -> bool:
        """Waits for this many changes."""
        deadline = time.monotonic() + PATIENCE
        while len(self.events) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(self.events) >= count

    @property
    def listens(self) -> bool:
        """Whether its stream is open."""
        return self._thread.is_alive()

    def ended(self) -> bool:
        """Waits for the end."""
        self._thread.join(PATIENCE)
        return not self._thread.is_alive()

    def _next(self) -> Any:
        while line := self._response.readline():
            if line.startswith(b"data:"):
                return json.loads(line[5:])
        # `readline` hides a stream that broke off.
        raise http.client.IncompleteRead(b"")

    def _run(self) -> None:
        try:
            while True:
                message = self._next()
                meta = (message.get("params") or message.get("result"))["_meta"]
                assert meta["io.modelcontextprotocol/subscriptionId"] == "l"
                if "result" in message:
                    self.result = message
                    self._response.read()
                    return
                self.events.append((time.monotonic(), message["params"]["uri"]))
        except (OSError, http.client.HTTPException) as error:
            self.lost = error


@contextmanager
def listeners(gateway: ObservedGateway, count: int, uris: list[str]) -> Iterator[list[Listener]]:
    """So many that listen, each in an environment of its own; those are gone afterwards."""
    opened: list[Listener] = []
    try:
        opened += [Listener(gateway, uris) for _ in range(count)]
        assert len({each.environment for each in opened}) == count
        yield opened
    finally:
        for each in opened:
            if not each.lost:
                gateway.kill(each.environment)
            assert each.ended()


# Every environment


@pytest.fixture(scope="module")
def notebook(sample: ObservedGateway) -> str:
    return str(call(sample, "create_notebook", title="t")[0]["notebook"])


@pytest.fixture(scope="module")
def three(sample: ObservedGateway, notebook: str) -> Iterator[list[Listener]]:
    """Who listen to the notebook."""
    with listeners(sample, 3, [f"notebook://{notebook}"]) as opened:
        yield opened


def test_a_note_reaches_the_listeners_of_other_environments(
    sample: ObservedGateway, notebook: str, three: list[Listener]
) -> None:
    before = len(three[0].events)
    # Not the start of one more environment is to be measured.
    _, writer = call(sample, "hello")
    assert writer not in {each.environment for each in three}
    # Listeners are at rest some seconds after they have come.
    time.sleep(5.5)

    def add() -> list[float]:
        """How long after the tool's answer each listener is told."""
        count = len(three[0].events) + 1
        response = post(sample, *modern("tools/call", name="add_note", arguments={"notebook": notebook, "text": "x"}))
        assert b"notes now" in response.read()
        added = time.monotonic()
        assert environment_of(sample, response.headers["x-amzn-RequestId"]) == writer
        assert all(each.heard(count) for each in three)
        return [each.events[count - 1][0] - added for each in three]

    at_rest = add()
    active = sorted(seconds for _ in range(10) for seconds in add())
    print(f"at rest: {[round(each * 1000) for each in at_rest]} ms")
    print(f"active: {[round(each * 1000) for each in active]} ms")
    assert max(at_rest) < 1.5
    assert statistics.median(active) < 0.3
    for each in three:
        assert [uri for _, uri in each.events[before:]] == [f"notebook://{notebook}"] * 11


def test_kill_9_of_a_listeners_environment_is_noticed_by_that_listener_only(
    sample: ObservedGateway, notebook: str, three: list[Listener]
) -> None:
    doomed, *others = three
    before = [len(each.events) for each in three]

    def add(count: int) -> None:
        for _ in range(count):
            call(sample, "add_note", notebook=notebook, text="x")

    add(2)
    assert doomed.heard(before[0] + 2)
    sample.kill(doomed.environment)
    assert doomed.ended()
    assert doomed.lost is not None
    assert doomed.result is None
    add(2)
    with listeners(sample, 1, [f"notebook://{notebook}"]) as [again]:
        assert again.environment != doomed.environment
        assert len(call(sample, "list_notes", notebook=notebook)[0]["notes"]) >= 4
        add(2)
        assert again.heard(2)
        for each, count in zip(others, before[1:], strict=True):
            assert each.heard(count + 6)
    time.sleep(0.5)
    assert [len(each.events) for each in others] == [count + 6 for count in before[1:]]
    assert [(each.lost, each.result) for each in others] == [(None, None)] * 2
    assert environment_of(sample, doomed.request_id) == doomed.environment
    assert "Runtime.ExitError" in (sample.call(doomed.request_id).problem or "")


def test_a_thousand_changes_reach_eight_listeners_once_and_in_order(gateway: ObservedGateway) -> None:
    expected = {name: [f"burst://{name}/{number}" for number in range(500)] for name in ("a", "b")}
    wanted = [uri for uris in expected.values() for uri in uris]

    def publish(name: str) -> set[int]:
        """Publish one half, and tell from where."""
        calls = [call(gateway, "publish", name=name, first=first, last=first + 99) for first in range(0, 500, 100)]
        return {environment for _, environment in calls}

    with listeners(gateway, 8, wanted) as opened, ThreadPoolExecutor(2) as pool:
        started = time.monotonic()
        publishers = {each for environments in pool.map(publish, expected) for each in environments}
        took = time.monotonic() - started
        assert all(each.heard(1000) for each in opened)
        last = max(each.events[-1][0] for each in opened) - started
        print(f"1,000 changes published in {took:.1f} s, by {len(publishers)}; the last one arrived after {last:.1f} s")
        assert len(publishers | {each.environment for each in opened}) >= 10
        time.sleep(0.5)
        for each in opened:
            heard = [uri for _, uri in each.events]
            assert Counter(heard) == Counter(wanted)
            for name, uris in expected.items():
                assert [uri for uri in heard if uri.startswith(f"burst://{name}/")] == uris


def test_no_more_listeners_than_allowed_in_all_environments(gateway: ObservedGateway) -> None:
    def listen() -> Listener:
        return Listener(gateway, ["burst://c/1"], "/brief")

    def warm() -> set[int]:
        with ThreadPoolExecutor(3) as pool:
            return {each.result()[1] for each in [pool.submit(call, gateway, "wait", seconds=1) for _ in range(3)]}

    assert len(warm()) == 3
    while True:
        one, other, third = listen(), listen(), listen()
        # On a slow machine the first one may have ended before the third came.
        if third.refusal or (one.listens and other.listens):
            break
        assert all(each.ended() for each in (one, other, third))
    assert third.refusal == LIMIT_REACHED
    assert len({one.environment, other.environment, environment_of(gateway, third.request_id)}) == 3
    assert one.ended()
    admitted = listen()
    assert not admitted.refusal
    for each in (one, other, admitted):
        assert each.ended()
        assert each.result is not None
        assert each.lost is None


# The SDK's client, and code outside


@contextmanager
def outside(gateway: ObservedGateway, uri: str) -> Iterator[Callable[[], None]]:
    """A process that publishes a change when it is told, without an SDK and with no more than it needs."""
    code = f"""
import sys
from sealane import publish_change
publish_change("tools_changed")
print("ready", flush=True)
sys.stdin.readline()
publish_change("resource_updated", {uri!r})
assert not [name for name in sys.modules if name.startswith("mcp")]
print("published", flush=True)
"""
    variables = {
        "SEALANE_TABLE": "LimitedTable",
        "AWS_ENDPOINT_URL": gateway.aws.endpoint_url or "",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        reading, writing = process.stdout, process.stdin
        assert reading is not None
        assert writing is not None
        assert reading.readline() == "ready\n"

        def publish() -> None:
            writing.write("\n")
            writing.flush()
            assert reading.readline() == "published\n"

        yield publish


@pytest.mark.anyio
async def test_the_sdks_client_hears_of_a_change_from_outside_and_listens_again(gateway: ObservedGateway) -> None:
    uri = "burst://outside/1"
    url = urllib.parse.urljoin(gateway.url, "/brief")
    with ExitStack() as stack:
        async with Client(url, mode="2026-07-28") as client:
            for _ in range(2):
                publish = stack.enter_context(outside(gateway, uri))
                started = time.monotonic()
                async with client.listen(resource_subscriptions=[uri, "burst://outside/2"]) as subscription:
                    assert subscription.honored.resource_subscriptions == [uri, "burst://outside/2"]
                    await anyio.to_thread.run_sync(publish)
                    # The end of the loop is the graceful one: a stream that broke off raises.
                    assert [event async for event in subscription] == [ResourceUpdated(uri=uri)]
                assert time.monotonic() - started >= 3


# Progress and logs


LEVELS = ["debug", "info", "warning", "error"]


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
@pytest.mark.parametrize(
    ("level", "delay_ms"), [("debug", 300), ("info", 1), ("warning", 1), ("critical", 1), (None, 1)]
)
def test_progress_and_logs_flow_as_they_are_made(
    gateway: ObservedGateway, path: str, level: str | None, delay_ms: int
) -> None:
    meta: dict[str, Any] = {"progressToken": "p"}
    if level is not None:
        meta["io.modelcontextprotocol/logLevel"] = level
    request = modern("tools/call", name="speak", arguments={"delay_ms": delay_ms}, meta=meta)
    response = post(gateway, *request, path)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    arrived: list[tuple[float, Message]] = []
    while line := response.readline():
        if line.startswith(b"data:"):
            arrived.append((time.monotonic(), json.loads(line[5:])))
    *notifications, (_, result) = arrived
    assert result["result"]["content"][0]["text"] == "spoken"
    wanted = LEVELS[LEVELS.index(level) :] if level in LEVELS else []
    made = []
    for step, each in enumerate(LEVELS, 1):
        made.append(("notifications/progress", {"progressToken": "p", "progress": step, "total": 4}))
        if each in wanted:
            made.append(("notifications/message", {"level": each, "data": f"at {each}", "logger": "speaker"}))
    assert [(message["method"], message["params"]) for _, message in notifications] == made
    if delay_ms == 300:
        # One progress and one line of the log at a time.
        pauses = [later - earlier for (earlier, _), (later, _) in pairwise(notifications)]
        assert pauses == pytest.approx([0, 0.3] * 3 + [0], abs=0.1)


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
def test_who_asks_for_no_progress_and_no_logs_gets_the_result_alone(gateway: ObservedGateway, path: str) -> None:
    response = post(gateway, *modern("tools/call", name="speak", arguments={"delay_ms": 1}), path)
    body = response.read()
    assert response.headers["Content-Type"] == ("application/json" if path == "/mcp" else "text/event-stream")
    assert body.count(b'"jsonrpc"') == 1
    assert b"spoken" in body


# A client that goes


@pytest.mark.parametrize("report", [True, False])
@pytest.mark.parametrize("era", [modern, legacy])
def test_a_client_that_goes_in_mid_tool_cancels_it_under_an_asgi_server(era: Callable[..., Any], report: bool) -> None:
    started, ended = threading.Event(), threading.Event()

    def create_server() -> MCPServer:
        server = MCPServer("slow")

        @server.tool()
        async def wait(ctx: Context, seconds: float) -> str:
            if report:
                await ctx.report_progress(1)
            started.set()
            try:
                await asyncio.sleep(seconds)
            finally:
                ended.set()
            return "waited"

        return server

    def request(seconds: float) -> tuple[dict[str, str], Any]:
        meta: dict[str, Any] = {"meta": {"progressToken": 1}} if era is modern else {"_meta": {"progressToken": 1}}
        made: tuple[dict[str, str], Any] = era("tools/call", name="wait", arguments={"seconds": seconds}, **meta)
        return made

    with serving(create_mcp_handler(create_server).app) as address:

        def connect() -> http.client.HTTPConnection:
            return http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=10)

        connection = connect()
        headers, body = request(30)
        connection.request("POST", "/mcp", json.dumps(body), headers)
        if report:
            response = connection.getresponse()
            assert b"notifications/progress" in response.read1()
            response.close()
        assert started.wait(10)
        gone = time.monotonic()
        connection.close()
        assert ended.wait(5)
        assert time.monotonic() - gone < 1

        connection = connect()
        headers, body = request(0.01)
        connection.request("POST", "/mcp", json.dumps(body), headers)
        assert b"waited" in connection.getresponse().read()
        connection.close()
