"""An SDK v1 server as its owner had it, with everything that needs a session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp.types as types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.lowlevel.server import Server, request_ctx
from mcp.server.session import ServerSession
from pydantic import AnyUrl, BaseModel

URI = "note://one"


class Name(BaseModel):
    """What is asked for."""

    name: str


class Record:
    """What happened inside the server.

    Attributes:
        lifespans: how many began.
        ended: how many ended.
        notifications: what the server's own handlers saw.
        finished: tools that came to their end.
        subscribers: whom a server of v1 keeps, by URI.
    """

    def __init__(self) -> None:
        self.lifespans = 0
        self.ended = 0
        self.notifications: list[str] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self.subscribers: dict[str, list[ServerSession]] = {}


def create_server(record: Record | None = None) -> FastMCP[Any]:
    """The server; each test's environments have one each."""
    seen = record or Record()

    @asynccontextmanager
    async def lifespan(_: FastMCP[Any]) -> AsyncIterator[dict[str, Any]]:
        seen.lifespans += 1
        try:
            yield {}
        finally:
            seen.ended += 1

    mcp: FastMCP[Any] = FastMCP("old-server", lifespan=lifespan)
    server: Server[Any, Any] = mcp._mcp_server

    @mcp.tool()
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @mcp.tool()
    async def steps(ctx: Context[Any, Any, Any], count: int = 3, pause: float = 0.0) -> str:
        """Send progress and log messages."""
        for number in range(count):
            await ctx.report_progress(number, count)
            await ctx.info(f"step {number}")
            await asyncio.sleep(pause)
        seen.finished.append("steps")
        return "done"

    @mcp.tool()
    async def levels(ctx: Context[Any, Any, Any]) -> str:
        """Log at three levels."""
        await ctx.debug("low")
        await ctx.warning("middle")
        await ctx.error("high")
        return "logged"

    @mcp.tool()
    async def hello(ctx: Context[Any, Any, Any]) -> str:
        """Ask for a name."""
        answer = await ctx.elicit("What is your name?", schema=Name)
        return f"Hello, {answer.data.name}!" if answer.action == "accept" and answer.data else answer.action

    @mcp.tool()
    async def sample(ctx: Context[Any, Any, Any]) -> str:
        """Have the client's model say something, without naming the call."""
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Hi"))
        result = await ctx.session.create_message([message], max_tokens=10)
        return result.content.text if isinstance(result.content, types.TextContent) else "?"

    @mcp.tool()
    async def roots(ctx: Context[Any, Any, Any]) -> str:
        """Name the client's roots."""
        return ",".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)

    @mcp.tool()
    async def patient(ctx: Context[Any, Any, Any]) -> str:
        """Ask, and be told of progress meanwhile."""
        told: list[float] = []

        async def progress(value: float, _: float | None, __: str | None) -> None:
            told.append(value)

        request = types.ServerRequest(types.ListRootsRequest())
        # v1 adds the token to parameters, of which this request has none.
        result = await ctx.session.send_request(request, types.ListRootsResult, progress_callback=progress)
        return f"{told} {len(result.roots)}"

    @mcp.tool()
    async def cut(ctx: Context[Any, Any, Any], seconds: float = 0.3) -> str:
        """End the HTTP answer, and go on."""
        if seconds < 1:
            await ctx.info("before")
        await ctx.close_sse_stream()
        await asyncio.sleep(seconds)
        await ctx.info("after")
        seen.finished.append("cut")
        return "whole"

    @mcp.tool()
    async def cut_standalone(ctx: Context[Any, Any, Any]) -> str:
        """End the standalone stream."""
        await ctx.close_standalone_sse_stream()
        return "closed"

    @mcp.tool()
    async def sleep(seconds: float) -> str:
        """Take long."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            seen.cancelled.append("sleep")
            raise
        seen.finished.append("sleep")
        return "slept"

    @mcp.tool()
    async def big(size: int) -> str:
        """A text of a size."""
        return "x" * size

    @mcp.tool()
    async def who(ctx: Context[Any, Any, Any]) -> str:
        """The caller, and the client."""
        token = get_access_token()
        params = ctx.session.client_params
        request = ctx.request_context.request
        assert params is not None
        assert request is not None
        body = await request.json()
        return f"{token.client_id if token else None} {params.clientInfo.name} {body['method']}"

    @mcp.tool()
    async def touch(ctx: Context[Any, Any, Any]) -> str:
        """Change the resource, and tell everybody who is kept."""
        for session in seen.subscribers.get(URI, []):
            await session.send_resource_updated(AnyUrl(URI))
        return "touched"

    @mcp.tool()
    async def announce(ctx: Context[Any, Any, Any]) -> str:
        """Tell the client of a change, not of this call."""
        await ctx.session.send_tool_list_changed()
        return "announced"

    @mcp.resource(URI)
    def note() -> str:
        """A note."""
        return "milk"

    @server.set_logging_level()  # type: ignore[no-untyped-call,untyped-decorator]
    async def set_level(level: types.LoggingLevel) -> None:
        seen.notifications.append(f"level {level}")

    @server.subscribe_resource()  # type: ignore[no-untyped-call,untyped-decorator]
    async def subscribe(uri: AnyUrl) -> None:
        seen.notifications.append(f"subscribe {uri}")
        seen.subscribers.setdefault(str(uri), []).append(request_ctx.get().session)

    @server.unsubscribe_resource()  # type: ignore[no-untyped-call,untyped-decorator]
    async def unsubscribe(uri: AnyUrl) -> None:
        seen.subscribers.pop(str(uri), None)

    async def roots_changed(_: types.RootsListChangedNotification) -> None:
        await asyncio.sleep(0.05)
        seen.notifications.append("roots changed")

    async def initialized(_: types.InitializedNotification) -> None:
        seen.notifications.append("initialized")

    server.notification_handlers[types.RootsListChangedNotification] = roots_changed
    server.notification_handlers[types.InitializedNotification] = initialized
    return mcp
