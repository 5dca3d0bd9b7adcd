"""The stores, both kinds: what a call of theirs keeps, refuses, and costs."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from sealane.errors import RequestRejected
from sealane.legacy import DynamoDBEventStore, DynamoDBSessionStore, InMemoryEventStore, InMemorySessionStore, Session
from sealane.legacy.events import Event, EventStore, Opening
from sealane.legacy.sessions import MAX_SUBSCRIPTIONS, Limits, SessionStore, new_session_id
from sealane.policy.principal import Principal
from sealane.state.errors import InvalidValue, StateNotConfigured
from tests.legacy.unit.lane import table
from tests.unit.moto_aws import client, items

pytestmark = pytest.mark.anyio

LIMITS = Limits(idle=100, age=250, total=3, each=2)
ADA, BOB = Principal("app", "issuer", "ada"), Principal("app", "issuer", "bob")


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with table():
        yield


@pytest.fixture(params=[DynamoDBSessionStore, InMemorySessionStore])
def sessions(request: pytest.FixtureRequest) -> SessionStore:
    made: SessionStore = request.param()
    return made


@pytest.fixture(params=[DynamoDBEventStore, InMemoryEventStore])
def events(request: pytest.FixtureRequest) -> EventStore:
    made: EventStore = request.param()
    return made


def session(owner: Principal | None = None, **changes: Any) -> Session:
    now = int(time.time())
    made = {
        "id": new_session_id(),
        "owner": owner,
        "initialize_params": {"clientInfo": {"name": "é", "version": "1"}, "capabilities": {}},
        "protocol_version": "2025-11-25",
        "created_at": now,
        "last_used": now,
        "expires_at": now + 100,
    }
    return Session(**{**made, **changes})


@pytest.mark.parametrize("owner", [None, ADA])
async def test_a_session_comes_back_as_it_was(sessions: SessionStore, owner: Principal | None) -> None:
    made = session(owner)
    assert await sessions.create(made, LIMITS) == 1
    assert await sessions.get(made.id, owner) == made
    assert await sessions.get(made.id, BOB) is None
    assert await sessions.get(new_session_id(), owner) is None
    [listed] = await sessions.list()
    assert (listed.id, listed.owner, listed.client_name, listed.expires_at) == (made.id, owner, "é", made.expires_at)


async def test_what_a_client_asks_for_is_kept(sessions: SessionStore) -> None:
    made = session(ADA)
    await sessions.create(made, LIMITS)
    await sessions.set_log_level(made, "error")
    for uri in ("a:1", "a:2", "a:1"):
        assert await sessions.subscribe(made, uri)
    await sessions.unsubscribe(made, "a:2")
    kept = await sessions.get(made.id, ADA)
    assert kept is not None
    assert (kept.log_level, kept.subscriptions) == ("error", frozenset({"a:1"}))


async def test_there_is_a_limit_of_subscriptions(sessions: SessionStore) -> None:
    made = session()
    await sessions.create(made, LIMITS)
    for number in range(MAX_SUBSCRIPTIONS):
        assert await sessions.subscribe(made, f"a:{number}")
    assert not await sessions.subscribe(made, "a:one more")
    assert await sessions.subscribe(made, "a:0")


async def test_what_has_ended_does_not_come_back(sessions: SessionStore) -> None:
    made = session(ADA, last_used=int(time.time()) - 90)
    await sessions.create(made, LIMITS)
    assert await sessions.end(made.id, BOB) is None
    assert await sessions.end(made.id, ADA) == made
    assert await sessions.end(made.id, ADA) is None
    assert await sessions.touch(made, LIMITS) is None
    await sessions.set_log_level(made, "error")
    assert not await sessions.subscribe(made, "a:1")
    await sessions.unsubscribe(made, "a:1")
    assert await sessions.get(made.id, ADA) is None
    assert await sessions.count() == 0


async def test_what_has_expired_is_gone(sessions: SessionStore) -> None:
    made = session(last_used=int(time.time()) - 90, expires_at=int(time.time()) - 1)
    await sessions.create(made, LIMITS)
    assert await sessions.get(made.id, None) is None
    assert await sessions.touch(made, LIMITS) is None
    assert await sessions.end(made.id, None) is None
    assert await sessions.list() == []


async def test_use_is_noted_once_a_minute(sessions: SessionStore) -> None:
    fresh = session()
    await sessions.create(fresh, LIMITS)
    assert await sessions.touch(fresh, LIMITS) is fresh
    now = int(time.time())
    used = session(created_at=now - 200, last_used=now - 61, expires_at=now + 39)
    await sessions.create(used, LIMITS)
    touched = await sessions.touch(used, LIMITS)
    assert touched is not None
    # The absolute limit comes first.
    assert (touched.last_used - now, touched.expires_at - now) in ((0, 50), (1, 50))
    assert await sessions.get(used.id, None) == touched


async def test_there_are_never_too_many(sessions: SessionStore) -> None:
    for owner in (ADA, ADA):
        await sessions.create(session(owner), LIMITS)
    with pytest.raises(RequestRejected) as refused:
        await sessions.create(session(ADA), LIMITS)
    assert refused.value.status == 503
    await sessions.create(session(BOB), LIMITS)
    with pytest.raises(RequestRejected):
        await sessions.create(session(), LIMITS)
    assert await sessions.count() == 3


async def test_an_id_is_used_once(sessions: SessionStore) -> None:
    made = session(ADA)
    await sessions.create(made, LIMITS)
    with pytest.raises(ValueError, match="never come twice"):
        await sessions.create(session(BOB, id=made.id), LIMITS)


async def test_mail_is_for_its_address_and_comes_once(sessions: SessionStore) -> None:
    box = sessions.mailbox
    await box.post("s", "a", "first")
    await box.post("s", "a", "second")
    await box.post("s", "a", "reply", "reply-1")
    await box.post("s", "a", "doubled", "reply-1")
    await box.post("s", "b", "other")
    await box.post("t", "a", "foreign")
    got = await box.collect("s", ["a", "c"])
    assert [mail.message for mail in got] == ["first", "second", "reply"]
    for mail in got:
        await box.discard("s", mail)
    assert [mail.message for mail in await box.collect("s", ["a", "b"])] == ["other"]


async def test_a_long_reply_is_one(sessions: SessionStore) -> None:
    long = "é" * 600_000
    await sessions.mailbox.post("s", "a", long, "reply-1")
    assert [mail.message for mail in await sessions.mailbox.collect("s", ["a"])] == [long]


async def test_a_stream_is_read_from_where_one_was(events: EventStore) -> None:
    assert await events.opening("s", "x") is None
    await events.open("s", "x", Opening(5.0, (1, "a")))
    for number in (1, 2, 3):
        await events.append("s", "x", Event(number, f"é{number}" * 200_000, number == 3))
    assert await events.opening("s", "x") == (5.0, (1, "a"))
    assert [event.number for event in await events.read("s", "x", 0)] == [1, 2, 3]
    last = await events.read("s", "x", 3)
    assert last == [Event(3, "é3" * 200_000, True)]
    assert await events.read("s", "x", 4) == []
    assert await events.read("t", "x", 0) == []
    await events.open("s", "x", Opening(6.0, (1, "a")))
    assert await events.opening("s", "x") == (6.0, (1, "a"))


async def test_one_listens_at_a_time(events: EventStore) -> None:
    first = await events.listen("s", None)
    assert first is not None
    assert await events.listen("s", None) is None
    await events.publish("s", "one")
    [event] = await first.read()
    assert event == Event(1, "one")
    assert await first.read() == []
    first.position = 1
    assert await first.keep()
    second = await events.listen("s", 0)
    assert second is not None
    assert await second.read() == [Event(1, "one")]
    assert not await first.keep()
    await first.leave()
    assert await second.keep()
    await second.leave()
    third = await events.listen("s", None)
    assert third is not None
    with pytest.raises(LookupError):
        await events.listen("s", 2)
    await events.forget("s")
    assert not await third.keep()


async def test_what_a_listener_has_sent_is_not_sent_again(events: EventStore) -> None:
    await events.publish("s", "one")
    first = await events.listen("s", None)
    assert first is not None
    assert await first.read() == [Event(1, "one")]
    first.position = 1
    await events.publish("s", "two")
    await first.leave()
    second = await events.listen("s", None)
    assert second is not None
    assert second.position == 1
    assert await second.read() == [Event(2, "two")]


async def test_a_listener_that_is_silent_loses_its_place(events: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await events.listen("s", None)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 16)
    assert await events.listen("s", None)


async def test_a_long_message_is_no_entry_of_the_log() -> None:
    with pytest.raises(InvalidValue):
        await DynamoDBEventStore().publish("s", "x" * 200_000)


async def test_events_that_dynamodb_still_has_are_gone() -> None:
    events = DynamoDBEventStore()
    await events.open("s", "x", Opening(5.0, (1,)))
    for item in items():
        item["expires_at"] = {"N": str(int(time.time()) - 1)}
        client().put_item(TableName="data", Item=item)
    assert await events.opening("s", "x") is None


async def test_a_table_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEALANE_LEGACY_TABLE")
    with pytest.raises(StateNotConfigured, match="SEALANE_LEGACY_TABLE"):
        DynamoDBSessionStore()
