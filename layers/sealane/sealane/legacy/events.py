"""Events: every message of a session's streams, numbered, kept for clients that come back.

A stream belongs to one call, whose environment is its only writer; or it is the standalone one, to which every
environment of the session writes and one GET listens. An event's id names its stream and its number there. All of it
is kept under the session's id, so an id of another session names nothing.
"""

import json
import re
import secrets
import time
from typing import Any, Final, NamedTuple, Protocol

from sealane.errors import RequestId
from sealane.legacy.texts import get_texts, legacy_table, put_text
from sealane.state.aws import AwsRefusal
from sealane.state.log import Log, LogReader
from sealane.state.table import Table, expiry

__all__ = [
    "STANDALONE",
    "DynamoDBEventStore",
    "Event",
    "EventStore",
    "InMemoryEventStore",
    "Listener",
    "Opening",
    "event_id",
    "new_stream_id",
    "parse_event_id",
]

STANDALONE: Final = "get"

_EVENT_ID: Final = re.compile(r"(get|[A-Za-z0-9-]{22})_(0|[1-9][0-9]{0,17})")
_HELD: Final = 15.0
"""Seconds that a listener may be silent before another takes its place."""
_DIGITS: Final = 20


class Event(NamedTuple):
    """An event.

    Attributes:
        number: its place in its stream.
        message: JSON.
        final: nothing comes after it.
    """

    number: int
    message: str
    final: bool = False


class Opening(NamedTuple):
    """How a call's stream began.

    Attributes:
        until: epoch seconds up to which its writer has promised to live.
        requests: what it answers.
    """

    until: float
    requests: tuple[RequestId, ...]


class Listener(Protocol):
    """The listener at a session's standalone stream. There is one at a time.

    Attributes:
        position: number of the last event that a listener has sent.
    """

    position: int

    async def read(self) -> list[Event]:
        """What has come since, each event once."""
        ...

    async def keep(self) -> bool:
        """Keep the place and note `position`; false if somebody else has it, or the session has ended."""
        ...

    async def leave(self) -> None:
        """Give the place up, and note `position`."""
        ...


class EventStore(Protocol):
    """Where events are kept."""

    async def open(self, session_id: str, stream_id: str, opening: Opening) -> None:
        """Begin a call's stream with number 0, which has no message, or promise anew."""
        ...

    async def opening(self, session_id: str, stream_id: str) -> Opening | None:
        """How a call's stream began; `None` if there is none."""
        ...

    async def append(self, session_id: str, stream_id: str, event: Event) -> None:
        """Add to a call's stream. There is one writer, which counts from 1."""
        ...

    async def read(self, session_id: str, stream_id: str, first: int) -> list[Event]:
        """The events of a call's stream from a number on, without number 0, in their order."""
        ...

    async def publish(self, session_id: str, message: str) -> None:
        """Add to the standalone stream."""
        ...

    async def listen(self, session_id: str, after: int | None) -> Listener | None:
        """Take the listener's place.

        Args:
            after: number of the last event that the client has; it proves that its old connection is gone. `None` for
                what no listener has sent yet.

        Returns:
            `None` if the place is taken.

        Raises:
            LookupError: there is no event of that number.
        """
        ...

    async def forget(self, session_id: str) -> None:
        """Have the listener of a session that has ended leave."""
        ...


def new_stream_id() -> str:
    """A name for a call's stream: 128 random bits."""
    return secrets.token_urlsafe(16).replace("_", "-")


def event_id(stream_id: str, number: int) -> str:
    """The id of an event, as clients have it."""
    return f"{stream_id}_{number}"


def parse_event_id(text: str) -> tuple[str, int] | None:
    """Stream and number; `None` for what is no id of ours."""
    match = _EVENT_ID.fullmatch(text)
    return (match[1], int(match[2])) if match else None


