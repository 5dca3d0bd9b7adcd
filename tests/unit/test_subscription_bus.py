"""The bus over the data table, and `subscriptions/listen` over it where answers leave as a whole."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from sealane import DynamoDBSubscriptionBus, McpHandler, SharedSubscriptionBus, create_mcp_handler, publish_change
from sealane.options import ResponseMode
from sealane.state import aws
from sealane.state.changes import change_log
from sealane.state.errors import StateUnavailable
from sealane.state.table import Table
from tests.events import SHAPES, Answer, Message, Shape, answer, make_event, modern
from tests.unit.asgi import serving
from tests.unit.moto_aws import Door, create_table, items, moto_server
from tests.unit.test_handler import CHANGES, LISTEN, call, listening, make_server

PATIENCE = 10.0
"""Seconds; nothing here takes as long."""
NOTE = ResourceUpdated(uri="note://1")


@pytest.fixture(scope="module")
def open_door() -> Iterator[Door]:
    with moto_server() as url, Door(url).open() as door:
        yield door


@pytest.fixture(autouse=True)
def door(open_door: Door) -> Iterator[Door]:
    """A door to a table with nothing in it."""
    aws._client("dynamodb").delete_table(TableName="data")
    create_table()
    open_door.operations.clear()
    open_door.requests.clear()
    yield open_door
    open_door.fates.clear()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is looked at all the time."""
    monkeypatch.setattr("sealane.subscription_bus._AT_REST", 0.03)
    monkeypatch.setattr("sealane.subscription_bus._FAST", 0.03)


def looks(door: Door) -> int:
    """How often the log was looked at."""
    return sum(":log" in request.get("ExpressionAttributeValues", {}) for request in list(door.requests))


def places() -> list[dict[str, Any]]:
    """What is kept of open streams."""
    return [item for item in items() if item["pk"]["S"] == "listeners"]


async def until(condition: Callable[[], object]) -> None:
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def run(test: Callable[[], Any]) -> Any:
    return asyncio.run(test())


# The bus


def test_a_bus_is_one_that_other_environments_are_at() -> None:
    assert isinstance(DynamoDBSubscriptionBus(), SharedSubscriptionBus)


def test_every_event_is_heard_as_it_was_published() -> None:
    events: list[ServerEvent] = [ToolsListChanged(), PromptsListChanged(), ResourcesListChanged(), NOTE]

    async def test() -> None:
        here, there = DynamoDBSubscriptionBus(), DynamoDBSubscriptionBus()
        heard: tuple[list[ServerEvent], list[ServerEvent]] = ([], [])
        async with here.open_stream(limit=2, seconds=10), there.open_stream(limit=2, seconds=10):
            ends = [bus.subscribe(each.append) for bus, each in zip((here, there), heard, strict=True)]
            for event in events:
                await here.publish(event)
            await until(lambda: all(len(each) == len(events) for each in heard))
            for end in ends:
                end()
        assert heard == (events, events)

    run(test)


@pytest.mark.usefixtures("quick")
def test_an_ended_subscription_hears_nothing_and_can_be_ended_again() -> None:
    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        heard: list[ServerEvent] = []
        kept: list[ServerEvent] = []
        async with bus.open_stream(limit=1, seconds=10):
            # The same listener twice is two subscriptions.
            ends = [bus.subscribe(heard.append), bus.subscribe(heard.append), bus.subscribe(kept.append)]
            ends[0]()
            ends[0]()
            await bus.publish(NOTE)
            await until(lambda: kept)
            assert heard == [NOTE]
            ends[1]()
            await bus.publish(NOTE)
            await until(lambda: len(kept) == 2)
            assert heard == [NOTE]
            ends[2]()

    run(test)


@pytest.mark.usefixtures("quick")
def test_a_listener_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: ServerEvent) -> None:
        raise ValueError("as planned")

    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        heard: list[ServerEvent] = []
        async with bus.open_stream(limit=1, seconds=10):
            ends = [bus.subscribe(fail), bus.subscribe(heard.append)]
            for _ in range(2):
                await bus.publish(NOTE)
            await until(lambda: len(heard) == 2)
            for end in ends:
                end()

    run(test)
    assert "as planned" in caplog.text


