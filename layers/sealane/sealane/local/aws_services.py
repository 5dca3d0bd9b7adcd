"""DynamoDB and KMS for the functions: moto or another emulator, behind a layer that counts calls and injects faults.

Each environment has an endpoint of its own, `http://127.0.0.1:port/<function>/<environment>`, so that the layer knows
who calls. An emulator gets dummy credentials, and the real AWS is never taken for one: who wants it asks for it by
name, and then the functions have the developer's own credentials and no emulator. The two never mix.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvicorn
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from botocore.loaders import create_loader  # type: ignore[import-untyped]
from botocore.session import Session  # type: ignore[import-untyped]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sealane.local.errors import LocalError
from sealane.local.http_server import Server, listen
from sealane.local.template import ACCOUNT_ID, REGION, Function, Key, Table, Template

Service: TypeAlias = Literal["dynamodb", "kms"]

REAL_AWS = "aws"
"""The endpoint URL that is none: the real AWS."""
CALLS_KEPT = 100_000
"""Calls that are remembered; older ones are forgotten, so that a long run does not grow."""
_TARGETS: dict[str, Service] = {"DynamoDB_20120810": "dynamodb", "TrentService": "kms"}
_DUMMY = "local"
_EMULATOR_TIMEOUT = 60
_MOTO_SERVER = Path(__file__).with_name("moto_server.py")


@dataclass(frozen=True)
class AwsCall:
    """One request of a function to DynamoDB or KMS. What boto3 sends again after an error is one more.

    Attributes:
        service: `dynamodb` or `kms`.
        operation: name of the operation, such as `PutItem`.
        function: the function's logical id.
        environment: number of the environment, counted from 1 for each function.
    """

    service: Service
    operation: str
    function: str
    environment: int


Fault: TypeAlias = Callable[[AwsCall], Awaitable[Response | None]]
"""What happens to a call in place of the service's answer; None lets it through."""


def slow(seconds: float) -> Fault:
    """A fault: the call is served this many seconds late."""

    async def wait(call: AwsCall) -> None:
        await asyncio.sleep(seconds)

    return wait


async def throttle(call: AwsCall) -> Response:
    """A fault: too many calls. boto3 tries again as it does on AWS.

    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html
    https://docs.aws.amazon.com/kms/latest/developerguide/throttling.html
    """
    if call.service == "dynamodb":
        text = "The level of configured provisioned throughput for the table was exceeded."
        return _error(call, 400, "ProvisionedThroughputExceededException", text)
    return _error(call, 400, "ThrottlingException", "You have exceeded the rate at which you may call KMS.")


async def absent(call: AwsCall) -> Response:
    """A fault: the service is out and answers 503. boto3 tries again as it does on AWS.

    https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/CommonErrors.html
    """
    return _error(call, 503, "ServiceUnavailable", "The service is temporarily unavailable.")


async def deny(call: AwsCall) -> Response:
    """A fault: the function's role does not allow the operation.

    https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/CommonErrors.html
    """
    role = f"arn:aws:sts::{ACCOUNT_ID}:assumed-role/local/{call.function}"
    text = f"User: {role} is not authorized to perform: {call.service}:{call.operation}"
    return _error(call, 400, "AccessDeniedException", text)


