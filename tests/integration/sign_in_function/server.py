"""A server that says who calls, and keeps, asks and acts for its caller alone."""

import asyncio
import secrets

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

from sealane import Catalog, HandleStore, once

catalog = Catalog()
texts = HandleStore("text")


class Known(BaseModel):
    """What the server knows of its caller.

    Attributes:
        token_id: `jti` of the token.
        authorizer_ms: how long the authorizer took; 0 for an answer that the gateway had kept, None without authorizer.
    """

    client_id: str
    subject: str | None
    issuer: str
    scopes: list[str]
    token_id: str
    authorizer_ms: int | None


@catalog.tool()
async def whoami(ctx: Context) -> Known:
    """Who calls."""
    caller = get_access_token()
    assert caller is not None
    assert caller.claims is not None
    request = ctx.request_context.request
    assert request is not None
    event = request.scope.get("aws.event")
    return Known(
        client_id=caller.client_id,
        subject=caller.subject,
        issuer=caller.claims["iss"],
        scopes=caller.scopes,
        token_id=caller.claims["jti"],
        authorizer_ms=event and event["requestContext"]["authorizer"]["integrationLatency"],
    )


@catalog.tool(scopes=["notes:write"])
async def write_note(text: str) -> str:
    """Needs a scope of its own."""
    return f"written: {text}"


@catalog.tool()
async def keep(text: str) -> str:
    """Keep a text; gives its handle."""
    return await texts.create(text, ttl=600)


@catalog.tool()
async def read(handle: str) -> str:
    """Read a text that was kept."""
    return str((await texts.get(handle)).value)


@catalog.tool()
async def ask(ctx: Context, text: str) -> str | InputRequiredResult:
    """Ask before the answer."""
    if ctx.input_responses:
        return f"{text}: {ctx.request_state}"
    schema = {"type": "object", "properties": {"confirm": {"type": "boolean"}}}
    question = ElicitRequest(params=ElicitRequestFormParams(message="May I?", requested_schema=schema))
    return InputRequiredResult(input_requests={"answer": question}, request_state=f"asked {text}")


@catalog.tool()
async def draw() -> str:
    """Draw a number, once."""
    return str(await once(lambda: secrets.token_hex(8)))


@catalog.tool()
async def wait(seconds: float) -> str:
    """Keep an environment busy."""
    await asyncio.sleep(seconds)
    return "waited"


def create_server() -> MCPServer:
    """A fresh server."""
    return catalog.server("sign-in-server")
