"""The user's factory: called once for each HTTP request, and held to handing out a fresh server each time."""

import functools
import inspect
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mangum.types import LambdaContext
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver import server as mcpserver
from starlette.requests import Request

from sealane.era import Era
from sealane.policy.options import LEFT_OPEN

__all__ = ["AnyServer", "RequestContext", "ServerFactory", "ServerMaker", "low_level_server"]

logger = logging.getLogger(__name__)

# Each MCPServer configures logging, which has an effect but once, and looks for `rich`, which is in no artefact: four
# fifths of what a server costs.
mcpserver.configure_logging = functools.cache(mcpserver.configure_logging)  # type: ignore[attr-defined]

AnyServer = MCPServer[Any] | Server[Any]

_SLOW_FACTORY: Final = 0.020
"""Seconds; a factory that describes its tools on every request exceeds it with about six tools."""

_RIGHT_FORM: Final = """\
create_mcp_handler takes a factory that makes a fresh server for each request:

    def create_server() -> MCPServer:
        return catalog.server("my-server")

    handler = create_mcp_handler(create_server)
"""

_SDK_V1: Final = (
    "{} is a server of MCP SDK v1, which keeps sessions. Serve it unchanged with the legacy lane "
    "(create_legacy_mcp_handler in functions/legacy/), or make it an MCPServer of SDK v2 and hand over a factory."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What a factory may know about the request that its server will answer.

    Args:
        era: `"modern"` or `"legacy"`.
        request: the HTTP request. Its headers are the client's claims, not proof of anything.
        auth_info: the verified caller, if there is one.
        event: the Lambda event as AWS sent it; `None` when not invoked by Lambda.
        lambda_context: the Lambda context object; `None` when not invoked by Lambda.
    """

    era: Era
    request: Request
    auth_info: AccessToken | None = None
    event: Mapping[str, Any] | None = None
    lambda_context: LambdaContext | None = None


ServerFactory = (
    Callable[[], AnyServer | Awaitable[AnyServer]] | Callable[[RequestContext], AnyServer | Awaitable[AnyServer]]
)


class ServerMaker:
    """Calls a factory and checks what it hands out.

    Raises:
        TypeError: for anything that is not a factory with no parameter or one; the text shows the right form.
    """

    def __init__(self, factory: ServerFactory) -> None:
        if _is_sdk_v1_server(factory):
            raise TypeError(_SDK_V1.format(_name(factory)))
        if isinstance(factory, MCPServer | Server) or not callable(factory):
            raise TypeError(f"got {_name(factory)}, not a factory. {_RIGHT_FORM}")
        self._factory: Callable[..., AnyServer | Awaitable[AnyServer]] = factory
        self._takes_context = _takes_context(factory)
        self._handed_out: weakref.WeakSet[AnyServer] = weakref.WeakSet()
        self._advised = False

    async def make(self, context: RequestContext) -> AnyServer:
        """A fresh server for one request.

        Raises:
            TypeError: the factory returned something else than a server, or one that it had returned before.
            ValueError: the server is to check tokens itself, and nobody has verified the caller.
            Exception: whatever the factory raises.
        """
        started = time.perf_counter()
        product = self._factory(context) if self._takes_context else self._factory()
        if inspect.isawaitable(product):
            product = await product
        self._advise(time.perf_counter() - started)

        if _is_sdk_v1_server(product):
            raise TypeError(_SDK_V1.format(f"what the factory returned, {_name(product)},"))
        if not isinstance(product, MCPServer | Server):
            raise TypeError(f"the factory returned {_name(product)}, not an MCPServer or Server. {_RIGHT_FORM}")
        if product in self._handed_out:
            raise TypeError(f"the factory returned a server that it had returned before. {_RIGHT_FORM}")
        if context.auth_info is None and isinstance(product, MCPServer) and product.settings.auth is not None:
            raise ValueError(LEFT_OPEN)
        self._handed_out.add(product)
        return product

    def _advise(self, seconds: float) -> None:
        if seconds > _SLOW_FACTORY and not self._advised:
            self._advised = True
            logger.warning(
                "The server factory took %.0f ms, and takes it on every request. Describe tools, resources and "
                "prompts once, in a module-level sealane.Catalog, and return catalog.server(…).",
                seconds * 1000,
            )


def low_level_server(server: AnyServer) -> Server[Any]:
    """The low-level server of `server`, which the SDK's kernel takes; MCPServer has no public way to it."""
    return server._lowlevel_server if isinstance(server, MCPServer) else server


def _takes_context(factory: Callable[..., object]) -> bool:
    """Whether the factory is to be called with the RequestContext.

    It is when a positional parameter has no default, or when the first one is annotated with RequestContext.
    """
    positional = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    if len(required) > 1:
        raise TypeError(f"the factory {_name(factory)} has {len(required)} parameters. {_RIGHT_FORM}")
    return bool(required) or (bool(positional) and "RequestContext" in str(positional[0].annotation))


def _is_sdk_v1_server(value: object) -> bool:
    """Whether `value` is a v1 server object or class; told by name, since the two SDKs never share an environment."""
    cls = value if isinstance(value, type) else type(value)
    if issubclass(cls, MCPServer | Server):
        return False
    return any(
        base.__name__ == "FastMCP" or (base.__name__ == "Server" and base.__module__.startswith("mcp."))
        for base in cls.__mro__
    )


def _name(value: object) -> str:
    return getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"
