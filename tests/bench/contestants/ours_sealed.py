"""A server that asks: what it remembers of a question travels sealed."""

from typing import Any

# Before the SDK, as in an app.py.
from sealane import Catalog, create_mcp_handler  # isort: skip

from asking import greeter
from mcp.server.mcpserver import Context, MCPServer

catalog = Catalog()
catalog.tool()(greeter(Context))


@catalog.tool()
async def hello(name: str = "World") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


def create_server() -> MCPServer[Any]:
    """A fresh server for one request."""
    return catalog.server("bench", version="1.0.0")


handler = create_mcp_handler(create_server)
