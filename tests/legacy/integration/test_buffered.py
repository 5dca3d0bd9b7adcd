"""Sessions behind a gateway that passes answers on as a whole: the stream of a session is a long poll."""

import asyncio
import time

import pytest

from tests.legacy.conftest import Lane
from tests.legacy.wire import Message, Wire

pytestmark = pytest.mark.anyio


async def listen(wire: Wire, last: str = "") -> tuple[list[Message], str]:
    """What one long poll brings, and where the next is to begin."""
    async with wire.send("GET", Accept="text/event-stream", Last_Event_ID=last) as answer:
        assert answer.status == 200
        events = await answer.all_events()
    ids = [event.id for event in events if event.id]
    return [event.message for event in events if event.message], ids[-1]


async def test_a_call_is_answered_with_all_that_it_has_said(buffered_lane: Lane) -> None:
    async with Wire(buffered_lane.url, "Ada") as ada:
        await ada.connect()
        async with ada.send("POST", ada.tool("work", progress="p", steps=2, hang_up=1)) as answer:
            primed, *events = await answer.all_events()
        assert primed.id
        assert primed.message is None
        said = [event.message or {} for event in events]
        assert [each["params"]["progress"] for each in said[:-1]] == [1, 2]
        assert said[-1]["result"]["content"][0]["text"] == "2 steps are done."
        assert len({event.id for event in events}) == 3


async def test_a_question_goes_to_who_listens(buffered_lane: Lane) -> None:
    async with Wire(buffered_lane.url, "Ada") as ada:
        await ada.connect()
        listening = asyncio.create_task(listen(ada))
        await asyncio.sleep(0.5)
        calling = asyncio.create_task(ada.call("ask", question="How many?"))
        [question], last = await listening
        assert question["method"] == "elicitation/create"
        assert await ada.reply(question, action="accept", content={"answer": "four"}) == 202
        assert await calling == "How many? four"

        # Who was not there when it was asked finds the question when they come back.
        calling = asyncio.create_task(ada.call("ask", question="And now?"))
        await asyncio.sleep(0.5)
        [question], last = await listen(ada, last)
        assert await ada.reply(question, action="accept", content={"answer": "five"}) == 202
        assert await calling == "And now? five"

        await ada.call("announce", uri="test://one")
        await ada.call("announce", uri="test://two")
        told, last = await listen(ada, last)
        assert [each["params"]["uri"] for each in told] == ["test://one", "test://two"]


async def test_who_listens_to_a_session_that_ends_is_let_go(buffered_lane: Lane) -> None:
    async with Wire(buffered_lane.url, "Ada") as ada:
        await ada.connect()
        listening = asyncio.create_task(listen(ada))
        await asyncio.sleep(0.5)
        started = time.monotonic()
        assert await ada.status("DELETE") == 204
        assert (await listening)[0] == []
        assert time.monotonic() - started < 10
        assert await ada.status("GET", Accept="text/event-stream") == 404