class AwsServices:
    """DynamoDB and KMS of a template, for as long as `serving()` lasts.

    Without tables, keys and an endpoint URL there is nothing to serve: no process starts, no port opens.

    Args:
        template: its tables, keys and aliases are made at the start, those that another emulator has already are kept.
        endpoint_url: another emulator to use instead of moto, or `aws` for the real AWS, where nothing is made.

    Attributes:
        endpoint_url: where the emulator itself is, None when none runs.
        variables: what functions need for the real AWS, the developer's credentials and region; else empty.

    Raises:
        LocalError: the endpoint URL is none, or is AWS (on construction).
    """

    def __init__(self, template: Template, endpoint_url: str | None = None) -> None:
        if endpoint_url is not None and endpoint_url != REAL_AWS:
            _check_emulator(endpoint_url)
        self._template = template
        self.variables: dict[str, str] = {}
        self._given_url = endpoint_url
        self.endpoint_url: str | None = None
        self._layer_url: str | None = None
        self._key_ids: dict[str, str] = {}
        self._calls: deque[AwsCall] = deque(maxlen=CALLS_KEPT)
        self._faults: list[_Injected] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Runs the emulator, if it is ours, and the layer in front of it.

        Raises:
            LocalError: there are no credentials for the real AWS, moto does not start, the emulator does not answer,
                or a table or key cannot be made.
        """
        if self._given_url == REAL_AWS:
            self.variables = await anyio.to_thread.run_sync(_own_credentials)
            yield
            return
        if not self._template.tables and not self._template.keys and self._given_url is None:
            yield
            return
        async with AsyncExitStack() as stack:
            emulator = self._given_url
            if emulator is None:
                emulator = await stack.enter_async_context(_moto())
            self.endpoint_url = emulator
            self._key_ids = await anyio.to_thread.run_sync(self._create)
            self._layer_url = await stack.enter_async_context(self._layer(emulator))
            try:
                yield
            finally:
                self.endpoint_url = self._layer_url = None

    def connect(self, function: Function) -> Function:
        """The function as it has to run: with the ids of the keys that were made, and where DynamoDB and KMS are."""
        if self._layer_url is None:
            return function
        variables = {name: self._with_key_ids(value) for name, value in function.variables.items()}
        return replace(function, variables=variables, services_url=f"{self._layer_url}/{function.name}")

    def calls(
        self,
        service: Service | None = None,
        operation: str | None = None,
        *,
        function: str | None = None,
        environment: int | None = None,
    ) -> tuple[AwsCall, ...]:
        """The functions' calls so far, in the order in which they came, also those that a fault answered.

        Args:
            service: only calls of this service.
            operation: only calls of this operation.
            function: only calls of this function (logical id).
            environment: only calls of the environments with this number.

        Raises:
            ValueError: there is no such service or operation.
        """
        self._check(service, operation)
        wanted = (service, operation, function, environment)
        return tuple(
            call
            for call in tuple(self._calls)
            if all(
                want in (None, has)
                for want, has in zip(
                    wanted, (call.service, call.operation, call.function, call.environment), strict=True
                )
            )
        )

    def fault(self, service: Service, fault: Fault, operation: str | None = None) -> ExitStack:
        """Injects a fault at once, until `restore()`, or until the block ends: `with aws.fault("kms", deny): …`.

        Args:
            service: the service that fails.
            fault: `slow(seconds)`, `throttle`, `absent`, `deny`, or a function of your own.
            operation: the one operation that fails, None for all.

        Raises:
            ValueError: there is no such service or operation.
        """
        self._check(service, operation)
        injected = _Injected(service, operation, fault)
        self._faults = [*self._faults, injected]
        block = ExitStack()
        block.callback(self._end, injected)
        return block

    def restore(self) -> None:
        """Ends every fault."""
        self._faults = []

    def client(self, service: Service) -> Any:
        """A boto3 client that talks to the emulator itself: its calls are not counted and meet no faults.

        The developer's own AWS configuration has no part in it.
        """
        return self._session.create_client(
            service,
            region_name=REGION,
            endpoint_url=self.endpoint_url,
            aws_access_key_id=_DUMMY,
            aws_secret_access_key=_DUMMY,
            # No proxy of the developer's stands between; an emulator that is not there is soon found out.
            config=Config(proxies={"http": None, "https": None}, connect_timeout=5, retries={"total_max_attempts": 2}),
        )

    @cached_property
    def _session(self) -> Any:
        nothing = (None, None, os.devnull, None)
        return Session({"profile": (None, None, None, None), "config_file": nothing, "credentials_file": nothing})

    def _check(self, service: str | None, operation: str | None) -> None:
        services = (service,) if service else tuple(_TARGETS.values())
        if service and service not in _TARGETS.values():
            raise ValueError(f"{service} is no service that is emulated here")
        if operation and not any(
            operation in self._session.get_service_model(each).operation_names for each in services
        ):
            raise ValueError(f"there is no operation {operation} of {' or '.join(services)}")

    def _end(self, injected: "_Injected") -> None:
        self._faults = [each for each in self._faults if each is not injected]

    def _with_key_ids(self, text: str) -> str:
        for planned, real in self._key_ids.items():
            text = text.replace(planned, real)
        return text

    def _create(self) -> dict[str, str]:
        """Makes what the emulator does not have yet; gives the keys' real ids by those in the template's values."""
        making: Table | Key | None = None
        try:
            key_ids = {}
            for making in self._template.keys:
                key_ids[making.id] = self._create_key(making)
            for making in self._template.tables:
                self._create_table(making)
        except (BotoCoreError, ClientError) as error:
            name = making.name if making else ""
            raise LocalError(f"{name} cannot be made at {self.endpoint_url}: {' '.join(str(error).split())}") from None
        return key_ids

    def _create_key(self, key: Key) -> str:
        """A key is known by its aliases; one that has none gets one, to be found again."""
        kms = self.client("kms")
        names = [alias.name for alias in self._template.aliases if alias.key_id == key.id]
        found = {}
        for name in names or [f"alias/local/{key.name}"]:
            try:
                found[name] = kms.describe_key(KeyId=name)["KeyMetadata"]["KeyId"]
            except kms.exceptions.NotFoundException:
                found[name] = None
        id: str = next(filter(None, found.values()), None) or kms.create_key(**key.definition)["KeyMetadata"]["KeyId"]
        for name, known in found.items():
            if known is None:
                kms.create_alias(AliasName=name, TargetKeyId=id)
        return id

    def _create_table(self, table: Table) -> None:
        dynamodb = self.client("dynamodb")
        try:
            dynamodb.create_table(**table.definition)
        except dynamodb.exceptions.ResourceInUseException:
            return
        name = table.physical_name
        dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        if table.ttl_attribute is not None:
            ttl = {"Enabled": True, "AttributeName": table.ttl_attribute}
            dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)

    @asynccontextmanager
    async def _layer(self, emulator: str) -> AsyncIterator[str]:
        """Serves the environments' endpoints on a free port; gives its URL."""
        import httpx2

        async def answer(request: Request) -> Response:
            return await self._answer(request, client)

        app = Starlette(routes=[Route("/{function}/{environment:int}", answer, methods=["POST"])])
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=24 * 3600)
        server = Server(config)
        client = httpx2.AsyncClient(
            base_url=emulator, trust_env=False, timeout=_EMULATOR_TIMEOUT, headers={"Accept-Encoding": "identity"}
        )
        with listen("127.0.0.1", 0) as listener:
            async with client:
                serving = asyncio.create_task(server.serve([listener]))
                try:
                    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
                finally:
                    server.should_exit = server.force_exit = True
                    with anyio.CancelScope(shield=True):
                        await serving

    async def _answer(self, request: Request, client: Any) -> Response:
        import httpx2

        prefix, _, operation = request.headers.get("x-amz-target", "").partition(".")
        if prefix not in _TARGETS:
            return JSONResponse({"__type": "UnknownOperationException"}, 400)
        call = AwsCall(_TARGETS[prefix], operation, **request.path_params)
        if f"Credential={_DUMMY}/" not in request.headers.get("authorization", ""):
            return _error(call, 400, "UnrecognizedClientException", "An emulator takes no real credentials.")
        self._calls.append(call)
        for injected in self._faults:
            if injected.service == call.service and injected.operation in (None, operation):
                refusal = await injected.fault(call)
                if refusal is not None:
                    return refusal
        try:
            response = await client.post("", content=await request.body(), headers=_aws_headers(request.headers))
        except httpx2.TransportError as error:
            return _error(call, 503, "ServiceUnavailable", f"The emulator does not answer: {error!r}")
        return Response(response.content, response.status_code, _aws_headers(response.headers))


