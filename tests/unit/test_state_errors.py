"""Errors of the state reach the model with their text; what is meant for the operator does not."""

from typing import Annotated, Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Resolve

from sealane import McpHandler, create_mcp_handler
from sealane.state.errors import HandleNotFound, StateError, StateNotConfigured, UnstorableResult
from tests.events import Answer, ask, legacy, modern

TEXT = "There is no such thing. Make one."


def failing(error: Exception) -> McpHandler:
    """A server of which everything fails with `error`."""

    def fail() -> str:
        raise error

    def create() -> MCPServer:
        server = MCPServer("failing")

        @server.tool()
        def tool() -> str:
            return fail()

        @server.tool()
        async def by_resolver(value: Annotated[str, Resolve(fail)]) -> str:
            return value

        @server.tool()
        async def nested(ctx: Context) -> str:
            return str(await server.call_tool("tool", {}, ctx))

        @server.tool()
        def caused() -> str:
            try:
                return fail()
            except Exception as cause:
                raise RuntimeError("SECRET") from cause

        @server.resource("a://fixed")
        def fixed() -> str:
            return fail()

        @server.resource("a://{name}/template")
        def template(name: str) -> str:
            return fail()

        @server.prompt()
        def prompt() -> str:
            return fail()

        return server

    return create_mcp_handler(create)


def said(answer: Answer) -> str:
    """The text of a failure."""
    if "error" in answer.json:
        return str(answer.json["error"]["message"])
    result = answer.json["result"]
    assert result["isError"]
    return str(result["content"][0]["text"])


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "tool", "arguments": {}}),
    ("tools/call", {"name": "by_resolver", "arguments": {}}),
    ("tools/call", {"name": "nested", "arguments": {}}),
    ("resources/read", {"uri": "a://fixed"}),
    ("resources/read", {"uri": "a://x/template"}),
    ("prompts/get", {"name": "prompt"}),
]


@pytest.mark.parametrize(("method", "params"), CALLS)
@pytest.mark.parametrize("error", [HandleNotFound(TEXT), UnstorableResult(TEXT)], ids=["not found", "unstorable"])
def test_the_text_reaches_the_model_and_the_log_has_no_crash(
    method: str, params: dict[str, Any], error: StateError, caplog: pytest.LogCaptureFixture
) -> None:
    for request in (modern(method, **params), legacy(method, **params)):
        answer = ask(failing(error), request)
        assert TEXT in said(answer)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(("method", "params"), CALLS)
@pytest.mark.parametrize("error", [StateNotConfigured("SECRET"), ValueError("SECRET")], ids=["operator", "crash"])
def test_other_texts_stay_here(method: str, params: dict[str, Any], error: Exception) -> None:
    assert "SECRET" not in ask(failing(error), modern(method, **params)).body


def test_what_an_error_was_turned_into_stays_here() -> None:
    answer = ask(failing(HandleNotFound(TEXT)), modern("tools/call", name="caused", arguments={}))
    assert "SECRET" not in answer.body
