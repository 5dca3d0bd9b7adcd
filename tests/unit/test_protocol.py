"""The protocol cases of the field, and how an answer leaves: JSON or an event stream."""

import asyncio
import base64
import json
import warnings
from typing import Annotated, Any

import pytest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsResult,
    ListToolsResult,
    SamplingMessage,
    TextContent,
    Tool,
)
from pydantic import BaseModel, Field

from sealane import McpHandler, RequestContext, create_mcp_handler
from sealane.options import ResponseMode
from tests.events import MODERN, SHAPES, Answer, Headers, Message, Shape, ask, legacy, modern
from tests.unit.asgi import fetch, starlette_request

HEADER_MISMATCH = -32020
METHOD_NOT_FOUND = -32601
PROGRESS = {"progressToken": "p"}
LOG = {"io.modelcontextprotocol/logLevel": "info"}
KEEP_ALIVE = ": keep-alive"


class City(BaseModel):
    """What an elicitation asks for."""

    name: str


def ask_for_city() -> Elicit[City]:
    """A resolver that elicits."""
    return Elicit("Which city?", City)


def ask_the_model() -> Sample:
    """A resolver that samples."""
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="Hi"))], max_tokens=5)


def ask_for_roots() -> ListRoots:
    """A resolver that lists roots."""
    return ListRoots()


def city_required() -> InputRequiredResult:
    """A result that asks, made by hand."""
    params = ElicitRequestFormParams(
        message="Which city?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
    )
    return InputRequiredResult(input_requests={"city": ElicitRequest(params=params)}, request_state="round-1")


