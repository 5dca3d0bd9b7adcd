"""The handlers that the fuzzer drives: one server with something of everything, under options that change answers."""

import asyncio
import logging
from typing import Annotated, Any, Final, NamedTuple

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    PromptReference,
    ResourceTemplateReference,
)
from pydantic import BaseModel, Field

from sealane import Catalog, Cors, McpHandler, create_mcp_handler
from tests.events import ask, modern

# Tells of every request.
logging.getLogger("mangum.http").setLevel(logging.WARNING)

catalog = Catalog()

REASON: Final = "/var/task/secret.py"
"""What code that fails says; no client may read it in a JSON-RPC error."""
LISTED_HOST: Final = "mcp.example.com"
LISTED_ORIGIN: Final = "https://app.example.com"


class Point(BaseModel):
    """Structured content."""

    x: float
    label: str = ""


class Confirmation(BaseModel):
    """A yes or no."""

    confirm: bool


@catalog.tool()
async def hello(name: str = "World") -> str:
    """A string in, a string out."""
    return f"Hello, {name}!"


@catalog.tool()
def echo(value: Any) -> Any:
    """Anything in, the same out, in a thread."""
    return value


@catalog.tool()
async def move(point: Point, by: Annotated[int, Field(ge=-(10**9), le=10**9)] = 1) -> Point:
    """A model in, a model out."""
    return Point(x=point.x + by, label=point.label)


@catalog.tool()
async def count(ctx: Context, to: Annotated[int, Field(ge=0, le=5)] = 2) -> str:
    """Tells its progress: an event stream."""
    for step in range(to):
        await ctx.report_progress(step, to, f"step {step}")
    return "counted"


async def confirm() -> Elicit[Confirmation]:
    """Asks the client."""
    return Elicit("Really?", Confirmation)


@catalog.tool()
async def delete(name: str, answer: Annotated[Confirmation, Resolve(confirm)]) -> str:
    """Asks by resolver."""
    return f"{name}: {answer.confirm}"


@catalog.tool()
async def transfer(ctx: Context) -> str | InputRequiredResult:
    """Asks by hand."""
    if ctx.request_state and ctx.input_responses:
        return "done"
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    form = ElicitRequestFormParams(message="To whom?", requested_schema=schema)
    return InputRequiredResult(input_requests={"to": ElicitRequest(params=form)}, request_state="{}")


@catalog.tool()
async def fails() -> str:
    """Raises what tools raise."""
    raise LookupError(REASON)


@catalog.prompt()
def greeting(name: str, style: str = "plain") -> str:
    """A prompt with arguments."""
    return f"Greet {name}, {style}."


@catalog.resource("data://static")
def static() -> str:
    """A resource."""
    return "static"


@catalog.resource("data://items/{item}")
def item(item: str) -> str:
    """A resource template."""
    return f"item {item}"


@catalog.completion()
async def complete(
    reference: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion | None:
    """Completes every argument with itself."""
    return Completion(values=[argument.value])


SECURITY: Final = RequestStateSecurity(keys=["sealed alike in every process of a run: 32+"])


def create_server() -> MCPServer:
    """The server of every handler here."""
    return catalog.server("fuzzed", version="1.0.0", request_state_security=SECURITY)


async def create_nothing() -> MCPServer:
    """A factory that fails."""
    await asyncio.sleep(0)
    raise LookupError(REASON)


HANDLERS: Final[dict[str, McpHandler]] = {
    "default": create_mcp_handler(create_server),
    "json": create_mcp_handler(create_server, response_mode="json"),
    "sse": create_mcp_handler(create_server, response_mode="sse"),
    "reject": create_mcp_handler(create_server, legacy="reject"),
    "listed": create_mcp_handler(
        create_server,
        cors=Cors(origins=[LISTED_ORIGIN]),
        allowed_hostnames=[LISTED_HOST],
        allowed_origin_hostnames=["app.example.com"],
    ),
    "small": create_mcp_handler(create_server, cors=False, max_request_body_size=400),
    "failing": create_mcp_handler(create_nothing),
}
"""By name. Subscriptions are left out: their streams end with the environment, not with an answer."""


class Round(NamedTuple):
    """A call that was answered with a question: what continues it."""

    tool: str
    arguments: dict[str, Any]
    key: str
    state: str


def rounds() -> list[Round]:
    """One round of each tool that asks."""
    asked = []
    for tool, arguments in (("delete", {"name": "a"}), ("transfer", {})):
        request = modern(
            "tools/call", name=tool, arguments=arguments, client_capabilities={"elicitation": {"form": {}}}
        )
        result = ask(HANDLERS["default"], request).json["result"]
        [key] = result["inputRequests"]
        asked.append(Round(tool, arguments, key, result["requestState"]))
    return asked