def test_without_a_stream_the_table_is_not_asked(door: Door) -> None:
    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        await bus.publish(NOTE)
        await asyncio.sleep(0.3)
        assert door.operations == ["UpdateItem", "PutItem"]
        async with bus.open_stream(limit=1, seconds=10):
            bus.subscribe(lambda event: None)()
        before = len(door.operations)
        await asyncio.sleep(1.2)
        assert len(door.operations) == before

    run(test)


def test_one_look_for_all_streams_each_second_at_rest_and_ten_while_something_happens(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealane.subscription_bus._CALM", 2.0)

    async def looks_within(seconds: float) -> int:
        before = looks(door)
        await asyncio.sleep(seconds)
        return looks(door) - before

    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        heard: list[list[ServerEvent]] = [[] for _ in range(5)]
        async with bus.open_stream(limit=2, seconds=60), bus.open_stream(limit=2, seconds=60):
            ends = [bus.subscribe(each.append) for each in heard]
            # Who has come may well change something.
            await asyncio.sleep(2.2)
            assert 1 <= await looks_within(2.3) <= 3
            await anyio.to_thread.run_sync(publish_change, "tools_changed")
            await until(lambda: all(heard))
            assert 5 <= await looks_within(1.0) <= 11
            await asyncio.sleep(1.2)
            assert 1 <= await looks_within(2.3) <= 3
            for end in ends:
                end()

    run(test)


def test_what_is_published_here_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealane.subscription_bus._AT_REST", 100.0)

    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        heard: list[ServerEvent] = []
        async with bus.open_stream(limit=1, seconds=10):
            end = bus.subscribe(heard.append)
            await asyncio.sleep(0.3)
            await bus.publish(NOTE)
            await until(lambda: heard)
            end()

    run(test)


def test_what_is_published_here_during_a_look_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealane.subscription_bus._AT_REST", 100.0)
    monkeypatch.setattr("sealane.subscription_bus._FAST", 100.0)

    class Slow(Table):
        """A table whose answers are on their way for some time."""

        async def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
            answer = await super().call(operation, **arguments)
            if ":log" in arguments.get("ExpressionAttributeValues", {}):
                looking.set()
                await asyncio.sleep(0.3)
            return answer

    looking = asyncio.Event()

    async def test() -> None:
        bus = DynamoDBSubscriptionBus(table=Slow())
        heard: list[ServerEvent] = []
        async with bus.open_stream(limit=1, seconds=10):
            end = bus.subscribe(heard.append)
            await looking.wait()
            await bus.publish(NOTE)
            await until(lambda: heard)
            end()

    run(test)


def test_what_is_published_between_the_entering_and_the_subscribing_is_heard() -> None:
    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        heard: list[ServerEvent] = []
        async with bus.open_stream(limit=1, seconds=10):
            publish_change("resource_updated", "note://1")
            end = bus.subscribe(heard.append)
            await until(lambda: heard)
            end()

    run(test)


@pytest.mark.usefixtures("quick")
def test_who_subscribes_in_a_storm_of_changes_misses_none() -> None:
    begun = 0
    over = threading.Event()

    def storm() -> None:
        nonlocal begun
        while not over.is_set():
            begun += 1
            publish_change("resource_updated", str(begun))

    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        for _ in range(6):
            heard: list[int] = []
            async with bus.open_stream(limit=1, seconds=10):
                before = begun

                def listen(event: ServerEvent, heard: list[int] = heard) -> None:
                    assert isinstance(event, ResourceUpdated)
                    heard.append(int(event.uri))

                end = bus.subscribe(listen)
                await until(lambda heard=heard, before=before: heard and heard[-1] > before + 10)  # type: ignore[misc]
                end()
            assert heard == list(range(heard[0], heard[-1] + 1))
            assert heard[0] <= before + 1

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(storm)
        try:
            run(test)
        finally:
            over.set()
        publishing.result()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ['["tasks_changed",null]', "no JSON", "{}", "[1]", '["resource_updated",null]'])
def test_an_entry_that_this_version_does_not_know_is_left_out(text: str) -> None:
    async def test() -> None:
        bus = DynamoDBSubscriptionBus()
        heard: list[ServerEvent] = []
        async with bus.open_stream(limit=1, seconds=10):
            end = bus.subscribe(heard.append)
            await bus.publish(NOTE)
            await change_log().append(text)
            await bus.publish(ToolsListChanged())
            await until(lambda: len(heard) == 2)
            end()
        assert heard == [NOTE, ToolsListChanged()]

    run(test)


