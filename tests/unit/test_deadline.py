"""An answer whose time is up ends in good order, in every mode and on both eras."""

import asyncio
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer

from sealane import RequestRejected, create_mcp_handler
from sealane.gateway.events import DEADLINE_KEY
from sealane.gateway.loop import environment_loop
from sealane.options import ResponseMode
from tests.events import Answer, legacy, modern
from tests.unit.asgi import starlette_request

ended: list[str] = []


def create_server() -> MCPServer:
    server = MCPServer("slow")

    @server.tool()
    async def wait(ctx: Context, report: bool) -> str:
        if report:
            await ctx.report_progress(1)
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("wait")
        return "waited"

    return server


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("report", [True, False])
@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
def test_a_tool_that_takes_too_long(mode: ResponseMode, report: bool, era: str) -> None:
    told: list[Exception] = []
    handler = create_mcp_handler(create_server, response_mode=mode, on_error=told.append)
    arguments: Any = {"name": "wait", "arguments": {"report": report}}
    if era == "modern":
        request = modern("tools/call", id="x", meta={"progressToken": 1}, **arguments)
    else:
        request = legacy("tools/call", id="x", _meta={"progressToken": 1}, **arguments)

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> float:
        started = asyncio.get_running_loop().time()
        made = starlette_request(request, state={DEADLINE_KEY: started + 0.2})
        await handler.app(made.scope, made.receive, send)
        return asyncio.get_running_loop().time() - started

    ended.clear()
    assert 0.2 <= environment_loop().run(ask()) < 10
    start, *pieces = sent
    assert [piece["more_body"] for piece in pieces][-1] is False
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    answer = Answer(start["status"], headers, b"".join(piece["body"] for piece in pieces).decode(), was_base64=False)
    error = {"code": -32603, "message": "The request took longer than this server may run"}
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    messages = answer.messages
    assert messages[-1] == {"jsonrpc": "2.0", "id": "x", "error": error}
    assert len(messages) == (2 if streamed and report else 1)
    assert answer.status == (200 if streamed or era == "legacy" else 504)
    assert ended == ["wait"]
    [rejection] = told
    assert isinstance(rejection, RequestRejected)
    assert rejection.code == -32603
