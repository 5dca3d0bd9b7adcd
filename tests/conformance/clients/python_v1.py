"""The Python SDK's client, generation 1: python python_v1.py URL legacy"""
# mypy: ignore-errors
# (It sees generation 2 of the SDK.)

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult

questions: list[str] = []


async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """The answer to a question: yes, or Ada."""
    questions.append(params.message)
    content = {"confirm": True} if "confirm" in params.requestedSchema["properties"] else {"recipient": "Ada"}
    return ElicitResult(action="accept", content=content)


def text(result: CallToolResult) -> Any:
    """Text of a tool's result; `{"error": text}` when the tool has failed."""
    said = result.content[0].text
    return {"error": said} if result.isError else said


async def walk(session: ClientSession) -> dict[str, Any]:
    """The steps of `tests.conformance.real_clients`."""
    steps: dict[str, Any] = {}
    steps["list"] = {
        "tools": sorted(tool.name for tool in (await session.list_tools()).tools),
        "resources": sorted(str(resource.uri) for resource in (await session.list_resources()).resources),
        "templates": sorted(each.uriTemplate for each in (await session.list_resource_templates()).resourceTemplates),
        "prompts": sorted(prompt.name for prompt in (await session.list_prompts()).prompts),
    }

    hello = text(await session.call_tool("hello", {"name": "Ada"}))
    made = await session.call_tool("create_notebook", {"title": "Groceries"})
    notebook = made.structuredContent["notebook"]
    for note in ("Milk", "Bread"):
        await session.call_tool("add_note", {"notebook": notebook, "text": note})
    steps["call"] = [hello, (await session.call_tool("list_notes", {"notebook": notebook})).structuredContent]

    reported: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    counted = text(await session.call_tool("count", {"to": 3, "delay_ms": 10}, progress_callback=report))
    steps["progress"] = [reported, counted]

    transferred = text(await session.call_tool("transfer_notebook", {"notebook": notebook}))
    if isinstance(transferred, str):
        notebook = transferred.split()[-1]
    notes = (await session.call_tool("list_notes", {"notebook": notebook})).structuredContent
    deleted = text(await session.call_tool("delete_notebook", {"notebook": notebook}))
    steps["ask"] = {"transferred": transferred, "notes": notes, "deleted": deleted, "questions": questions}

    steps["read"] = [(await session.read_resource(uri)).contents[0].text for uri in ("info://server", "greeting://fr")]

    prompt = await session.get_prompt("introduce", {"name": "Ada", "language": "fr"})
    steps["prompt"] = prompt.messages[0].content.text

    try:
        await session.subscribe_resource("info://server")
        steps["listen"] = "served"
    except McpError as error:
        steps["listen"] = {"error": str(error)}
    return steps


async def main(url: str) -> None:
    """Connect, walk, print."""
    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(read, write, elicitation_callback=answer) as session,
    ):
        revision = (await session.initialize()).protocolVersion
        print(json.dumps({"version": version("mcp"), "revision": revision, "steps": await walk(session)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
