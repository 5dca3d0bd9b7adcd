"""The local gateway: a template's REST API and functions, served by this machine."""

import errno
import platform
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import uvicorn
from anyio.from_thread import start_blocking_portal

from sealane.local.api_gateway import ApiGateway, HttpProtocol
from sealane.local.environment import Environment, Outcome, Pool
from sealane.local.errors import FunctionError, LocalError
from sealane.local.http_server import Server, listen
from sealane.local.records import Record
from sealane.local.template import load_template


def _ignore(record: Record) -> None:
    """Watches nothing."""


class LocalGateway:
    """A running API: `with LocalGateway("template.yaml") as gateway: …` serves it from a thread until the block ends.

    When the block begins, one environment of each function has started and the port is open.

    Args:
        template: a SAM template.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        parameters: values of the template's parameters.
        concurrency: environments that each function may have at a time.
        code_dirs: folders that replace the functions' `CodeUri`, by logical id.
        observe: gets every request and every line that a function writes, in the thread of the gateway.

    Attributes:
        not_emulated: what the template has and this machine has not, one short text each.

    Raises:
        TemplateError: the template, or a value given for it, is wrong (on construction).
        FunctionError: a function cannot start (on entry).
        LocalError: the port cannot be had (on entry).
    """

    def __init__(
        self,
        template: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        parameters: Mapping[str, str] | None = None,
        concurrency: int = 4,
        code_dirs: Mapping[str, Path] | None = None,
        observe: Callable[[Record], None] = _ignore,
    ) -> None:
        self._template = load_template(Path(template), parameters, code_dirs)
        self._host = host
        self._port = port
        self._concurrency = concurrency
        self._observe = observe
        self._held: list[Record] | None = []
        self._pools: dict[str, Pool] = {}
        self._exit = ExitStack()
        here = "python" + ".".join(platform.python_version_tuple()[:2])
        self.not_emulated = (
            *self._template.not_emulated,
            *(
                f"{each.name} on {each.runtime} (here: {here})"
                for each in self._template.functions
                if each.runtime != here
            ),
        )

    @property
    def base_url(self) -> str:
        """`http://host:port`."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 - any address is also this one
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    @property
    def url(self) -> str:
        """URL of the API's first route: the MCP endpoint."""
        return self.base_url + self._template.api.routes[0].path

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Every environment that can serve."""
        return tuple(environment for pool in self._pools.values() for environment in pool.environments)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self.serving()))
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The same for asynchronous code: serves from the running event loop until the block ends."""
        listener = _listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        self._pools = {each.name: Pool(each, self._concurrency, self._tell) for each in self._template.functions}
        api_gateway = ApiGateway(self._template.api, self._invoke, self._tell)
        config = uvicorn.Config(
            api_gateway.app,
            http=HttpProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        server = Server(config)
        with listener:
            try:
                await self._start_functions()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(server.serve, [listener])
                    try:
                        yield
                    finally:
                        server.should_exit = server.force_exit = True
            finally:
                with anyio.CancelScope(shield=True):
                    for pool in self._pools.values():
                        await pool.stop()

    async def _start_functions(self) -> None:
        for function in self._template.functions:
            try:
                await self._pools[function.name].start()
            except FunctionError as error:
                raise LocalError(f"{function.name} cannot start: {error}") from None
        held, self._held = self._held or [], None
        for record in held:
            self._observe(record)

    async def _invoke(self, function: str, event: bytes, trace_id: str) -> Outcome:
        return await self._pools[function].invoke(event, trace_id)

    def _tell(self, record: Record) -> None:
        """Passes a record on. Before the functions have started it waits: the error of one that cannot says all."""
        if self._held is None:
            self._observe(record)
        else:
            self._held.append(record)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OverflowError:
        raise LocalError(f"{port} is not a port") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LocalError(
                f"port {port} is taken: choose another one with --port, or 0 for any that is free"
            ) from None
        reason = (error.strerror or str(error)).partition(" (while ")[0]
        raise LocalError(f"cannot listen on {host}, port {port}: {reason}") from None
