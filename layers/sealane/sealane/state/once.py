"""Effects that happen at most once, however often a call is sent: Powertools' idempotency over the data table."""

import hashlib
import inspect
import json
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from sealane.bound import Bound
from sealane.policy.principal import current_principal
from sealane.state import aws
from sealane.state.errors import InProgress, InvalidValue, StateUnavailable, UnstorableResult
from sealane.state.table import MAX_TTL, Table, expiry, partition

__all__ = ["MAX_RESULT", "CallIdentity", "InvocationTime", "call_identity", "once"]

logger = logging.getLogger(__name__)

MAX_RESULT: Final = 400_000
"""Bytes of a result as it lies in the table, as JSON in ASCII; the item that it is in may have 409,600.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html"""

_LEASE: Final = 60.0
"""Seconds that an unfinished effect blocks a repeat where no Lambda invocation ends it."""

_CONDITION_FAILED: Final = ("ConditionalCheckFailedException",)


class InvocationTime(Protocol):
    """The part of Lambda's context object that `once` uses."""

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until Lambda ends the invocation."""


@dataclass(frozen=True)
class CallIdentity:
    """What makes two calls of one principal the same.

    Attributes:
        method: the MCP method, such as `tools/call`.
        name: the tool or prompt by its name, the resource by its URI.
        arguments: the arguments as the client sent them; none and an empty mapping are the same.
        state: the request state as the client sent it; `None` if it sent none.
        lambda_context: Lambda's context object; `None` when not invoked by Lambda. Not a part of what is compared.
    """

    method: str
    name: str
    arguments: Mapping[str, object] | None = field(default=None, repr=False)
    state: str | None = field(default=None, repr=False)
    lambda_context: InvocationTime | None = field(default=None, repr=False, compare=False)


class _Call:
    """The call that is being served."""

    def __init__(self, identity: CallIdentity) -> None:
        self.identity = identity
        self.has_result = False
        """Whether an effect without a key has ended in it."""


_call: ContextVar[_Call | None] = ContextVar("sealane_call", default=None)


def call_identity(identity: CallIdentity) -> "Bound[_Call | None]":
    """Make `identity` what `once` goes by inside a `with` block, which serves one call."""
    return Bound(_call, _Call(identity))


async def once(
    effect: Callable[[], object],
    *,
    key: str | None = None,
    ttl: float = 86_400,
    lease: float | None = None,
    table: Table | None = None,
) -> Any:
    """Carry out `effect` unless that was done before for this call; its result, the stored one on a repeat.

        @catalog.tool()
        async def pay(order: str) -> str:
            return await once(lambda: bank.pay(order), key=order)

    Two calls are the same when principal, method, name (of the tool), arguments and request state are; with a `key`,
    when principal, method, name and key are. A call that has several effects, or that may be meant twice, needs keys.
    Callers who are not signed in are one principal: what one of them did once, another is given the result of.

    An exception of the effect comes out as it is, and the call can be made again. So can, after `lease`, one whose
    environment vanished on the way. A cancelled call still finishes an effect that has begun, for a repeat to find its
    result: limit the effect's time inside `effect`, not around `once`.

    While the environment variable `POWERTOOLS_IDEMPOTENCY_DISABLED` is true, Powertools lets every call through and
    warns: for development.

    Args:
        effect: called without arguments, in the request's context and in a worker thread, so it may block. What it
            returns is awaited on the request's event loop if it can be. Its result is a JSON value, and is returned as
            JSON has it: a tuple as a list.
        key: tells this effect from others of the same principal, method and name. Only its hash is kept.
        ttl: seconds that a repeat gets the stored result.
        lease: seconds that an effect which has not ended keeps others from starting it; longer than it can take. By
            default what remains of the Lambda invocation, without one 60.
        table: the data table; by default the stack's.

    Raises:
        InProgress: the effect is being carried out; this call did not.
        StateUnavailable: the table did not answer; the effect was not carried out.
        UnstorableResult: the effect was carried out, but its result is not JSON or too large; on a repeat the same,
            without carrying it out.
        InvalidValue: for a bad `key`, `ttl` or `lease`, for no key outside of `call_identity`, and for a second effect
            without a key in one call; the effect was not carried out.
        StateNotConfigured: there is no table.

    Source: https://docs.aws.amazon.com/powertools/python/latest/utilities/idempotency/
    """
    expiry(ttl)
    if lease is not None and not 0 < lease <= MAX_TTL:
        raise InvalidValue(f"lease is a time in seconds, above 0: got {lease!r}.")
    call = _call.get()
    attempt = _Attempt(
        effect,
        subject=_subject(call, key),
        partition_key=partition("once", current_principal()),
        table_name=(table or Table()).name,
        ttl=ttl,
        time_left=_time_left(call, lease),
    )
    await anyio.lowlevel.checkpoint()
    with anyio.CancelScope(shield=True):
        # The thread is held while the effect runs. It counts towards no limit: effects that need threads themselves
        # would wait for each other.
        outcome = await anyio.to_thread.run_sync(attempt.carry_out, limiter=anyio.CapacityLimiter(1))
    if call is not None and key is None:
        call.has_result = True
    return _decode(outcome)


def _subject(call: _Call | None, key: str | None) -> dict[str, str | None]:
    """What Powertools hashes; it keeps and logs nothing else of it."""
    if key is not None:
        if not isinstance(key, str) or not key:
            raise InvalidValue("key is a text that is not empty.")
        if call is None:
            return {"key": key}
        return {"method": call.identity.method, "name": call.identity.name, "key": key}
    if call is None:
        raise InvalidValue("Outside of a call there is nothing to tell a repeat by: give a key.")
    if call.has_result:
        raise InvalidValue("This call has had an effect without a key: give each of its effects a key of its own.")
    arguments = json.dumps(dict(call.identity.arguments or {}), sort_keys=True)
    return {
        "method": call.identity.method,
        "name": call.identity.name,
        "arguments": hashlib.sha256(arguments.encode()).hexdigest(),
        "state": call.identity.state,
    }


def _time_left(call: _Call | None, lease: float | None) -> InvocationTime:
    if lease is None and call is not None and call.identity.lambda_context is not None:
        return call.identity.lambda_context
    return _Lease(lease or _LEASE)


class _Lease:
    """A time that Powertools takes for what remains of a Lambda invocation."""

    def __init__(self, seconds: float) -> None:
        self._milliseconds = math.ceil(seconds * 1000)

    def get_remaining_time_in_millis(self) -> int:
        return self._milliseconds


class _EffectFailed(Exception):
    """Has Powertools remove the record, which it does for an `Exception` only."""


class _Attempt:
    """One call's attempt at an effect. It knows what the effect did, whatever becomes of the record."""

    def __init__(
        self,
        effect: Callable[[], object],
        *,
        subject: dict[str, str | None],
        partition_key: str,
        table_name: str,
        ttl: float,
        time_left: InvocationTime,
    ) -> None:
        self._effect = effect
        self._subject = subject
        self._partition_key = partition_key
        self._table_name = table_name
        self._ttl = ttl
        self._time_left = time_left
        self._outcome = ""
        self._failure: BaseException | None = None

    def carry_out(self) -> str:
        """The encoded outcome, of this attempt or of the one that was first. Runs in a worker thread of anyio."""
        # Imported here, with boto3: a server that has no such effects does not pay for it.
        from aws_lambda_powertools.utilities.idempotency import (
            DynamoDBPersistenceLayer,
            IdempotencyConfig,
            idempotent_function,
        )
        from aws_lambda_powertools.utilities.idempotency.exceptions import (
            IdempotencyAlreadyInProgressError,
            IdempotencyInconsistentStateError,
            IdempotencyPersistenceLayerError,
        )

        # A record must not be gone before its lease is.
        kept = max(self._ttl, self._time_left.get_remaining_time_in_millis() / 1000)
        config = IdempotencyConfig(hash_function="sha256", expires_after_seconds=math.ceil(kept))
        config.register_lambda_context(self._time_left)  # type: ignore[arg-type]
        layer = DynamoDBPersistenceLayer(
            self._table_name,
            key_attr="pk",
            static_pk_value=self._partition_key,
            sort_key_attr="sk",
            expiry_attr="expires_at",
            in_progress_expiry_attr="in_progress_until",
            data_attr="result",
            boto3_client=_Records(),
        )

        try:
            outcome: str = idempotent_function(
                self._run, data_keyword_argument="subject", persistence_store=layer, config=config, key_prefix="call"
            )(subject=self._subject)
            return outcome
        except (IdempotencyAlreadyInProgressError, IdempotencyInconsistentStateError):
            raise InProgress(
                "This is being done at the moment. Make the same call again in a few seconds: that is safe, and gives "
                "its result."
            ) from None
        except _EffectFailed:
            pass
        except IdempotencyPersistenceLayerError as error:
            if not self._outcome and self._failure is None:
                raise StateUnavailable(
                    "Nothing was done: the stored data is out of reach at the moment. Make the same call again in a "
                    "few seconds."
                ) from error
            logger.error(
                "an effect has ended, but its record stays in progress: a repeat is refused until its lease is over, "
                "and carries it out again then"
            )
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def _run(self, *, subject: object) -> str:
        try:
            result = self._effect()
            if inspect.isawaitable(result):
                result = anyio.from_thread.run(self._await, result)
        except BaseException as error:
            self._failure = self._failure or error
            raise _EffectFailed from None
        self._outcome = _encode(result)
        return self._outcome

    async def _await(self, awaitable: Awaitable[object]) -> object:
        try:
            return await awaitable
        except BaseException as error:
            # What reaches the thread of a cancellation is another exception.
            self._failure = error
            raise


