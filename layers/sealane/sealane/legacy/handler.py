"""create_legacy_mcp_handler: an SDK v1 server and options in, a Lambda handler out."""

import inspect
import logging
import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from mangum.types import LambdaContext
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.lowlevel.server import Server
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from sealane import telemetry
from sealane.gateway.buffered import BufferedGateway
from sealane.gateway.endpoint import Answer, Endpoint
from sealane.legacy.authentication import authenticated
from sealane.legacy.events import DynamoDBEventStore
from sealane.legacy.metrics import LegacyMetrics
from sealane.legacy.options import LegacyOptions, legacy_options
from sealane.legacy.server_run import Lane, V1Server
from sealane.legacy.sessions import DynamoDBSessionStore
from sealane.legacy.transport import Transport
from sealane.policy.auth_context import auth_context
from sealane.policy.options import LEFT_OPEN
from sealane.policy.principal import principal_context

if TYPE_CHECKING:
    from mcp.server.fastmcp import FastMCP

__all__ = ["LegacyMcpHandler", "create_legacy_mcp_handler"]

_RIGHT_FORM: Final = """\
create_legacy_mcp_handler takes a function that gives the SDK v1 server:

    from server import mcp  # FastMCP, or the low-level Server

    handler = create_legacy_mcp_handler(lambda: mcp)
"""


def _without_values(record: logging.LogRecord) -> bool:
    """Of what v1 logs about messages of a wrong form, leave out what was in them."""
    if record.pathname.endswith(_V1_SESSION):
        record.msg, record.args = record.msg.partition(":")[0], ()
    return True


# v1 logs there with the root logger itself.
_V1_SESSION: Final = os.path.join("mcp", "shared", "session.py")
logging.getLogger().addFilter(_without_values)


def create_legacy_mcp_handler(
    server_factory: "Callable[[], FastMCP[Any] | V1Server]", **options: Any
) -> "LegacyMcpHandler":
    """Make a Lambda handler that keeps sessions for an SDK v1 server.

        handler = create_legacy_mcp_handler(lambda: mcp)

    Args:
        server_factory: gives the server, a `FastMCP` or a low-level `Server`; called once.
        options: see `LegacyOptions`.

    Raises:
        TypeError: for a ready server instead of a factory, a server of SDK v2, or an option that does not exist.
        ValueError: for a value that an option refuses, and for a server that is to check tokens itself.
        StateNotConfigured: no table is configured, and no stores are given.
    """
    return LegacyMcpHandler(server_factory, legacy_options(**options))


class LegacyMcpHandler:
    """Serves the sessions of an SDK v1 server to Lambda (call it), and to ASGI servers (`app`).

    Made by `create_legacy_mcp_handler`.

    Attributes:
        app: the same as an ASGI application.
    """

    def __init__(self, server_factory: "Callable[[], FastMCP[Any] | V1Server]", options: LegacyOptions) -> None:
        telemetry.start()
        made = _made_by(server_factory)
        server = _low_level(made)
        self._options = options
        self._endpoint = Endpoint(options, self._exchange)
        self.app = self._endpoint.app
        if getattr(getattr(made, "settings", None), "auth", None) is not None and self._endpoint.authentication.is_open:
            raise ValueError(LEFT_OPEN)
        lane = Lane(
            server=server,
            options=server.create_initialization_options(),
            sessions=options.session_store or DynamoDBSessionStore(),
            events=options.event_store
            or DynamoDBEventStore(kept=options.idle_timeout, forgotten=options.max_session_age),
            metrics=LegacyMetrics(),
            reply_timeout=options.reverse_request_timeout,
        )
        self._transport = Transport(lane, options)

    def __call__(self, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        """Answer one Lambda event of API Gateway (REST or HTTP API), a function URL or an ALB. Never raises."""
        return self.gateway(event, context)

    @cached_property
    def gateway(self) -> BufferedGateway:
        """What turns Lambda's events into requests to `app`."""
        return BufferedGateway(self.app)

    async def _exchange(self, request: Request, answer: Answer) -> None:
        """Caller, session, server: the way of one request.

        Raises:
            RequestRejected: the request is not served, and nothing was sent.
        """
        scope, caller = await authenticated(self._endpoint.authentication, request)
        owner = caller.principal if caller is not None else None
        properties = self._options.auth_context
        if properties is None and caller is not None:
            properties = caller.token_fields["claims"]

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            with auth_context(properties), principal_context(owner):
                await self._transport.serve(Request(scope, receive), owner, answer)

        await AuthContextMiddleware(serve)(scope, request.receive, answer.send)


def _made_by(server_factory: object) -> object:
    """What the factory gives.

    Raises:
        TypeError: it is none, or gives no SDK v1 server; the text shows the right form.
    """
    if _is_server(server_factory) or not callable(server_factory):
        raise TypeError(f"got {_name(server_factory)}, not a function. {_RIGHT_FORM}")
    made = server_factory()
    if inspect.isawaitable(made):
        if inspect.iscoroutine(made):
            made.close()
        raise TypeError(f"the factory {_name(server_factory)} is async. {_RIGHT_FORM}")
    if type(made).__name__ == "MCPServer":
        raise TypeError(
            f"the factory gave {_name(made)}, a server of MCP SDK v2, which needs no sessions: "
            f"serve it with create_mcp_handler"
        )
    if not _is_server(made):
        raise TypeError(f"the factory gave {_name(made)}, not a FastMCP or Server. {_RIGHT_FORM}")
    return made


def _is_server(value: object) -> bool:
    return isinstance(_low_level(value), Server)


def _low_level(value: Any) -> V1Server:
    """The low-level server of a `FastMCP`, which has no public way to it."""
    server: V1Server = getattr(value, "_mcp_server", value)
    return server


def _name(value: object) -> str:
    return getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"
