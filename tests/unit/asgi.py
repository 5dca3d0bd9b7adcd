"""The two doors that are no Lambda event: one Starlette request through `fetch`, and the application under uvicorn."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message

from sealane import McpHandler
from tests.events import Answer, Headers


def starlette_request(
    request: tuple[Headers, Any],
    method: str = "POST",
    path: str = "/mcp",
    *,
    host: str | None = "localhost",
    server: str = "localhost",
    state: Mapping[str, Any] | None = None,
) -> Request:
    """The Starlette request of `(headers, body)`, whose client stays until it has its answer.

    Args:
        request: what `modern(…)` and `legacy(…)` make; bytes and text are sent as they are.
        host: the `Host` header, unless the headers have one.
        server: address that the connection reached.
        state: further entries of the ASGI scope.
    """
    headers, body = request
    sent = {"host": host, **{name.lower(): value for name, value in headers.items()}}
    raw = [
        (name.encode(), value.encode())
        for name, values in sent.items()
        for value in ([values] if isinstance(values, str) else values or ())
    ]
    content = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json.dumps(body).encode()
    unread = [content]

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("never set")

    return Request(
        {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": raw,
            "server": (server, 80),
            **(state or {}),
        },
        receive,
    )


async def read(response: Response) -> Answer:
    """The readable form of a Starlette response, to its end."""
    if isinstance(response, StreamingResponse):
        chunks = [chunk if isinstance(chunk, bytes) else str(chunk).encode() async for chunk in response.body_iterator]
        body = b"".join(chunks)
    else:
        body = bytes(response.body)
    headers: dict[str, str] = {}
    for name, value in response.headers.items():
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Answer(response.status_code, headers, body.decode(), was_base64=False)


def fetch(handler: McpHandler, request: Request, **arguments: Any) -> Answer:
    """The answer of `handler.fetch(request, …)`."""

    async def run() -> Answer:
        return await read(await handler.fetch(request, **arguments))

    return asyncio.run(run())


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """`app` under uvicorn on a free port of 127.0.0.1; gives the address, `http://127.0.0.1:…`."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
