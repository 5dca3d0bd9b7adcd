"""The Python SDK's client, generation 2, in its legacy mode: python sessions_python_v2.py URL CUTTING_URL"""

import asyncio
import json
import sys
import warnings
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import httpx2
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    LoggingMessageNotificationParams,
    PromptReference,
    Root,
    TextContent,
)
from pydantic import FileUrl

warnings.simplefilter("ignore", MCPDeprecationWarning)


class Ada:
    """Who answers, and hears what the server says unasked."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.logged: list[str] = []
        self.heard: list[str] = []

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.questions.append(f"{params.mode}: {params.message}")
        if params.mode == "form":
            return ElicitResult(action="accept", content={"name": "Ada", "people": 4, "outside": True})
        return ElicitResult(action="accept")

    async def sample(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        self.questions.append(f"model: {params.messages[0].content.text}")  # type: ignore[union-attr]
        content = TextContent(text="Soft and sweet.")
        return CreateMessageResult(role="assistant", content=content, model="test")

    async def roots(self, context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/ada"))])

    async def log(self, params: LoggingMessageNotificationParams) -> None:
        self.logged.append(params.level)

    async def hear(self, message: Any) -> None:
        method = str(getattr(message, "method", "")).removeprefix("notifications/")
        if "updated" in method:
            self.heard.append(f"{method} {message.params.uri}")
        elif "list_changed" in method:
            self.heard.append(method)
        elif method == "elicitation/complete":
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
    said = result.content[0].text  # type: ignore[union-attr]
    return {"error": said} if result.is_error else said


async def walk(client: Client, ada: Ada) -> dict[str, Any]:
    """The steps of `tests.conformance.legacy_lane`, but for the cut and the end."""
    steps: dict[str, Any] = {}
    tools = sorted(tool.name for tool in (await client.list_tools()).tools)
    steps["tools"] = [tools, text(await client.call_tool("hello", {"name": "Ada"}))]
    completed = await client.complete(PromptReference(name="recommend"), {"name": "dish", "value": "ri"})
    prompt = await client.get_prompt("recommend", {"dish": "risotto", "guest": "Ada"})
    menu = (await client.read_resource("menu://today")).contents[0].text  # type: ignore[union-attr]
    said = prompt.messages[0].content.text  # type: ignore[union-attr]
    steps["read"] = [menu.splitlines(), said, completed.completion.values]

    reported: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    cooked = text(
        await client.call_tool("cook", {"dish": "risotto", "steps": 3, "step_ms": 10}, progress_callback=report)
    )
    steps["progress"] = [reported, cooked]

    booked = text(await client.call_tool("book_table", {"day": "Friday"}))
    paid = text(await client.call_tool("pay_deposit", {"amount": 20}))
    steps["elicitation"] = [booked, paid, ada.questions.copy()]
    ada.questions.clear()
    steps["sampling"] = [text(await client.call_tool("describe", {"dish": "tiramisu"})), ada.questions.copy()]
    steps["roots"] = text(await client.call_tool("receipt_folder", {}))

    await client.subscribe_resource("menu://today")
    changed = text(await client.call_tool("change_menu", {}))
    updated = await ada.hears(1)
    await client.unsubscribe_resource("menu://today")
    await client.call_tool("change_menu", {})
    await client.call_tool("change_staff", {})
    steps["subscriptions"] = [changed, updated, await ada.hears(3)]

    await client.set_logging_level("error")
    await client.call_tool("inspect_kitchen", {})
    quiet, ada.logged = ada.logged, []
    await client.set_logging_level("debug")
    await client.call_tool("inspect_kitchen", {})
    steps["log level"] = [quiet, len(ada.logged)]
    ada.logged = []

    slow = text(await client.call_tool("cook_slowly", {"dish": "gnocchi", "seconds": 1.5}))
    steps["polling"] = [slow, ada.logged]
    return steps


async def cook(client: Client, ada: Ada) -> Any:
    """A call whose wire breaks after its second step."""
    reported: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    arguments = {"dish": "risotto", "steps": 7, "step_ms": 300}
    cooked = text(await client.call_tool("cook", arguments, progress_callback=report))
    return [reported, cooked]


async def connected(url: str, what: Callable[[Client, Ada], Awaitable[Any]]) -> tuple[Any, str, str | None]:
    """What `what` gives with a session, the revision, and the session's id; the session has ended then."""
    ada = Ada()
    session_ids: list[str | None] = []

    async def note(response: httpx2.Response) -> None:
        session_ids.append(response.headers.get("mcp-session-id"))

    hooks: dict[str, list[Callable[..., Any]]] = {"response": [note]}
    async with (
        httpx2.AsyncClient(timeout=httpx2.Timeout(30, read=300), event_hooks=hooks) as http_client,
        Client(
            streamable_http_client(url, http_client=http_client),
            mode="legacy",
            elicitation_callback=ada.elicit,
            sampling_callback=ada.sample,
            list_roots_callback=ada.roots,
            logging_callback=ada.log,
            message_handler=ada.hear,
        ) as client,
    ):
        revision = client.protocol_version
        return await what(client, ada), revision, session_ids[0]


async def main(url: str, cutting_url: str) -> None:
    """Connect, walk, print."""
    steps, revision, session_id = await connected(url, walk)
    steps["resume"], _, _ = await connected(cutting_url, cook)
    print(json.dumps({"version": version("mcp"), "revision": revision, "session": session_id, "steps": steps}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
