"""Reading a stream that other environments write, for a client that comes back or listens."""

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

import anyio

from sealane.errors import INTERNAL_ERROR
from sealane.legacy.events import STANDALONE, Event, EventStore, Listener, Opening, event_id
from sealane.legacy.sessions import Limits, Session, SessionStore
from sealane.legacy.streams import EventStream, sse
from sealane.state.errors import StateUnavailable

__all__ = ["PROMISE", "CallFollower", "Follower", "StandaloneFollower", "close_standalone", "follow"]

logger = logging.getLogger(__name__)

PROMISE: Final = 30.0
"""Seconds for which the environment of a call promises to live."""

_GRACE: Final = 2.0
"""Seconds after a promise at which its call is given up: clocks differ."""
_FAST: Final = 0.1
"""Seconds between two looks while something happens."""
_CALM: Final = 5.0
"""Seconds without an event after which nothing happens."""
_KEEP_PLACE: Final = 5.0
_TOUCH: Final = 60.0
_COMPANIONS: Final = 0.2
"""Seconds that a long poll goes on after its first event: messages come in groups."""


class Follower(Protocol):
    """Somebody who reads a stream.

    Attributes:
        event_id: of the last event that the client has.
        over: there is nothing more to wait for.
        at_rest: seconds between two looks while nothing happens.
    """

    event_id: str
    over: bool
    at_rest: float

    async def read(self) -> list[bytes]:
        """What is to be sent next."""
        ...

    async def leave(self) -> None:
        """Is called at the end."""
        ...


async def follow(follower: Follower, stream: EventStream, limit: anyio.CancelScope, *, poll: bool) -> None:
    """Write what is read to `stream`.

    Args:
        limit: the scope that ends it; whatever it interrupts, nothing is lost.
        poll: the answer leaves as a whole, and soon after there is something in it.
    """
    last = anyio.current_time() - _CALM
    while True:
        events: list[bytes] = []
        try:
            events = await follower.read()
        except StateUnavailable:
            logger.error("the events are out of reach; they will be sent later")
        for event in events:
            stream.write(event)
        if follower.over:
            return
        now = anyio.current_time()
        if events:
            last = now
            if poll:
                limit.deadline = min(limit.deadline, now + _COMPANIONS)
        await anyio.sleep(_FAST if now - last < _CALM else follower.at_rest)


async def close_standalone(events: EventStore, session_id: str) -> None:
    """End the answer of whoever listens to a session's standalone stream."""
    await events.publish(session_id, json.dumps({"close": time.time()}))


class StandaloneFollower:
    """`Follower` of a session's standalone stream, which also keeps the session alive.

    Args:
        session: the session.
        sessions: where it is.
        limits: how long sessions live.
        listener: the place.
    """

    at_rest = 1.0

    def __init__(self, session: Session, sessions: SessionStore, limits: Limits, listener: Listener) -> None:
        self.event_id = event_id(STANDALONE, listener.position)
        self.over = False
        self._session = session
        self._sessions = sessions
        self._limits = limits
        self._listener = listener
        self._began = time.time()
        self._kept = self._touched = anyio.current_time()

    async def read(self) -> list[bytes]:
        """See `Follower`."""
        data = []
        events = await self._listener.read()
        for number, message, _ in events:
            self._listener.position = max(self._listener.position, number)
            if (closed := _closed_at(message)) is None:
                data.append(sse(message, event_id(STANDALONE, number)))
            elif closed >= self._began:
                self.over = True
        now = anyio.current_time()
        if (events or now - self._kept > _KEEP_PLACE) and not self.over:
            self._kept = now
            with suppress(StateUnavailable):
                # Somebody else has the place now, or the session is gone.
                self.over = not await self._listener.keep()
        if now - self._touched > _TOUCH and not self.over:
            self._touched = now
            with suppress(StateUnavailable):
                session = await self._sessions.touch(self._session, self._limits)
                self.over = session is None
                self._session = session or self._session
        return data

    async def leave(self) -> None:
        """See `Follower`."""
        with suppress(StateUnavailable):
            await self._listener.leave()


def _closed_at(message: str) -> float | None:
    if not message.startswith('{"close":'):
        return None
    closed: float = json.loads(message)["close"]
    return closed


class CallFollower:
    """`Follower` of the stream of a call, which runs in another environment or is over."""

    at_rest = 0.25

    def __init__(self, session: Session, events: EventStore, stream_id: str, number: int, opening: Opening) -> None:
        self.event_id = event_id(stream_id, number)
        self.over = False
        self._session = session
        self._events = events
        self._stream_id = stream_id
        self._next = number + 1
        self._opening = opening

    @classmethod
    async def at(cls, session: Session, events: EventStore, stream_id: str, number: int) -> "CallFollower":
        """The follower that goes on after event `number`.

        Raises:
            LookupError: this session has no such event.
        """
        opening = await events.opening(session.id, stream_id)
        if opening is None:
            raise LookupError("there is no such stream")
        follower = cls(session, events, stream_id, number, opening)
        if number > 0:
            known = await events.read(session.id, stream_id, number)
            if not known or known[0].number != number:
                raise LookupError("there is no event of that number")
            follower.over = known[0].final
        return follower

    async def read(self) -> list[bytes]:
        """See `Follower`."""
        if self.over:
            return []
        events = await self._events.read(self._session.id, self._stream_id, self._next)
        if events:
            self._next = events[-1].number + 1
            self.over = events[-1].final
        elif time.time() > self._opening.until + _GRACE:
            return await self._given_up()
        return [sse(event.message, event_id(self._stream_id, event.number)) for event in events]

    async def _given_up(self) -> list[bytes]:
        """Errors for what nobody will answer, if the environment of the call is gone."""
        opening = await self._events.opening(self._session.id, self._stream_id)
        if opening is not None and opening.until > self._opening.until:
            self._opening = opening
            return []
        self.over = True
        answered = _answered(await self._events.read(self._session.id, self._stream_id, 1))
        error = {"code": INTERNAL_ERROR, "message": "The call was lost: what it did so far is unknown"}
        return [
            sse(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}))
            for request_id in self._opening.requests
            if request_id not in answered
        ]

    async def leave(self) -> None:
        """See `Follower`."""


def _answered(events: Sequence[Event]) -> list[object]:
    """Ids of the requests that have an answer among `events`."""
    messages = [json.loads(event.message) for event in events]
    return [message["id"] for message in messages if "id" in message and "method" not in message]
