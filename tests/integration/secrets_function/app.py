"""A server that is told secrets, and fails in all ways, with every logger at DEBUG."""

import asyncio
import logging

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from sealane import ANYONE, Catalog, HandleStore, create_mcp_handler, logger

logging.getLogger().setLevel(logging.DEBUG)
logger.setLevel(logging.DEBUG)

catalog = Catalog()
boxes = HandleStore("box")


@catalog.tool()
async def echo(secret: str, ctx: Context) -> str:
    """Says it to the client, and that it has to the log."""
    logger.debug("a detail")
    logging.getLogger("a.library").debug("a library's detail")
    await ctx.report_progress(1, 2, secret)
    return secret


@catalog.tool()
async def fail(how: str, secret: str) -> str:
    """Fails."""
    match how:
        case "tool":
            raise ToolError(secret)
        case "protocol":
            raise MCPError(-32001, secret)
        case "task":
            asyncio.get_running_loop().create_task(_fail(secret))
            await asyncio.sleep(0.01)
    raise ValueError(secret)


async def _fail(secret: str) -> None:
    raise LookupError(secret)


@catalog.tool()
async def store(secret: str) -> str:
    """Keeps it, and gives it back."""
    handle = await boxes.create({"secret": secret}, ttl=60, owner=ANYONE)
    return str((await boxes.get(handle)).value)


@catalog.tool()
async def ask(secret: str, ctx: Context) -> str | InputRequiredResult:
    """Asks, and remembers it until the answer."""
    if ctx.input_responses:
        return f"{ctx.request_state} {ctx.input_responses}"
    schema = {"type": "object", "properties": {"secret": {"type": "string"}}}
    form = ElicitRequestFormParams(message=secret, requested_schema=schema)
    return InputRequiredResult(input_requests={"more": ElicitRequest(params=form)}, request_state=secret)


@catalog.tool()
async def wait(secret: str) -> str:
    """Takes too long."""
    await asyncio.sleep(60)
    return secret


@catalog.resource("box://{secret}")
async def box(secret: str) -> str:
    """Fails too."""
    raise ValueError(secret)


@catalog.prompt()
async def remind(secret: str) -> str:
    """Fails too."""
    raise ValueError(secret)


def create_server() -> MCPServer:
    """A fresh server for one request."""
    return catalog.server("secrets")


handler = create_mcp_handler(create_server)
