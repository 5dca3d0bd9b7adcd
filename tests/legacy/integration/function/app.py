"""A server whose tools tell of their session, and the function around it: open, and for callers with a token."""
# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (Some of the SDK's decorators have no types.)

import asyncio
import os
from typing import Any

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.session import ServerSession
from mcp.types import LoggingLevel
from pydantic import AnyUrl, BaseModel

from sealane.legacy import create_legacy_mcp_handler
from sealane.policy.bearer import TokenRefused
from sealane.policy.caller import Caller

Ctx = Context[ServerSession, None]

server = FastMCP("sessions")


class Answer(BaseModel):
    """What the user says."""

    answer: str


@server.tool()
async def echo(text: str, ctx: Ctx) -> str:
    """Whose session this is, and what was said."""
    params = ctx.session.client_params
    assert params is not None
    return f"{params.clientInfo.name} says {text}"


@server.tool()
async def whoami() -> str:
    """Who calls, and with which token."""
    caller = get_access_token()
    return f"{caller.client_id} with {caller.token}" if caller else "nobody"


@server.tool()
async def ask(question: str, ctx: Ctx) -> str:
    """What the user says to a question."""
    answer = await ctx.elicit(question, Answer)
    return f"{question} {answer.data.answer if isinstance(answer, AcceptedElicitation) else answer.action}"


@server.tool()
async def work(ctx: Ctx, steps: int = 3, step_ms: int = 100, hang_up: int = 0) -> str:
    """Report steps, each with the process that does it; before the step `hang_up` the stream is ended."""
    for step in range(1, steps + 1):
        if step == hang_up:
            await ctx.close_sse_stream()
        await ctx.report_progress(step, steps, str(os.getpid()))
        await asyncio.sleep(step_ms / 1000)
    return f"{steps} steps are done."


@server.tool()
async def log_all(ctx: Ctx) -> str:
    """Log at three levels."""
    await ctx.debug("debug")
    await ctx.warning("warning")
    await ctx.error("error")
    return "Logged."


@server.tool()
async def announce(uri: str, ctx: Ctx) -> str:
    """Say that a resource has changed."""
    await ctx.session.send_resource_updated(AnyUrl(uri))
    return "Announced."


@server._mcp_server.set_logging_level()
async def set_logging_level(level: LoggingLevel) -> None:
    """Any level will do."""


class Tokens:
    """Tokens like "ada.2": the second token of the client "ada"."""

    issuer = "https://issuer.example.com"
    required_scopes: tuple[str, ...] = ()

    async def verify(self, token: str) -> Caller:
        """The caller that a token names."""
        name, dot, number = token.partition(".")
        if not (name and dot and number.isdigit()):
            raise TokenRefused("it is none of these")
        return Caller(client_id=name, issuer=self.issuer, subject=name, claims={"jti": token})


OPTIONS: dict[str, Any] = {
    "allowed_origin_hostnames": ["app.example.com"],
    "listen_seconds": 20,
    "max_sessions_per_principal": 1000,
    "retry_interval": 200,
}

handler = create_legacy_mcp_handler(lambda: server, **OPTIONS)
signed = create_legacy_mcp_handler(lambda: server, auth=Tokens(), **OPTIONS)
