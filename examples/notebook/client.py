"""Two people with notebooks of their own, and a message from outside.

.venv/bin/python examples/notebook/client.py [URL ISSUER]
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent


@asynccontextmanager
async def signed_in(url: str, token: str) -> AsyncIterator[Client]:
    """A client with a token. A client of a person's gets its token by signing in."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def said(result: CallToolResult) -> str:
    """The text of an answer."""
    return " ".join(each.text for each in result.content if isinstance(each, TextContent))


async def watch(client: Client, uri: str) -> None:
    """Say what has changed. Listening is a poll here: it ends soon after the first change."""
    async with client.listen(resource_subscriptions=[uri]) as changes:
        async for change in changes:
            print("Ada hears:", change)


async def main(url: str, issuer: str) -> None:
    """Ada writes, Ben cannot read it, and a message wakes who listens."""
    async with httpx2.AsyncClient() as http:
        tokens = [(await http.get(f"{issuer}/token/{name}")).text for name in ("ada", "ben")]
        async with signed_in(url, tokens[0]) as ada, signed_in(url, tokens[1]) as ben:
            started = (await ada.call_tool("start_notebook", {"title": "Move"})).structured_content or {}
            notebook = {"notebook": started["notebook"]}
            print("Ada gets:", said(await ada.call_tool("write_note", {**notebook, "text": "Order boxes"})))
            print("Ada has:", (await ada.call_tool("my_notebooks")).structured_content)
            print("Ben has:", (await ben.call_tool("my_notebooks")).structured_content)
            print("Ben gets:", said(await ben.call_tool("write_note", {**notebook, "text": "Hello"})))
            print("A model gets:", (await ada.get_prompt("review", {"title": "Move"})).messages[1].content)

            inbox = ((await ada.call_tool("open_inbox")).structured_content or {})["result"]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, ada, f"inbox://{inbox}")
                await anyio.sleep(1)
                await http.post(url.removesuffix("mcp") + f"inbox/{inbox}", content="The boxes are here")
            print("Ada reads:", (await ada.read_resource(f"inbox://{inbox}")).contents[0])


if __name__ == "__main__":
    given = sys.argv[1:] or ["http://127.0.0.1:3000/mcp", "http://127.0.0.1:8090"]
    anyio.run(main, given[0], given[1])
