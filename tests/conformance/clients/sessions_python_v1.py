"""The Python SDK's client, generation 1, with a session: python sessions_python_v1.py URL CUTTING_URL"""
# mypy: ignore-errors
# (It sees generation 2 of the SDK.)

import asyncio
import json
import sys
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CallToolResult,
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    Root,
    ServerNotification,
    TextContent,
)


class Ada:
    """Who answers, and hears what the server says unasked."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.logged: list[str] = []
        self.heard: list[str] = []

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(f"{params.mode}: {params.message}")
        content = {"name": "Ada", "people": 4, "outside": True} if params.mode == "form" else None
        return ElicitResult(action="accept", content=content)

    async def sample(self, context: Any, params: Any) -> CreateMessageResult:
        self.questions.append(f"model: {params.messages[0].content.text}")
        content = TextContent(type="text", text="Soft and sweet.")
        return CreateMessageResult(role="assistant", content=content, model="test")

    async def roots(self, context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri="file:///home/ada")])

    async def log(self, params: Any) -> None:
        self.logged.append(params.level)

    async def hear(self, message: Any) -> None:
        if isinstance(message, ServerNotification):
            method = message.root.method.removeprefix("notifications/")
            if "updated" in method:
                self.heard.append(f"{method} {message.root.params.uri}")
            elif "list_changed" in method:
                self.heard.append(method)
            elif "elicitation" in method:
                self.questions.append(method)

    async def hears(self, count: int) -> list[str]:
        """What it has heard, once that is so much or four seconds are over."""
        for _ in range(80):
            if len(self.heard) >= count:
                break
            await asyncio.sleep(0.05)
        heard, self.heard = sorted(self.heard), []
        return heard


def text(result: CallToolResult) -> Any:
    """Text of a tool's result; `{"error": text}` when the tool has failed."""
    said = result.content[0].text
    return {"error": said} if result.isError else said


async def walk(session: ClientSession, ada: Ada) -> dict[str, Any]:
    """The steps of `tests.conformance.legacy_lane`, but for the cut and the end."""
    steps: dict[str, Any] = {}
    tools = sorted(tool.name for tool in (await session.list_tools()).tools)
    steps["tools"] = [tools, text(await session.call_tool("hello", {"name": "Ada"}))]
    completed = await session.complete(
        PromptReference(type="ref/prompt", name="recommend"), {"name": "dish", "value": "ri"}
    )
    prompt = await session.get_prompt("recommend", {"dish": "risotto", "guest": "Ada"})
    menu = (await session.read_resource("menu://today")).contents[0].text
    steps["read"] = [menu.splitlines(), prompt.messages[0].content.text, completed.completion.values]

    reported: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    cooked = text(
        await session.call_tool("cook", {"dish": "risotto", "steps": 3, "step_ms": 10}, progress_callback=report)
    )
    steps["progress"] = [reported, cooked]

    booked = text(await session.call_tool("book_table", {"day": "Friday"}))
    paid = text(await session.call_tool("pay_deposit", {"amount": 20}))
    steps["elicitation"] = [booked, paid, ada.questions.copy()]
    ada.questions.clear()
    steps["sampling"] = [text(await session.call_tool("describe", {"dish": "tiramisu"})), ada.questions.copy()]
    steps["roots"] = text(await session.call_tool("receipt_folder", {}))

    await session.subscribe_resource("menu://today")
    changed = text(await session.call_tool("change_menu", {}))
    updated = await ada.hears(1)
    await session.unsubscribe_resource("menu://today")
    await session.call_tool("change_menu", {})
    await session.call_tool("change_staff", {})
    steps["subscriptions"] = [changed, updated, await ada.hears(3)]

    await session.set_logging_level("error")
    await session.call_tool("inspect_kitchen", {})
    quiet, ada.logged = ada.logged, []
    await session.set_logging_level("debug")
    await session.call_tool("inspect_kitchen", {})
    steps["log level"] = [quiet, len(ada.logged)]
    ada.logged = []

    slow = text(await session.call_tool("cook_slowly", {"dish": "gnocchi", "seconds": 1.5}))
    steps["polling"] = [slow, ada.logged]
    return steps


async def connected(url: str, ada: Ada, what: Any) -> tuple[Any, str, str]:
    """What `what` gives with a session, the revision, and the session's id; the session has ended then."""
    async with (
        streamable_http_client(url) as (read, write, session_id),
        ClientSession(
            read,
            write,
            read_timeout_seconds=timedelta(seconds=30),
            elicitation_callback=ada.elicit,
            sampling_callback=ada.sample,
            list_roots_callback=ada.roots,
            logging_callback=ada.log,
            message_handler=ada.hear,
        ) as session,
    ):
        revision = (await session.initialize()).protocolVersion
        return await what(session), revision, session_id()


async def cook(session: ClientSession) -> Any:
    """A call whose wire breaks after its second step."""
    reported: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    arguments = {"dish": "risotto", "steps": 7, "step_ms": 300}
    cooked = text(await session.call_tool("cook", arguments, progress_callback=report))
    return [reported, cooked]


async def main(url: str, cutting_url: str) -> None:
    """Connect, walk, print."""
    ada = Ada()
    steps, revision, session_id = await connected(url, ada, lambda session: walk(session, ada))
    steps["resume"], _, _ = await connected(cutting_url, Ada(), cook)
    print(json.dumps({"version": version("mcp"), "revision": revision, "session": session_id, "steps": steps}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
