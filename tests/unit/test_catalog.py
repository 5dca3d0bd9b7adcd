"""`Catalog`: the same on the wire as a server that describes everything for each request."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from mcp.server.mcpserver import Context, MCPServer, ResourceSecurity
from mcp.server.mcpserver.prompts.base import AssistantMessage, Message, UserMessage
from mcp.server.mcpserver.tools import Tool
from mcp_types import (
    Annotations,
    Completion,
    CompletionArgument,
    CompletionContext,
    Icon,
    PromptReference,
    ResourceTemplateReference,
    ToolAnnotations,
)
from pydantic import BaseModel

from sealane import Catalog, RequestContext, create_mcp_handler
from sealane.catalog import Described
from tests.events import Answer, ask, legacy, modern
from tests.unit.asgi import fetch, starlette_request


class Weather(BaseModel):
    """A structured output."""

    city: str
    degrees: float


def describe(into: Catalog) -> None:
    """Describe one of everything, in an order that is not alphabetical."""

    @into.tool()
    def weather(city: str, degrees: float = 20.5) -> Weather:
        """The weather of a city."""
        return Weather(city=city, degrees=degrees)

    @into.tool(
        name="add",
        title="Addition",
        description="Adds.",
        annotations=ToolAnnotations(read_only_hint=True),
        icons=[Icon(src="https://example.com/add.png")],
        meta={"scope": "admin"},
        structured_output=False,
    )
    async def addition(a: int, b: int, ctx: Context) -> str:
        return f"{ctx.mcp_server.name}: {a + b}"

    def added(text: str) -> str:
        """A tool that no decorator describes."""
        return text.upper()

    into.add_tool(added)

    @into.resource("note://readme", title="Read me", mime_type="text/markdown", meta={"scope": "public"})
    def readme() -> str:
        return "# Notes"

    @into.resource("note://binary", annotations=Annotations(priority=0.5))
    def binary() -> bytes:
        return b"\x00\x01"

    @into.resource("note://{year}/{month}", name="monthly", mime_type="text/plain")
    async def monthly(year: int, month: str, ctx: Context) -> str:
        return f"{year} {month} of {ctx.mcp_server.name}"

    @into.resource("file://{+path}", meta={"scope": "admin"})
    def file(path: str) -> str:
        return path

    @into.prompt(title="Ask")
    def ask_for(topic: str, tone: str = "kind") -> list[Message]:
        """Ask about a topic."""
        return [UserMessage(f"{topic}, {tone}"), AssistantMessage("Gladly.")]

    @into.prompt()
    async def another() -> str:
        return "Another."

    @into.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion | None:
        known = context.arguments if context and context.arguments else {}
        return Completion(values=[f"{argument.value}{end}" for end in ("a", "b", *known)], has_more=False)


NAME = "catalog-server"
OPTIONS: dict[str, Any] = {"version": "1.2.3", "instructions": "Read me.", "title": "A server"}
CATALOG = Catalog()
describe(CATALOG)


def plain() -> MCPServer:
    """Everything described for each request."""
    server = MCPServer(NAME, **OPTIONS)
    describe(cast(Catalog, server))  # a server has the decorators of a catalog
    return server


def from_catalog() -> MCPServer:
    """Everything described once."""
    return CATALOG.server(NAME, **OPTIONS)


PLAIN, FROM_CATALOG = create_mcp_handler(plain), create_mcp_handler(from_catalog)

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "list tools": ("tools/list", {}),
    "list resources": ("resources/list", {}),
    "list templates": ("resources/templates/list", {}),
    "list prompts": ("prompts/list", {}),
    "call structured": ("tools/call", {"name": "weather", "arguments": {"city": "Rome"}}),
    "call with context": ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
    "call added": ("tools/call", {"name": "added", "arguments": {"text": "x"}}),
    "call with bad arguments": ("tools/call", {"name": "add", "arguments": {"a": "one"}}),
    "call unknown": ("tools/call", {"name": "nobody", "arguments": {}}),
    "read text": ("resources/read", {"uri": "note://readme"}),
    "read binary": ("resources/read", {"uri": "note://binary"}),
    "read template": ("resources/read", {"uri": "note://2026/may"}),
    "read template with a bad argument": ("resources/read", {"uri": "note://twenty/may"}),
    "read path": ("resources/read", {"uri": "file://a/b"}),
    "read forbidden path": ("resources/read", {"uri": "file://../secret"}),
    "read unknown": ("resources/read", {"uri": "nowhere://x"}),
    "get prompt": ("prompts/get", {"name": "ask_for", "arguments": {"topic": "tea"}}),
    "get prompt without arguments": ("prompts/get", {"name": "ask_for"}),
    "get unknown": ("prompts/get", {"name": "nobody"}),
    "complete": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "ask_for"}, "argument": {"name": "topic", "value": "t"}},
    ),
    "complete with context": (
        "completion/complete",
        {
            "ref": {"type": "ref/resource", "uri": "note://{year}/{month}"},
            "argument": {"name": "month", "value": "m"},
            "context": {"arguments": {"year": "2026"}},
        },
    ),
}


def listed(answer: Answer, kind: str, key: str = "name") -> list[str]:
    """The names of a list answer, in its order."""
    return [item[key] for item in answer.json["result"][kind]]


@pytest.mark.parametrize("era", [modern, legacy])
@pytest.mark.parametrize(("method", "params"), REQUESTS.values(), ids=REQUESTS)
def test_catalog_answers_like_a_plain_server(method: str, params: dict[str, Any], era: Callable[..., Any]) -> None:
    expected, got = ask(PLAIN, era(method, **params)), ask(FROM_CATALOG, era(method, **params))
    assert got == expected
    assert got.body == expected.body


@pytest.mark.parametrize("request_", [modern("server/discover"), legacy("initialize")], ids=["modern", "legacy"])
def test_catalog_introduces_itself_like_a_plain_server(request_: tuple[dict[str, str], Any]) -> None:
    expected, got = ask(PLAIN, request_), ask(FROM_CATALOG, request_)
    assert got.body == expected.body
    assert "completions" in got.json["result"]["capabilities"]


@pytest.mark.parametrize("request_", [modern("server/discover"), legacy("initialize")], ids=["modern", "legacy"])
def test_empty_catalog_introduces_itself_like_an_empty_server(request_: tuple[dict[str, str], Any]) -> None:
    catalog = Catalog()
    empty, got = (
        ask(create_mcp_handler(lambda: MCPServer(NAME)), request_),
        ask(create_mcp_handler(lambda: catalog.server(NAME)), request_),
    )
    assert got.body == empty.body
    assert "completions" not in got.json["result"]["capabilities"]


def test_order_is_that_of_description() -> None:
    for _ in range(3):
        assert listed(ask(FROM_CATALOG, modern("tools/list")), "tools") == ["weather", "add", "added"]
        assert listed(ask(FROM_CATALOG, modern("resources/list")), "resources", "uri") == [
            "note://readme",
            "note://binary",
        ]
        assert listed(ask(FROM_CATALOG, modern("resources/templates/list")), "resourceTemplates") == [
            "monthly",
            "file",
        ]
        assert listed(ask(FROM_CATALOG, modern("prompts/list")), "prompts") == ["ask_for", "another"]


def is_public(item: Described) -> bool:
    """Whether everybody may see this."""
    return (getattr(item, "meta", None) or {}).get("scope") != "admin"


def for_the_caller(context: RequestContext) -> MCPServer:
    """All for those who may, else what is public."""
    everything = context.request.headers.get("x-scope") == "admin"
    return CATALOG.server(NAME, include=None if everything else is_public)


@pytest.mark.parametrize("era", [modern, legacy])
def test_include_serves_a_subset_per_caller(era: Callable[..., Any]) -> None:
    handler = create_mcp_handler(for_the_caller)

    def both(method: str, **params: Any) -> tuple[Answer, Answer]:
        headers, body = era(method, **params)
        return ask(handler, ({**headers, "X-Scope": "admin"}, body)), ask(handler, (headers, body))

    admin, anyone = both("tools/list")
    assert listed(admin, "tools") == ["weather", "add", "added"]
    assert listed(anyone, "tools") == ["weather", "added"]
    admin, anyone = both("resources/templates/list")
    assert listed(admin, "resourceTemplates") == ["monthly", "file"]
    assert listed(anyone, "resourceTemplates") == ["monthly"]
    admin, anyone = both("tools/call", name="add", arguments={"a": 1, "b": 2})
    assert admin.json["result"]["isError"] is False
    assert "Unknown tool" in anyone.body
    admin, anyone = both("resources/read", uri="file://a")
    assert "result" in admin.json
    assert "error" in anyone.json


def test_include_is_asked_about_everything() -> None:
    asked: list[str] = []

    def include(item: Described) -> bool:
        asked.append(item.name or "")
        return False

    handler = create_mcp_handler(lambda: CATALOG.server(NAME, include=include))
    assert listed(ask(handler, modern("tools/list")), "tools") == []
    assert asked == ["weather", "add", "added", "readme", "binary", "monthly", "file", "ask_for", "another"]
    assert listed(ask(handler, modern("prompts/list")), "prompts") == []
    assert listed(ask(handler, modern("resources/list")), "resources") == []
    assert listed(ask(handler, modern("resources/templates/list")), "resourceTemplates") == []


def test_what_one_request_changes_no_other_sees() -> None:
    def changed() -> MCPServer:
        server = from_catalog()
        server.remove_tool("weather")
        server.add_tool(lambda: "x", name="extra")
        server.resource("extra://x", name="extra")(lambda: "x")
        server.resource("extra://{x}/y", name="extra")(lambda x: x)
        server.prompt(name="extra")(lambda: "x")
        return server

    handler = create_mcp_handler(changed)
    for _ in range(2):
        assert listed(ask(handler, modern("tools/list")), "tools") == ["add", "added", "extra"]
    for method, kind in (
        ("tools/list", "tools"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("prompts/list", "prompts"),
    ):
        assert "extra" in listed(ask(handler, modern(method)), kind)
        assert ask(FROM_CATALOG, modern(method)).body == ask(PLAIN, modern(method)).body


def test_two_requests_at_the_same_time_have_contexts_of_their_own() -> None:
    catalog = Catalog()
    both = asyncio.Event()
    seen: list[int] = []

    @catalog.tool()
    async def meet(ctx: Context) -> str:
        seen.append(id(ctx.mcp_server))
        if len(seen) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 5)
        return f"{ctx.mcp_server.name} {(ctx.headers or {}).get('x-number')}"

    def factory(context: RequestContext) -> MCPServer:
        return catalog.server(f"server-{context.request.headers['x-number']}")

    handler = create_mcp_handler(factory)

    async def meeting() -> list[bytes]:
        async def one(number: str) -> bytes:
            headers, body = modern("tools/call", name="meet", arguments={})
            response = await handler.fetch(starlette_request(({**headers, "X-Number": number}, body)))
            return bytes(response.body)

        return [*await asyncio.gather(one("1"), one("2"))]

    first, second = asyncio.run(meeting())
    assert b"server-1 1" in first
    assert b"server-2 2" in second
    assert seen[0] != seen[1]


@pytest.mark.parametrize("method", ["tools/list", "resources/list", "prompts/list"])
def test_answers_do_not_change_what_is_described(method: str) -> None:
    before = ask(FROM_CATALOG, modern(method)).body
    for other, params in REQUESTS.values():
        ask(FROM_CATALOG, modern(other, **params))
        ask(FROM_CATALOG, legacy(other, **params))
    assert ask(FROM_CATALOG, modern(method)).body == before


def test_described_later_is_served_from_then_on() -> None:
    catalog = Catalog()
    handler = create_mcp_handler(lambda: catalog.server(NAME))
    assert listed(ask(handler, modern("tools/list")), "tools") == []
    catalog.add_tool(lambda: "x", name="later")
    assert listed(ask(handler, modern("tools/list")), "tools") == ["later"]


def test_catalog_serves_the_tool_objects_that_it_described() -> None:
    served: list[Described] = []

    def keep(item: Described) -> bool:
        served.append(item)
        return True

    for _ in range(2):
        CATALOG.server(NAME, include=keep)
    half = len(served) // 2
    assert all(first is second for first, second in zip(served[:half], served[half:], strict=True))
    assert isinstance(served[0], Tool)


def advice_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines that advise to use a catalog."""
    return [record.getMessage() for record in caplog.records if "sealane.Catalog" in record.getMessage()]


