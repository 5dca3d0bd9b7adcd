"""What the gateway and the Runtime APIs share as HTTP servers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class Server(uvicorn.Server):
    """Uvicorn without handlers for signals: it runs beside others, and whoever starts it also ends it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket whose connections send small writes at once (asyncio does that for its own only).

    Raises:
        OSError: the address cannot be had.
        OverflowError: the port is not one.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
