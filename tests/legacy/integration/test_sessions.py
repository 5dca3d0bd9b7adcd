"""Sessions over four environments, each request to any of them: what a client sees on the wire."""

import asyncio
from contextlib import suppress

import httpx
import pytest

from tests.legacy.conftest import Lane
from tests.legacy.wire import Event, Message, Wire
from tests.planted import PLANTED

pytestmark = pytest.mark.anyio

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
WORKED = "notifications/progress"


def progress(messages: list[Message]) -> list[float]:
    return [each["params"]["progress"] for each in messages if each.get("method") == WORKED]


def text(answer: Message) -> str:
    said: str = answer["result"]["content"][0]["text"]
    return said


def kill(lane: Lane, message: Message) -> None:
    """End the environment that has reported a progress."""
    [number] = [each.number for each in lane.environments if str(each.pid) == message["params"]["message"]]
    lane.kill(number)


# S1: whose session it is


async def test_a_session_is_its_owners_alone(signed_lane: Lane) -> None:
    async with (
        Wire(signed_lane.url, "Ada", token="ada.1") as ada,  # noqa: S106
        Wire(signed_lane.url, "Bob", token="bob.1") as bob,  # noqa: S106
        Wire(signed_lane.url, "nobody") as nobody,
    ):
        await ada.connect()
        await bob.connect()
        assert await ada.call("whoami") == "ada with ada.1"
        foreign = {"Mcp_Session_Id": ada.session}
        assert await bob.status("POST", PING, **foreign) == 404
        assert await bob.status("GET", Accept="text/event-stream", **foreign) == 404
        assert await bob.status("DELETE", **foreign) == 404
        assert await nobody.status("POST", PING, **foreign) == 401
        # The session is bound to whom the token names, not to the token.
        ada.headers["Authorization"] = "Bearer ada.2"
        assert await ada.call("whoami") == "ada with ada.2"
        assert await ada.call("echo", text="hello") == "Ada says hello"
        assert await bob.call("echo", text="hello") == "Bob says hello"


# S2: whose events they are


async def test_a_stream_is_resumed_in_its_own_session_only(lane: Lane) -> None:
    async with Wire(lane.url, "Ada") as ada, Wire(lane.url, "Bob") as bob:
        await ada.connect()
        await bob.connect()
        seen: dict[str, list[Event]] = {}
        for wire in (ada, bob):
            seen[wire.session] = []
            message = wire.tool("work", progress="p", steps=6, step_ms=150)
            assert message["id"] == 2
            async with wire.send("POST", message) as answer:
                async for event in answer.events():
                    seen[wire.session].append(event)
                    if len(seen[wire.session]) == 3:
                        break
        mine, yours = seen[ada.session], seen[bob.session]
        assert all(event.id for event in mine + yours)
        assert not {event.id for event in mine} & {event.id for event in yours}

        async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=yours[0].id or "") as answer:
            stolen = await answer.all() if answer.status == 200 else []
        assert not [each for each in stolen if each.get("id") == 2 or each.get("method") == WORKED]

        async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=mine[1].id or "") as answer:
            assert answer.status == 200
            rest = await answer.all()
        assert progress(rest) == [2, 3, 4, 5, 6]
        assert [each["id"] for each in rest if "result" in each] == [2]


# S3: one session, an environment for each request


async def test_each_request_of_a_session_may_reach_another_environment(lane: Lane) -> None:
    # One that still works for an earlier test cannot take part.
    for _ in range(5):
        if await served_by(lane) == {1, 2, 3, 4}:
            return
        await asyncio.sleep(1)
    raise AssertionError("no session has met all environments")


async def served_by(lane: Lane) -> set[int | None]:
    """The environments of a handshake, a call, and the reply to what it asks, none of them twice if that can be."""
    async with Wire(lane.url, "Ada") as ada:
        with lane.dice.never_twice():
            await ada.connect()
            async with ada.send("POST", ada.tool("ask", question=PLANTED)) as answer:
                async for message in answer.messages():
                    if message.get("method") == "elicitation/create":
                        assert message["params"]["message"] == PLANTED
                        assert await ada.reply(message, action="accept", content={"answer": PLANTED}) == 202
                    elif "result" in message:
                        assert text(message) == f"{PLANTED} {PLANTED}"
    for _ in range(100):
        calls = [call for call in lane.calls if call.request_id in ada.request_ids]
        if len(calls) == 4:
            break
        await asyncio.sleep(0.02)
    return {call.environment for call in calls}


# S4: a stream that the server ends on purpose


@pytest.mark.parametrize("hang_up", [1, 2])
async def test_a_stream_that_is_cut_on_purpose_says_how_to_go_on(lane: Lane, hang_up: int) -> None:
    async with Wire(lane.url, "Ada") as ada:
        await ada.connect()
        message = ada.tool("work", progress="p", steps=3, step_ms=300, hang_up=hang_up)
        async with ada.send("POST", message) as answer:
            cut = await answer.all_events()
        assert cut[0].id
        assert cut[0].retry == 200
        assert cut[0].message is None
        assert progress([event.message for event in cut if event.message]) == [1, 2, 3][: hang_up - 1]
        assert not [event for event in cut if event.message and "result" in event.message]
        async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=cut[-1].id or "") as answer:
            rest = await answer.all()
        assert progress(rest) == [1, 2, 3][hang_up - 1 :]
        assert text(rest[-1]) == "3 steps are done."


