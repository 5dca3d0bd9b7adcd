"""The local gateway: a template's APIs and functions, served by this machine."""

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
from sealane.local.aws_services import AwsServices
from sealane.local.environment import Choose, Environment, Outcome, Pool, ResponseStream, longest_idle
from sealane.local.errors import LocalError
from sealane.local.http_api import FunctionUrl, HttpApi
from sealane.local.http_server import Server, listen
from sealane.local.invoke_api import InvokeApi
from sealane.local.process import folder_of_run
from sealane.local.records import Notice, Record
from sealane.local.reload import reload_on_change
from sealane.local.rest_api import RestApi
from sealane.local.template import Api, load_template

_KINDS: dict[str, type[ApiGateway]] = {"rest": RestApi, "http": HttpApi, "url": FunctionUrl}


def _ignore(record: Record) -> None:
    """Watches nothing."""


class LocalGateway:
    """Running APIs: `with LocalGateway("template.yaml") as gateway: …` serves them from a thread until the block ends.

    When the block begins, one environment of each function has started and the ports are open. Functions that require
    other packages than the running environment has are given those first, in `.sealane/venvs` beside the template.

    Args:
        template: a SAM template.
        host: address to listen on.
        port: port of the first API; the others have those after it; 0 takes free ones.
        parameters: values of the template's parameters.
        concurrency: environments that each function may have at a time.
        code_dirs: folders that replace the functions' `CodeUri`, by logical id.
        endpoint_url: another emulator of DynamoDB and KMS to use instead of moto, or `aws` for the real AWS with the
            developer's credentials, where tables and keys have to be already.
        freeze: freeze environments between invocations, as Lambda does; not while a debugger is attached to one.
        reload: make new environments when a file of a function or of its layers changes.
        choose: which of the idle environments of a function serves, by default the one that has waited longest.
        queue: let requests wait for their turn while all environments are busy; Lambda refuses them.
        observe: gets every request and every line that a function writes, in the thread of the gateway.

    Attributes:
        aws: DynamoDB and KMS, with the calls that the functions made and the faults that they meet.
        not_emulated: what the template has and this machine has not, one short text each.

    Raises:
        TemplateError: the template, or a value given for it, is wrong (on construction).
        LocalError: a function cannot start, or the port cannot be had (on entry).
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
        endpoint_url: str | None = None,
        freeze: bool = True,
        reload: bool = False,
        choose: Choose = longest_idle,
        queue: bool = False,
        observe: Callable[[Record], None] = _ignore,
    ) -> None:
        self._template = load_template(Path(template), parameters, code_dirs)
        self._venvs = Path(template).parent / ".sealane" / "venvs"
        self.aws = AwsServices(self._template, endpoint_url)
        self._host = host
        self._ports = [port and port + place for place in range(len(self._template.apis))]
        self._concurrency = concurrency
        self._freeze = freeze
        self._reload = reload
        self._choose = choose
        self._queue = queue
        self._lambda_url = ""
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
        """`http://host:port` of the first API."""
        return self._origin(self._ports[0])

    @property
    def url(self) -> str:
        """URL of the first API's first route, of those without parameters if there are any: the MCP endpoint."""
        api = self._template.api
        paths = [route.path for route in api.routes]
        path = next((each for each in paths if "{" not in each), paths[0])
        return self.urls[api.name] + (path if path.startswith("/") else "/")

    @property
    def urls(self) -> dict[str, str]:
        """URL of each API and function URL by its logical id, an HTTP API's named stage in it, no slash at its end."""
        apis = zip(self._template.apis, self._ports, strict=True)
        return {api.name: self._origin(port) + api.base_path for api, port in apis}

    @property
    def is_open(self) -> bool:
        """Whether the template says that anyone may call (`AuthMode`)."""
        return any(each.variables.get("SEALANE_AUTH_MODE") == "none" for each in self._template.functions)

    @property
    def lambda_url(self) -> str:
        """Endpoint URL of Lambda's Invoke API, for boto3's client `lambda`; functions have it in their environment."""
        return self._lambda_url

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
        invoke_api = InvokeApi(self._template.functions, lambda name: self._pools[name], self._tell)
        async with self.aws.serving(), invoke_api.serving() as self._lambda_url, self._serving():
            yield

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        with ExitStack() as stack:
            listeners = [stack.enter_context(_listen(self._host, port)) for port in self._ports]
            self._ports = [listener.getsockname()[1] for listener in listeners]
            async with self._serving_on(listeners, stack.enter_context(folder_of_run())):
                yield

    @asynccontextmanager
    async def _serving_on(self, listeners: list[socket.socket], place: Path) -> AsyncIterator[None]:
        variables = {"AWS_ENDPOINT_URL_LAMBDA": self._lambda_url, **self.aws.variables}
        self._pools = {
            each.name: Pool(
                self.aws.connect(each),
                self._concurrency,
                self._tell,
                place,
                self._venvs,
                freeze=self._freeze,
                variables=variables,
                choose=self._choose,
                queue=self._queue,
            )
            for each in self._template.functions
        }
        servers = [self._server(api) for api in self._template.apis]
        try:
            await self._start_functions()
            async with anyio.create_task_group() as tasks:
                for server, listener in zip(servers, listeners, strict=True):
                    tasks.start_soon(server.serve, [listener])
                ended = anyio.Event()
                if self._reload:
                    functions = [(each, self._pools[each.name]) for each in self._template.functions]
                    tasks.start_soon(reload_on_change, functions, self._tell, ended)
                try:
                    yield
                finally:
                    ended.set()
                    for server in servers:
                        server.should_exit = server.force_exit = True
        finally:
            with anyio.CancelScope(shield=True):
                for pool in self._pools.values():
                    await pool.stop()

    def _server(self, api: Api) -> Server:
        return Server(
            uvicorn.Config(
                _KINDS[api.kind](api, self._invoke, self._stream, self._tell),
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
            )
        )

    def _origin(self, port: int) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 - any address is also this one
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def _start_functions(self) -> None:
        for function in self._template.functions:
            try:
                await self._pools[function.name].start()
            except LocalError as error:
                raise LocalError(f"{function.name} cannot start: {error}") from None
        held, self._held = self._held or [], None
        for record in held:
            self._observe(record)

    async def _invoke(self, function: str, event: bytes, trace_id: str) -> Outcome:
        return await self._pools[function].invoke(event, trace_id)

    def _stream(self, function: str, event: bytes, trace_id: str) -> ResponseStream:
        return self._pools[function].stream(event, trace_id)

    def _tell(self, record: Record) -> None:
        """Passes a record on. Before the functions have started it waits: the error of one that cannot says all.

        What takes long is told at once.
        """
        if self._held is None or isinstance(record, Notice):
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
        raise LocalError(f"cannot listen on {host}, port {port}: {reason}; see --host and --port") from None