# Places


def test_there_are_never_more_streams_than_allowed() -> None:
    lock = threading.Lock()
    held = 0
    seen: list[int] = []
    refused: list[MCPError] = []

    async def stream(bus: DynamoDBSubscriptionBus, number: int) -> None:
        nonlocal held
        for turn in range(4):
            await asyncio.sleep(0.03 * ((number * 3 + turn) % 5))
            try:
                async with bus.open_stream(limit=3, seconds=10):
                    with lock:
                        held += 1
                        seen.append(held)
                    await asyncio.sleep(0.05)
                    with lock:
                        held -= 1
            except MCPError as error:
                refused.append(error)

    async def environment(streams: int) -> None:
        bus = DynamoDBSubscriptionBus()
        async with anyio.create_task_group() as tasks:
            for number in range(streams):
                tasks.start_soon(stream, bus, number)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(asyncio.run, environment(4)) for _ in range(2)]:
            done.result()
    assert seen
    assert max(seen) <= 3
    assert refused
    assert {(error.error.code, error.error.message) for error in refused} == {
        (INTERNAL_ERROR, "Subscription limit reached")
    }
    assert places() == []


def test_of_those_who_come_at_once_as_many_stay_as_are_allowed() -> None:
    admitted: list[int] = []

    async def stream(bus: DynamoDBSubscriptionBus, number: int, all_have_come: asyncio.Event) -> None:
        with suppress(MCPError):
            async with bus.open_stream(limit=3, seconds=10):
                admitted.append(number)
                await all_have_come.wait()

    async def test() -> None:
        all_have_come = asyncio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(stream, DynamoDBSubscriptionBus(), number, all_have_come)
            await until(lambda: len(places()) == 3 and len(admitted) == 3)
            all_have_come.set()

    run(test)
    assert len(admitted) == 3


def test_a_place_is_free_after_its_stream() -> None:
    async def test() -> None:
        here, there = DynamoDBSubscriptionBus(), DynamoDBSubscriptionBus()
        for _ in range(2):
            async with here.open_stream(limit=2, seconds=10), there.open_stream(limit=2, seconds=10):
                for bus in (here, there):
                    with pytest.raises(MCPError, match="Subscription limit reached"):
                        async with bus.open_stream(limit=2, seconds=10):
                            pass
        with pytest.raises(ValueError, match="as planned"):
            async with here.open_stream(limit=1, seconds=10):
                raise ValueError("as planned")
        assert places() == []

    run(test)


@pytest.mark.parametrize("by", ["scope", "task"])
def test_a_place_is_free_after_a_cancellation(by: str, door: Door) -> None:
    async def stream(bus: DynamoDBSubscriptionBus, scope: anyio.CancelScope) -> None:
        with scope:
            async with bus.open_stream(limit=1, seconds=10):
                await anyio.sleep_forever()

    async def test() -> None:
        bus, scope = DynamoDBSubscriptionBus(), anyio.CancelScope()
        task = asyncio.create_task(stream(bus, scope))
        await until(lambda: looks(door) > 1)
        assert len(places()) == 1
        if by == "scope":
            scope.cancel()
        else:
            task.cancel()
        await asyncio.wait([task])
        assert places() == []
        before = looks(door)
        await asyncio.sleep(1.2)
        assert looks(door) == before

    run(test)


def test_the_place_of_an_environment_that_is_gone_is_free_after_the_time_of_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(Table):
        async def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
            return {} if operation == "delete_item" else await super().call(operation, **arguments)

    offset = 0.0
    clock = SimpleNamespace(time=lambda: time.time() + offset, monotonic=time.monotonic)
    monkeypatch.setattr("sealane.subscription_bus.time", clock)
    monkeypatch.setattr("sealane.state.table.time", clock)

    async def admitted() -> bool:
        try:
            async with DynamoDBSubscriptionBus().open_stream(limit=1, seconds=5):
                return True
        except MCPError:
            return False

    async def test() -> None:
        nonlocal offset
        async with DynamoDBSubscriptionBus(table=Gone()).open_stream(limit=1, seconds=50):
            pass
        assert not await admitted()
        offset = 55
        assert not await admitted()
        offset = 65
        assert await admitted()

    run(test)