def test_slow_factory_is_advised_once(caplog: pytest.LogCaptureFixture) -> None:
    def slow() -> MCPServer:
        time.sleep(0.025)
        return MCPServer(NAME)

    handler = create_mcp_handler(slow)
    with caplog.at_level(logging.WARNING, logger="sealane"):
        for _ in range(3):
            assert ask(handler, modern("tools/list")).status == 200
        assert fetch(handler, starlette_request(modern("tools/list"))).status == 200
    (advice,) = advice_in(caplog)
    assert "on every request" in advice


def test_slow_async_factory_is_advised(caplog: pytest.LogCaptureFixture) -> None:
    async def slow() -> MCPServer:
        await asyncio.sleep(0.025)
        return MCPServer(NAME)

    ask(create_mcp_handler(slow), modern("tools/list"))
    assert len(advice_in(caplog)) == 1


def test_resource_security_of_the_catalog_is_in_force() -> None:
    catalog = Catalog(resource_security=ResourceSecurity(reject_path_traversal=False))
    catalog.resource("open://{+path}", name="open")(lambda path: path)
    handler = create_mcp_handler(lambda: catalog.server(NAME))
    assert "result" in ask(handler, modern("resources/read", uri="open://../x")).json
    assert "error" in ask(FROM_CATALOG, modern("resources/read", uri="file://../x")).json