class DynamoDBEventStore:
    """`EventStore` over the lane's table.

    Args:
        kept: how long events are kept, in seconds.
        table: the table; by default the lane's.
        forgotten: how long no session lives, in seconds.
    """

    def __init__(self, *, kept: float = 1800.0, forgotten: float = 86_400.0, table: Table | None = None) -> None:
        self._kept = kept
        self._forgotten = forgotten
        self._table = legacy_table(table)

    async def open(self, session_id: str, stream_id: str, opening: Opening) -> None:
        """See `EventStore`."""
        text = json.dumps([opening.until, opening.requests])
        await put_text(self._table, _stream_key(session_id, stream_id), _sort_key(0), text, ttl=self._kept)

    async def opening(self, session_id: str, stream_id: str) -> Opening | None:
        """See `EventStore`."""
        first = await get_texts(self._table, _stream_key(session_id, stream_id), _sort_key(0), _sort_key(0))
        if not first or first[0].text is None:
            return None
        until, requests = json.loads(first[0].text)
        return Opening(until, tuple(requests))

    async def append(self, session_id: str, stream_id: str, event: Event) -> None:
        """See `EventStore`."""
        final: dict[str, Any] = {"final": {"BOOL": True}} if event.final else {}
        key = _stream_key(session_id, stream_id)
        await put_text(self._table, key, _sort_key(event.number), event.message, ttl=self._kept, **final)

    async def read(self, session_id: str, stream_id: str, first: int) -> list[Event]:
        """See `EventStore`."""
        items = await get_texts(self._table, _stream_key(session_id, stream_id), _sort_key(max(first, 1)))
        return [Event(int(item.sort_key), item.text or "", "final" in item.item) for item in items]

    async def publish(self, session_id: str, message: str) -> None:
        """See `EventStore`.

        Raises:
            InvalidValue: it is longer than an entry of a log may be.
        """
        await self._log(session_id).append(message)

    async def listen(self, session_id: str, after: int | None) -> Listener | None:
        """See `EventStore`."""
        log = self._log(session_id)
        if after is not None and after > await log.end():
            raise LookupError("there is no event of that number")
        return await _DynamoDBListener.take(self._table, session_id, log, after, self._forgotten)

    async def forget(self, session_id: str) -> None:
        """See `EventStore`."""
        await self._table.call("delete_item", Key=_lease_key(session_id))

    def _log(self, session_id: str) -> Log:
        name = _stream_key(session_id, STANDALONE)
        return Log(name, kept=self._kept, table=self._table, forgotten=self._forgotten)


class _DynamoDBListener:
    """`Listener` over the lane's table; its place is an item with the holder, and the time up to which it holds."""

    def __init__(self, table: Table, session_id: str, log: Log, position: int, kept: float) -> None:
        self.position = position
        self._table = table
        self._key = _lease_key(session_id)
        self._holder = secrets.token_urlsafe(9)
        self._reader = LogReader(log, position)
        self._log = log
        self._kept = kept

    @classmethod
    async def take(
        cls, table: Table, session_id: str, log: Log, after: int | None, kept: float
    ) -> "_DynamoDBListener | None":
        """Take the place, if it is free or `after` proves that it ought to be."""
        listener = cls(table, session_id, log, after or 0, kept)
        free = "" if after is not None else "attribute_not_exists(holder) OR held_until < :now"
        answer = await listener._write("SET holder = :me, held_until = :until, expires_at = :expires", free)
        if answer is None:
            return None
        if after is None and "sent" in answer:
            listener.position = int(answer["sent"]["N"])
            listener._reader = LogReader(log, listener.position)
        return listener

    async def read(self) -> list[Event]:
        """See `Listener`."""
        return [Event(entry.number, entry.text) for entry in await self._reader.read()]

    async def keep(self) -> bool:
        """See `Listener`."""
        update = "SET held_until = :until, expires_at = :expires, sent = :sent"
        return await self._write(update, "holder = :me") is not None

    async def leave(self) -> None:
        """See `Listener`."""
        await self._write("SET expires_at = :expires, sent = :sent REMOVE holder, held_until", "holder = :me")

    async def _write(self, update: str, condition: str) -> "dict[str, dict[str, str]] | None":
        """Write the item, and give what it is then; `None` if the condition does not hold."""
        now = time.time()
        values = {
            ":me": {"S": self._holder},
            ":now": {"N": f"{now:.3f}"},
            ":until": {"N": f"{now + _HELD:.3f}"},
            ":expires": {"N": str(expiry(self._kept))},
            ":sent": {"N": str(self.position)},
        }
        named = {name: value for name, value in values.items() if name in f"{update} {condition}"}
        try:
            answer = await self._table.call(
                "update_item",
                Key=self._key,
                UpdateExpression=update,
                ExpressionAttributeValues=named,
                ReturnValues="ALL_NEW",
                **({"ConditionExpression": condition} if condition else {}),
            )
        except AwsRefusal:
            return None
        attributes: dict[str, dict[str, str]] = answer["Attributes"]
        return attributes