# A table out of reach


class Failing(Table):
    """A table that some operations do not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: set[str] = set()

    async def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        if operation in self.fail:
            raise StateUnavailable("out of reach")
        return await super().call(operation, **arguments)

    def call_blocking(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        if operation in self.fail:
            raise StateUnavailable("out of reach")
        return super().call_blocking(operation, **arguments)


@pytest.mark.parametrize("operation", ["put_item", "query", "get_item"])
def test_a_stream_is_refused_while_the_table_is_out_of_reach(operation: str, door: Door) -> None:
    async def test() -> None:
        table = Failing()
        bus = DynamoDBSubscriptionBus(table=table)
        table.fail = {operation}
        with pytest.raises(MCPError, match="out of reach") as raised:
            async with bus.open_stream(limit=1, seconds=10):
                pass
        assert raised.value.error.code == INTERNAL_ERROR
        assert places() == []
        table.fail.clear()
        before = len(door.operations)
        await asyncio.sleep(1.2)
        assert len(door.operations) == before
        async with bus.open_stream(limit=1, seconds=10):
            pass

    run(test)


def test_a_stream_ends_well_while_the_table_is_out_of_reach() -> None:
    async def test() -> None:
        table = Failing()
        async with DynamoDBSubscriptionBus(table=table).open_stream(limit=1, seconds=10):
            table.fail = {"delete_item", "query"}
        assert len(places()) == 1

    run(test)


@pytest.mark.parametrize("operation", ["update_item", "put_item"])
def test_who_publishes_is_not_told_of_a_table_out_of_reach(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        table = Failing()
        table.fail = {operation}
        await DynamoDBSubscriptionBus(table=table).publish(NOTE)

    run(test)
    assert "a change was not published: resource_updated" in caplog.text
    assert "note://" not in caplog.text


@pytest.mark.usefixtures("quick")
def test_open_streams_get_later_what_they_could_not_be_told() -> None:
    async def test() -> None:
        table = Failing()
        bus, other = DynamoDBSubscriptionBus(table=table), DynamoDBSubscriptionBus()
        heard: list[ServerEvent] = []
        async with bus.open_stream(limit=1, seconds=10):
            end = bus.subscribe(heard.append)
            table.fail = {"query"}
            events: list[ServerEvent] = [NOTE, ToolsListChanged(), NOTE]
            for event in events:
                await other.publish(event)
            await asyncio.sleep(0.2)
            assert heard == []
            table.fail.clear()
            await until(lambda: len(heard) == 3)
            end()
        assert heard == events

    run(test)


# Long polls


def poll(handler: McpHandler, shape: Shape = "rest", *, milliseconds: int = 30_000) -> tuple[Answer, float]:
    """The answer to one `subscriptions/listen` of an invocation with this much time, and how long it took."""
    started = time.monotonic()
    event = make_event(shape, headers=LISTEN[0], body=LISTEN[1])
    context: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: milliseconds)
    return answer(handler(event, context)), time.monotonic() - started


@contextmanager
def once_open(door: Door, act: Callable[[], None]) -> Iterator[None]:
    """Have `act` called as soon as a stream listens."""

    def wait() -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            values = [request.get("ExpressionAttributeValues", {}) for request in list(door.requests)]
            counted = [place for place, each in enumerate(values) if ":places" in each]
            # The stream is counted before it listens; with the second look after that it does.
            if counted and sum(":log" in each for each in values[counted[-1] :]) > 1:
                act()
                return
            time.sleep(0.005)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def assert_is_whole(reply: Answer, *methods: str) -> None:
    """An acknowledgement, these notifications, the result: all of this subscription."""
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    *notifications, result = reply.messages
    assert [each["method"] for each in notifications] == ["notifications/subscriptions/acknowledged", *methods]
    assert result["id"] == "listen-1"
    for each in [*(each["params"] for each in notifications), result["result"]]:
        assert each["_meta"]["io.modelcontextprotocol/subscriptionId"] == "listen-1"
    assert not reply.was_base64


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_sender_of_events_gets_one_whole_stream(shape: Shape, mode: ResponseMode, door: Door) -> None:
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(), response_mode=mode)

    def change() -> None:
        publish_change("resource_updated", "note://2")
        publish_change("resource_updated", "note://1")

    with once_open(door, change):
        reply, _ = poll(handler, shape)
    assert_is_whole(reply, CHANGES[0])
    assert reply.messages[1]["params"]["uri"] == "note://1"
    assert places() == []


@pytest.mark.usefixtures("quick")
def test_a_poll_goes_on_for_200_ms_after_its_first_event(door: Door) -> None:
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus())
    told: list[float] = []

    def change() -> None:
        publish_change("resource_updated", "note://1")
        told.append(time.monotonic())

    with once_open(door, change):
        reply, _ = poll(handler)
        took = time.monotonic() - told[0]
    print(f"the poll ended {took * 1000:.0f} ms after the change")
    assert 0.1 < took < 0.7
    assert_is_whole(reply, CHANGES[0])


@pytest.mark.usefixtures("quick")
def test_a_poll_has_the_companions_of_its_first_event(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealane.subscriptions._COMPANIONS", 0.6)
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus())

    def change() -> None:
        publish_change("resource_updated", "note://1")
        publish_change("tools_changed")
        publish_change("prompts_changed")
        time.sleep(1)
        publish_change("resources_changed")

    with once_open(door, change):
        assert_is_whole(poll(handler)[0], *CHANGES[:3])


@pytest.mark.parametrize(
    ("options", "longest", "milliseconds", "seconds"),
    [
        ({"listen_seconds": 0.5}, 25.0, 30_000, 0.5),
        ({"listen_seconds": 60}, 0.5, 30_000, 0.5),
        ({}, 0.5, 30_000, 0.5),
        ({}, 25.0, 1500, 0.5),
        ({}, 25.0, 300, 0.0),
    ],
)
def test_a_poll_without_an_event_ends_in_time(
    options: Any, longest: float, milliseconds: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealane.subscriptions._LONGEST_POLL", longest)
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(), **options)
    reply, took = poll(handler, milliseconds=milliseconds)
    assert seconds - 0.1 <= took < seconds + 0.5
    assert_is_whole(reply)


def test_a_poll_is_20_seconds_by_default_and_25_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time that the stream's place is taken for."""
    asked: list[float] = []

    class Noting(DynamoDBSubscriptionBus):
        def open_stream(self, *, limit: int, seconds: float) -> Any:
            asked.append(seconds)
            return super().open_stream(limit=limit, seconds=0)

    monkeypatch.setattr("sealane.subscriptions.ListenHandler", Refusing)
    for options in ({}, {"listen_seconds": 5}, {"listen_seconds": 300}):
        handler = create_mcp_handler(make_server, subscriptions=Noting(), **options)
        for milliseconds in (900_000, 11_000):
            poll(handler, milliseconds=milliseconds)
    assert asked == [20, 10, 5, 5, 25, 10]


