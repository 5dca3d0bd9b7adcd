"""The server: its tools, and the factory that makes a fresh server for every request."""

from mcp.server.mcpserver import MCPServer

from sealane import Catalog

catalog = Catalog()


@catalog.tool()
async def hello(name: str = "World") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


def create_server() -> MCPServer:
    """A server with everything above."""
    return catalog.server("my-server", version="0.1.0")