@dataclass(frozen=True)
class _Injected:
    service: Service
    operation: str | None
    fault: Fault


@asynccontextmanager
async def _moto() -> AsyncIterator[str]:
    """Runs moto's server; gives its URL."""
    variables = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME") or key.startswith("PYTHON")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        str(_MOTO_SERVER),
        env=variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        line = await process.stdout.readline() if process.stdout else b""
        if not line:
            raise LocalError("moto, which emulates DynamoDB and KMS, does not start: see above")
        yield f"http://127.0.0.1:{int(line)}"
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()


def _check_emulator(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise LocalError(f"an endpoint URL is like http://127.0.0.1:8000, not {url!r}")
    host = f".{(parts.hostname or '').rstrip('.')}"
    outputs = [partition["outputs"] for partition in create_loader().load_data("partitions")["partitions"]]
    if any(host.endswith(f".{each[key]}") for each in outputs for key in ("dnsSuffix", "dualStackDnsSuffix")):
        raise LocalError(
            f"{url} is AWS, and would get dummy credentials: write --endpoint-url {REAL_AWS} to use your own"
        )


def _own_credentials() -> dict[str, str]:
    """The developer's credentials and region, as the SDKs find them, as variables of an environment."""
    session = Session()
    credentials, region = session.get_credentials(), session.get_config_variable("region")
    if credentials is None or region is None:
        missing = "credentials were" if credentials is None else "region was"
        raise LocalError(f"--endpoint-url {REAL_AWS} is the real AWS, and no AWS {missing} found")
    frozen = credentials.get_frozen_credentials()
    return {
        "AWS_ACCESS_KEY_ID": frozen.access_key,
        "AWS_SECRET_ACCESS_KEY": frozen.secret_key,
        "AWS_SESSION_TOKEN": frozen.token or "",
        "AWS_DEFAULT_REGION": region,
        "AWS_REGION": region,
    }


def _aws_headers(headers: Any) -> dict[str, str]:
    """The headers that AWS's services and SDKs read; the others belong to one connection."""
    return {
        name: value
        for name, value in headers.items()
        if name in ("authorization", "content-type") or name.startswith("x-amz")
    }


def _error(call: AwsCall, status: int, type: str, message: str) -> Response:
    """An error in the form of the JSON protocol.

    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.LowLevelAPI.html
    """
    version = "1.0" if call.service == "dynamodb" else "1.1"
    return JSONResponse({"__type": type, "message": message}, status, media_type=f"application/x-amz-json-{version}")
