"""Tools, prompts and resources described once, served by every fresh server."""

import functools
import json
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import MCPServer, ResourceSecurity
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import DEFAULT_RESOURCE_SECURITY, Resource, ResourceTemplate
from mcp.server.mcpserver.tools import Tool
from mcp.shared.inbound import X_MCP_HEADER_KEY
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

__all__ = ["Catalog", "Described", "called_name", "missing_scopes"]

T = TypeVar("T", bound="Described")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
CompletionT = TypeVar(
    "CompletionT",
    bound=Callable[
        [PromptReference | ResourceTemplateReference, CompletionArgument, CompletionContext | None],
        Awaitable[Completion | None],
    ],
)

Described = Tool | Resource | ResourceTemplate | Prompt
"""What a catalog holds: each has a `name`; all but prompts have `meta`."""

_withheld: Final[weakref.WeakKeyDictionary[MCPServer[Any], Mapping[str, tuple[str, ...]]]] = weakref.WeakKeyDictionary()
"""By server: the tools that its caller may not use, with the scopes that they need."""


def missing_scopes(server: object, message: object) -> tuple[str, ...]:
    """The scopes of the tool that a request is for, if the caller of this fresh server lacks any of them.

    Args:
        server: what the factory made.
        message: the decoded body of the request.
    """
    withheld = _withheld.get(server) if _withheld and isinstance(server, MCPServer) else None
    if not withheld or (name := called_name(message)) is None:
        return ()
    return withheld.get(name, ())


def called_name(message: object) -> str | None:
    """The tool that a decoded message calls, whether there is one of this name or not."""
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return None
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    return name if isinstance(name, str) else None


class Catalog:
    """What a server offers, described at import and served by each request's fresh server.

    `tool`, `resource`, `prompt` and `completion` are the decorators of the SDK's `MCPServer`, with its arguments
    and checks; `tool` also takes the scopes that a caller needs. Describing one tool costs milliseconds; serving
    described tools costs next to nothing.

        catalog = Catalog()


        @catalog.tool()
        async def hello(name: str = "World") -> str:
            return f"Hello, {name}!"


        def create_server() -> MCPServer:
            return catalog.server("hello-server", version="1.0.0")

    Args:
        tools: tools that are described already, such as those with an input schema of their own.
        resource_security: path-safety policy of resource templates that do not bring their own.
    """

    def __init__(
        self, *, tools: list[Tool] | None = None, resource_security: ResourceSecurity = DEFAULT_RESOURCE_SECURITY
    ) -> None:
        described = MCPServer("catalog", tools=tools, resource_security=resource_security, subscriptions=False)
        self._described = described
        self._has_param_headers: dict[str, bool] = {}
        self._scopes: dict[str, tuple[str, ...]] = {}
        self.add_tool = described.add_tool
        self.resource = described.resource
        self.add_resource = described.add_resource
        self.prompt = described.prompt
        self.add_prompt = described.add_prompt

    def tool(
        self, name: str | None = None, *, scopes: Collection[str] = (), **options: Any
    ) -> Callable[[FunctionT], FunctionT]:
        """Decorator of a function that is a tool, as `MCPServer.tool`.

        Args:
            name: the tool's name; by default the function's.
            scopes: what a caller must have been granted. The tool is not listed for others, and their calls are
                refused with 403, naming the scopes, for clients to ask for more (RFC 6750 section 3.1).
            options: further arguments of `MCPServer.tool`.

        Raises:
            TypeError: used without parentheses, or scopes are one text.
        """
        if isinstance(scopes, str):
            raise TypeError(f"scopes is a collection of scopes: write [{scopes!r}]")
        describe = self._described.tool(name, **options)

        def decorate(function: FunctionT) -> FunctionT:
            describe(function)
            if scopes:
                self._scopes[name or function.__name__] = tuple(scopes)
            return function

        return decorate

    def completion(self) -> Callable[[CompletionT], CompletionT]:
        """Decorator of the function that completes arguments, as `MCPServer.completion`."""
        decorator: Callable[[CompletionT], CompletionT] = self._described.completion()  # type: ignore[no-untyped-call]
        return decorator

    def server(
        self, name: str, *, include: Callable[[Described], bool] | None = None, **options: Any
    ) -> MCPServer[Any]:
        """A fresh server that offers what is described, in the order of description.

        Args:
            name: the server's name, which sealed request state is bound to.
            include: keeps what it returns true for; called for each tool, resource, template and prompt, to serve
                a caller what its scopes allow.
            options: further arguments of `MCPServer`, such as `version` and `instructions`.
        """

        def kept(items: list[T]) -> list[T]:
            return items if include is None else [item for item in items if include(item)]

        # MCPServer takes described tools and resources, but templates and the completion handler only as functions.
        described = self._described
        caller = get_access_token()
        granted = caller.scopes if caller is not None else ()
        withheld = {tool: needed for tool, needed in self._scopes.items() if not set(needed) <= set(granted)}
        tools = [tool for tool in described._tool_manager.list_tools() if tool.name not in withheld]
        server: MCPServer[Any] = MCPServer(
            name,
            tools=kept(tools),
            resources=kept(described._resource_manager.list_resources()),
            **options,
        )
        if withheld:
            _withheld[server] = withheld
        server._lowlevel_server.get_tool_input_schema = functools.partial(self._schema_with_param_headers, server)
        for template in kept(described._resource_manager.list_templates()):
            server._resource_manager._templates[template.uri_template] = template
        for prompt in kept(described._prompt_manager.list_prompts()):
            server.add_prompt(prompt)
        if completion := described._lowlevel_server.get_request_handler("completion/complete"):
            server._lowlevel_server.add_request_handler(
                "completion/complete", completion.params_type, completion.handler
            )
        return server

    def _schema_with_param_headers(self, server: MCPServer[Any], name: str) -> dict[str, Any] | None:
        """The input schema of a tool of `server`, if calls of it have `Mcp-Param-*` headers, which the SDK compares."""
        tool = server._tool_manager.get_tool(name)
        if tool is not None and tool is self._described._tool_manager.get_tool(name):
            if name not in self._has_param_headers:
                self._has_param_headers[name] = X_MCP_HEADER_KEY in json.dumps(tool.parameters)
            if not self._has_param_headers[name]:
                return None
        return None if tool is None else tool.parameters
