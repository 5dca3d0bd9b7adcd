"""What docs/migration.md says of clients that come without a session lane, where no other test does."""

import warnings
from typing import Any

import pytest
from mcp import MCPDeprecationWarning, MCPError
from mcp.server.mcpserver import Context
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, SamplingMessage, TextContent
from pydantic import BaseModel

from sealane import Catalog, create_mcp_handler
from tests.events import SHAPES, Message, Shape, ask, legacy, modern

catalog = Catalog()


class City(BaseModel):
    """An answer."""

    name: str


@catalog.tool()
async def elicits(ctx: Context) -> str:
    return str(await ctx.elicit("Which city?", City))


@catalog.tool()
async def samples(ctx: Context) -> str:
    question = SamplingMessage(role="user", content=TextContent(text="Hi"))
    return str(await ctx.session.create_message([question], max_tokens=5))


@catalog.tool()
async def lists_roots(ctx: Context) -> str:
    return str(await ctx.session.list_roots())


@catalog.tool()
async def logs(ctx: Context) -> str:
    await ctx.debug("said to nobody in particular")
    return "logged"


@catalog.tool()
def closed() -> str:
    raise MCPError(-32000, "The kitchen is closed")


HANDLER = create_mcp_handler(lambda: catalog.server("migrated"))
SESSION = {"Mcp-Session-Id": "s" * 32, "Last-Event-ID": "get_1"}


@pytest.fixture(autouse=True)
def deprecated() -> Any:
    """What is deprecated still works."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        yield


@pytest.mark.parametrize("make", [modern, legacy])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_session_that_a_client_believes_in_is_ignored(make: Any, shape: Shape) -> None:
    headers, body = make("tools/list")
    answer = ask(HANDLER, ({**headers, **SESSION}, body), shape)
    assert (answer.status, len(answer.json["result"]["tools"])) == (200, 5)
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize(
    ("method", "params", "left"),
    [
        ("initialize", legacy("initialize")[1]["params"], ["legacy"]),
        ("ping", {}, ["legacy"]),
        ("logging/setLevel", {"level": "info"}, []),
        ("resources/subscribe", {"uri": "menu://today"}, []),
        ("resources/unsubscribe", {"uri": "menu://today"}, []),
    ],
)
def test_methods_of_sessions(method: str, params: Message, left: list[str]) -> None:
    for era, make, refused in (("modern", modern, 404), ("legacy", legacy, 200)):
        answer = ask(HANDLER, make(method, **params))
        if era in left:
            assert (answer.status, "result" in answer.json) == (200, True)
        else:
            assert (answer.status, answer.json["error"]["code"]) == (refused, METHOD_NOT_FOUND)


@pytest.mark.parametrize("tool", ["elicits", "samples", "lists_roots"])
def test_a_request_that_is_pushed_fails_at_once_for_a_modern_client_too(tool: str) -> None:
    able: Message = {"elicitation": {}, "sampling": {}, "roots": {}}
    answer = ask(HANDLER, modern("tools/call", client_capabilities=able, name=tool, arguments={}))
    assert (answer.status, answer.json["error"]["code"]) == (400, INVALID_REQUEST)


def test_a_cancellation_of_an_old_client_is_accepted() -> None:
    answer = ask(HANDLER, legacy("notifications/cancelled", requestId=1))
    assert (answer.status, answer.body) == (202, "")


@pytest.mark.parametrize(
    ("request_", "messages"),
    [
        (legacy("tools/call", name="logs", arguments={}), 2),
        (modern("tools/call", name="logs", arguments={}), 1),
        (modern("tools/call", name="logs", arguments={}, meta={"io.modelcontextprotocol/logLevel": "info"}), 1),
        (modern("tools/call", name="logs", arguments={}, meta={"io.modelcontextprotocol/logLevel": "debug"}), 2),
    ],
    ids=["legacy", "none", "info", "debug"],
)
def test_log_messages_reach_old_clients_and_those_who_ask_for_their_level(request_: Any, messages: int) -> None:
    assert len(ask(HANDLER, request_).messages) == messages


@pytest.mark.parametrize("make", [modern, legacy])
def test_errors_that_were_others_in_generation_1(make: Any) -> None:
    missing = ask(HANDLER, make("resources/read", uri="menu://none")).json["error"]
    assert (missing["code"], missing["data"]) == (INVALID_PARAMS, {"uri": "menu://none"})
    assert ask(HANDLER, make("tools/call", name="closed", arguments={})).json["error"]["code"] == -32000
    assert ask(HANDLER, make("tools/call", name="nothing", arguments={})).json["result"]["isError"]
    assert ask(HANDLER, make("no/such")).json["error"]["code"] == METHOD_NOT_FOUND
