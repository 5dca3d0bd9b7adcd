"""Calls to DynamoDB and KMS: off the event loop, bounded in time, with one error for "it is not available"."""

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, Literal, get_args

import anyio
import anyio.lowlevel

from sealane import snapshot, telemetry
from sealane.state.deadline import seconds_left
from sealane.state.errors import StateNotConfigured, StateUnavailable

__all__ = ["AwsRefusal", "Service", "call", "call_blocking", "forget_clients", "setting"]

logger = logging.getLogger(__name__)

Service = Literal["dynamodb", "kms"]

_CONNECT_TIMEOUT: Final = 1.0
"""Seconds."""
_READ_TIMEOUT: Final = 3.0
"""Seconds; both services answer within milliseconds or not at all."""
_ATTEMPTS: Final = 3
"""The first included: with the waits between, an outage is known within 14 seconds, half of what API Gateway waits."""
_LAST_WORDS: Final = 0.2
"""Seconds before the end of an invocation's time at which a call is given up: its failure is still told in words."""
_NO_TIME: Final = "the time of the invocation is up"

_THREADS: Final = ThreadPoolExecutor(40, "aws")
"""Where calls wait. Nothing else bounds the whole of one: a name that is looked up, a body that trickles, a retry."""
_making = threading.Lock()


class AwsRefusal(Exception):
    """An error answer that the caller of `call` expects.

    Attributes:
        code: the error code, such as `ConditionalCheckFailedException`.
        response: the whole answer, as botocore gives it.
    """

    def __init__(self, code: str, response: dict[str, Any]) -> None:
        self.code = code
        self.response = response
        super().__init__(code)


async def call(
    service: Service, operation: str, /, *, expected: Collection[str] = (), **arguments: Any
) -> dict[str, Any]:
    """The answer of one operation, within the time that the invocation has left. A cancellation waits for it.

    Args:
        service: the service.
        operation: the operation by its name in botocore, such as `get_item`.
        expected: error codes that the caller knows what to do with.
        arguments: the operation's parameters.

    Raises:
        AwsRefusal: the service answered with an expected error.
        StateUnavailable: any other failure; what it was is in the log, without keys and values.
    """
    await anyio.lowlevel.checkpoint()
    answer = _begin(service, operation, expected, arguments)
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _patience()):
        return await asyncio.wrap_future(answer)
    raise _unavailable(service, operation, _NO_TIME)


def call_blocking(
    service: Service, operation: str, /, *, expected: Collection[str] = (), **arguments: Any
) -> dict[str, Any]:
    """`call` for code that has a thread to wait in."""
    try:
        return _begin(service, operation, expected, arguments).result(min(_patience(), threading.TIMEOUT_MAX))
    except TimeoutError:
        raise _unavailable(service, operation, _NO_TIME) from None


def setting(variable: str) -> str:
    """The value of an environment variable that the template sets.

    Raises:
        StateNotConfigured: it is not set.
    """
    value = os.environ.get(variable)
    if not value:
        raise StateNotConfigured(
            f"the environment variable {variable} is not set. template.yaml sets it, on Lambda and in `make run`; code "
            f"that runs elsewhere sets it itself, or says at construction what it stands for"
        )
    return value


def forget_clients() -> None:
    """Make fresh clients, and with them fresh connections and credentials, at the next call."""
    _client.cache_clear()


def _load_clients() -> None:
    """Load what the first call would load, which is half a second. No service is called."""
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

    try:
        for service in get_args(Service):
            _client(service)
    except BotoCoreError as error:
        logger.warning("clients cannot be made ahead of the snapshot: %s", type(error).__name__)


snapshot.before_snapshot(_load_clients)
snapshot.after_restore(forget_clients)


def _begin(
    service: Service, operation: str, expected: Collection[str], arguments: dict[str, Any]
) -> Future[dict[str, Any]]:
    return _THREADS.submit(copy_context().run, _call, service, operation, expected, arguments)


def _patience() -> float:
    """Seconds that a call may take."""
    return max(seconds_left() - _LAST_WORDS, 0)


def _call(service: Service, operation: str, expected: Collection[str], arguments: dict[str, Any]) -> dict[str, Any]:
    # Imported here: a server that keeps nothing does not pay for it.
    from botocore.exceptions import BotoCoreError, ClientError

    if service == "kms":
        telemetry.count("KmsCalls")
    try:
        with _making:
            client = _client(service)
        with telemetry.aws_call(service, operation):
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        return answer
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in expected:
            raise AwsRefusal(code, error.response) from None
        reason = code
    except (BotoCoreError, TimeoutError) as error:
        reason = type(error).__name__
    raise _unavailable(service, operation, reason)


def _unavailable(service: Service, operation: str, reason: str) -> StateUnavailable:
    logger.error("%s %s failed: %s", service, operation, reason)
    telemetry.current().explain(f"{service} {operation}: {reason}")
    return StateUnavailable("The stored data is out of reach at the moment. Try the same call again in a few seconds.")


def _send_in_time(**_: object) -> None:
    """Keep a call that nobody waits for any more from trying again, perhaps when the environment is thawed.

    Raises:
        TimeoutError: the time of the invocation is up.
    """
    if not _patience():
        raise TimeoutError


@functools.cache
def _client(service: Service) -> Any:
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.session import get_session  # type: ignore[import-untyped]

    # At DEBUG it logs whole answers: items, and what KMS has unwrapped.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    session = get_session()
    session.register_component("data_loader", _data_loader())
    client = session.create_client(
        service,
        config=Config(
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=_READ_TIMEOUT,
            # Not "adaptive": after one throttled answer that makes every call of the environment wait, for seconds at
            # its low rate, and an environment serves one request at a time, which then runs out of time.
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            # Environments are frozen for hours: a connection that died meanwhile is replaced, not waited for.
            tcp_keepalive=True,
        ),
    )
    client.meta.events.register("before-send", _send_in_time)
    return client


@functools.cache
def _data_loader() -> Any:
    """What reads, once, the files in which botocore describes the services."""
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader()
