"""Sealane as its README has it."""

import os
from typing import Any

# Before the SDK, as in an app.py.
from sealane import ANYONE, Catalog, HandleStore, create_mcp_handler  # isort: skip

from bench_tools import tools
from mcp.server.mcpserver import MCPServer

catalog = Catalog()
for function in tools():
    catalog.tool()(function)

if "BENCH_KEEP" in os.environ:
    texts = HandleStore("text")

    @catalog.tool()
    async def keep(text: str) -> str:
        """Keep a text for a minute."""
        await texts.create(text, ttl=60, owner=ANYONE)
        return f"Kept {text}."


def create_server() -> MCPServer[Any]:
    """A fresh server for one request."""
    return catalog.server("bench", version="1.0.0")


handler = create_mcp_handler(create_server)
