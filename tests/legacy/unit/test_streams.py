"""Sessions over live streams: uvicorn in front of environments that share nothing but the table."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import mcp.types as types
import pytest
from mcp import ClientSession, McpError
from pydantic import AnyUrl

from sealane.legacy import InMemoryEventStore, InMemorySessionStore
from sealane.legacy.events import DynamoDBEventStore, Opening, event_id
from tests.legacy.unit.lane import Environments, client, table, text, until
from tests.legacy.unit.server import URI
from tests.legacy.wire import Event, Message, Wire
from tests.unit.moto_aws import items

pytestmark = pytest.mark.anyio

SSE = "text/event-stream"


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with table():
        yield


@pytest.fixture
async def lane() -> Environments:
    return Environments(3)


@pytest.fixture
async def url(lane: Environments) -> AsyncIterator[str]:
    async with lane.serving() as made:
        yield made


@pytest.fixture
async def wire(url: str) -> AsyncIterator[Wire]:
    async with Wire(url) as made:
        await made.connect()
        yield made


async def events_from(wire: Wire, last: str | None = None, **headers: str) -> list[Event]:
    """All events of a GET."""
    async with wire.send("GET", Accept=SSE, Last_Event_ID=last or "", **headers) as answer:
        assert answer.status == 200
        return await answer.all_events()


def answer_of(events: list[Event]) -> Message:
    message = events[-1].message
    assert message is not None
    return message


async def accept(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def say(_: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="Hey"), model="m")


async def two_roots(_: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=f"file:///{each}") for each in "ab"])  # type: ignore[arg-type]


async def told(session: ClientSession, tool: str, **arguments: Any) -> str:
    """What the SDK's client gets of a tool."""
    result = await session.call_tool(tool, arguments)
    assert isinstance(result.content[0], types.TextContent)
    return result.content[0].text


# S3: initialize in one environment; a call, and the reply to a pushed question, in others


async def test_s3_a_reply_finds_its_call_from_any_environment(lane: Environments, url: str) -> None:
    async with client(
        url, elicitation_callback=accept, sampling_callback=say, list_roots_callback=two_roots
    ) as session:
        for _ in range(3):
            assert await told(session, "hello") == "Hello, Ada!"
        assert await told(session, "sample") == "Hey"
        assert await told(session, "roots") == "file:///a,file:///b"
        both = await asyncio.gather(told(session, "hello"), told(session, "sample"), told(session, "add", a=1, b=2))
        assert list(both) == ["Hello, Ada!", "Hey", "3"]
    assert len({at for at, _ in lane.requests}) == 3


async def test_s3_in_an_environment_that_is_named(url: str) -> None:
    async with Wire(url) as wire:
        wire.headers["x-environment"] = "0"
        await wire.connect()
        async with wire.send("POST", wire.tool("hello"), X_Environment="1") as answer:
            events = answer.events()
            assert (await anext(events)).message is None
            question = (await anext(events)).message
            assert question is not None
            assert question["method"] == "elicitation/create"
            wire.headers["x-environment"] = "2"
            assert await wire.reply(question, action="accept", content={"name": "Bob"}) == 202
            # Doubled replies, and those to nothing, change nothing.
            assert await wire.reply(question, action="decline") == 202
            assert await wire.reply({"id": question["id"][:-1] + "9"}, action="decline") == 202
            assert text((await anext(events)).message or {}) == "Hello, Bob!"


async def test_questions_have_ids_that_are_never_the_same(wire: Wire) -> None:
    ids = set()
    for _ in range(2):
        for at in range(3):
            async with wire.send("POST", wire.tool("hello"), X_Environment=str(at)) as answer:
                messages = answer.messages()
                question = await anext(messages)
                ids.add(question["id"])
                await wire.reply(question, action="cancel")
                assert text(await anext(messages)) == "cancel"
    assert len(ids) == 6


async def test_an_error_of_the_client_reaches_the_tool(wire: Wire) -> None:
    async with wire.send("POST", wire.tool("sample")) as answer:
        messages = answer.messages()
        question = await anext(messages)
        error = {"code": -1, "message": "user said no"}
        await wire.status("POST", {"jsonrpc": "2.0", "id": question["id"], "error": error})
        failed = await anext(messages)
        assert failed["result"]["isError"]
        assert "user said no" in text(failed)


