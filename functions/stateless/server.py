"""The sample server: what it offers, described once, and the factory that serves it to each request."""

import asyncio
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)
from pydantic import BaseModel, Field

from sealane import Catalog

catalog = Catalog()

GREETINGS = {"de": "Hallo", "en": "Hello", "es": "Hola", "fr": "Bonjour", "it": "Ciao"}


class TextStatistics(BaseModel):
    """Counts of a text."""

    characters: int
    words: int
    lines: int


@catalog.tool()
async def hello(name: str = "World") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


@catalog.tool()
def text_statistics(text: str) -> TextStatistics:
    """Count the characters, words and lines of a text."""
    return TextStatistics(characters=len(text), words=len(text.split()), lines=len(text.splitlines()))


@catalog.tool()
async def count(
    ctx: Context,
    to: Annotated[int, Field(ge=1, le=100)] = 5,
    delay_ms: Annotated[int, Field(ge=0, le=10_000)] = 300,
) -> str:
    """Count slowly, with a progress notification after each step."""
    for step in range(1, to + 1):
        await asyncio.sleep(delay_ms / 1000)
        await ctx.report_progress(step, to, f"{step} of {to}")
    return f"Counted to {to}."


@catalog.resource("info://server", mime_type="text/plain")
def server_info() -> str:
    """What this server is."""
    return "A sample MCP server on AWS Lambda, made with Sealane."


@catalog.resource("greeting://{language}", mime_type="text/plain")
def greeting(language: str) -> str:
    """A greeting in one of the languages de, en, es, fr, it."""
    return GREETINGS.get(language, f"No greeting is known in {language!r}.")


@catalog.prompt()
def introduce(name: str, language: str = "en") -> str:
    """Ask for an introduction of somebody."""
    return f"Introduce {name} in two sentences. Write in the language {language!r}."


@catalog.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion | None:
    """Complete the language of the greeting and of the introduction."""
    if argument.name != "language":
        return None
    return Completion(values=[language for language in GREETINGS if language.startswith(argument.value)])


def create_server() -> MCPServer:
    """A fresh server for one request."""
    return catalog.server("sealane-sample", version="0.1.0", instructions="Try hello, then count with progress.")
