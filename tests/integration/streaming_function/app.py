"""An MCP server, an ASGI application and a plain function, to be started by the streaming runtime."""

import asyncio
import json
import os
import time
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus
from starlette.types import Receive, Scope, Send

from sealane import Catalog, create_mcp_handler
from sealane.gateway.buffered import BufferedGateway

catalog = Catalog()


@catalog.tool()
async def steps(ctx: Context, to: int = 5, delay_ms: int = 300, size: int = 0) -> str:
    """Report progress, each time with a text of this size."""
    for step in range(1, to + 1):
        await asyncio.sleep(delay_ms / 1000)
        await ctx.report_progress(step, to, "x" * size or None)
    return "done"


@catalog.tool()
async def wait(ctx: Context, seconds: float, report: bool = True) -> str:
    """Wait, after a report of progress, and tell the log what became of it."""
    if report:
        await ctx.report_progress(0)
    try:
        await asyncio.sleep(seconds)
    finally:
        print(f"finally after waiting at {time.time()}")
    return "waited"


@catalog.tool()
def block(seconds: float) -> str:
    """Wait where nobody can cancel it."""
    time.sleep(seconds)
    return "blocked"


@catalog.tool()
async def fail(ctx: Context) -> str:
    """Fail after a report of progress."""
    await ctx.report_progress(0)
    raise ValueError("no luck")


@catalog.tool()
async def hello(ctx: Context) -> str:
    """Answer at once."""
    return f"trace {os.environ.get('_X_AMZN_TRACE_ID')}"


def create_server() -> MCPServer:
    return catalog.server("streams", version="1")


handler = create_mcp_handler(create_server, subscriptions=InMemorySubscriptionBus())


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    what = scope["path"].removeprefix("/asgi/")
    if what == "before":
        raise ValueError("before the first byte")
    headers = [(b"content-type", b"text/plain"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"vary", b"a")]
    await send({"type": "http.response.start", "status": 201, "headers": [*headers, (b"vary", b"b")]})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    if what == "after":
        raise ValueError("after the first byte")
    if what == "unfinished":
        return
    if what == "large":
        for _ in range(320):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    if what == "exit":
        raise SystemExit(3)
    await send({"type": "http.response.body", "body": json.dumps(scope["aws.context"].aws_request_id).encode()})


asgi = BufferedGateway(application)


def plain(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """A function that knows nothing of streams."""
    if event["queryStringParameters"]:
        raise ValueError("as asked")
    return {"statusCode": 200, "headers": {}, "body": f"{context.function_name} {context.memory_limit_in_mb}"}
