"""A lane of several environments over one table, and its two doors: Lambda events, and HTTP to a chosen environment."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import pytest
import uvicorn
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from starlette.types import Receive, Scope, Send

from sealane.gateway.events import DEADLINE_KEY
from sealane.legacy import LegacyMcpHandler, create_legacy_mcp_handler
from sealane.legacy.texts import TABLE_VARIABLE
from tests.events import LEGACY, Answer, answer, make_event
from tests.events import legacy as legacy_request
from tests.legacy.unit.server import Record, create_server
from tests.unit.moto_aws import TABLE, moto

CAPABILITIES: Final = {"elicitation": {"form": {}}, "sampling": {}, "roots": {"listChanged": True}}


@contextmanager
def table() -> Iterator[None]:
    """An empty table, which is the lane's."""
    with moto(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(TABLE_VARIABLE, TABLE)
        yield


class Environments:
    """Handlers that share nothing but the table.

    Args:
        count: how many.
        options: of `create_legacy_mcp_handler`.

    Attributes:
        records: what happened in each.
        requests: which environment had which HTTP request.
        deadline: seconds that an answer has, as the streaming runtime says it.
    """

    def __init__(self, count: int = 2, **options: Any) -> None:
        self.records = [Record() for _ in range(count)]
        self.handlers = [_handler(record, options) for record in self.records]
        self.requests: list[tuple[int, str]] = []
        self.deadline: float | None = None
        self._random = random.Random(8)  # noqa: S311

    def ask(
        self,
        method: str,
        *,
        at: int = 0,
        session: str | None = None,
        id: str | int | None = 1,
        headers: Mapping[str, Any] | None = None,
        body: Any = None,
        http: str = "POST",
        version: str | None = LEGACY,
        event: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Answer:
        """The answer to a Lambda event, which leaves as a whole.

        Args:
            method: of the message.
            at: the environment.
            session: id of the session.
            headers: further ones, or others.
            body: instead of the message.
            http: HTTP method.
            event: further entries of the request context.
        """
        sent, message = legacy_request(method, id=id, version=version, **params)
        if session is not None:
            sent["Mcp-Session-Id"] = session
        sent |= headers or {}
        made = make_event(
            "rest", http, headers=sent, body=(message if body is None else body) if http == "POST" else None
        )
        made["requestContext"].update(event or {})
        return answer(self.handlers[at](made, None))  # type: ignore[arg-type]

    def initialize(self, *, at: int = 0, version: str = LEGACY, event: Mapping[str, Any] | None = None) -> str:
        """The id of a new session."""
        made = self.ask("initialize", at=at, version=version, event=event, capabilities=CAPABILITIES)
        assert made.status == 200, made.body
        return made.headers["mcp-session-id"]

    def call(self, session: str, tool: str, *, at: int = 0, id: str | int = 1, **arguments: Any) -> Answer:
        """The answer to a tool call."""
        return self.ask("tools/call", at=at, session=session, id=id, name=tool, arguments=arguments)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application: the environment that the header `x-environment` names, or any."""
        headers = dict(scope["headers"])
        wanted = headers.get(b"x-environment")
        at = self._random.randrange(len(self.handlers)) if wanted is None else int(wanted)
        self.requests.append((at, scope["method"]))
        if self.deadline is not None:
            scope[DEADLINE_KEY] = asyncio.get_running_loop().time() + self.deadline
        await self.handlers[at].app(scope, receive, send)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The lane over HTTP, on this loop; gives its URL."""
        config = uvicorn.Config(self, lifespan="off", log_level="warning", port=0, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.should_exit = True
            await task


def _handler(record: Record, options: Mapping[str, Any]) -> LegacyMcpHandler:
    return create_legacy_mcp_handler(lambda: create_server(record), **options)


def text(result: Mapping[str, Any]) -> str:
    """The text of a tool's answer."""
    found: str = result["result"]["content"][0]["text"]
    return found


@asynccontextmanager
async def client(url: str, **callbacks: Any) -> AsyncIterator[ClientSession]:
    """The SDK's client, with an initialized session."""
    async with (
        streamablehttp_client(url) as (read, write, _),
        ClientSession(read, write, **callbacks) as session,
    ):
        await session.initialize()
        yield session


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until `condition()` holds."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event
            await anyio.sleep(0.01)