async def test_who_has_a_whole_stream_is_not_led_to_ask_again(lane: Lane) -> None:
    # The TypeScript SDK's client takes an answer that is an error for none, and would come back for ever.
    async with Wire(lane.url, "Ada") as ada:
        await ada.connect()
        async with ada.send("POST", ada.message("prompts/get", name="unknown")) as answer:
            *_, last = await answer.all_events()
        assert last.message
        assert "error" in last.message
        async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=last.id or "") as answer:
            assert answer.status == 204
            assert await answer.all() == []


async def test_a_wire_that_breaks_does_not_end_the_call(lane: Lane) -> None:
    async with Wire(lane.url, "Ada") as ada:
        await ada.connect()
        message = ada.tool("work", progress="p", steps=5, step_ms=200)
        async with ada.send("POST", message) as answer:
            events = answer.events()
            seen = [await anext(events), await anext(events)]
        await asyncio.sleep(1.5)
        async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=seen[-1].id or "") as answer:
            rest = await answer.all()
        assert progress(rest) == [2, 3, 4, 5]
        assert text(rest[-1]) == "5 steps are done."


# C3: what a browser may read


@pytest.mark.parametrize("signed", [False, True])
async def test_a_browser_may_read_the_session_id_on_every_answer(lane: Lane, signed_lane: Lane, signed: bool) -> None:
    gateway = signed_lane if signed else lane
    async with Wire(gateway.url, "Ada", token="ada.1" if signed else None) as ada:
        ada.headers["Origin"] = "https://app.example.com"
        ada.headers["Sec-Fetch-Site"] = "cross-site"
        await ada.connect()
        requests: list[tuple[str, object, dict[str, str], int]] = [
            ("POST", PING, {}, 200),
            ("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, {}, 202),
            ("POST", PING, {"Mcp_Session_Id": ""}, 400),
            ("POST", b"{", {}, 400),
            ("POST", PING, {"Mcp_Session_Id": "of-nobody-at-all-1234"}, 404),
            ("POST", PING, {"MCP_Protocol_Version": "1999-01-01"}, 400),
            ("POST", PING, {"Accept": "text/html"}, 406),
            ("POST", PING, {"Content_Type": "text/plain"}, 415),
            ("PUT", PING, {}, 405),
            ("DELETE", None, {}, 204),
            *([("POST", PING, {"Authorization": "Bearer none"}, 401)] if signed else []),
        ]
        for method, body, headers, status in requests:
            async with ada.send(method, body, **headers) as answer:
                assert answer.status in ({200, 204} if method == "DELETE" else {status}), (method, body, headers)
                exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
                assert {"mcp-session-id", "www-authenticate"} <= exposed
                assert answer.headers["access-control-allow-origin"] in ("*", "https://app.example.com")


# Statuses


async def test_what_is_refused(lane: Lane) -> None:
    async with Wire(lane.url, "Ada") as ada:
        server = await ada.connect()
        assert server["protocolVersion"] == "2025-11-25"
        again = ada.message("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
        for body, headers, status in [
            (PING, {"Mcp_Session_Id": ""}, 400),
            (PING, {"Mcp_Session_Id": "of-nobody-at-all-1234"}, 404),
            (PING, {"MCP_Protocol_Version": "2025-06-18"}, 400),
            (PING, {"MCP_Protocol_Version": ""}, 200),
            (again, {}, 400),
            ([PING], {}, 400),
            (b"[]", {}, 400),
            (b'"hello"', {}, 400),
            (b"\xff", {}, 400),
            ({"jsonrpc": "2.0"}, {}, 400),
        ]:
            async with ada.send("POST", body, **headers) as answer:
                assert answer.status == status, (body, headers)
                if status != 200:
                    assert "mcp-session-id" not in answer.headers
                    [error] = await answer.all()
                    assert error["error"]["code"] in (-32600, -32700)
        assert await ada.call("echo", text="still here") == "Ada says still here"

        assert await ada.status("DELETE") in (200, 204)
        assert await ada.status("POST", PING) == 404
        assert await ada.status("GET", Accept="text/event-stream") == 404
        assert await ada.status("DELETE") == 404


async def test_a_batch_is_served_to_those_who_may_send_one(lane: Lane) -> None:
    async with Wire(lane.url, "Ada", version="2025-03-26") as ada:
        await ada.connect()
        batch = [
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            ada.tool("echo", text="one"),
            ada.tool("echo", text="two"),
        ]
        async with ada.send("POST", batch) as answer:
            answers = {each["id"]: text(each) for each in await answer.all()}
        assert answers == {2: "Ada says one", 3: "Ada says two"}


# The stream of the session


async def test_there_is_one_stream_of_a_session_and_its_client_may_come_back(lane: Lane) -> None:
    async with Wire(lane.url, "Ada") as ada, Wire(lane.url, "Bob") as bob:
        await ada.connect()
        await bob.connect()
        async with ada.send("GET", Accept="text/event-stream") as stream:
            events = stream.events()
            primed = await anext(events)
            assert primed.id
            assert primed.retry == 200
            assert await ada.status("GET", Accept="text/event-stream") == 409
            await bob.call("announce", uri="test://bobs")
            await ada.call("announce", uri="test://one")
            one = await asyncio.wait_for(anext(events), 5)
            assert one.message
            assert one.message["params"]["uri"] == "test://one"
        # Nobody has told the lane that this client is gone; it proves it by what it knows.
        await ada.call("announce", uri="test://two")
        async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=one.id or "") as stream:
            assert stream.status == 200
            async for message in stream.messages():
                assert message["params"]["uri"] == "test://two"
                break
            assert await ada.status("DELETE") in (200, 204)
            left = [each async for each in stream.messages()]
            assert left == []


async def test_a_question_that_cannot_go_with_the_call_goes_to_the_stream_of_the_session(lane: Lane) -> None:
    async with Wire(lane.url, "Ada", version="2025-11-25") as ada:
        await ada.connect()
        lost = ada.tool("ask", question="Still there?")
        async with ada.send("POST", lost) as answer:
            async for event in answer.events():
                if event.message and event.message.get("method") == "elicitation/create":
                    break
        # The call goes on, and its question waits for an answer, from wherever.
        assert event.message
        assert await ada.reply(event.message, action="accept", content={"answer": "yes"}) == 202
        assert await ada.reply(event.message, action="accept", content={"answer": "twice"}) == 202
        assert await ada.reply({"id": "unknown.1"}, action="accept") == 202
        async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=event.id or "") as answer:
            [result] = await answer.all()
        assert text(result) == "Still there? yes"