class Refusing:
    """Ends every stream before it begins."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.close = lambda: None

    async def __call__(self, *arguments: Any) -> Any:
        raise MCPError(INTERNAL_ERROR, "as planned")


@pytest.mark.usefixtures("quick")
def test_what_the_client_did_not_ask_for_does_not_end_its_poll(door: Door) -> None:
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(), listen_seconds=1)
    headers, body = modern(
        "subscriptions/listen", id="listen-1", notifications={"resourceSubscriptions": ["note://1", "note://3"]}
    )

    def change() -> None:
        publish_change("resource_updated", "note://2")
        publish_change("tools_changed")

    started = time.monotonic()
    with once_open(door, change):
        context: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)
        reply = answer(handler(make_event("rest", headers=headers, body=body), context))
    assert time.monotonic() - started >= 0.9
    assert_is_whole(reply)


def test_between_two_polls_the_table_is_not_asked(door: Door) -> None:
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(), listen_seconds=0.3)
    for _ in range(3):
        assert_is_whole(poll(handler)[0])
        before = len(door.operations)
        time.sleep(0.3)
        assert len(door.operations) == before
    assert ask_tool(handler).status == 200
    assert door.operations.count("Query") == looks(door) + 3


def ask_tool(handler: McpHandler) -> Answer:
    headers, body = call("change")
    no_context: Any = None
    return answer(handler(make_event("rest", headers=headers, body=body), no_context))


def test_a_poll_beyond_the_limit_is_refused_until_another_stream_ends() -> None:
    handler = create_mcp_handler(
        make_server, subscriptions=DynamoDBSubscriptionBus(), max_subscriptions=1, listen_seconds=0.1
    )

    async def hold(taken: threading.Event, release: threading.Event) -> None:
        async with DynamoDBSubscriptionBus().open_stream(limit=1, seconds=10):
            taken.set()
            await anyio.to_thread.run_sync(release.wait)

    taken, release = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(asyncio.run, hold(taken, release))
        try:
            assert taken.wait(PATIENCE)
            refused = poll(handler)[0]
            assert refused.json["id"] == "listen-1"
            assert refused.json["error"] == {"code": INTERNAL_ERROR, "message": "Subscription limit reached"}
        finally:
            release.set()
        other.result()
    assert_is_whole(poll(handler)[0])


def test_a_tool_of_another_environment_ends_a_poll(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the second that the log is not looked at, and the 200 ms for companions."""
    here, there = (create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus()) for _ in range(2))
    told: list[float] = []

    def change() -> None:
        asyncio.run(there.notify.tools_changed())
        told.append(time.monotonic())

    with once_open(door, change):
        reply, _ = poll(here)
        assert time.monotonic() - told[0] < 1.7
    assert_is_whole(reply, "notifications/tools/list_changed")


