"""The sample server: what it offers, described once, and the factory that serves it to each request."""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    PromptReference,
    ResourceTemplateReference,
)
from pydantic import BaseModel, Field

from sealane import ANYONE, Catalog, HandleStore, StaleVersion, current_principal, once

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


# Notebooks: data that outlives a request, behind handles, and tools that ask before they act.

notebooks = HandleStore("notebook")

KEPT = 30 * 86_400
"""Seconds that a notebook is kept after its last change."""


class Notebook(BaseModel):
    """What is kept of a notebook."""

    title: str
    owner: str = ""
    notes: list[str] = []


class NotebookHandle(BaseModel):
    """How a notebook is named in later calls."""

    notebook: str = Field(description="The handle of the notebook. Keep it: there is no other way to the notebook.")


NotebookArgument = Annotated[str, Field(description="Handle of the notebook, as create_notebook gave it.")]


@catalog.tool()
async def create_notebook(title: Annotated[str, Field(min_length=1, max_length=200)]) -> NotebookHandle:
    """Start a notebook. It is kept for 30 days after its last change."""
    # This sample is open on purpose: without a sign-in, whoever knows its handle can use a notebook.
    owner: Literal["anyone"] | None = ANYONE if current_principal() is None else None
    handle = await notebooks.create(Notebook(title=title).model_dump(), ttl=KEPT, owner=owner)
    return NotebookHandle(notebook=handle)


@catalog.tool()
async def add_note(
    ctx: Context, notebook: NotebookArgument, text: Annotated[str, Field(min_length=1, max_length=10_000)]
) -> str:
    """Write a note into a notebook."""
    changed = await change(notebook, lambda content: content.notes.append(text))
    # Whoever listens is told, whichever environment serves them.
    await ctx.notify_resource_updated(f"notebook://{notebook}")
    return f"{changed.title!r} has {len(changed.notes)} notes now."


@catalog.tool()
async def list_notes(notebook: NotebookArgument) -> Notebook:
    """Read a whole notebook."""
    return await read(notebook)


@catalog.tool()
async def search_notes(notebook: NotebookArgument, query: str) -> list[str]:
    """Find the notes that contain a text, in upper or lower case."""
    return [note for note in (await read(notebook)).notes if query.casefold() in note.casefold()]


async def read(notebook: str) -> Notebook:
    """The content of a notebook."""
    return Notebook.model_validate((await notebooks.get(notebook)).value)


async def change(notebook: str, edit: Callable[[Notebook], object]) -> Notebook:
    """Edit a notebook. Who was overtaken by another writer edits what that one left, three times at most."""
    for last in (False, False, True):
        entry = await notebooks.get(notebook)
        content = Notebook.model_validate(entry.value)
        edit(content)
        try:
            await notebooks.put(notebook, content.model_dump(), version=entry.version, ttl=KEPT)
        except StaleVersion:
            if last:
                raise
        else:
            break
    return content


class Confirmation(BaseModel):
    """A yes or no."""

    confirm: bool = Field(description="Whether to do it.")


async def confirm_deletion(notebook: str) -> Elicit[Confirmation]:
    """Asks whether a notebook may be deleted."""
    content = await read(notebook)
    return Elicit(f"Delete the notebook {content.title!r} with its {len(content.notes)} notes?", Confirmation)


@catalog.tool()
async def delete_notebook(
    ctx: Context, notebook: NotebookArgument, answer: Annotated[Confirmation, Resolve(confirm_deletion)]
) -> str:
    """Delete a notebook, after a question."""
    if not answer.confirm:
        return "The notebook is still there."
    await notebooks.delete(notebook)
    await ctx.notify_resource_updated(f"notebook://{notebook}")
    return "The notebook is deleted."


@catalog.tool()
async def transfer_notebook(ctx: Context, notebook: NotebookArgument) -> str | InputRequiredResult:
    """Give a notebook away, after two questions. The new owner gets a new handle; the old one ends."""
    # The same as with resolvers, by hand: what a round has learnt travels in the request state, which comes back as it
    # was given or not at all. It cannot be read or changed by the client, but it can be sent again: hence `once`.
    known = json.loads(ctx.request_state or "{}")
    answers = {name: given for name, given in (ctx.input_responses or {}).items() if isinstance(given, ElicitResult)}
    if any(given.action != "accept" for given in answers.values()):
        return "The notebook is still yours."
    if "recipient" in known:
        if not (answers.get("confirm") and (answers["confirm"].content or {}).get("confirm") is True):
            return "The notebook is still yours."
        recipient: str = known["recipient"]
        return str(await once(lambda: transfer(notebook, recipient)))
    title = (await read(notebook)).title
    named = (answers["recipient"].content or {}).get("recipient") if "recipient" in answers else None
    if not isinstance(named, str) or not named.strip():
        return question("recipient", f"Who shall get the notebook {title!r}?", {"type": "string", "minLength": 1})
    return question(
        "confirm", f"Give {title!r} to {named}? You cannot open it afterwards.", {"type": "boolean"}, recipient=named
    )


def question(name: str, message: str, schema: dict[str, Any], **known: str) -> InputRequiredResult:
    """A question with one field, and what to remember until its answer."""
    form = ElicitRequestFormParams(
        message=message, requested_schema={"type": "object", "properties": {name: schema}, "required": [name]}
    )
    return InputRequiredResult(input_requests={name: ElicitRequest(params=form)}, request_state=json.dumps(known))


async def transfer(notebook: str, recipient: str) -> str:
    """Give a notebook to whoever gets its new handle."""
    content = await read(notebook)
    content.owner = recipient
    handle = await notebooks.create(content.model_dump(), ttl=KEPT, owner=ANYONE)
    await notebooks.delete(notebook)
    return f"{content.title!r} belongs to {recipient} now. Its new handle is {handle}"


@catalog.resource("notebook://{notebook}", mime_type="text/markdown")
async def notebook_page(notebook: str) -> str:
    """A notebook, to read and to be told of its changes."""
    content = await read(notebook)
    return "\n".join([f"# {content.title}", "", *(f"- {note}" for note in content.notes)])


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
    return catalog.server(
        "sealane-sample", version="0.1.0", instructions="Try hello, then count with progress. Notebooks keep notes."
    )