def make_server() -> MCPServer:
    """A server with a tool for each way to answer."""
    server = MCPServer("protocol-server", version="1.0.0")

    @server.tool()
    def echo(text: str) -> str:
        return text

    @server.tool()
    def half() -> str:
        return "half a pair: \ud83d"

    @server.tool(name="café")
    def cafe() -> str:
        return "un café"

    @server.tool()
    def regional(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "region"})]) -> str:
        return f"from {region}"

    @server.tool()
    async def slow(ctx: Context, steps: int = 3, delay: float = 0.0) -> str:
        for step in range(1, steps + 1):
            await ctx.report_progress(step, steps)
            await asyncio.sleep(delay)
        return "slow is done"

    @server.tool()
    async def logs(ctx: Context) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await ctx.info("on its way")
        return "logged"

    @server.tool()
    async def silent(delay: float) -> str:
        await asyncio.sleep(delay)
        return "silent is done"

    @server.tool()
    async def elicits(ctx: Context) -> str:
        return str(await ctx.elicit("Which city?", City))

    @server.tool()
    async def elicits_by_session(ctx: Context) -> str:
        return str(await ctx.session.elicit_form("Which city?", {"type": "object", "properties": {}}))

    @server.tool()
    async def samples(ctx: Context) -> str:
        message = SamplingMessage(role="user", content=TextContent(type="text", text="Hi"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            return str(await ctx.session.create_message([message], max_tokens=5))

    @server.tool()
    async def lists_roots(ctx: Context) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            return str(await ctx.session.list_roots())

    @server.tool()
    def resolves_city(city: Annotated[City, Resolve(ask_for_city)]) -> str:
        return city.name

    @server.tool()
    def resolves_sample(sample: Annotated[CreateMessageResult, Resolve(ask_the_model)]) -> str:
        return str(sample)

    @server.tool()
    def resolves_roots(roots: Annotated[ListRootsResult, Resolve(ask_for_roots)]) -> str:
        return str(roots)

    @server.tool()
    def requires_input() -> InputRequiredResult:
        return city_required()

    @server.prompt()
    async def elicits_prompt(ctx: Context) -> str:
        return str(await ctx.elicit("Which city?", City))

    @server.prompt()
    def requires_input_prompt() -> InputRequiredResult:
        return city_required()

    @server.resource("elicits://{anything}")
    async def elicits_resource(anything: str, ctx: Context) -> str:
        return str(await ctx.elicit("Which city?", City))

    @server.resource("requires-input://{anything}")
    def requires_input_resource(anything: str) -> InputRequiredResult:
        return city_required()

    return server


HANDLER = create_mcp_handler(make_server)


def call(era: str, name: str, meta: Message | None = None, **arguments: Any) -> tuple[dict[str, str], Message]:
    """A `tools/call` of either era."""
    if era == "modern":
        return modern("tools/call", meta=meta, name=name, arguments=arguments)
    return legacy("tools/call", name=name, arguments=arguments, _meta=meta or {})


def with_header(request: tuple[dict[str, str], Message], name: str, value: str | list[str]) -> tuple[Headers, Message]:
    """A request with one header more or other; an empty list leaves it out."""
    return {**request[0], name: value}, request[1]


def text_of(answer: Answer) -> str:
    """The text of the answer's tool result, which is its last message."""
    text: str = answer.messages[-1]["result"]["content"][0]["text"]
    return text


def events_of(answer: Answer) -> list[Message]:
    """The messages of an event stream, which must be one from its first byte to its last."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.body.replace("\r\n", "\n").removesuffix("\n\n").split("\n\n")
    messages = []
    for block in blocks:
        if not block.startswith(":"):
            event, data = block.split("\n")
            assert event == "event: message"
            messages.append(json.loads(data.removeprefix("data: ")))
    return messages


# Field cases


@pytest.mark.parametrize("shape", SHAPES)
def test_p1_listen_without_a_bus_is_not_found_and_not_advertised(shape: Shape) -> None:
    capabilities = ask(HANDLER, modern("server/discover"), shape).json["result"]["capabilities"]
    assert not capabilities["tools"].get("listChanged")
    assert not capabilities["prompts"].get("listChanged")
    assert not capabilities["resources"].get("listChanged")
    assert not capabilities["resources"].get("subscribe")
    answer = ask(HANDLER, modern("subscriptions/listen", id="l", notifications={"toolsListChanged": True}), shape)
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (404, METHOD_NOT_FOUND, "l")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_p2_session_methods_are_refused_before_a_server_is_made(method: str, shape: Shape) -> None:
    made: list[str] = []

    def factory(context: RequestContext) -> MCPServer:
        made.append(context.era)
        return make_server()

    headers = {"Accept": "text/event-stream", "Mcp-Session-Id": "1"}
    answer = ask(create_mcp_handler(factory), (headers, None), shape, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert made == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25", None])
def test_p4_initialized_is_accepted_without_a_body(version: str | None, shape: Shape) -> None:
    answer = ask(HANDLER, legacy("notifications/initialized", version=version), shape)
    assert (answer.status, answer.body) == (202, "")
    assert "content-type" not in answer.headers


@pytest.mark.parametrize("shape", SHAPES)
def test_p4_modern_notification_is_accepted_without_a_body(shape: Shape) -> None:
    answer = ask(HANDLER, modern("notifications/cancelled", id=None, requestId=1), shape)
    assert (answer.status, answer.body) == (202, "")
    assert "content-type" not in answer.headers


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_p6_initialize_echoes_the_revision(version: str, shape: Shape) -> None:
    answer = ask(HANDLER, legacy("initialize", version=version), shape)
    assert answer.status == 200
    assert answer.json["result"]["protocolVersion"] == version
    assert "mcp-session-id" not in answer.headers


def test_p6_unknown_revision_is_answered_with_one_that_is_served() -> None:
    answer = ask(HANDLER, legacy("initialize", version="2023-01-01"))
    assert answer.json["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Mcp-Name", "another"),
        ("Mcp-Name", []),
        ("Mcp-Method", []),
        ("Mcp-Method", "tools/list"),
        ("MCP-Protocol-Version", []),
        ("MCP-Protocol-Version", "2025-11-25"),
    ],
)
def test_p7_header_that_disagrees_with_the_body_is_refused(header: str, value: str | list[str], shape: Shape) -> None:
    answer = ask(HANDLER, with_header(modern("tools/call", id="m", name="echo", arguments={}), header, value), shape)
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (400, HEADER_MISMATCH, "m")


@pytest.mark.parametrize("shape", SHAPES)
def test_p7_modern_header_over_a_legacy_claim_is_refused(shape: Shape) -> None:
    headers, body = call("modern", "echo", text="x")
    body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2025-11-25"
    assert headers["MCP-Protocol-Version"] == MODERN
    answer = ask(HANDLER, (headers, body), shape)
    assert (answer.status, answer.json["error"]["code"]) == (400, HEADER_MISMATCH)


@pytest.mark.parametrize("shape", SHAPES)
def test_spaces_around_a_header_value_are_no_part_of_it(shape: Shape) -> None:
    headers, body = call("modern", "echo", text="x")
    padded = {name: f" {value}\t" for name, value in headers.items() if isinstance(value, str)}
    assert ask(HANDLER, (padded, body), shape).status == 200


def test_spaces_around_a_header_value_are_no_part_of_it_through_fetch() -> None:
    headers, body = call("modern", "echo", text="x")
    padded = {name: f" {value}\t" for name, value in headers.items() if isinstance(value, str)}
    assert fetch(HANDLER, starlette_request((padded, body))).status == 200


@pytest.mark.parametrize("shape", SHAPES)
def test_p8_raw_name_beyond_ascii_is_refused(shape: Shape) -> None:
    answer = ask(HANDLER, call("modern", "café"), shape)
    assert (answer.status, answer.json["error"]["code"]) == (400, HEADER_MISMATCH)


@pytest.mark.parametrize("shape", SHAPES)
def test_p8_encoded_name_is_served(shape: Shape) -> None:
    name = base64.b64encode("café".encode()).decode()
    answer = ask(HANDLER, with_header(call("modern", "café"), "Mcp-Name", f"=?base64?{name}?="), shape)
    assert (answer.status, text_of(answer)) == (200, "un café")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", [[], "us-east-1", ["eu-west-1", "eu-west-1"]])
def test_p8_parameter_header_that_is_missing_or_wrong_is_refused(value: str | list[str], shape: Shape) -> None:
    if shape == "alb" and isinstance(value, list) and value:
        value = "eu-west-1, eu-west-1"  # an ALB without multi-value headers passes one on
    answer = ask(HANDLER, with_header(call("modern", "regional", region="eu-west-1"), "Mcp-Param-region", value), shape)
    assert (answer.status, answer.json["error"]["code"]) == (400, HEADER_MISMATCH)


@pytest.mark.parametrize("shape", SHAPES)
def test_p8_parameter_with_its_header_is_served(shape: Shape) -> None:
    request = with_header(call("modern", "regional", region="eu-west-1"), "Mcp-Param-region", "eu-west-1")
    assert text_of(ask(HANDLER, request, shape)) == "from eu-west-1"


@pytest.mark.parametrize("shape", ["rest", "http", "alb"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(
    ("accept", "status"), [("application/json", 200), ("*/*", 200), ([], 406), ("text/event-stream", 406)]
)
def test_p9_accept_in_json_mode(accept: str | list[str], status: int, era: str, shape: Shape) -> None:
    handler = create_mcp_handler(make_server, response_mode="json")
    answer = ask(handler, with_header(call(era, "echo", text="x"), "Accept", accept), shape)
    assert answer.status == status
    if status == 406:
        assert answer.json["error"]["message"].endswith("send Accept: application/json")


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", []])
@pytest.mark.parametrize("mode", ["auto", "sse"])
def test_p9_accept_where_streams_are_possible(mode: ResponseMode, accept: str | list[str], era: str) -> None:
    handler = create_mcp_handler(make_server, response_mode=mode)
    answer = ask(handler, with_header(call(era, "echo", text="x"), "Accept", accept))
    assert answer.status == 406
    assert answer.json["error"]["message"].endswith("send Accept: application/json, text/event-stream")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_p10_legacy_list_is_served_with_and_without_a_version_header(version: str | None, shape: Shape) -> None:
    answer = ask(HANDLER, legacy("tools/list", version=version), shape)
    assert answer.status == 200
    assert "echo" in [tool["name"] for tool in answer.json["result"]["tools"]]


@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
@pytest.mark.parametrize(
    "tool",
    [
        "elicits",
        "elicits_by_session",
        "samples",
        "lists_roots",
        "resolves_city",
        "resolves_sample",
        "resolves_roots",
        "requires_input",
    ],
)
def test_p11_tool_that_needs_the_client_tells_its_author_what_to_do(tool: str, mode: ResponseMode) -> None:
    answer = ask(create_mcp_handler(make_server, response_mode=mode), call("legacy", tool))
    assert answer.status == 200
    assert answer.messages[-1]["result"]["isError"] is True
    assert "input_required" in text_of(answer)
    assert "legacy lane" in text_of(answer)


@pytest.mark.parametrize(
    "request_",
    [
        legacy("prompts/get", id="p", name="elicits_prompt"),
        legacy("prompts/get", id="p", name="requires_input_prompt"),
        legacy("resources/read", id="p", uri="elicits://x"),
        legacy("resources/read", id="p", uri="requires-input://x"),
    ],
    ids=["elicits-prompt", "requires-input-prompt", "elicits-resource", "requires-input-resource"],
)
def test_p11_prompt_or_resource_that_needs_the_client_tells_its_author_what_to_do(
    request_: tuple[dict[str, str], Message],
) -> None:
    answer = ask(HANDLER, request_)
    assert answer.json["id"] == "p"
    assert "input_required" in answer.json["error"]["message"]
    assert "legacy lane" in answer.json["error"]["message"]


@pytest.mark.parametrize("tool", ["elicits", "elicits_by_session", "samples", "lists_roots"])
def test_p11_tool_that_calls_a_modern_client_back_tells_its_author_what_to_do(tool: str) -> None:
    capabilities: Message = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
    answer = ask(HANDLER, modern("tools/call", client_capabilities=capabilities, name=tool))
    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)
    assert "input_required" in answer.json["error"]["message"]


def test_p11_modern_client_is_asked() -> None:
    request = modern("tools/call", client_capabilities={"elicitation": {"form": {}}}, name="requires_input")
    assert ask(HANDLER, request).json["result"]["resultType"] == "input_required"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_e5_slow_tool_with_progress_answers_one_valid_event_stream(era: str, shape: Shape) -> None:
    handler = create_mcp_handler(make_server, keep_alive=0.05)
    answer = ask(handler, call(era, "slow", PROGRESS, steps=2, delay=0.08), shape)
    assert not answer.was_base64
    *progress, result = events_of(answer)
    assert [message["params"]["progress"] for message in progress] == [1, 2]
    assert result["result"]["content"][0]["text"] == "slow is done"
    assert answer.body.count(KEEP_ALIVE) >= 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_e5_slow_tool_answers_json_in_json_mode(era: str, shape: Shape) -> None:
    handler = create_mcp_handler(make_server, keep_alive=0.05, response_mode="json")
    answer = ask(handler, call(era, "slow", PROGRESS, steps=2, delay=0.06), shape)
    assert answer.headers["content-type"] == "application/json"
    assert text_of(answer) == "slow is done"


# Shape of the answer


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "text"), [("café", "un café"), ("half", "half a pair: \ud83d")])
def test_text_beyond_ascii_comes_as_it_is(name: str, text: str, shape: Shape) -> None:
    headers, body = call("modern", name)
    headers["Mcp-Name"] = f"=?base64?{base64.b64encode(name.encode()).decode()}?="
    assert text_of(ask(HANDLER, (headers, body), shape)) == text


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(
    ("mode", "tool", "media_type", "notifications"),
    [
        ("auto", "echo", "application/json", 0),
        ("auto", "slow", "text/event-stream", 3),
        ("auto", "logs", "text/event-stream", 1),
        ("json", "echo", "application/json", 0),
        ("json", "slow", "application/json", 0),
        ("json", "logs", "application/json", 0),
        ("sse", "echo", "text/event-stream", 0),
        ("sse", "slow", "text/event-stream", 3),
        ("sse", "logs", "text/event-stream", 1),
    ],
)
def test_response_mode(mode: ResponseMode, tool: str, media_type: str, notifications: int, era: str) -> None:
    handler = create_mcp_handler(make_server, response_mode=mode)
    arguments = {"text": "x"} if tool == "echo" else {}
    answer = ask(handler, call(era, tool, {**PROGRESS, **LOG}, **arguments))
    assert answer.status == 200
    assert answer.headers["content-type"].partition(";")[0] == media_type
    messages = events_of(answer) if media_type == "text/event-stream" else [answer.json]
    assert ["id" in message for message in messages] == [False] * notifications + [True]
    assert messages[-1]["result"]["content"][0]["text"] in ("x", "slow is done", "logged")


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("mode", ["auto", "sse"])
def test_an_error_after_a_notification_ends_its_stream(mode: ResponseMode, era: str) -> None:
    async def call_tool(ctx: ServerRequestContext[Any], params: object) -> CallToolResult:
        await ctx.session.report_progress(1)
        raise MCPError(INVALID_PARAMS, "not so")

    answer = ask(
        create_mcp_handler(lambda: Server("low-level", on_call_tool=call_tool), response_mode=mode),
        call(era, "any", PROGRESS),
    )
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    progress, error = events_of(answer)
    assert progress["method"] == "notifications/progress"
    assert error["error"] == {"code": INVALID_PARAMS, "message": "not so"}


@pytest.mark.parametrize("mode", ["auto", "sse"])
def test_what_is_sent_while_the_sdk_looks_a_tool_up_is_not_of_its_call(mode: ResponseMode) -> None:
    async def list_tools(ctx: ServerRequestContext[Any], params: object) -> ListToolsResult:
        await ctx.session.send_progress_notification("p", 1, related_request_id=str(ctx.request_id))
        return ListToolsResult(tools=[Tool(name="any", input_schema={"type": "object"})])

    async def call_tool(ctx: ServerRequestContext[Any], params: object) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="called")])

    handler = create_mcp_handler(
        lambda: Server("low-level", on_list_tools=list_tools, on_call_tool=call_tool), response_mode=mode
    )
    assert len(ask(handler, modern("tools/list")).messages) == 2
    assert len(ask(handler, call("modern", "any", argument=1)).messages) == 1


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("mode", ["auto", "sse"])
def test_progress_that_nobody_asked_for_is_not_sent(mode: ResponseMode, era: str) -> None:
    answer = ask(create_mcp_handler(make_server, response_mode=mode), call(era, "slow"))
    assert len(answer.messages) == 1


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_open_stream_has_no_comments_when_keep_alive_is_off(era: str) -> None:
    handler = create_mcp_handler(make_server, keep_alive=0)
    answer = ask(handler, call(era, "slow", PROGRESS, steps=2, delay=0.06))
    assert len(events_of(answer)) == 3
    assert not [line for line in answer.body.splitlines() if line.startswith(":")]


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_silent_tool_is_kept_alive_on_its_stream(era: str) -> None:
    # A modern stream opens when its first comment is due, since an error must still be able to be a 404.
    handler = create_mcp_handler(make_server, keep_alive=0.05, response_mode="sse")
    answer = ask(handler, call(era, "silent", delay=0.2))
    assert KEEP_ALIVE in answer.body
    assert len(events_of(answer)) == 1


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_silent_tool_answers_json_in_auto_mode(era: str) -> None:
    answer = ask(create_mcp_handler(make_server, keep_alive=0.05), call(era, "silent", delay=0.12))
    assert answer.headers["content-type"] == "application/json"
    assert text_of(answer) == "silent is done"


@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
@pytest.mark.parametrize("shape", ["rest", "http", "fetch"])
@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (modern("no/such-method", id="e-1"), 404, METHOD_NOT_FOUND),
        (modern("tools/call", id="e-1", name="echo", arguments="none"), 400, -32602),
        (modern("resources/read", id="e-1", uri="nowhere://x"), 400, -32602),
        (with_header(modern("tools/list", id="e-1"), "Mcp-Method", "ping"), 400, HEADER_MISMATCH),
    ],
    ids=["method", "params", "resource", "header"],
)
def test_modern_error_keeps_its_status_and_id_in_every_mode(
    request_: tuple[dict[str, str], Message], status: int, code: int, shape: Any, mode: ResponseMode
) -> None:
    handler = create_mcp_handler(make_server, response_mode=mode)
    answer = fetch(handler, starlette_request(request_)) if shape == "fetch" else ask(handler, request_, shape)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert (answer.json["error"]["code"], answer.json["id"]) == (code, "e-1")


@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (legacy("no/such-method", id="e-1"), METHOD_NOT_FOUND),
        (legacy("tools/call", id="e-1", name="echo", arguments="none"), -32602),
        (legacy("resources/read", id="e-1", uri="nowhere://x"), -32602),
    ],
    ids=["method", "params", "resource"],
)
def test_legacy_error_is_a_200_with_the_request_id_in_every_mode(
    request_: tuple[dict[str, str], Message], code: int, mode: ResponseMode
) -> None:
    answer = ask(create_mcp_handler(make_server, response_mode=mode), request_)
    assert answer.status == 200
    assert (answer.messages[-1]["error"]["code"], answer.messages[-1]["id"]) == (code, "e-1")


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("id_", [0, 1, "", "7", "ü", 2**53])
def test_result_has_the_id_of_its_request(id_: str | int, era: str) -> None:
    method = modern if era == "modern" else legacy
    answer = ask(HANDLER, method("tools/list", id=id_))
    assert answer.json["id"] == id_
    assert type(answer.json["id"]) is type(id_)


def test_two_answers_of_one_handler_are_alike() -> None:
    handler: McpHandler = create_mcp_handler(make_server)
    request = call("modern", "slow", PROGRESS)
    assert ask(handler, request) == ask(handler, request)