@pytest.mark.parametrize("poll_or_stream", ["poll", "stream"])
def test_what_was_published_before_its_end_is_in_a_stream(poll_or_stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nobody looks at the log before."""
    monkeypatch.setattr("sealane.subscription_bus._FAST", PATIENCE)
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(), listen_seconds=1.5)

    def change() -> None:
        publish_change("resource_updated", "note://1")

    if poll_or_stream == "poll":
        timer = threading.Timer(0.6, change)
        timer.start()
        reply, _ = poll(handler)
        timer.join()
        assert_is_whole(reply, CHANGES[0])
        return
    with serving(handler.app) as address, httpx2.Client(base_url=address) as client, listening(client) as messages:
        change()
        update, result = messages
    assert update["method"] == CHANGES[0]
    assert "result" in result


def test_a_table_out_of_reach_is_a_refusal_to_listen_and_none_to_call(caplog: pytest.LogCaptureFixture) -> None:
    table = Failing()
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(table=table))
    table.fail = {"query", "update_item"}
    refused = poll(handler)[0]
    assert refused.json["error"] == {"code": INTERNAL_ERROR, "message": "out of reach"}
    assert "isError" not in json.dumps(ask_tool(handler).json).replace('"isError": false', "")


# Live


def stay(messages: Iterator[Message]) -> Message:
    """The last message of a stream."""
    last: Message = {}
    for message in messages:
        last = message
    return last


def test_a_live_stream_ends_with_its_result_after_listen_seconds() -> None:
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(), listen_seconds=0.5)
    started = time.monotonic()
    with serving(handler.app) as address, httpx2.Client(base_url=address) as client:
        with listening(client) as messages:
            result = stay(messages)
        assert 0.4 <= time.monotonic() - started < 1.5
        assert result["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "listen-1"
        assert places() == []


def test_a_live_stream_gets_what_a_tool_of_another_environment_changes() -> None:
    here, there = (create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus()) for _ in range(2))
    with (
        serving(here.app) as one,
        serving(there.app) as other,
        httpx2.Client(base_url=one, timeout=PATIENCE) as client,
        listening(client) as messages,
    ):
        headers, body = call("change")
        assert httpx2.post(f"{other}/mcp", headers=headers, json=body).status_code == 200
        assert [next(messages)["method"] for _ in CHANGES] == CHANGES


def test_a_client_that_leaves_its_live_stream_gives_its_place_free(door: Door) -> None:
    handler = create_mcp_handler(make_server, subscriptions=DynamoDBSubscriptionBus(), max_subscriptions=1)
    with serving(handler.app) as address:
        with httpx2.Client(base_url=address) as client, listening(client):
            assert len(places()) == 1
        deadline = time.monotonic() + PATIENCE
        while places() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert places() == []
        before = looks(door)
        time.sleep(1.2)
        assert looks(door) == before
