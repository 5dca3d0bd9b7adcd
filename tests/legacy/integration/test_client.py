"""The SDK's own client, generation 1; `make conformance` has the clients of others."""

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError
from mcp.types import TextContent

from tests.conformance.legacy_lane import CLIENT_ENVIRONMENTS, CLIENTS, SessionField, client_gateway, warm
from tests.legacy.conftest import Lane


def test_it_gets_all_that_sessions_give() -> None:
    with client_gateway() as gateway:
        assert warm(gateway, CLIENT_ENVIRONMENTS) == []
        walk(SessionField(gateway, Path()))


def test_it_gets_the_same_where_answers_leave_as_a_whole() -> None:
    with Lane(parameters={"Streaming": "false"}, code_dirs={}) as gateway:
        gateway.warm()
        walk(SessionField(gateway, Path(), cuts=0))


def walk(field: SessionField) -> None:
    [client] = [each for each in CLIENTS if each.name == "Python SDK v1"]
    result = field.run(replace(client, python=Path(sys.executable)))
    assert result.problems == []
    assert {check.status for check in result.checks} == {"SUCCESS"}


@pytest.mark.anyio
async def test_it_hears_of_the_end_of_an_environment_and_goes_on(hasty_lane: Lane) -> None:
    async with AsyncExitStack() as stack:
        read, write, _ = await stack.enter_async_context(streamable_http_client(hasty_lane.url))
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()

        async def kill(progress: float, total: float | None, message: str | None) -> None:
            for environment in hasty_lane.environments:
                if str(environment.pid) == message:
                    hasty_lane.kill(environment.number)

        async with asyncio.timeout(30):
            with pytest.raises(McpError):
                await session.call_tool("work", {"steps": 100}, progress_callback=kill)
            [content] = (await session.call_tool("work", {"steps": 1})).content
        assert isinstance(content, TextContent)
        assert content.text == "1 steps are done."