async def test_a_question_that_nobody_answers() -> None:
    lane = Environments(1, reverse_request_timeout=0.3)
    async with lane.serving() as url, Wire(url) as wire:
        await wire.connect()
        failed = await wire.request(wire.tool("hello"))
        assert failed["result"]["isError"]
        assert "Timed out" in text(failed)


async def test_progress_of_the_client_reaches_the_tool(wire: Wire) -> None:
    async with wire.send("POST", wire.tool("patient")) as answer:
        messages = answer.messages()
        question = await anext(messages)
        token = question["params"]["_meta"]["progressToken"]
        assert token == question["id"]
        for value in (1, 2):
            assert await wire.notify("notifications/progress", progressToken=token, progress=value) == 202
        await wire.reply(question, roots=[])
        assert text(await anext(messages)) == "[1.0, 2.0] 0"


async def test_a_call_is_cancelled_from_another_environment(lane: Environments, wire: Wire) -> None:
    message = wire.tool("sleep", seconds=30)
    async with wire.send("POST", message, X_Environment="0") as answer:
        cancelling = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}}
        assert await wire.status("POST", cancelling, X_Environment="1") == 202
        assert (await answer.all())[-1]["error"]["message"] == "Request cancelled"
    assert lane.records[0].cancelled == ["sleep"]


async def test_the_end_of_a_session_ends_its_calls(lane: Environments, wire: Wire) -> None:
    async with wire.send("POST", wire.tool("sleep", seconds=30), X_Environment="0") as answer:
        assert await wire.status("DELETE", X_Environment="1") == 204
        assert (await answer.all())[-1]["error"]["message"] == "The session has ended"
    await until(lambda: lane.records[0].cancelled == ["sleep"])


# S4: the server cuts a stream on purpose


async def test_s4_a_stream_that_the_server_cuts_is_come_back_to(lane: Environments, wire: Wire) -> None:
    async with wire.send("POST", wire.tool("cut", seconds=1.0), X_Environment="0") as answer:
        first = await answer.all_events()
    # At once, before anything else was sent: the client can come back all the same.
    assert [event.message for event in first] == [None]
    assert first[0].retry == 1000
    assert first[0].id
    assert lane.records[0].finished == []
    rest = await events_from(wire, first[-1].id, X_Environment="1")
    assert rest[0].message is None
    assert [event.message and event.message.get("method") for event in rest[1:]] == ["notifications/message", None]
    assert text(answer_of(rest)) == "whole"
    assert lane.records[0].finished == ["cut"]
    # Not the client's last one: all of it again.
    again = await events_from(wire, first[0].id, X_Environment="2")
    assert [event.id for event in again] == [event.id for event in rest]


async def test_s4_with_the_sdks_client(url: str) -> None:
    async with client(url) as session:
        assert await told(session, "cut") == "whole"


async def test_a_connection_that_breaks_does_not_end_the_call(lane: Environments, wire: Wire) -> None:
    async with wire.send("POST", wire.tool("steps", count=4, pause=0.2), X_Environment="0") as answer:
        events = answer.events()
        await anext(events)
        last = await anext(events)
    await until(lambda: lane.records[0].finished == ["steps"])
    rest = await events_from(wire, last.id, X_Environment="1")
    assert text(answer_of(rest)) == "done"
    numbers = [int((event.id or "").rpartition("_")[2]) for event in rest]
    assert numbers == list(range(1, len(rest) + 1))


async def test_a_question_on_a_stream_that_is_come_back_to(wire: Wire) -> None:
    async with wire.send("POST", wire.tool("hello"), X_Environment="0") as answer:
        priming = await anext(answer.events())
    async with wire.send("GET", Accept=SSE, Last_Event_ID=priming.id or "", X_Environment="1") as answer:
        messages = answer.messages()
        await wire.reply(await anext(messages), action="accept", content={"name": "Eve"})
        assert text(await anext(messages)) == "Hello, Eve!"


