"""A stateless server with the legacy lane behind its URL."""

import os

from mcp.server.mcpserver import MCPServer

from sealane import Catalog, LegacyFunction, create_mcp_handler, route_by_era

catalog = Catalog()


@catalog.tool()
def hello(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


def create_server() -> MCPServer:
    """A server for one request."""
    return catalog.server("stateless", version="2")


stateless = create_mcp_handler(create_server, route=os.environ["ROUTE"], legacy="reject")
handler = route_by_era(stateless, LegacyFunction.configured())
