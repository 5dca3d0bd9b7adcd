"""The Python SDK's client, generation 2: python python_v2.py URL modern|legacy"""

import asyncio
import json
import sys
import warnings
from importlib.metadata import version
from typing import Any

from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult

warnings.simplefilter("ignore", MCPDeprecationWarning)

questions: list[str] = []


async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """The answer to a question: yes, or Ada."""
    assert isinstance(params, ElicitRequestFormParams)
    questions.append(params.message)
    content: dict[str, Any] = (
        {"confirm": True} if "confirm" in params.requested_schema["properties"] else {"recipient": "Ada"}
    )
    return ElicitResult(action="accept", content=content)


def text(result: CallToolResult) -> Any:
    """Text of a tool's result; `{"error": text}` when the tool has failed."""
    said = result.content[0].text  # type: ignore[union-attr]
    return {"error": said} if result.is_error else said


async def walk(client: Client, era: str) -> dict[str, Any]:
    """The steps of `tests.conformance.real_clients`."""
    steps: dict[str, Any] = {}
    steps["list"] = {
        "tools": sorted(tool.name for tool in (await client.list_tools()).tools),
        "resources": sorted(resource.uri for resource in (await client.list_resources()).resources),
        "templates": sorted(each.uri_template for each in (await client.list_resource_templates()).resource_templates),
        "prompts": sorted(prompt.name for prompt in (await client.list_prompts()).prompts),
    }

    hello = text(await client.call_tool("hello", {"name": "Ada"}))
    made = await client.call_tool("create_notebook", {"title": "Groceries"})
    notebook = made.structured_content["notebook"]
    for note in ("Milk", "Bread"):
        await client.call_tool("add_note", {"notebook": notebook, "text": note})
    steps["call"] = [hello, (await client.call_tool("list_notes", {"notebook": notebook})).structured_content]

    reported: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    counted = text(await client.call_tool("count", {"to": 3, "delay_ms": 10}, progress_callback=report))
    steps["progress"] = [reported, counted]

    transferred = text(await client.call_tool("transfer_notebook", {"notebook": notebook}))
    if isinstance(transferred, str):
        notebook = transferred.split()[-1]
    notes = (await client.call_tool("list_notes", {"notebook": notebook})).structured_content
    deleted = text(await client.call_tool("delete_notebook", {"notebook": notebook}))
    steps["ask"] = {"transferred": transferred, "notes": notes, "deleted": deleted, "questions": questions}

    read = [(await client.read_resource(uri)).contents[0] for uri in ("info://server", "greeting://fr")]
    steps["read"] = [content.text for content in read]  # type: ignore[union-attr]

    prompt = await client.get_prompt("introduce", {"name": "Ada", "language": "fr"})
    steps["prompt"] = prompt.messages[0].content.text  # type: ignore[union-attr]

    if era == "modern":
        steps["listen"] = await listen(client)
    else:
        try:
            await client.subscribe_resource("info://server")
            steps["listen"] = "served"
        except MCPError as error:
            steps["listen"] = {"error": str(error)}
    return steps


async def listen(client: Client) -> str | None:
    """Write into a notebook until told of it: through a buffering gateway nothing else says that somebody listens."""
    made = await client.call_tool("create_notebook", {"title": "News"})
    notebook = made.structured_content["notebook"]
    told = None

    async def write() -> None:
        while told is None:
            await asyncio.sleep(0.3)
            await client.call_tool("add_note", {"notebook": notebook, "text": "New"})

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        async with client.listen(resource_subscriptions=[f"notebook://{notebook}"]) as changes:
            async for change in changes:
                told = "told" if change == ResourceUpdated(uri=f"notebook://{notebook}") else repr(change)
                break
            else:
                told = "nothing"
    return told


async def main(url: str, era: str) -> None:
    """Connect, walk, print."""
    async with Client(url, mode="auto" if era == "modern" else "legacy", elicitation_callback=answer) as client:
        steps = await walk(client, era)
        print(json.dumps({"version": version("mcp"), "revision": client.protocol_version, "steps": steps}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
