"""A wire that breaks: a TCP proxy in front of the gateway that cuts a connection when a certain text has passed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal


class CuttingProxy:
    """Passes everything on, until an answer has `mark` in it: then both sides of its connection are gone.

    Args:
        url: the gateway's endpoint.
        mark: the text; it is passed on before the cut.

    Attributes:
        url: the endpoint, through the proxy.
        cuts: how many connections were cut.
    """

    def __init__(self, url: str, mark: str) -> None:
        self._target = urlsplit(url)
        self._mark = mark.encode()
        self.url = ""
        self.cuts = 0
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self._serving()))
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit.close()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = self._target._replace(netloc=f"127.0.0.1:{port}").geturl()
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The server logs what ends in another way, a cancellation too.
        with suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
            passing = [
                asyncio.create_task(self._pass(reader, back)),
                asyncio.create_task(self._pass(there, writer, self._mark)),
            ]
            _, pending = await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            back.transport.abort()
        writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mark: bytes = b"") -> None:
        tail = b""
        with suppress(OSError):
            while chunk := await reader.read(65_536):
                writer.write(chunk)
                await writer.drain()
                if mark and mark in tail + chunk:
                    # What was written is to arrive: an abort may throw it away.
                    await asyncio.sleep(0.05)
                    self.cuts += 1
                    return
                tail = (tail + chunk)[-len(mark) :] if mark else b""
            writer.write_eof()
            await asyncio.sleep(0.2)
