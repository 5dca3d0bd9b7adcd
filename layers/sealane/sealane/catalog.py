"""Tools, prompts and resources described once, served by every fresh server."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mcp.server.mcpserver import MCPServer, ResourceSecurity
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import DEFAULT_RESOURCE_SECURITY, Resource, ResourceTemplate
from mcp.server.mcpserver.tools import Tool
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

__all__ = ["Catalog", "Described"]

T = TypeVar("T", bound="Described")
CompletionT = TypeVar(
    "CompletionT",
    bound=Callable[
        [PromptReference | ResourceTemplateReference, CompletionArgument, CompletionContext | None],
        Awaitable[Completion | None],
    ],
)

Described = Tool | Resource | ResourceTemplate | Prompt
"""What a catalog holds: each has a `name`; all but prompts have `meta`."""


class Catalog:
    """What a server offers, described at import and served by each request's fresh server.

    `tool`, `resource`, `prompt` and `completion` are the decorators of the SDK's `MCPServer`, with its arguments
    and checks. Describing one tool costs milliseconds; serving described tools costs next to nothing.

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
        self.tool = described.tool
        self.add_tool = described.add_tool
        self.resource = described.resource
        self.add_resource = described.add_resource
        self.prompt = described.prompt
        self.add_prompt = described.add_prompt

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
        server: MCPServer[Any] = MCPServer(
            name,
            tools=kept(described._tool_manager.list_tools()),
            resources=kept(described._resource_manager.list_resources()),
            **options,
        )
        for template in kept(described._resource_manager.list_templates()):
            server._resource_manager._templates[template.uri_template] = template
        for prompt in kept(described._prompt_manager.list_prompts()):
            server.add_prompt(prompt)
        if completion := described._lowlevel_server.get_request_handler("completion/complete"):
            server._lowlevel_server.add_request_handler(
                "completion/complete", completion.params_type, completion.handler
            )
        return server