async def test_a_call_is_cancelled_from_anywhere(lane: Lane) -> None:
    async with Wire(lane.url, "Ada") as ada:
        await ada.connect()
        message = ada.tool("work", progress="p", steps=100, step_ms=100)
        async with ada.send("POST", message) as answer:
            seen = []
            async for each in answer.messages():
                seen.append(each)
                if len(seen) == 2:
                    assert await ada.notify("notifications/cancelled", requestId=message["id"], reason="test") == 202
        assert len(progress(seen)) < 50
        assert not [each for each in seen if "result" in each]


async def test_the_log_level_is_the_sessions(lane: Lane) -> None:
    async with Wire(lane.url, "Ada") as ada, Wire(lane.url, "Bob") as bob:
        await ada.connect()
        await bob.connect()

        async def logged(wire: Wire) -> list[str]:
            async with wire.send("POST", wire.tool("log_all")) as answer:
                return [each["params"]["level"] async for each in answer.messages() if "params" in each]

        assert await logged(ada) == ["debug", "warning", "error"]
        assert (await ada.request(ada.message("logging/setLevel", level="error")))["result"] == {}
        assert await logged(ada) == ["error"]
        assert await logged(bob) == ["debug", "warning", "error"]


# An environment that vanishes


async def test_the_end_of_an_environment_is_an_error_of_its_call_and_not_of_its_session(lane: Lane) -> None:
    async with Wire(lane.url, "Ada") as ada:
        await ada.connect()
        message = ada.tool("work", progress="p", steps=100, step_ms=100)
        events: list[Event] = []
        async with ada.send("POST", message) as answer:
            with suppress(httpx.HTTPError):
                async for event in answer.events():
                    events.append(event)
                    if event.message and len(progress([event.message])) and len(events) == 3:
                        kill(lane, event.message)
        assert not [each for each in events if each.message and "result" in each.message]

        # The session lives, and so does a second try.
        assert await ada.call("echo", text="again") == "Ada says again"
        assert await ada.call("work", steps=1, step_ms=1) == "1 steps are done."


async def test_who_follows_the_stream_of_a_killed_environment_gets_an_error(hasty_lane: Lane) -> None:
    lane = hasty_lane
    async with Wire(lane.url, "Ada") as ada:
        await ada.connect()
        message = ada.tool("work", progress="p", steps=1000, step_ms=100)
        async with ada.send("POST", message) as answer:
            events = answer.events()
            event = await anext(events)
            while not (event.message and event.message.get("method") == WORKED):
                event = await anext(events)
        kill(lane, event.message)
        last, rest = event.id or "", list[Message]()
        # Whoever follows has an environment for five seconds too, and comes back.
        for _ in range(5):
            async with ada.send("GET", Accept="text/event-stream", Last_Event_ID=last) as answer:
                assert answer.status == 200
                async for event in answer.events():
                    last = event.id or last
                    rest += [event.message] if event.message else []
            if rest and "id" in rest[-1]:
                break
        assert rest[-1]["id"] == message["id"]
        assert "error" in rest[-1]
        assert await ada.call("echo", text="again") == "Ada says again"
