"""A server for the SDK's generation 1, as its owner had it: a restaurant that depends on what sessions give.

Nothing here knows of AWS, or of environments that come and go.
"""
# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (Some of the SDK's decorators have no types.)

import asyncio
import uuid
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import anyio
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.lowlevel import NotificationOptions
from mcp.server.session import ServerSession
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    LoggingLevel,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    ServerCapabilities,
    TextContent,
)
from pydantic import AnyUrl, BaseModel, Field

Ctx = Context[ServerSession, None]

DISHES = {"gnocchi": "Gnocchi with sage butter", "risotto": "Risotto with saffron", "tiramisu": "Tiramisu"}
LEVELS: tuple[LoggingLevel, ...] = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
MENU = "menu://today"

server = FastMCP("restaurant", instructions="Read menu://today, then book_table. The kitchen reports while it cooks.")


@server.tool()
def hello(name: str = "World") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


# The guest is asked: by a form, and on a page of their own.


class Booking(BaseModel):
    """What a booking needs to know."""

    name: str = Field(description="In whose name?")
    people: int = Field(default=2, ge=1, le=12)
    outside: bool = False


@server.tool()
async def book_table(day: str, ctx: Ctx) -> str:
    """Book a table, after a question."""
    answer = await ctx.elicit(f"A table for {day}: for whom?", Booking)
    if not isinstance(answer, AcceptedElicitation):
        return "No table is booked."
    booking = answer.data
    return f"A table for {booking.people} is booked for {booking.name}, {'outside' if booking.outside else 'inside'}."


@server.tool()
async def pay_deposit(amount: int, ctx: Ctx) -> str:
    """Pay on a page that neither the model nor its client can see."""
    payment = uuid.uuid4().hex
    answer = await ctx.elicit_url(f"Please pay {amount} euros.", f"https://pay.example.com/{payment}", payment)
    if answer.action != "accept":
        return "Nothing is paid."
    await ctx.session.send_elicit_complete(payment, ctx.request_id)
    return f"{amount} euros are paid."


# The client is asked: for its model, and for its folders.


@server.tool()
async def describe(dish: str, ctx: Ctx) -> str:
    """Let the client's model describe a dish."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text=f"Describe {dish} in one sentence."))
    answer = await ctx.session.create_message([question], max_tokens=100, related_request_id=ctx.request_id)
    return answer.content.text if isinstance(answer.content, TextContent) else f"({answer.content.type})"


@server.tool()
async def receipt_folder(ctx: Ctx) -> str:
    """Find out where the client would keep a receipt."""
    roots = (await ctx.session.list_roots()).roots
    return f"{roots[0].uri}/receipt.pdf" if roots else "The client has no folder."


# The kitchen reports.


@server.tool()
async def cook(dish: str, ctx: Ctx, steps: int = 5, step_ms: int = 300) -> str:
    """Cook a dish, with a progress notification after each step."""
    for step in range(1, steps + 1):
        await asyncio.sleep(step_ms / 1000)
        await ctx.report_progress(step, steps, f"step {step} of {steps}")
    return f"{DISHES.get(dish, dish)} is ready."


@server.tool()
async def cook_slowly(dish: str, ctx: Ctx, seconds: float = 20) -> str:
    """Cook something that takes long. The client hangs up, and asks again when it likes."""
    await ctx.info(f"{dish} is in the oven")
    await ctx.close_sse_stream()
    await asyncio.sleep(seconds)
    await ctx.info(f"{dish} is out of the oven")
    return f"{DISHES.get(dish, dish)} is ready at last."


@server.tool()
async def inspect_kitchen(ctx: Ctx) -> str:
    """Write to the client's log, once at each level."""
    for level in LEVELS:
        await ctx.session.send_log_message(level, f"{level}: the kitchen", "kitchen", ctx.request_id)
    return "The kitchen is inspected."


# What sessions watch, and hear of on their own stream.

watched: WeakKeyDictionary[ServerSession, set[str]] = WeakKeyDictionary()


@server.resource(MENU, mime_type="text/plain")
def menu() -> str:
    """What there is today."""
    return "\n".join(DISHES.values())


@server.resource("dish://{name}", mime_type="text/plain")
def dish(name: str) -> str:
    """One dish."""
    return DISHES.get(name, f"There is no {name}.")


@server.tool()
async def change_menu(ctx: Ctx) -> str:
    """Change the menu, and tell those who watch it."""
    for session, uris in list(watched.items()):
        if MENU in uris:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await session.send_resource_updated(AnyUrl(MENU))
    return "The menu has changed."


@server.tool()
async def change_staff(ctx: Ctx) -> str:
    """Tell the client that tools, prompts and resources may be others now."""
    await ctx.session.send_tool_list_changed()
    await ctx.session.send_prompt_list_changed()
    await ctx.session.send_resource_list_changed()
    return "The staff has changed."


@server.prompt()
def recommend(dish: str, guest: str = "a friend") -> str:
    """Ask for a recommendation of a dish."""
    return f"Recommend {dish} to {guest} in two sentences."


@server.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    """Complete the name of a dish."""
    return Completion(values=[name for name in DISHES if name.startswith(argument.value)])


# What FastMCP has no decorators for.

low_level = server._mcp_server


@low_level.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    """A session watches a resource."""
    watched.setdefault(low_level.request_context.session, set()).add(str(uri))


@low_level.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None:
    """It does no longer."""
    watched.get(low_level.request_context.session, set()).discard(str(uri))


@low_level.set_logging_level()
async def set_logging_level(level: LoggingLevel) -> None:
    """Any level will do."""


def capabilities(
    notification_options: NotificationOptions, experimental_capabilities: dict[str, dict[str, Any]]
) -> ServerCapabilities:
    """Those that the SDK finds, and those that it cannot know of: subscriptions, and lists that change."""
    every = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    offered = found_capabilities(every, experimental_capabilities)
    if offered.resources:
        offered.resources.subscribe = True
    return offered


found_capabilities = low_level.get_capabilities
low_level.get_capabilities = capabilities  # type: ignore[method-assign]


def create_server() -> FastMCP:
    """The server, for all sessions."""
    return server
