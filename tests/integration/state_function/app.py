"""A server that keeps, asks and acts once. A test says in a header who its caller is, as an authorizer would."""

import asyncio
import os
from typing import Annotated

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from sealane import ANYONE, Catalog, HandleStore, Keyring, create_mcp_handler, once
from sealane.gateway.buffered import BufferedGateway
from sealane.state import keyring

keyring.REFRESH = int(os.environ["REFRESH"])  # type: ignore[misc]

catalog = Catalog()
histories = HandleStore("history")


class Confirmation(BaseModel):
    """A yes or no."""

    confirm: bool


def may_i() -> Elicit[Confirmation]:
    """Asks by resolver."""
    return Elicit("May I?", Confirmation)


@catalog.tool()
async def resolved(text: str, answer: Annotated[Confirmation, Resolve(may_i)]) -> str:
    """Asks before it answers."""
    return f"{text}: {answer.confirm}"


@catalog.tool()
async def by_hand(ctx: Context, text: str) -> str | InputRequiredResult:
    """Asks before it answers, by hand."""
    return f"{text}: {ctx.request_state}" if ctx.input_responses else asking(text)


@catalog.tool()
async def act(ctx: Context, history: str) -> str | InputRequiredResult:
    """Asks, then writes one line into a history, once."""
    return str(await once(lambda: write(history, "act"))) if ctx.input_responses else asking("act")


def asking(state: str) -> InputRequiredResult:
    """A question by hand."""
    schema = {"type": "object", "properties": {"confirm": {"type": "boolean"}}}
    question = ElicitRequest(params=ElicitRequestFormParams(message="May I?", requested_schema=schema))
    return InputRequiredResult(input_requests={"answer": question}, request_state=state)


@catalog.tool()
async def begin(shared: bool = True) -> str:
    """A history, of the caller or of anyone."""
    return await histories.create([], ttl=3600, owner=ANYONE if shared else None)


@catalog.tool()
async def write(history: str, line: str, version: int | None = None) -> int:
    """Add a line, to this version of the history or to the newest; gives the version after it."""
    entry = await histories.get(history)
    assert isinstance(entry.value, list)
    return (await histories.put(history, [*entry.value, line], version=version or entry.version)).version


@catalog.tool()
async def read(history: str) -> list[str]:
    """The lines of a history, after the number of its version."""
    entry = await histories.get(history)
    assert isinstance(entry.value, list)
    return [str(entry.version), *map(str, entry.value)]


@catalog.tool()
async def wait(seconds: float) -> str:
    """Keeps an environment busy."""
    await asyncio.sleep(seconds)
    return "waited"


def create_server() -> MCPServer:
    """A fresh server."""
    return catalog.server("state-server")


mcp = create_mcp_handler(create_server, keyring=Keyring.from_environment(token_ttl=float(os.environ["TOKEN_TTL"])))


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The handler behind what verifies callers."""
    if subject := Request(scope).headers.get("x-test-subject"):
        token = AccessToken(token="t", client_id="client", scopes=[], subject=subject)  # noqa: S106
        scope = {**scope, "user": AuthenticatedUser(token)}
    await mcp.app(scope, receive, send)


handler = BufferedGateway(app)