def _stream_key(session_id: str, stream_id: str) -> str:
    return f"events#{session_id}#{stream_id}"


def _lease_key(session_id: str) -> dict[str, dict[str, str]]:
    return {"pk": {"S": f"events#{session_id}"}, "sk": {"S": "listener"}}


def _sort_key(number: int) -> str:
    return f"{number:0{_DIGITS}}"


class InMemoryEventStore:
    """`EventStore` of one process, for tests."""

    def __init__(self) -> None:
        self._openings: dict[tuple[str, str], Opening] = {}
        self._events: dict[tuple[str, str], list[Event]] = {}
        self._holders: dict[str, tuple[_InMemoryListener, float]] = {}
        self._sent: dict[str, int] = {}

    async def open(self, session_id: str, stream_id: str, opening: Opening) -> None:
        """See `EventStore`."""
        self._openings[session_id, stream_id] = opening

    async def opening(self, session_id: str, stream_id: str) -> Opening | None:
        """See `EventStore`."""
        return self._openings.get((session_id, stream_id))

    async def append(self, session_id: str, stream_id: str, event: Event) -> None:
        """See `EventStore`."""
        self._events.setdefault((session_id, stream_id), []).append(event)

    async def read(self, session_id: str, stream_id: str, first: int) -> list[Event]:
        """See `EventStore`."""
        return [event for event in self._events.get((session_id, stream_id), []) if event.number >= first]

    async def publish(self, session_id: str, message: str) -> None:
        """See `EventStore`."""
        events = self._events.setdefault((session_id, STANDALONE), [])
        events.append(Event(len(events) + 1, message))

    async def listen(self, session_id: str, after: int | None) -> Listener | None:
        """See `EventStore`."""
        if after is not None and after > len(self._events.get((session_id, STANDALONE), [])):
            raise LookupError("there is no event of that number")
        held = self._holders.get(session_id)
        if after is None and held is not None and held[1] > time.time():
            return None
        position = self._sent.get(session_id, 0) if after is None else after
        listener = _InMemoryListener(self, session_id, position)
        self._holders[session_id] = listener, time.time() + _HELD
        return listener

    async def forget(self, session_id: str) -> None:
        """See `EventStore`."""
        self._holders.pop(session_id, None)


class _InMemoryListener:
    """`Listener` of one process."""

    def __init__(self, store: InMemoryEventStore, session_id: str, position: int) -> None:
        self.position = position
        self._store = store
        self._session_id = session_id
        self._read = position

    async def read(self) -> list[Event]:
        """See `Listener`."""
        events = await self._store.read(self._session_id, STANDALONE, self._read + 1)
        self._read += len(events)
        return events

    async def keep(self) -> bool:
        """See `Listener`."""
        holder = self._store._holders.get(self._session_id)
        if holder is None or holder[0] is not self:
            return False
        self._store._holders[self._session_id] = self, time.time() + _HELD
        self._store._sent[self._session_id] = self.position
        return True

    async def leave(self) -> None:
        """See `Listener`."""
        if await self.keep():
            del self._store._holders[self._session_id]
