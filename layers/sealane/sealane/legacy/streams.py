"""Event streams as they go out: the bytes of server-sent events, and an HTTP answer made of them."""

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import anyio
from starlette.types import Send

__all__ = ["EventStream", "priming", "sse"]

logger = logging.getLogger(__name__)

_KEEP_ALIVE: Final = b": keep-alive\r\n\r\n"
_FIRST_WITH_PRIMING: Final = "2025-11-25"


def sse(message: str, event_id: str | None = None, retry: int | None = None) -> bytes:
    """One event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    head = f"id: {event_id}\r\n" if event_id is not None else ""
    if retry is not None:
        head += f"retry: {retry}\r\n"
    return f"{head}event: message\r\ndata: {message}\r\n\r\n".encode()


def priming(event_id: str, retry: int, protocol_version: str) -> bytes:
    """What a stream begins with, so that its client can come back.

    Clients of the revisions before cannot read an event without a message; what has no data is no event to them.
    """
    data = "data: \r\n" if protocol_version >= _FIRST_WITH_PRIMING else ""
    return f"id: {event_id}\r\nretry: {retry}\r\n{data}\r\n".encode()


class EventStream:
    """An HTTP answer that is a stream of events.

    It is sent by a task of its own, `run`: a connection that is slow or dead does not hold up who writes.

    Args:
        send: of the ASGI exchange.
        headers: further ones.
        keep_alive: seconds of silence after which a comment is sent; 0 for none.
    """

    def __init__(self, send: Send, headers: Mapping[str, str], keep_alive: float) -> None:
        self._send = send
        self._keep_alive = keep_alive or math.inf
        self._headers = [
            (name.encode(), value.encode())
            for name, value in {
                "content-type": "text/event-stream",
                "cache-control": "no-store, no-transform",
                "x-accel-buffering": "no",
                **headers,
            }.items()
        ]
        self._written, self._unsent = anyio.create_memory_object_stream[bytes](math.inf)

    def write(self, data: bytes) -> None:
        """Have `data` sent; after `end` this does nothing."""
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._written.send_nowait(data)

    def end(self) -> None:
        """End the answer after what was written."""
        self._written.close()

    async def run(self) -> None:
        """Send until the end."""
        with self._unsent:
            try:
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                while (data := await self._next()) is not None:
                    await self._send({"type": "http.response.body", "body": data, "more_body": True})
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            except Exception:
                # The events wait for the client to come back.
                logger.warning("an event stream could not be sent", exc_info=True)

    async def _next(self) -> bytes | None:
        """What was written since; `None` at the end."""
        data = b""
        try:
            with anyio.move_on_after(self._keep_alive):
                data = await self._unsent.receive()
            with suppress(anyio.WouldBlock):
                while True:
                    data += self._unsent.receive_nowait()
        except anyio.EndOfStream:
            return data or None
        return data or _KEEP_ALIVE
