"""Somebody's own server, which `sealane smoke` does not know. Each process seals with a key of its own."""

import asyncio
import secrets
from typing import Annotated, Any

from mangum.types import LambdaContext, LambdaEvent
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from sealane import Catalog, create_mcp_handler

SECURITY = RequestStateSecurity(keys=[secrets.token_hex(32)])

catalog = Catalog()


class Confirmation(BaseModel):
    """A yes or no."""

    confirm: bool


def sure() -> Elicit[Confirmation]:
    """Asks."""
    return Elicit("Sure?", Confirmation)


@catalog.tool()
async def launch() -> str:
    """Needs no arguments, and yet is not to be called unasked."""
    raise AssertionError("was called unasked")


@catalog.tool(annotations=ToolAnnotations(read_only_hint=True))
async def status() -> str:
    """Reads."""
    return "Fine."


@catalog.tool()
async def stop(ctx: Context, name: str, answer: Annotated[Confirmation, Resolve(sure)]) -> str:
    """Asks first."""
    return f"{name}: {answer.confirm}"


def create_server() -> MCPServer:
    """A fresh server for one request."""
    return catalog.server("own", version="2", request_state_security=SECURITY)


stateless = create_mcp_handler(create_server, legacy="reject")


def handler(event: LambdaEvent, context: LambdaContext) -> dict[str, Any]:
    """Takes long enough for calls that come at once to need an environment each."""
    asyncio.run(asyncio.sleep(0.2))
    return stateless(event, context)
