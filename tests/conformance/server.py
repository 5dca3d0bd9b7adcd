"""A server with everything that the official conformance suite asks a server for, under the names that it uses."""

import asyncio
import json
import struct
import warnings
import zlib
from typing import Annotated, Any, Literal

from mcp.server.caching import CacheHint
from mcp.server.mcpserver import (
    Audio,
    Context,
    Elicit,
    Image,
    ListRoots,
    MCPServer,
    Resolve,
    Sample,
    UserMessage,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    InputRequests,
    InputRequiredResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    SetLevelRequestParams,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

from sealane import Catalog, RequestContext
from sealane.factory import low_level_server

# The logging capability is deprecated, not gone; the referee asks for it.
warnings.filterwarnings("ignore", category=MCPDeprecationWarning, message="The logging capability")

CACHE_HINTS = {
    "tools/list": CacheHint(ttl_ms=60_000, scope="public"),
    "prompts/list": CacheHint(ttl_ms=60_000, scope="public"),
    "resources/list": CacheHint(ttl_ms=60_000, scope="public"),
    "resources/templates/list": CacheHint(ttl_ms=60_000, scope="public"),
    "resources/read": CacheHint(ttl_ms=1_000),
}


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

catalog = Catalog(tools=[json_schema_tool])


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


@catalog.tool()
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@catalog.tool()
def test_image_content() -> Image:
    """Return an image."""
    return Image(data=RED_PIXEL, format="png")


@catalog.tool()
def test_audio_content() -> Audio:
    """Return a sound."""
    return Audio(data=SHORT_SILENCE, format="wav")


@catalog.tool()
def test_embedded_resource() -> EmbeddedResource:
    """Return an embedded resource."""
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


@catalog.tool()
def test_multiple_content_types() -> list[TextContent | Image | EmbeddedResource]:
    """Return a text, an image and a resource."""
    return [
        TextContent(text="Multiple content types test:"),
        Image(data=RED_PIXEL, format="png"),
        _embedded("test://mixed-content-resource", json.dumps({"test": "data", "value": 123}), "application/json"),
    ]


@catalog.tool()
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@catalog.tool()
def test_custom_headers(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    priority: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Priority"})],
) -> str:
    """Take two arguments that clients also send as headers."""
    return f"region {region}, priority {priority}"


# Tools that send something before their result


@catalog.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress three times."""
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return "Progress was reported."


@catalog.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Send three log messages."""
    await ctx.info("Tool execution started")
    await asyncio.sleep(0.05)
    await ctx.info("Tool processing data")
    await asyncio.sleep(0.05)
    await ctx.info("Tool execution completed")
    return "Log messages were sent."


@catalog.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Log at every level; what the client did not ask for must not reach it."""
    for level in ("debug", "info", "warning", "error", "emergency"):
        await ctx.log(level, f"A message of level {level}")
    return "Log messages were sent, as far as the client wants them."


@catalog.tool()
async def test_reconnection(ctx: Context) -> str:
    """Close the event stream before the result."""
    await ctx.close_sse_stream()
    await asyncio.sleep(0.1)
    return "The result came after the stream was closed."


@catalog.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Tell subscribers that the list of tools changed."""
    await ctx.notify_tools_changed()
    return "Subscribers were told."


@catalog.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Tell subscribers that the list of prompts changed."""
    await ctx.notify_prompts_changed()
    return "Subscribers were told."


# Tools that push a request to the client: handshake revisions only


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


@catalog.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Ask the client's model."""
    answer = await ctx.session.create_message([_user_says(prompt)], max_tokens=100)
    return f"LLM response: {_text(answer)}"


@catalog.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the user who they are."""
    return f"User response: {await ctx.elicit(message, UserInformation)!r}"


@catalog.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask the user with defaults."""
    return f"Elicitation completed: {await ctx.elicit('Please check these values', WithDefaults)!r}"


@catalog.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask the user to choose."""
    return f"Elicitation completed: {await ctx.elicit('Please choose', WithChoices)!r}"


# Tools that need the client's input, through the SDK's resolvers


class Name(BaseModel):
    """A name."""

    name: str


class Color(BaseModel):
    """A color."""

    color: str


class Confirmation(BaseModel):
    """Yes or no."""

    ok: bool


def ask_name() -> Elicit[Name]:
    """The user's name."""
    return Elicit("What is your name?", Name)


def ask_name_first() -> Elicit[Name]:
    """The user's name, as the first of two questions."""
    return Elicit("Step 1: What is your name?", Name)


def ask_color(name: Annotated[Name, Resolve(ask_name_first)]) -> Elicit[Color]:
    """A color, asked once the name is known."""
    return Elicit(f"Step 2: {name.name}, what is your favorite color?", Color)


def ask_confirmation() -> Elicit[Confirmation]:
    """Whether the user agrees."""
    return Elicit("Please confirm", Confirmation)


def sample_capital() -> Sample:
    """A fact that the client's model knows."""
    return Sample([_user_says("What is the capital of France?")], max_tokens=100)


def sample_greeting() -> Sample:
    """A greeting by the client's model."""
    return Sample([_user_says("Generate a greeting")], max_tokens=50)


def list_roots() -> ListRoots:
    """The client's roots."""
    return ListRoots()


@catalog.tool()
def test_missing_capability(answer: Annotated[CreateMessageResult, Resolve(sample_capital)]) -> str:
    """Need the sampling capability."""
    return _text(answer)


@catalog.tool()
def test_streaming_elicitation(confirmation: Annotated[Confirmation, Resolve(ask_confirmation)]) -> str:
    """Ask for a confirmation, never by a request on the response's stream."""
    return f"confirmed: {confirmation.ok}"


@catalog.tool()
def test_input_required_result_sampling(answer: Annotated[CreateMessageResult, Resolve(sample_capital)]) -> str:
    """Ask the client's model for the capital of France."""
    return _text(answer)


@catalog.tool()
def test_input_required_result_list_roots(roots: Annotated[ListRootsResult, Resolve(list_roots)]) -> str:
    """Ask for the client's roots."""
    return ", ".join(str(root.uri) for root in roots.roots)


@catalog.tool()
def test_input_required_result_request_state(
    confirmation: Annotated[Confirmation, Resolve(ask_confirmation)], ctx: Context
) -> str:
    """Ask for a confirmation and need the request state back."""
    return f"state-ok, confirmed: {confirmation.ok}" if ctx.request_state else "the request state is missing"


@catalog.tool()
def test_input_required_result_multiple_inputs(
    name: Annotated[Name, Resolve(ask_name)],
    greeting: Annotated[CreateMessageResult, Resolve(sample_greeting)],
    roots: Annotated[ListRootsResult, Resolve(list_roots)],
) -> str:
    """Ask the user, the client's model and the client at once."""
    return f"{_text(greeting)} {name.name}, {len(roots.roots)} root(s)"


@catalog.tool()
def test_input_required_result_multi_round(
    name: Annotated[Name, Resolve(ask_name_first)], color: Annotated[Color, Resolve(ask_color)]
) -> str:
    """Ask two questions, one after the other."""
    return f"{name.name} likes {color.color}."


# Tools and a prompt that need the client's input, by hand


@catalog.tool()
def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Ask for the user's name."""
    content = _accepted(ctx, "user_name")
    if content is None:
        return InputRequiredResult(input_requests={"user_name": _question("What is your name?", "name")})
    return f"Hello, {content['name']}!"


@catalog.tool()
def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    """Keep a state with the client, who must not change it."""
    if ctx.request_state is None:
        return InputRequiredResult(
            input_requests={"confirm": _question("Please confirm", "ok", "boolean")}, request_state="asked once"
        )
    return f"The state is {ctx.request_state!r}."


@catalog.tool()
def test_input_required_result_capabilities(ctx: Context) -> str | InputRequiredResult:
    """Ask only for what the client can give."""
    if ctx.input_responses:
        return f"Answered: {', '.join(sorted(ctx.input_responses))}"
    able = ctx.client_capabilities
    requests: InputRequests = {}
    if able is not None and able.elicitation is not None:
        requests["user_name"] = _question("What is your name?", "name")
    if able is not None and able.sampling is not None:
        params = CreateMessageRequestParams(messages=[_user_says("What is the capital of France?")], max_tokens=100)
        requests["capital"] = CreateMessageRequest(params=params)
    return InputRequiredResult(input_requests=requests) if requests else "This client can be asked nothing."


@catalog.prompt()
def test_input_required_result_prompt(ctx: Context) -> str | InputRequiredResult:
    """A prompt that needs the user's input."""
    content = _accepted(ctx, "user_context")
    if content is None:
        question = _question("What context should the prompt use?", "context")
        return InputRequiredResult(input_requests={"user_context": question})
    return f"Use this context: {content['context']}"


# Prompts, resources, completion


@catalog.prompt()
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@catalog.prompt()
def test_prompt_with_arguments(
    arg1: Annotated[str, Field(description="First test argument")],
    arg2: Annotated[str, Field(description="Second test argument")],
) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@catalog.prompt()
def test_prompt_with_embedded_resource(
    resourceUri: Annotated[str, Field(description="URI of the resource to embed")],
) -> list[UserMessage]:
    """A prompt with a resource in it."""
    return [
        UserMessage(_embedded(resourceUri, "Embedded resource content for testing.")),
        UserMessage("Please process the embedded resource above."),
    ]


@catalog.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """A prompt with an image in it."""
    return [UserMessage(Image(data=RED_PIXEL, format="png")), UserMessage("Please analyze the image above.")]


@catalog.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@catalog.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return RED_PIXEL


@catalog.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A text that clients may want to watch."""
    return "This is the content of the watched resource."


@catalog.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> str:
    """What the template makes of an id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@catalog.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion | None:
    """Complete an argument of a prompt or template."""
    return Completion(values=[f"{argument.value}{number}" for number in (1, 2, 3)], total=3, has_more=False)


async def set_logging_level(ctx: object, params: SetLevelRequestParams) -> EmptyResult:
    """Accept a level. Without a session there is nowhere to keep it: every message is sent."""
    return EmptyResult()


def create_server(ctx: RequestContext) -> MCPServer[Any]:
    """A fresh server for one request."""
    server = catalog.server("sealane-conformance", version="1.0.0", cache_hints=CACHE_HINTS)
    if ctx.era == "legacy":
        low_level_server(server).add_request_handler("logging/setLevel", SetLevelRequestParams, set_logging_level)
    return server


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def _user_says(text: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(text=text))


def _text(answer: CreateMessageResult) -> str:
    return answer.content.text if isinstance(answer.content, TextContent) else f"({answer.content.type})"


def _question(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _accepted(ctx: Context, key: str) -> dict[str, Any] | None:
    """What the user entered for the question `key`; `None` when it has to be asked (again)."""
    response = (ctx.input_responses or {}).get(key)
    return response.content if isinstance(response, ElicitResult) and response.action == "accept" else None
