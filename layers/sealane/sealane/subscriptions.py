"""`subscriptions/listen` and what feeds it: one bus for all the fresh servers of a handler."""

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.lowlevel
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.subscriptions import (
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    SubscriptionBus,
    ToolsListChanged,
)
from mcp.shared.subscriptions import event_matches
from mcp_types import SubscriptionFilter, SubscriptionsListenRequestParams, SubscriptionsListenResult
from starlette.types import Scope

from sealane import telemetry
from sealane.factory import AnyServer
from sealane.gateway.events import BUFFERED_KEY, DEADLINE_KEY
from sealane.subscription_bus import CatchUp, SharedSubscriptionBus, limit_reached

__all__ = ["Notifier", "Subscriptions"]

_LISTEN: Final = "subscriptions/listen"
_LIVE_SECONDS: Final = 300.0
"""Seconds that a stream stays open where it is live."""
_LAST_FRAMES: Final = 0.3
"""Seconds for the end of a live stream, before the time at which answers are cut short."""
_POLL_SECONDS: Final = 20.0
"""Seconds that a poll waits where the answer leaves as a whole."""
_LONGEST_POLL: Final = 25.0
"""Seconds; what is left of the 29 that a REST API waits is for a cold start and the way of the answer."""
_REST_OF_A_POLL: Final = 1.0
"""Seconds that are left of the invocation when a poll ends."""
_COMPANIONS: Final = 0.2
"""Seconds that a poll goes on after its first event: changes come in groups."""
_LAST_LOOK: Final = 0.1
"""Seconds, at the most, for what was published up to the end of a stream."""


class Notifier:
    """Publishes changes to every open subscription; without a bus it does nothing."""

    def __init__(self, bus: SubscriptionBus | None) -> None:
        self._bus = bus

    async def tools_changed(self) -> None:
        """The list of tools changed."""
        await self._publish(ToolsListChanged())

    async def prompts_changed(self) -> None:
        """The list of prompts changed."""
        await self._publish(PromptsListChanged())

    async def resources_changed(self) -> None:
        """The list of resources changed."""
        await self._publish(ResourcesListChanged())

    async def resource_updated(self, uri: str) -> None:
        """The resource at `uri`, compared as an exact string, may have to be read again."""
        await self._publish(ResourceUpdated(uri=uri))

    async def _publish(self, event: ServerEvent) -> None:
        if self._bus is not None:
            await self._bus.publish(event)


class Subscriptions:
    """Gives each fresh server the handler's bus, or takes the SDK's own away.

    `MCPServer` serves `subscriptions/listen` from a bus of its own unless told otherwise. Nothing is ever
    published to the bus of a server that lives for one request, so a stream on it would hang until the time-out.

    Args:
        bus: the handler's.
        limit: how many streams may be open at once.
        seconds: the longest life of a stream; None for the default of the way in which answers leave.
    """

    def __init__(self, bus: SubscriptionBus | None, limit: int, seconds: float | None) -> None:
        self._bus = bus
        self._limit = limit
        self._seconds = seconds
        self._open = 0

    def fit(self, product: AnyServer, server: Server[Any], scope: Scope) -> None:
        """Make `server` (of `product`) offer exactly the subscriptions of this handler, to the request of `scope`."""
        if self._bus is None:
            # The SDK has no public way to take a handler back, and advertises what is registered.
            server._request_handlers.pop(_LISTEN, None)
            return
        listen = functools.partial(self._listen, self._bus, scope)
        server.add_request_handler(_LISTEN, SubscriptionsListenRequestParams, listen)
        if isinstance(product, MCPServer):
            # `ctx.notify_*` publishes here; the constructor's argument is the only public way.
            product._subscriptions = self._bus

    async def _listen(
        self,
        bus: SubscriptionBus,
        scope: Scope,
        ctx: ServerRequestContext[Any, Any],
        params: SubscriptionsListenRequestParams,
    ) -> SubscriptionsListenResult:
        """Serve one stream, to its graceful end.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/utilities/subscriptions
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        buffered: float | None = scope.get(BUFFERED_KEY)
        if buffered is None:
            end = min(now + (self._seconds or _LIVE_SECONDS), scope.get(DEADLINE_KEY, math.inf) - _LAST_FRAMES)
        else:
            end = now + min(self._seconds or _POLL_SECONDS, _LONGEST_POLL, buffered - _REST_OF_A_POLL)
        async with self._place(bus, max(end - now, 0)) as catch_up:
            heard = _Heard(bus, params.notifications)
            # One of its own, since it is told to end this stream only.
            listen = ListenHandler(heard, max_subscriptions=1)
            ending = loop.create_task(_end(listen, end, heard if buffered is not None else None, catch_up))
            telemetry.count("ListenStreams")
            try:
                return await listen(ctx, params)
            finally:
                ending.cancel()

    @asynccontextmanager
    async def _place(self, bus: SubscriptionBus, seconds: float) -> AsyncIterator[CatchUp]:
        """A place among the streams that may be open at once: in the deployment, or with a bus of this process here."""
        if isinstance(bus, SharedSubscriptionBus):
            async with bus.open_stream(limit=self._limit, seconds=seconds) as catch_up:
                yield catch_up
            return
        if self._open >= self._limit:
            raise limit_reached()
        self._open += 1
        try:
            yield anyio.lowlevel.checkpoint
        finally:
            self._open -= 1


async def _end(listen: ListenHandler, end: float, poll: "_Heard | None", catch_up: CatchUp) -> None:
    """End a stream at a time of the event loop, a poll soon after its first event, with what was published by then."""
    loop = asyncio.get_running_loop()
    if poll is not None:
        with anyio.move_on_after(end - loop.time()):
            await poll.event.wait()
            end = min(end, loop.time() + _COMPANIONS)
    await anyio.sleep_until(end)
    await asyncio.wait([loop.create_task(catch_up())], timeout=_LAST_LOOK)
    listen.close()


class _Heard:
    """A bus as one stream sees it.

    Attributes:
        event: is set with the first event that the stream delivers.
    """

    def __init__(self, bus: SubscriptionBus, wanted: SubscriptionFilter) -> None:
        self.event = asyncio.Event()
        self.publish = bus.publish
        self._bus = bus
        self._wanted = wanted
        self._uris = frozenset(wanted.resource_subscriptions or ())

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        def hear(event: ServerEvent) -> None:
            listener(event)
            if event_matches(self._wanted, self._uris, event):
                self.event.set()

        return self._bus.subscribe(hear)
