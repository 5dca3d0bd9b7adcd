"""Buses that carry changes to the open `subscriptions/listen` streams of all environments."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, Protocol, runtime_checkable

import anyio
import anyio.lowlevel
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    SubscriptionBus,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from sealane.state.changes import Change, ChangeKind, change_log
from sealane.state.deadline import last_words
from sealane.state.errors import InvalidValue, StateUnavailable
from sealane.state.log import Log, LogEntry, LogReader
from sealane.state.table import Table, expiry

__all__ = ["DynamoDBSubscriptionBus", "SharedSubscriptionBus", "limit_reached"]

logger = logging.getLogger(__name__)

Listener = Callable[[ServerEvent], None]
CatchUp = Callable[[], Coroutine[Any, Any, object]]

_FAST: Final = 0.1
"""Seconds between two looks at the log while something happens."""
_AT_REST: Final = 1.0
"""Seconds between two looks while nothing does."""
_CALM: Final = 5.0
"""Seconds without a change after which nothing happens."""
_PLACES: Final = "listeners"
"""Partition key of the places that open streams take."""
_PLACE_MARGIN: Final = 10.0
"""Seconds between a stream's longest life and the end of the place that it takes."""
_TRIES: Final = 5

_KINDS: Final[dict[type[ToolsListChanged | PromptsListChanged | ResourcesListChanged], ChangeKind]] = {
    ToolsListChanged: "tools_changed",
    PromptsListChanged: "prompts_changed",
    ResourcesListChanged: "resources_changed",
}
_EVENTS: Final[dict[str, ServerEvent]] = {kind: event() for event, kind in _KINDS.items()}


@runtime_checkable
class SharedSubscriptionBus(SubscriptionBus, Protocol):
    """A bus that other environments are at too.

    What a carrier of changes (a table, MQTT, a cache's channels) has to have beside the SDK's own two methods, for the
    handler to keep its promises: no change lost once a stream is acknowledged, no more streams than allowed.
    """

    def open_stream(self, *, limit: int, seconds: float) -> AbstractAsyncContextManager[CatchUp]:
        """Enter before a stream subscribes, leave when it has ended.

        Every change that is published after the entering reaches those who subscribe before they wait for anything.
        What is given brings the changes that were published up to its call: the last thing before a stream ends.

        Args:
            limit: how many streams may be open at once in all environments.
            seconds: the longest that this one will be.

        Raises:
            MCPError: on entering; that many are open, or the carrier is out of reach.
        """
        ...


def limit_reached() -> MCPError:
    """The answer is -32603 for one stream more than `max_subscriptions`, in the SDK's words."""
    return MCPError(INTERNAL_ERROR, "Subscription limit reached")


