"""`subscriptions/listen` and what feeds it: one bus for all the fresh servers of a handler."""

from typing import Any

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
from mcp_types import SubscriptionsListenRequestParams

__all__ = ["Notifier", "Subscriptions"]

_LISTEN = "subscriptions/listen"


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
    """

    def __init__(self, bus: SubscriptionBus | None, max_subscriptions: int) -> None:
        self._bus = bus
        self._listen = None if bus is None else ListenHandler(bus, max_subscriptions=max_subscriptions)

    def fit(self, product: MCPServer[Any] | Server[Any], server: Server[Any]) -> None:
        """Make `server` (of `product`) offer exactly the subscriptions of this handler."""
        if self._bus is None or self._listen is None:
            # The SDK has no public way to take a handler back, and advertises what is registered.
            server._request_handlers.pop(_LISTEN, None)
            return
        server.add_request_handler(_LISTEN, SubscriptionsListenRequestParams, self._listen)
        if isinstance(product, MCPServer):
            # `ctx.notify_*` publishes here; the constructor's argument is the only public way.
            product._subscriptions = self._bus

    def end(self) -> None:
        """Let every open stream end with its result, once what it still holds is sent."""
        if self._listen is not None:
            self._listen.close()
