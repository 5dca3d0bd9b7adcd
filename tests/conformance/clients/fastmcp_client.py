"""FastMCP's client: python fastmcp_client.py URL modern|legacy"""
# mypy: ignore-errors
# (It does not see FastMCP.)

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from fastmcp import Client
from fastmcp.exceptions import ToolError

questions: list[str] = []


async def answer(message: str, response_type: Any, params: Any, context: Any) -> dict[str, Any]:
    """The answer to a question: yes, or Ada."""
    questions.append(message)
    return {"confirm": True} if "confirm" in params.requested_schema["properties"] else {"recipient": "Ada"}


async def text(client: Client, tool: str, arguments: dict[str, Any]) -> Any:
    """Text of a tool's result; `{"error": text}` when the tool has failed."""
    try:
        return (await client.call_tool(tool, arguments)).content[0].text
    except ToolError as error:
        return {"error": str(error)}


async def walk(client: Client) -> dict[str, Any]:
    """The steps of `tests.conformance.real_clients`, but for "listen", which it has no method for."""
    steps: dict[str, Any] = {}
    steps["list"] = {
        "tools": sorted(tool.name for tool in await client.list_tools()),
        "resources": sorted(str(resource.uri) for resource in await client.list_resources()),
        "templates": sorted(each.uri_template for each in await client.list_resource_templates()),
        "prompts": sorted(prompt.name for prompt in await client.list_prompts()),
    }

    hello = await text(client, "hello", {"name": "Ada"})
    notebook = (await client.call_tool("create_notebook", {"title": "Groceries"})).structured_content["notebook"]
    for note in ("Milk", "Bread"):
        await client.call_tool("add_note", {"notebook": notebook, "text": note})
    steps["call"] = [hello, (await client.call_tool("list_notes", {"notebook": notebook})).structured_content]

    reported: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    counted = await client.call_tool("count", {"to": 3, "delay_ms": 10}, progress_handler=report)
    steps["progress"] = [reported, counted.content[0].text]

    transferred = await text(client, "transfer_notebook", {"notebook": notebook})
    if isinstance(transferred, str):
        notebook = transferred.split()[-1]
    notes = (await client.call_tool("list_notes", {"notebook": notebook})).structured_content
    deleted = await text(client, "delete_notebook", {"notebook": notebook})
    steps["ask"] = {"transferred": transferred, "notes": notes, "deleted": deleted, "questions": questions}

    steps["read"] = [(await client.read_resource(uri))[0].text for uri in ("info://server", "greeting://fr")]

    prompt = await client.get_prompt("introduce", {"name": "Ada", "language": "fr"})
    steps["prompt"] = prompt.messages[0].content.text
    return steps


async def main(url: str, era: str) -> None:
    """Connect, walk, print."""
    async with Client(url, mode="auto" if era == "modern" else "legacy", elicitation_handler=answer) as client:
        steps = await walk(client)
        print(json.dumps({"version": version("fastmcp"), "revision": client.protocol_version, "steps": steps}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