class _Records:
    """The DynamoDB client that Powertools gets: the clients of `state.aws`, and each record marked with its attempt.

    Powertools completes and removes records without a condition: an effect that outlived its lease would undo what the
    attempt after it had stored. It also makes the user agent of a client longer each time that it is given one.
    """

    def __init__(self) -> None:
        self._attempt = {"S": secrets.token_hex(16)}

    def put_item(self, *, Item: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        from botocore.exceptions import ClientError  # type: ignore[import-untyped]

        item = {**Item, "attempt": self._attempt}
        try:
            return aws.call_blocking("dynamodb", "put_item", expected=_CONDITION_FAILED, Item=item, **arguments)
        except aws.AwsRefusal as refusal:
            if refusal.response.get("Item", {}).get("attempt") == self._attempt:
                # It was written, the answer was lost, and botocore has tried again.
                return {}
            raise ClientError(refusal.response, "PutItem") from None

    def get_item(self, **arguments: Any) -> dict[str, Any]:
        return aws.call_blocking("dynamodb", "get_item", **arguments)

    def update_item(self, **arguments: Any) -> dict[str, Any]:
        return self._end("update_item", **arguments)

    def delete_item(self, **arguments: Any) -> dict[str, Any]:
        return self._end("delete_item", **arguments)

    def _end(
        self,
        operation: str,
        *,
        ExpressionAttributeNames: Mapping[str, str] | None = None,
        ExpressionAttributeValues: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        try:
            return aws.call_blocking(
                "dynamodb",
                operation,
                expected=_CONDITION_FAILED,
                ConditionExpression="attribute_not_exists(#pk) OR #attempt = :attempt",
                ExpressionAttributeNames={**(ExpressionAttributeNames or {}), "#pk": "pk", "#attempt": "attempt"},
                ExpressionAttributeValues={**(ExpressionAttributeValues or {}), ":attempt": self._attempt},
                **arguments,
            )
        except aws.AwsRefusal:
            logger.error("an effect took longer than its lease, and another call has started it too")
            return {}


def _encode(result: object) -> str:
    """What is stored: a text of its own, for Powertools takes empty results for `None` and sorts keys."""
    try:
        text = json.dumps({"result": result}, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"is not a JSON value: {error}"
    else:
        size = len(json.dumps(text))
        if size <= MAX_RESULT:
            return text
        problem = f"is too large to be kept: {size} bytes, {MAX_RESULT} fit"
    return json.dumps({"problem": f"This was done, and will not be done again, but its result {problem}."})


def _decode(outcome: str) -> Any:
    decoded: dict[str, Any] = json.loads(outcome)
    if "problem" in decoded:
        raise UnstorableResult(decoded["problem"])
    return decoded["result"]