class DynamoDBSubscriptionBus:
    """The SDK's `SubscriptionBus` over the stack's data table.

        handler = create_mcp_handler(create_server, subscriptions=DynamoDBSubscriptionBus())

    A change is two small writes. While a stream is open in this environment, one query (for all of its streams) every
    tenth of a second while changes come, every second at rest; without a stream, none. Changes of one publisher arrive
    in their order, each once.

    Args:
        table: the table; by default the stack's.
    """

    def __init__(self, *, table: Table | None = None) -> None:
        self._table = table or Table()
        self._log = change_log(self._table)
        self._listeners: dict[object, Listener] = {}
        self._follower: _Follower | None = None
        self._followed = 0

    async def publish(self, event: ServerEvent) -> None:
        """Deliver a change to all listeners, of all environments.

        What has changed has changed: a table out of reach is for the log, not for the tool that has done it.
        """
        if isinstance(event, ResourceUpdated):
            change = Change("resource_updated", event.uri)
        else:
            change = Change(_KINDS[type(event)])
        try:
            await self._log.append(change.to_text())
        except StateUnavailable:
            logger.error("a change was not published: %s", change.kind)
        if self._follower is not None:
            self._follower.wake()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` called with each change, on this event loop; returns what ends that.

        Outside `open_stream` it hears what is published from a moment later on.
        """
        token = object()
        self._listeners[token] = listener
        self._follow()

        def unsubscribe() -> None:
            if self._listeners.pop(token, None) is not None:
                self._unfollow()

        return unsubscribe

    @asynccontextmanager
    async def open_stream(self, *, limit: int, seconds: float) -> AsyncIterator[CatchUp]:
        """See `SharedSubscriptionBus`. The place of an environment that is gone is free when its stream had to end.

        Raises:
            MCPError: -32603 for `subscriptions/listen` while DynamoDB is out of reach; else see `limit_reached`.
        """
        place = f"{time.time():.3f} {secrets.token_urlsafe(12)}"
        follower = self._follow()
        try:
            try:
                await self._take_place(place, limit, seconds)
                await follower.start()
            except StateUnavailable as error:
                raise MCPError(INTERNAL_ERROR, str(error)) from error
            yield follower.look
        finally:
            self._unfollow()
            with anyio.CancelScope(shield=True), suppress(StateUnavailable), last_words():
                await self._table.call("delete_item", Key=_key(place))

    async def _take_place(self, place: str, limit: int, seconds: float) -> None:
        """Take one of the places of all environments.

        Of those who come at once, whoever is written last sees all others: there are never too many. Who came first
        waits until the others have given theirs back.

        Raises:
            MCPError: all are taken.
            StateUnavailable: the table is out of reach.
        """
        until = {"N": str(expiry(seconds + _PLACE_MARGIN))}
        await self._table.call("put_item", Item=_key(place) | {"expires_at": until})
        for _ in range(_TRIES):
            taken = await self._places()
            if len(taken) <= limit:
                return
            if place not in taken[:limit]:
                break
            await anyio.sleep(_FAST)
        raise limit_reached()

    async def _places(self) -> list[str]:
        """All that are taken, in the order of the clocks of those who took them."""
        places: list[str] = []
        page: dict[str, Any] = {}
        while True:
            answer = await self._table.call(
                "query",
                KeyConditionExpression="pk = :places",
                FilterExpression="expires_at > :now",
                ExpressionAttributeValues={":places": {"S": _PLACES}, ":now": {"N": str(int(time.time()))}},
                ProjectionExpression="sk",
                ConsistentRead=True,
                **page,
            )
            places += [item["sk"]["S"] for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                return places
            page = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def _follow(self) -> "_Follower":
        self._followed += 1
        if self._follower is None:
            self._follower = _Follower(self._log, self._deliver)
        return self._follower

    def _unfollow(self) -> None:
        self._followed -= 1
        if self._followed == 0 and self._follower is not None:
            self._follower.stop()
            self._follower = None

    def _deliver(self, event: ServerEvent) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener raised; the others are called all the same")


def _key(place: str) -> dict[str, Any]:
    return {"pk": {"S": _PLACES}, "sk": {"S": place}}


class _Follower:
    """Looks at the log in a task of the running event loop, from the beginning to `stop`."""

    def __init__(self, log: Log, deliver: Listener) -> None:
        self._log = log
        self._deliver = deliver
        self._reader: LogReader | None = None
        self._looking = asyncio.Lock()
        self._awake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def start(self) -> None:
        """Returns once all that is added from now on will be delivered.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        async with self._looking:
            await self._start()

    async def look(self) -> bool:
        """Deliver what was added up to now; whether there was anything."""
        async with self._looking:
            try:
                entries = await (await self._start()).read()
            except StateUnavailable:
                logger.error("the changes are out of reach; open streams get them later")
                return False
            except Exception:
                logger.exception("the changes cannot be read; open streams get them later")
                return False
            for entry in entries:
                self._tell(entry)
                # Each stream gets a chance to send this one before the next.
                await anyio.lowlevel.checkpoint()
            return bool(entries)

    def wake(self) -> None:
        """Look at once."""
        self._awake.set()

    def stop(self) -> None:
        """Look no more."""
        self._task.cancel()

    async def _start(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(self._log, await self._log.end())
        return self._reader

    async def _run(self) -> None:
        # Somebody has come, who may well change something next.
        last_event = time.monotonic()
        while True:
            # Before the look: a change that is published meanwhile may come too late for it.
            self._awake.clear()
            if await self.look():
                last_event = time.monotonic()
            with anyio.move_on_after(_FAST if time.monotonic() - last_event < _CALM else _AT_REST):
                await self._awake.wait()

    def _tell(self, entry: LogEntry) -> None:
        try:
            change = Change.from_text(entry.text)
        except InvalidValue as error:
            # A newer version of this package may know more.
            logger.warning("a change was left out: %s", error)
            return
        self._deliver(_EVENTS[change.kind] if change.uri is None else ResourceUpdated(uri=change.uri))
