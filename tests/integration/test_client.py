"""The SDK's client, unchanged, over HTTP against the local gateway, in each of its modes."""

from collections.abc import AsyncIterator

import anyio
import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference, ResourceTemplateReference, TextContent, TextResourceContents

from sealane.local.gateway import LocalGateway

pytestmark = pytest.mark.anyio

MODES: list[tuple[ConnectMode, str]] = [
    ("auto", "2026-07-28"),
    ("2026-07-28", "2026-07-28"),
    ("legacy", "2025-11-25"),
]


@pytest.fixture(params=MODES, ids=[mode for mode, _ in MODES])
async def client(request: pytest.FixtureRequest, gateway: LocalGateway) -> AsyncIterator[Client]:
    mode, revision = request.param
    async with Client(f"{gateway.url}", mode=mode, cache=None) as connected:
        assert connected.protocol_version == revision
        yield connected


async def test_discovers_what_the_server_says_of_itself(gateway: LocalGateway) -> None:
    async with Client(gateway.url) as client:
        assert client.server_info is not None
        assert client.server_info.name == "sealane-sample"
        assert client.instructions is not None
        assert client.instructions.startswith("Try hello")
        capabilities = client.server_capabilities
        assert capabilities.tools is not None
        assert capabilities.completions is not None
        assert capabilities.resources is not None


async def test_offers_no_subscriptions_where_answers_are_buffered(gateway: LocalGateway) -> None:
    async with Client(gateway.url) as client:
        capabilities = client.server_capabilities
        assert capabilities.tools is not None
        assert not capabilities.tools.list_changed
        assert capabilities.resources is not None
        assert not capabilities.resources.subscribe


async def test_lists_everything_in_the_order_of_description(client: Client) -> None:
    assert [tool.name for tool in (await client.list_tools()).tools] == [
        "hello",
        "text_statistics",
        "count",
        "create_notebook",
        "add_note",
        "list_notes",
        "search_notes",
        "delete_notebook",
        "transfer_notebook",
    ]
    assert [resource.uri for resource in (await client.list_resources()).resources] == ["info://server"]
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == ["notebook://{notebook}", "greeting://{language}"]
    assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["introduce"]


async def test_calls_tools(client: Client) -> None:
    result = await client.call_tool("hello", {"name": "Ada"})
    assert not result.is_error
    assert result.content == [TextContent(type="text", text="Hello, Ada!")]

    result = await client.call_tool("text_statistics", {"text": "one two\nthree"})
    assert result.structured_content == {"characters": 13, "words": 3, "lines": 2}


async def test_arguments_that_do_not_fit_are_a_tool_error(client: Client) -> None:
    result = await client.call_tool("count", {"to": 0})
    assert result.is_error
    assert isinstance(result.content[0], TextContent)
    assert "greater than or equal to 1" in result.content[0].text


async def test_progress_arrives_in_order(client: Client) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    result = await client.call_tool("count", {"to": 3, "delay_ms": 10}, progress_callback=note)
    assert result.structured_content == {"result": "Counted to 3."}
    assert seen == [(1, 3, "1 of 3"), (2, 3, "2 of 3"), (3, 3, "3 of 3")]


async def test_reads_resources(client: Client) -> None:
    for uri, text in [
        ("info://server", "A sample MCP server on AWS Lambda, made with Sealane."),
        ("greeting://de", "Hallo"),
    ]:
        (content,) = (await client.read_resource(uri)).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == text
        assert content.mime_type == "text/plain"


async def test_an_unknown_resource_is_an_error(client: Client) -> None:
    with pytest.raises(MCPError, match="Unknown resource"):
        await client.read_resource("nothing://here")


async def test_gets_a_prompt(client: Client) -> None:
    prompt = await client.get_prompt("introduce", {"name": "Ada", "language": "fr"})
    (message,) = prompt.messages
    assert isinstance(message.content, TextContent)
    assert message.content.text == "Introduce Ada in two sentences. Write in the language 'fr'."


async def test_completes_arguments(client: Client) -> None:
    for ref in (
        PromptReference(type="ref/prompt", name="introduce"),
        ResourceTemplateReference(type="ref/resource", uri="greeting://{language}"),
    ):
        answer = await client.complete(ref, {"name": "language", "value": "e"})
        assert answer.completion.values == ["en", "es"]


async def test_every_client_finds_any_environment(gateway: LocalGateway) -> None:
    """Requests at once land on different environments; none of them knows of the others."""
    async with Client(gateway.url, mode="legacy") as old, Client(gateway.url) as new:
        async with anyio.create_task_group() as calls:
            for client in (old, new):
                calls.start_soon(client.call_tool, "count", {"to": 2, "delay_ms": 200})
        assert (await old.call_tool("hello")).structured_content == {"result": "Hello, World!"}
        assert (await new.call_tool("hello")).structured_content == {"result": "Hello, World!"}
