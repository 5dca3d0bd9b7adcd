"""Stands in for the legacy lane: an application that answers as its request's method says."""

import asyncio
import json
import os
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from sealane.gateway.buffered import BufferedGateway

EVENT = b'event: message\nid: 1_1\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'
SSE = (b"content-type", b"text/event-stream")
JSON = (b"content-type", b"application/json")


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    body = await request.body()

    async def start(status: int, *headers: tuple[bytes, bytes]) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [*headers]})

    async def write(body: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": more})

    what: dict[str, Any] = json.loads(body) if body else {"method": scope["method"]}
    match what["method"].partition("/")[2] or what["method"]:
        case "DELETE":
            await start(204)
        case "initialized":
            await start(202)
        case "GET" | "sse":
            await start(200, SSE, (b"mcp-session-id", b"s1"))
            for _ in range(3):
                await write(EVENT)
                await asyncio.sleep(0.4)
        case "event":
            await start(200, JSON)
            await write(json.dumps(scope["aws.event"]).encode())
        case "missing":
            await start(404, JSON)
            await write(json.dumps({"jsonrpc": "2.0", "id": what["id"], "error": {"code": -32600}}).encode())
        case "cookies":
            await start(200, JSON, (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"x-own", b"1"))
            await write(b"{}")
        case "binary":
            await start(200, (b"content-type", b"image/png"))
            await write(b"\x89PNG\0\xff")
        case "large":
            await start(200, JSON)
            await write(json.dumps("x" * 4_000_000).encode())
        case "slow":
            await asyncio.sleep(8)
            await start(200, JSON)
        case "silent":
            await start(200, SSE)
            await write(EVENT)
            await asyncio.sleep(8)
        case "exit":
            os._exit(3)
        case "exit-later":
            await start(200, SSE)
            await write(EVENT)
            await asyncio.sleep(0.3)
            os._exit(3)
        case "raise":
            raise ValueError("a secret")
    await write(b"", more=False)


handler = BufferedGateway(application)
