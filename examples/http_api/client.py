"""Asks about a package.

.venv/bin/python examples/http_api/client.py [URL]
"""

import sys

import anyio
from mcp import Client


async def main(url: str) -> None:
    """What it is, and its versions in two pages."""
    async with Client(url) as client:
        print((await client.call_tool("describe_package", {"name": "mangum"})).structured_content)
        first = (await client.call_tool("list_versions", {"name": "mangum", "limit": 3})).structured_content or {}
        print(first)
        following = {"name": "mangum", "limit": 3, "after": first["next"]}
        print((await client.call_tool("list_versions", following)).structured_content)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:3000/mcp")
