"""A server that tells of changes, behind three handlers with a path and options of their own."""

import asyncio
import warnings

from mcp import MCPDeprecationWarning
from mcp.server.mcpserver import Context, MCPServer
from starlette.types import Receive, Scope, Send

from sealane import Catalog, DynamoDBSubscriptionBus, Table, create_mcp_handler
from sealane.gateway.buffered import BufferedGateway

warnings.simplefilter("ignore", MCPDeprecationWarning)

catalog = Catalog()


@catalog.tool()
async def publish(ctx: Context, name: str, first: int, last: int) -> str:
    """Tell of the changes `burst://{name}/{first}` to `burst://{name}/{last}`, one after the other."""
    for number in range(first, last + 1):
        await ctx.notify_resource_updated(f"burst://{name}/{number}")
    return "published"


@catalog.tool()
async def speak(ctx: Context, delay_ms: int = 300) -> str:
    """Report progress and write to the client's log, at all levels, with pauses."""
    for step, level in enumerate(("debug", "info", "warning", "error"), 1):
        await asyncio.sleep(delay_ms / 1000)
        await ctx.report_progress(step, 4)
        await ctx.log(level, f"at {level}", logger_name="speaker")  # type: ignore[arg-type]
    return "spoken"


@catalog.tool()
async def wait(seconds: float) -> str:
    """Keep an environment busy."""
    await asyncio.sleep(seconds)
    return "waited"


def create_server() -> MCPServer:
    """A fresh server."""
    return catalog.server("subscriptions-server", version="1")


handlers = {
    "/mcp": create_mcp_handler(create_server, subscriptions=DynamoDBSubscriptionBus()),
    "/sse": create_mcp_handler(create_server, route="/sse", response_mode="sse"),
    "/brief": create_mcp_handler(
        create_server,
        route="/brief",
        subscriptions=DynamoDBSubscriptionBus(table=Table("LimitedTable")),
        max_subscriptions=2,
        listen_seconds=4,
    ),
}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The handler of a path."""
    await handlers[scope["path"]].app(scope, receive, send)


handler = BufferedGateway(app)
