"""Shapes the SDK's answer to one request: JSON, an event stream when needed, or always an event stream."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, Final

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse
from pydantic_core import PydanticSerializationError
from starlette.datastructures import Headers
from starlette.types import Message, Send

from sealane import telemetry
from sealane.era import Era
from sealane.errors import RequestId, RequestRejected, error_response
from sealane.options import ResponseMode

__all__ = ["ResponseShaper"]

_EVENT_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_KEEP_ALIVE: Final = b": keep-alive\r\n\r\n"


class ResponseShaper:
    """An ASGI `send` in front of another one.

    In `auto` mode an event stream is held back until its first message shows what it is: a result that nothing
    preceded leaves as JSON. In `sse` mode a JSON result leaves as a stream of one event; an error that the
    protocol gives a status other than 200 keeps it. The SDK's comment lines give way to our own, so that
    `keep_alive` holds on both eras.

    Args:
        send: the ASGI `send` to shape for.
        keep_alive: seconds between comment lines on an open stream; 0 for none.
    """

    def __init__(self, send: Send, *, era: Era, mode: ResponseMode, keep_alive: float) -> None:
        self._send = send
        self._era = era
        self._mode = mode
        self._keep_alive = keep_alive
        self._holding = False
        self._json = bytearray()
        self._collecting_json = False
        self._finished = False
        self._opened = False
        self._opening = asyncio.Lock()
        self._passing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def notify(self, notification: JSONRPCNotification) -> None:
        """Take what the client is told before its answer: both become an event stream, where answers may be one."""
        if self._mode == "json":
            return
        async with self._opening:
            if not self._opened and not self._finished:
                await self._open_stream()
            await self.send({"type": "http.response.body", "body": _event(_dumped(notification)), "more_body": True})

    async def answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        """Take the answer, under the HTTP status that the protocol gives it."""
        body = _dumped(message)
        status = ERROR_CODE_HTTP_STATUS.get(message.error.code, 200) if isinstance(message, JSONRPCError) else 200
        async with self._opening:
            if self._finished:
                return
            self._finished = True
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            if self._opened or (self._mode == "sse" and status == 200):
                status, headers, body = 200, _EVENT_STREAM_HEADERS, _event(body)
            if not self._opened:
                await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def open_in_time(self) -> None:
        """Open the stream of an answer that will be one, when its first comment line is due."""
        await asyncio.sleep(self._keep_alive)
        async with self._opening:
            if not self._opened and not self._finished:
                await self._open_stream()

    async def send(self, message: Message) -> None:
        """Take one ASGI message of the SDK's answer."""
        if self._finished:
            return
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self._collecting_json:
            await self._collect_json(message)
        elif self._holding:
            await self._first_event(message)
        else:
            self._finished = not message.get("more_body", False)
            if self._finished or not _is_comment(message.get("body", b"")):
                await self._send(message)

    def watch(self, task: Coroutine[Any, Any, None]) -> None:
        """Run `task` beside the answer, until `close`."""
        self._tasks.append(asyncio.get_running_loop().create_task(task))

    async def fail(self, rejection: RequestRejected, request_id: RequestId | None) -> bool:
        """End the answer with an error, whatever the SDK still has to say.

        Returns:
            Whether the error went out under a status that does not tell of it.
        """
        if self._finished:
            return False
        self._finished = True
        telemetry.current().explain(rejection.reason)
        answer = error_response(rejection, request_id)
        if self._opened:
            await self._send({"type": "http.response.body", "body": _event(bytes(answer.body)), "more_body": False})
        elif not self._passing:
            start = {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
            await self._send(start)
            await self._send({"type": "http.response.body", "body": answer.body, "more_body": False})
        return self._opened or answer.status_code < 400

    async def close(self) -> None:
        """End the comment lines and what else runs beside; to be called whatever became of the answer."""
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, message: Message) -> None:
        media_type = Headers(raw=message["headers"]).get("content-type", "")
        if media_type.startswith("text/event-stream"):
            if self._mode == "auto":
                self._holding = True
            else:
                await self._open_stream()
        elif self._opened or (self._mode == "sse" and message["status"] == 200):
            self._collecting_json = True
        else:
            self._passing = True
            await self._send(message)

    async def _open_stream(self) -> None:
        self._holding, self._opened = False, True
        await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM_HEADERS})
        if self._keep_alive:
            self.watch(self._comment())

    async def _collect_json(self, message: Message) -> None:
        self._json += message.get("body", b"")
        if not message.get("more_body", False):
            self._finished = True
            if not self._opened:
                await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM_HEADERS})
            await self._send({"type": "http.response.body", "body": _event(bytes(self._json)), "more_body": False})

    async def _first_event(self, message: Message) -> None:
        """Decide between JSON and a stream by the first message of the SDK's stream."""
        event = message.get("body", b"")
        if _is_comment(event):
            return
        data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        if not data:
            # The SDK ended the stream with nothing in it: no answer, which is for the handler to say.
            return
        answer = json.loads(data)
        if "result" not in answer and "error" not in answer:
            await self._open_stream()
            await self.send(message)
            return
        self._finished = True
        # The handshake revisions answer every JSON-RPC error with 200.
        code = answer["error"]["code"] if "error" in answer and self._era == "modern" else None
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        status = 200 if code is None else ERROR_CODE_HTTP_STATUS.get(code, 200)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _comment(self) -> None:
        while True:
            await asyncio.sleep(self._keep_alive)
            if self._finished:
                return
            await self._send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})


def _dumped(message: JSONRPCResponse | JSONRPCError | JSONRPCNotification) -> bytes:
    """A message as it is sent."""
    try:
        return message.model_dump_json(by_alias=True, exclude_none=True).encode()
    except PydanticSerializationError:
        # Half a surrogate pair, which is nothing in UTF-8 but an escape in JSON.
        return json.dumps(message.model_dump(mode="json", by_alias=True, exclude_none=True)).encode()


def _event(message: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def _is_comment(event: bytes) -> bool:
    return event.startswith(b":")
