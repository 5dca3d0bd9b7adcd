"""A client of the handshake revisions, as their specification has it: one session on the wire."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import httpx

from tests.planted import PLANTED

Message = dict[str, Any]

ACCEPT = "application/json, text/event-stream"
ALL = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}


@dataclass(frozen=True)
class Event:
    """One event of a stream; `message` is None for one without data."""

    id: str | None
    retry: int | None
    message: Message | None


class Answer:
    """The answer to one HTTP request, read as it comes.

    Attributes:
        status: its status.
        headers: its headers.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._events = self._read()
        self.status = response.status_code
        self.headers = response.headers

    def events(self) -> AsyncIterator[Event]:
        """The events as they come, those that were not read before; a JSON answer is one without an id."""
        return self._events

    async def _read(self) -> AsyncIterator[Event]:
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            if body := await self._response.aread():
                yield Event(None, None, json.loads(body))
            return
        fields: dict[str, str] = {}
        async for line in self._response.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif fields:
                retry, data = fields.get("retry"), fields.get("data")
                yield Event(fields.get("id"), int(retry) if retry else None, json.loads(data) if data else None)
                fields = {}

    async def messages(self) -> AsyncIterator[Message]:
        """The messages as they come."""
        async for event in self.events():
            if event.message is not None:
                yield event.message

    async def all_events(self) -> list[Event]:
        """Every event, once the stream has ended."""
        return [event async for event in self.events()]

    async def all(self) -> list[Message]:
        """Every message, once the stream has ended."""
        return [message async for message in self.messages()]


class Wire:
    """One session.

    Args:
        url: the endpoint.
        name: what the client calls itself.
        version: the revision that it asks for.
        token: its bearer token.
        capabilities: what it can do.

    Attributes:
        name: what it calls itself.
        headers: what each of its requests has.
        request_ids: what the gateway calls its requests so far.
        session: id of its session, once it has one.
    """

    def __init__(
        self,
        url: str,
        name: str = "wire",
        *,
        version: str = "2025-11-25",
        token: str | None = None,
        capabilities: Message | None = None,
    ) -> None:
        self._url = url
        self.name = name
        self._version = version
        self._capabilities = ALL if capabilities is None else capabilities
        # No connection that the gateway may be about to close, which it does after five seconds.
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(30), limits=httpx.Limits(keepalive_expiry=2))
        self._last_id = 0
        self.request_ids: list[str] = []
        self.session = ""
        self.headers = {"Accept": ACCEPT, "X-Api-Key": PLANTED}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def send(self, method: str, body: Any = None, **headers: str) -> AsyncIterator[Answer]:
        """One HTTP request; a header is named with underscores, and left out when it is empty."""
        wanted = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        content = None
        if body is not None:
            wanted = {"Content-Type": "application/json", **wanted}
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name: value for name, value in wanted.items() if value}
        request = self._http.build_request(method, self._url, content=content, headers=sent)
        if "Accept" not in sent:
            del request.headers["Accept"]
        response = await self._http.send(request, stream=True)
        self.request_ids.append(response.headers.get("x-amzn-requestid", ""))
        try:
            yield Answer(response)
        finally:
            await response.aclose()

    async def status(self, method: str, body: Any = None, **headers: str) -> int:
        """Status of one HTTP request."""
        async with self.send(method, body, **headers) as answer:
            return answer.status

    def message(self, method: str, **params: Any) -> Message:
        """A request with a fresh id."""
        self._last_id += 1
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}

    def tool(self, name: str, *, progress: str | None = None, **arguments: Any) -> Message:
        """A call of a tool, with a progress token if that is wanted."""
        meta = {"_meta": {"progressToken": progress}} if progress else {}
        return self.message("tools/call", name=name, arguments=arguments, **meta)

    async def connect(self) -> Message:
        """The handshake; returns what the server says of itself."""
        client = {"name": self.name, "version": "1.0.0"}
        message = self.message(
            "initialize", protocolVersion=self._version, capabilities=self._capabilities, clientInfo=client
        )
        async with self.send("POST", message) as answer:
            assert answer.status == 200, await answer.all()
            self.session = answer.headers["mcp-session-id"]
            [result] = await answer.all()
        self.headers["Mcp-Session-Id"] = self.session
        if self._version >= "2025-06-18":
            self.headers["MCP-Protocol-Version"] = result["result"]["protocolVersion"]
        assert await self.notify("notifications/initialized") == 202
        server: Message = result["result"]
        return server

    async def notify(self, method: str, **params: Any) -> int:
        """Send a notification; returns the status."""
        return await self.status("POST", {"jsonrpc": "2.0", "method": method, "params": params})

    async def reply(self, request: Message, **result: Any) -> int:
        """Answer a request of the server; returns the status."""
        return await self.status("POST", {"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def request(self, message: Message) -> Message:
        """The answer to a request."""
        async with self.send("POST", message) as answer:
            assert answer.status == 200, (answer.status, await answer.all())
            found = [each async for each in answer.messages() if each.get("id") == message["id"]]
        [answered] = found
        return answered

    async def call(self, tool: str, **arguments: Any) -> str:
        """The text of a tool's result."""
        answered = await self.request(self.tool(tool, **arguments))
        text: str = answered["result"]["content"][0]["text"]
        return text
