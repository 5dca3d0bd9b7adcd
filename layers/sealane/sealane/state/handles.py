"""Application data between requests, behind handles that only their principal can use."""

import base64
import hashlib
import json
import math
import re
import secrets
import sys
import time
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, NewType, TypeAlias

from sealane.policy.principal import Principal, current_principal
from sealane.state.aws import AwsRefusal
from sealane.state.errors import HandleNotFound, InvalidValue, NoPrincipal, StaleVersion
from sealane.state.table import Item, Table, expiry, partition

__all__ = ["ANYONE", "Entry", "Handle", "HandleStore", "JsonValue", "Page"]

ANYONE: Final = "anyone"
"""The owner of data that whoever knows the handle may read, change and delete."""

MAX_DEPTH: Final = 100
"""Objects and arrays inside each other; Python's JSON reader takes some hundred, and other readers fewer."""
MAX_ITEM: Final = 400 * 1024
"""Bytes, names and values. https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html"""
MAX_PAGE: Final = 100

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""What JSON can say."""

Handle = NewType("Handle", str)
"""An unguessable name of application data: a text that can be given to a model and comes back as it was."""

_TOKEN_BYTES: Final = 24
_ANYONES: Final = "any."
"""What anyone's handles begin with; no principal's has a full stop."""
_HANDLE: Final = re.compile(r"(any\.)?[A-Za-z0-9_-]{32}")
_KIND: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WRITE_ID_BYTES: Final = 12
_REST: Final = sum(map(len, ("pk", "sk", "value", "version", "expires_at", "write_id"))) + 2 * 21 + 16
"""Bytes of an item beside its key and value: names, two numbers of up to 21 bytes, a write id.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html"""
_MAX_VERSION: Final = 10**15

_NOT_FOUND: Final = (
    "There is no such handle for this caller: it was never made, has expired, was deleted or belongs to somebody else. "
    "Use a handle exactly as it was given out, or make a new one."
)


class Entry(NamedTuple):
    """What is kept behind a handle.

    Attributes:
        value: the data.
        version: counts the writes, from 1; `put` takes it.
        expires_at: when the data is gone, in epoch seconds.
    """

    value: JsonValue
    version: int
    expires_at: int


class Page(NamedTuple):
    """A part of a list.

    Attributes:
        handles: some of the caller's handles, in no order that means anything; may be empty before the last page.
        cursor: what `list` takes to go on; None after the last page.
    """

    handles: list[Handle]
    cursor: str | None


class HandleStore:
    """Application data of one kind in the stack's data table.

        notebooks = HandleStore("notebook")

        handle = await notebooks.create({"notes": []}, ttl=86_400)
        entry = await notebooks.get(handle)
        await notebooks.put(handle, {"notes": ["milk"]}, version=entry.version)

    Data belongs to the principal that it was created under: the same client id, issuer and subject have to be the
    caller of every later request (`current_principal`). Values are JSON and come back equal, or are refused.

    Args:
        kind: what the data is; handles of one kind are unknown to every other. Up to 64 letters, digits, `_` and `-`.
        table: the table; by default the stack's.

    Raises:
        ValueError: the kind is none (on construction).
    """

    def __init__(self, kind: str, *, table: Table | None = None) -> None:
        if not _KIND.fullmatch(kind):
            raise ValueError(f"a kind is 1 to 64 letters, digits, _ and -: {kind!r}")
        self.kind = kind
        self._table = table or Table()

    async def create(self, value: object, *, ttl: float, owner: Literal["anyone"] | None = None) -> Handle:
        """Keep a value; its handle is minted here, from 192 random bits.

        Args:
            value: the data, as JSON: objects with text keys, arrays, texts, finite numbers, true, false and null.
            ttl: how long it is kept, in seconds from now.
            owner: `ANYONE` gives the value to whoever knows the handle; by default it is the caller's.

        Raises:
            NoPrincipal: the caller is not known and `owner` is not `ANYONE`.
            InvalidValue: the value is not JSON or too long, `ttl` is no time in seconds, or the caller's client id,
                issuer and subject are too long; nothing was called.
            StateUnavailable: the table is out of reach; the value may be kept all the same, until `ttl` is over.
        """
        principal = None if owner == ANYONE else current_principal()
        if principal is None and owner != ANYONE:
            raise NoPrincipal(
                f"The caller is not known, so this {self.kind} would belong to nobody. Author of this server: have "
                f"callers sign in, or, if the server is open on purpose, write create(..., owner=ANYONE), and whoever "
                f"knows the handle can use it."
            )
        handle = Handle((_ANYONES if principal is None else "") + secrets.token_urlsafe(_TOKEN_BYTES))
        key = self._key_of(principal, handle)
        item = {
            **key,
            "value": {"S": _text(value, key)},
            "version": {"N": "1"},
            "expires_at": {"N": str(expiry(ttl))},
        }
        # Nobody else mints this handle. If it exists, botocore sent the write again after an answer that was lost.
        with suppress(AwsRefusal):
            await self._table.call("put_item", Item=item, ConditionExpression="attribute_not_exists(sk)")
        return handle

    async def get(self, handle: str) -> Entry:
        """The value as it is now, with its version and the time at which it is gone.

        Raises:
            HandleNotFound: there is no such handle for this caller, or it has expired.
            InvalidValue: the caller's client id, issuer and subject are too long; nothing was called.
            StateUnavailable: the table is out of reach.
        """
        answer = await self._table.call("get_item", Key=self._key(handle), ConsistentRead=True)
        item: Item = answer.get("Item", {})
        if not _is_live(item):
            raise HandleNotFound(_NOT_FOUND)
        return _entry(item)

    async def put(self, handle: str, value: object, *, version: int, ttl: float | None = None) -> Entry:
        """Replace the value, if it still is the one that was read.

        Args:
            handle: the handle.
            value: the new data, as for `create`.
            version: the version of the entry that the new value was made from.
            ttl: how long the data is kept, in seconds from now; by default as long as before.

        Raises:
            StaleVersion: somebody wrote in between. In one case this write was carried out and then replaced: its
                answer was lost, and before it could be sent again somebody had read its value and written another.
            HandleNotFound: there is no such handle for this caller, or it has expired.
            InvalidValue: the value is not JSON or too long, `version` or `ttl` is none; nothing was called.
            StateUnavailable: the table is out of reach; the value may have been replaced or not.
        """
        key = self._key(handle)
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= _MAX_VERSION:
            raise InvalidValue("version is the number that came with the value when it was read.")
        write_id = secrets.token_urlsafe(_WRITE_ID_BYTES)
        update = "SET #value = :value, version = :next, write_id = :write_id"
        values = {
            ":value": {"S": _text(value, key)},
            ":version": {"N": str(version)},
            ":next": {"N": str(version + 1)},
            ":write_id": {"S": write_id},
            ":now": _now(),
        }
        if ttl is not None:
            update += ", expires_at = :expires_at"
            values[":expires_at"] = {"N": str(expiry(ttl))}
        try:
            answer = await self._table.call(
                "update_item",
                Key=key,
                UpdateExpression=update,
                ConditionExpression="version = :version AND expires_at > :now",
                ExpressionAttributeNames={"#value": "value"},
                ExpressionAttributeValues=values,
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except AwsRefusal as refusal:
            item: Item = refusal.response.get("Item", {})
            if not _is_live(item):
                raise HandleNotFound(_NOT_FOUND) from None
            if item.get("write_id") != {"S": write_id}:
                raise StaleVersion(
                    f"The value was changed since version {version} was read, and nothing was overwritten. "
                    f"Read it again and make the change to what it is now."
                ) from None
            # botocore sent the write again after an answer that was lost; it met its own result.
            return _entry(item)
        return _entry(answer["Attributes"])

    async def touch(self, handle: str, *, ttl: float) -> None:
        """Keep the data `ttl` seconds from now, be that longer or shorter than before. The version stays.

        Raises:
            HandleNotFound: there is no such handle for this caller, or it has expired.
            InvalidValue: `ttl` is no time in seconds; nothing was called.
            StateUnavailable: the table is out of reach.
        """
        try:
            await self._table.call(
                "update_item",
                Key=self._key(handle),
                UpdateExpression="SET expires_at = :expires_at",
                ConditionExpression="expires_at > :now",
                ExpressionAttributeValues={":expires_at": {"N": str(expiry(ttl))}, ":now": _now()},
            )
        except AwsRefusal:
            raise HandleNotFound(_NOT_FOUND) from None

    async def delete(self, handle: str) -> None:
        """Delete the data.

        Raises:
            HandleNotFound: there is no such handle for this caller, or it has expired.
            InvalidValue: the caller's client id, issuer and subject are too long; nothing was called.
            StateUnavailable: the table is out of reach.
        """
        try:
            await self._table.call(
                "delete_item",
                Key=self._key(handle),
                ConditionExpression="expires_at > :now",
                ExpressionAttributeValues={":now": _now()},
            )
        except AwsRefusal as refusal:
            # After a lost answer the deletion was sent again, and finds nothing left to delete.
            if refusal.response["ResponseMetadata"]["RetryAttempts"] == 0:
                raise HandleNotFound(_NOT_FOUND) from None

    async def list(self, *, limit: int = 50, cursor: str | None = None) -> Page:
        """One page of the caller's own handles; those that are anyone's are never listed.

        Args:
            limit: handles in the page at most, up to 100. A page may have fewer although more follow, for DynamoDB
                reads at most 1 MB of values for one page:
                https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Query.Pagination.html
            cursor: the cursor of the page before; None for the first page.

        Raises:
            NoPrincipal: the caller is not known.
            InvalidValue: `limit` is out of range, the cursor is none of this caller's and kind; nothing was called.
            StateUnavailable: the table is out of reach.
        """
        principal = current_principal()
        if principal is None:
            raise NoPrincipal(
                f"The caller is not known, so there is no {self.kind} that could be listed for it. Author of this "
                f"server: have callers sign in."
            )
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
            raise InvalidValue(f"limit is a whole number from 1 to {MAX_PAGE}.")
        pk = self._partition(principal)
        start = {}
        if cursor is not None:
            start["ExclusiveStartKey"] = {"pk": {"S": pk}, "sk": {"S": _position(pk, cursor)}}
        answer = await self._table.call(
            "query",
            KeyConditionExpression="pk = :pk",
            FilterExpression="expires_at > :now",
            ProjectionExpression="sk",
            ExpressionAttributeValues={":pk": {"S": pk}, ":now": _now()},
            ConsistentRead=True,
            Limit=limit,
            **start,
        )
        last = answer.get("LastEvaluatedKey")
        return Page(
            [Handle(item["sk"]["S"]) for item in answer["Items"]],
            None if last is None else _cursor(pk, last["sk"]["S"]),
        )

    def _key(self, handle: str) -> dict[str, Any]:
        """The key of the item that this caller may use by this handle."""
        if not isinstance(handle, str) or not _HANDLE.fullmatch(handle):
            raise HandleNotFound(_NOT_FOUND)
        if handle.startswith(_ANYONES):
            return self._key_of(None, handle)
        principal = current_principal()
        if principal is None:
            raise HandleNotFound(_NOT_FOUND)
        return self._key_of(principal, handle)

    def _key_of(self, principal: Principal | None, handle: str) -> dict[str, Any]:
        return {"pk": {"S": self._partition(principal)}, "sk": {"S": handle}}

    def _partition(self, principal: Principal | None) -> str:
        return partition(f"handle:{self.kind}", principal)


def _now() -> dict[str, str]:
    return {"N": str(int(time.time()))}


def _is_live(item: Item) -> bool:
    return bool(item) and int(item["expires_at"]["N"]) > int(time.time())


def _entry(item: Item) -> Entry:
    return Entry(json.loads(item["value"]["S"]), int(item["version"]["N"]), int(item["expires_at"]["N"]))


def _cursor(pk: str, last: str) -> str:
    # No secret, and none is needed: whatever a cursor says, the query stays in the caller's own partition. The digest
    # only tells apart what leads on here and what was cut, made up or given to another caller or kind.
    digest = hashlib.sha256(f"{pk}\n{last}".encode()).digest()[:18]
    return last + base64.urlsafe_b64encode(digest).decode()


def _position(pk: str, cursor: str) -> str:
    """The handle that the page before ended with."""
    last = cursor[:32] if isinstance(cursor, str) else ""
    if not _HANDLE.fullmatch(last) or cursor != _cursor(pk, last):
        raise InvalidValue(
            "The cursor does not belong to this list. Use the one of the page before, unchanged, or start without one."
        )
    return last


def _text(value: object, key: Item) -> str:
    """The value as JSON text that fits into the item with this key."""
    _check(value)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        # The only kind that json itself refuses after the check; its reader would refuse it too.
        raise InvalidValue(f"An integer is too long: {sys.get_int_max_str_digits()} digits fit.") from None
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        # Half characters (lone surrogates) have no UTF-8; as escapes they are kept.
        text = json.dumps(value, separators=(",", ":"))
        encoded = text.encode()
        if json.loads(text) != value:
            raise InvalidValue(
                "A text has a character in two halves (surrogates). Write it as one character."
            ) from None
    used, allowed = len(encoded), MAX_ITEM - _REST - len(key["pk"]["S"]) - len(key["sk"]["S"])
    if used > allowed:
        raise InvalidValue(
            f"The value is too long: {used} bytes as JSON, {allowed} fit. Shorten it or split it into several."
        )
    return text


def _check(value: object, depth: int = 0) -> None:
    """Refuse what JSON does not say, or says otherwise."""
    match value:
        case None | bool() | int() | str():
            pass
        case float():
            if not math.isfinite(value):
                raise InvalidValue("The value is not JSON: a number in it is infinite or NaN. null can stand for it.")
        case dict() | list() if depth == MAX_DEPTH:
            raise InvalidValue(f"The value is nested too deep: {MAX_DEPTH} levels fit. Make it flatter.")
        case dict():
            for name, item in value.items():
                if not isinstance(name, str):
                    raise InvalidValue(
                        f"The value is not JSON: a key in it is of type {type(name).__name__}. Keys are texts."
                    )
                _check(item, depth + 1)
        case list():
            for item in value:
                _check(item, depth + 1)
        case _:
            raise InvalidValue(
                f"The value is not JSON: something in it is of type {type(value).__name__}. JSON has dict, list, str, "
                f"int, float, bool and None."
            )
