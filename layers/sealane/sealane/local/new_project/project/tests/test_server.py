"""The server by itself, and as it is deployed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from mcp import Client
from mcp_types import TextContent

from sealane.local.testing import ObservedGateway
from server import create_server

TEMPLATE = Path(__file__).parents[1] / "template.yaml"


async def greeting(client: Client) -> str:
    """What the tool `hello` says to Ada."""
    async with client:
        result = await client.call_tool("hello", {"name": "Ada"})
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


def test_hello_in_this_process() -> None:
    """In some milliseconds: the client calls the server object."""
    assert asyncio.run(greeting(Client(create_server()))) == "Hello, Ada!"


def test_hello_as_it_is_deployed(local_gateway: Callable[..., ObservedGateway]) -> None:
    """In some seconds: HTTP, API Gateway and Lambda as template.yaml has them."""
    gateway = local_gateway(TEMPLATE)
    assert asyncio.run(greeting(Client(gateway.url))) == "Hello, Ada!"
