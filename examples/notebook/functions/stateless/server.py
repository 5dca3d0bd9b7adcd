"""Notebooks that are their owner's alone, and inboxes that others may write into."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    Completion,
    CompletionArgument,
    CompletionContext,
    EmbeddedResource,
    PromptReference,
    ResourceTemplateReference,
    TextResourceContents,
)
from pydantic import BaseModel, Field

from sealane import ANYONE, Catalog, HandleNotFound, HandleStore

catalog = Catalog()
notebooks = HandleStore("notebook")
inboxes = HandleStore("inbox")

KEPT = 365 * 86_400
"""Seconds that a notebook is kept after its last note, and an inbox at all."""


class Notebook(BaseModel):
    """What is kept of a notebook."""

    title: str
    notes: list[str] = []


class Listed(BaseModel):
    """A notebook in a list."""

    notebook: str = Field(description="Handle of the notebook, good for its owner only.")
    title: str
    notes: int = Field(description="How many there are.")


class Notebooks(BaseModel):
    """A page of the caller's notebooks."""

    notebooks: list[Listed]
    cursor: str | None = Field(description="What my_notebooks takes to go on; none after the last page.")


NotebookHandle = Annotated[str, Field(description="Handle of a notebook, as start_notebook or my_notebooks gave it.")]
InboxHandle = Annotated[str, Field(description="Handle of an inbox, as open_inbox gave it.")]


@catalog.tool()
async def start_notebook(title: Annotated[str, Field(min_length=1, max_length=100)]) -> Listed:
    """Start a notebook that only you can see."""
    # Without an owner it is the caller's: the same client, issuer and subject have to come again.
    handle = await notebooks.create(Notebook(title=title).model_dump(), ttl=KEPT)
    return Listed(notebook=handle, title=title, notes=0)


@catalog.tool()
async def my_notebooks(
    cursor: Annotated[str | None, Field(description="The cursor of the page before; none for the first.")] = None,
    limit: Annotated[int, Field(ge=1, le=20, description="Notebooks in a page.")] = 20,
) -> Notebooks:
    """List your notebooks, a page at a time."""
    page = await notebooks.list(limit=limit, cursor=cursor)
    # A list has handles only: what is behind them is read, at once.
    found = await asyncio.gather(*(listed(handle) for handle in page.handles))
    return Notebooks(notebooks=[each for each in found if each is not None], cursor=page.cursor)


async def listed(notebook: str) -> Listed | None:
    """A notebook for a list; `None` if it has gone since its handle was listed."""
    try:
        content = await read(notebook)
    except HandleNotFound:
        return None
    return Listed(notebook=notebook, title=content.title, notes=len(content.notes))


async def read(notebook: str) -> Notebook:
    """The content of a notebook of the caller's."""
    return Notebook.model_validate((await notebooks.get(notebook)).value)


@catalog.tool()
async def write_note(
    ctx: Context, notebook: NotebookHandle, text: Annotated[str, Field(min_length=1, max_length=10_000)]
) -> str:
    """Write a note."""
    entry = await notebooks.get(notebook)
    content = Notebook.model_validate(entry.value)
    content.notes.append(text)
    # Who was overtaken overwrites nothing: StaleVersion tells the model to try again.
    await notebooks.put(notebook, content.model_dump(), version=entry.version, ttl=KEPT)
    await ctx.notify_resource_updated(f"notebook://{notebook}")
    return f"Notes in {content.title!r}: {len(content.notes)}"


@catalog.resource("notebook://{notebook}", mime_type="text/markdown")
async def notebook_page(notebook: str) -> str:
    """A notebook to read, and to be told of its changes."""
    content = await read(notebook)
    return "\n".join([f"# {content.title}", "", *(f"- {note}" for note in content.notes)])


@catalog.tool()
async def open_inbox() -> str:
    """Open an inbox. Whoever knows its handle can write into it and read it: POST /inbox/HANDLE, text in the body."""
    return await inboxes.create([], ttl=KEPT, owner=ANYONE)


@catalog.resource("inbox://{inbox}", mime_type="text/plain")
async def inbox_messages(inbox: str) -> str:
    """What came into an inbox, a line a message. The function webhook tells of its changes."""
    messages = (await inboxes.get(inbox)).value
    assert isinstance(messages, list)  # noqa: S101 - the two functions are the only ones that write it
    return "\n".join(map(str, messages))


@catalog.prompt()
async def review(title: str) -> list[Message]:
    """Go through one of your notebooks."""
    async for each in all_notebooks():
        if each.title == title:
            uri = f"notebook://{each.notebook}"
            page = TextResourceContents(uri=uri, mime_type="text/markdown", text=await notebook_page(each.notebook))
            return [
                UserMessage("What is done, what is open, and what contradicts itself in this notebook?"),
                UserMessage(EmbeddedResource(type="resource", resource=page)),
            ]
    raise MCPError(INVALID_PARAMS, "You have no notebook of this title.")


@catalog.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion | None:
    """Complete the title in the prompt, from the caller's own."""
    if argument.name != "title":
        return None
    titles = [each.title async for each in all_notebooks() if each.title.startswith(argument.value)]
    return Completion(values=sorted(set(titles))[:100])


async def all_notebooks() -> AsyncIterator[Listed]:
    """Every notebook of the caller's."""
    cursor: str | None = None
    while True:
        page = await my_notebooks(cursor)
        for each in page.notebooks:
            yield each
        if (cursor := page.cursor) is None:
            return


def create_server() -> MCPServer:
    """A fresh server for one request."""
    return catalog.server("notebook", version="1.0.0")