async def test_s2_nobody_elses_events_are_replayed(url: str) -> None:
    async with Wire(url) as mine, Wire(url) as theirs:
        await mine.connect()
        await theirs.connect()
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "steps", "arguments": {}}}
        seen = {}
        for wire in (mine, theirs):
            async with wire.send("POST", message) as answer:
                seen[wire] = await answer.all_events()
        foreign = seen[theirs][0].id or ""
        assert await mine.status("GET", Accept=SSE, Last_Event_ID=foreign) == 400
        # Only what came later, of that stream only.
        await mine.request(mine.tool("add", a=1, b=1))
        rest = await events_from(mine, seen[mine][2].id)
        assert [event.id for event in rest[1:]] == [event.id for event in seen[mine][3:]]


async def test_a_call_whose_environment_is_gone_ends_with_an_error(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    events = DynamoDBEventStore()
    stream = "A" * 22
    await events.open(wire.session, stream, Opening(time.time() - 5, (7, "eight")))
    lost = await events_from(wire, event_id(stream, 0))
    assert [(event.message or {}).get("id") for event in lost] == [None, 7, "eight"]
    assert (lost[1].message or {})["error"]["code"] == -32603
    assert lost[1].id is None


async def test_a_slow_call_ends_before_the_deadline(lane: Environments, wire: Wire) -> None:
    lane.deadline = 0.5
    started = time.monotonic()
    async with wire.send("POST", wire.tool("sleep", seconds=30)) as answer:
        events = await answer.all_events()
    assert time.monotonic() - started < 2
    assert answer_of(events)["error"]["message"] == "The request took longer than this server may run"
    assert [event.message for event in await events_from(wire, events[0].id)][1:] == [answer_of(events)]


# The standalone stream


async def test_the_standalone_stream_follows_every_environment(wire: Wire) -> None:
    async with wire.send("GET", Accept=SSE, X_Environment="0") as answer:
        events = answer.events()
        first = await anext(events)
        assert (first.id, first.retry, first.message) == ("get_0", 1000, None)
        for at in (1, 2):
            async with wire.send("POST", wire.tool("announce"), X_Environment=str(at)) as called:
                assert text((await called.all())[-1]) == "announced"
            event = await anext(events)
            assert event.message == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        assert await wire.status("GET", Accept=SSE, X_Environment="1") == 409


async def test_who_comes_back_takes_the_place(wire: Wire) -> None:
    async with wire.send("GET", Accept=SSE, X_Environment="0") as answer:
        events = answer.events()
        last = (await anext(events)).id
        async with wire.send("GET", Accept=SSE, Last_Event_ID=last or "", X_Environment="1") as second:
            assert second.status == 200
            await anext(second.events())
            # Who had it learns of it with the next event at the latest.
            await wire.call("announce")
            assert [event.message is None async for event in events] in ([], [False])


async def test_a_place_that_its_client_has_left_is_free(wire: Wire) -> None:
    async with wire.send("GET", Accept=SSE) as answer:
        await anext(answer.events())
    for _ in range(20):
        await asyncio.sleep(0.1)
        if await wire.status("GET", Accept=SSE) == 200:
            return
    raise AssertionError("it is taken")


async def test_the_end_of_a_session_ends_the_standalone_stream(wire: Wire) -> None:
    async with wire.send("GET", Accept=SSE, X_Environment="0") as answer:
        await anext(answer.events())
        assert await wire.status("DELETE", X_Environment="1") == 204
        async with asyncio.timeout(8):
            assert await answer.all_events() == []


async def test_a_call_can_end_the_standalone_stream(wire: Wire) -> None:
    async with wire.send("GET", Accept=SSE, X_Environment="0") as answer:
        await anext(answer.events())
        assert await wire.call("cut_standalone") == "closed"
        async with asyncio.timeout(3):
            assert await answer.all_events() == []
    async with wire.send("GET", Accept=SSE, X_Environment="1") as answer:
        assert answer.status == 200
        await wire.call("announce")
        events = answer.events()
        assert (await anext(events)).message is None
        assert (await anext(events)).message


async def test_listening_ends_and_goes_on() -> None:
    lane = Environments(1, listen_seconds=0.5)
    async with lane.serving() as url, Wire(url) as wire:
        await wire.connect()
        first = await events_from(wire)
        assert [event.id for event in first] == ["get_0"]
        await wire.call("announce")
        assert [event.id for event in await events_from(wire, "get_0")] == ["get_0", "get_1"]


async def test_questions_go_to_the_standalone_stream_where_answers_are_whole() -> None:
    lane = Environments(2, enable_json_response=True)
    async with lane.serving() as url, Wire(url) as wire:
        await wire.connect()
        async with wire.send("GET", Accept=SSE, X_Environment="0") as answer:
            events = answer.events()
            await anext(events)
            calling = asyncio.create_task(wire.request(wire.tool("hello")))
            question = (await anext(events)).message
            await wire.reply(question or {}, action="accept", content={"name": "Ada"})
            assert text(await calling) == "Hello, Ada!"


async def test_questions_behind_a_gateway_that_buffers(lane: Environments) -> None:
    """The call, the long poll that brings the question, and the reply: three events."""
    session = await asyncio.to_thread(lane.initialize)
    calling = asyncio.create_task(asyncio.to_thread(lane.call, session, "hello", at=0))
    # Both would run on the loop of this process, one after the other: the poll is served over HTTP.
    async with lane.serving() as url, Wire(url) as wire:
        wire.headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        async with wire.send("GET", Accept=SSE) as answer:
            events = answer.events()
            await anext(events)
            question = (await anext(events)).message
            await wire.reply(question or {}, action="accept", content={"name": "Ada"})
            assert text((await calling).messages[-1]) == "Hello, Ada!"


async def test_comments_keep_a_stream_alive() -> None:
    lane = Environments(1, keep_alive=0.1)
    async with lane.serving() as url, Wire(url) as wire:
        await wire.connect()
        async with wire.send("POST", wire.tool("sleep", seconds=0.5)) as answer:
            body = await answer._response.aread()
    assert body.count(b": keep-alive\r\n\r\n") >= 3
    assert answer.headers["x-accel-buffering"] == "no"


# The SDK's own client, which resumes, subscribes, sets levels


async def test_the_sdks_client(lane: Environments, url: str) -> None:
    seen: list[Any] = []

    async def hear(message: Any) -> None:
        seen.append(message)

    logged: list[str] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params.level)

    async with client(url, message_handler=hear, logging_callback=log) as session:
        assert "add" in [tool.name for tool in (await session.list_tools()).tools]
        await session.set_logging_level("error")
        await told(session, "levels")
        assert logged == ["error"]
        await session.subscribe_resource(AnyUrl(URI))
        for _ in range(3):
            await told(session, "touch")
        await until(lambda: sum("updated" in str(each) for each in seen) == 3)
        with pytest.raises(McpError, match="Unknown resource"):
            await session.read_resource(AnyUrl("note://none"))
    # The client ends its session when it leaves.
    assert [at for at, method in lane.requests if method == "DELETE"]


async def test_sessions_do_not_mix(url: str) -> None:
    async def one(number: int) -> None:
        async def name(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content={"name": f"n{number}"})

        async with client(url, elicitation_callback=name) as session:
            for _ in range(2):
                assert await told(session, "hello") == f"Hello, n{number}!"
                assert await told(session, "add", a=number, b=0) == str(number)

    await asyncio.gather(*map(one, range(5)))


async def test_everything_in_memory() -> None:
    sessions, events = InMemorySessionStore(), InMemoryEventStore()
    lane = Environments(2, session_store=sessions, event_store=events)
    async with lane.serving() as url, client(url, elicitation_callback=accept) as session:
        assert await told(session, "hello") == "Hello, Ada!"
        assert await told(session, "cut") == "whole"
        await told(session, "announce")
        assert await sessions.count() == 1
    assert items() == []


async def test_what_is_kept_goes_away_by_itself(wire: Wire) -> None:
    await wire.call("announce")
    await wire.status("GET", Accept=SSE)
    assert items()
    assert all("expires_at" in item for item in items())
    assert json.dumps(wire.session)
