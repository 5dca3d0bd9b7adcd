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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the server now: calls that are under way lose their connections.

        From Python 3.12 on asyncio would wait for each of them.
        """
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await super().shutdown(sockets)


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
