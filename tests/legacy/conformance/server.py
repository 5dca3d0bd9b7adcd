"""A server for the SDK's generation 1 with all that the official suite asks a server of 2025-11-25 for."""
# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (Some of the SDK's decorators have no types.)

import asyncio
import json
import struct
import zlib
from typing import Annotated, Any, Literal

from mcp.server.fastmcp import Context, FastMCP, Image
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.fastmcp.prompts.base import Message, UserMessage
from mcp.server.fastmcp.tools import Tool
from mcp.server.fastmcp.utilities.types import Audio
from mcp.server.lowlevel import NotificationOptions
from mcp.server.session import ServerSession
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    EmbeddedResource,
    LoggingLevel,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    ServerCapabilities,
    TextContent,
    TextResourceContents,
)
from pydantic import AnyUrl, BaseModel, Field

Ctx = Context[ServerSession, None]


def json_schema_2020_12_tool(
    name: str | None = None,
    address: dict[str, str] | None = None,
    contactMethod: Literal["phone", "email"] | None = None,
    phone: str | None = None,
    email: str | None = None,
) -> str:
    """Take arguments that JSON Schema 2020-12 describes."""
    return f"{name or 'somebody'} prefers {contactMethod or 'email'}"


# Its schema is written by hand: no signature gives one with anchors and conditions.
json_schema_tool = Tool.from_function(json_schema_2020_12_tool)
json_schema_tool.parameters = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

server = FastMCP("sealane-legacy-conformance", tools=[json_schema_tool])


def _png(red: int, green: int, blue: int) -> bytes:
    """A PNG of one pixel (https://www.w3.org/TR/png-3/#5Chunk-layout)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, red, green, blue]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def _wav(samples: bytes) -> bytes:
    """Sound: 8 bits, mono, 8 kHz."""
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


RED_PIXEL = _png(255, 0, 0)
SHORT_SILENCE = _wav(bytes([128] * 8))


# Tools that answer at once


@server.tool()
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> Image:
    """Return an image."""
    return Image(data=RED_PIXEL, format="png")


@server.tool()
def test_audio_content() -> Audio:
    """Return a sound."""
    return Audio(data=SHORT_SILENCE, format="wav")


@server.tool(structured_output=False)
def test_embedded_resource() -> EmbeddedResource:
    """Return an embedded resource."""
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


@server.tool(structured_output=False)
def test_multiple_content_types() -> list[TextContent | Image | EmbeddedResource]:
    """Return a text, an image and a resource."""
    return [
        TextContent(type="text", text="Multiple content types test:"),
        Image(data=RED_PIXEL, format="png"),
        _embedded("test://mixed-content-resource", json.dumps({"test": "data", "value": 123}), "application/json"),
    ]


@server.tool()
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


# Tools that send something before their result


@server.tool()
async def test_tool_with_progress(ctx: Ctx) -> str:
    """Report progress three times."""
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return "Progress was reported."


@server.tool()
async def test_tool_with_logging(ctx: Ctx) -> str:
    """Send three log messages."""
    await ctx.info("Tool execution started")
    await asyncio.sleep(0.05)
    await ctx.info("Tool processing data")
    await asyncio.sleep(0.05)
    await ctx.info("Tool execution completed")
    return "Log messages were sent."


@server.tool()
async def test_reconnection(ctx: Ctx) -> str:
    """Close the event stream before the result."""
    await ctx.close_sse_stream()
    await asyncio.sleep(0.1)
    return "The result came after the stream was closed."


# Tools that push a request to the client


class UserInformation(BaseModel):
    """Who the user is."""

    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


class WithDefaults(BaseModel):
    """One field of each primitive type, each with a default (SEP-1034)."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Annotated[str, Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})] = "active"
    verified: bool = True


def _titled(word: str) -> list[dict[str, str]]:
    numbers = enumerate(("First", "Second", "Third"), 1)
    return [{"const": f"value{number}", "title": f"{name} {word}"} for number, name in numbers]


_OPTIONS = ["option1", "option2", "option3"]


class WithChoices(BaseModel):
    """One field of each kind of choice (SEP-1330)."""

    untitledSingle: Annotated[str, Field(json_schema_extra={"enum": _OPTIONS})]
    titledSingle: Annotated[str, Field(json_schema_extra={"oneOf": _titled("Option")})]
    legacyEnum: Annotated[
        str,
        Field(
            json_schema_extra={
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            }
        ),
    ]
    untitledMulti: Annotated[list[str], Field(json_schema_extra={"items": {"type": "string", "enum": _OPTIONS}})]
    titledMulti: Annotated[list[str], Field(json_schema_extra={"items": {"anyOf": _titled("Choice")}})]


@server.tool()
async def test_sampling(prompt: str, ctx: Ctx) -> str:
    """Ask the client's model."""
    answer = await ctx.session.create_message([_user_says(prompt)], max_tokens=100, related_request_id=ctx.request_id)
    content = answer.content
    return f"LLM response: {content.text if isinstance(content, TextContent) else content.type}"


@server.tool()
async def test_elicitation(message: str, ctx: Ctx) -> str:
    """Ask the user who they are."""
    return f"User response: {await ctx.elicit(message, UserInformation)!r}"


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Ctx) -> str:
    """Ask the user with defaults."""
    return f"Elicitation completed: {await ctx.elicit('Please check these values', WithDefaults)!r}"


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Ctx) -> str:
    """Ask the user to choose."""
    return f"Elicitation completed: {await ctx.elicit('Please choose', WithChoices)!r}"


# Prompts, resources, completion


@server.prompt()
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(
    arg1: Annotated[str, Field(description="First test argument")],
    arg2: Annotated[str, Field(description="Second test argument")],
) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(
    resourceUri: Annotated[str, Field(description="URI of the resource to embed")],
) -> list[Message]:
    """A prompt with a resource in it."""
    return [
        UserMessage(_embedded(resourceUri, "Embedded resource content for testing.")),
        UserMessage("Please process the embedded resource above."),
    ]


@server.prompt()
def test_prompt_with_image() -> list[Message]:
    """A prompt with an image in it."""
    return [
        UserMessage(Image(data=RED_PIXEL, format="png").to_image_content()),
        UserMessage("Please analyze the image above."),
    ]


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return RED_PIXEL


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A text that clients may want to watch."""
    return "This is the content of the watched resource."


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> str:
    """What the template makes of an id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    """Complete an argument of a prompt or template."""
    return Completion(values=[f"{argument.value}{number}" for number in (1, 2, 3)], total=3, hasMore=False)


# What FastMCP has no decorators for.

low_level = server._mcp_server


@low_level.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    """Any resource can be watched."""


@low_level.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None:
    """It need not be."""


@low_level.set_logging_level()
async def set_logging_level(level: LoggingLevel) -> None:
    """Any level will do."""


def capabilities(
    notification_options: NotificationOptions, experimental_capabilities: dict[str, dict[str, Any]]
) -> ServerCapabilities:
    """Those that the SDK finds, and subscriptions, which it cannot know of."""
    offered = found_capabilities(notification_options, experimental_capabilities)
    if offered.resources:
        offered.resources.subscribe = True
    return offered


found_capabilities = low_level.get_capabilities
low_level.get_capabilities = capabilities  # type: ignore[method-assign]


def create_server() -> FastMCP:
    """The server, for all sessions."""
    return server


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=AnyUrl(uri), mimeType=mime_type, text=text)
    )


def _user_says(text: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(type="text", text=text))
