"""A server that asks: what it remembers of a question travels sealed."""

from typing import Any

# Before the SDK, as in an app.py.
from sealane import Catalog, create_mcp_handler  # isort: skip

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

catalog = Catalog()


@catalog.tool()
async def greet(ctx: Context) -> str | InputRequiredResult:
    """Greet whoever says who they are."""
    if ctx.input_responses:
        return f"Hello, {ctx.request_state}!"
    form = ElicitRequestFormParams(
        message="Who are you?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
    )
    return InputRequiredResult(input_requests={"name": ElicitRequest(params=form)}, request_state="World")


@catalog.tool()
async def hello(name: str = "World") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


def create_server() -> MCPServer[Any]:
    """A fresh server for one request."""
    return catalog.server("bench", version="1.0.0")


handler = create_mcp_handler(create_server)
