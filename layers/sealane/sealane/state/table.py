"""The stack's data table: items of one principal together, each with the time at which it is gone."""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from sealane.policy.principal import Principal
from sealane.state import aws
from sealane.state.errors import InvalidValue

__all__ = ["TABLE_VARIABLE", "Table", "expiry", "partition"]

TABLE_VARIABLE: Final = "SEALANE_TABLE"
"""Name of the data table. No default."""

MAX_PARTITION_KEY: Final = 2048
"""Bytes. https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html"""
MAX_TTL: Final = 10 * 365 * 86_400
"""Seconds. Far beyond it lies only what was meant as milliseconds."""
_REFUSALS: Final = ("ConditionalCheckFailedException",)

Item = Mapping[str, Any]


class Table:
    """The data table: partition key `pk`, sort key `sk`, TTL attribute `expires_at` in epoch seconds.

    Args:
        name: the table's name; by default what the environment variable `SEALANE_TABLE` says when it is used.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The table's name.

        Raises:
            StateNotConfigured: none was given, by argument or variable.
        """
        return self._name or aws.setting(TABLE_VARIABLE)

    async def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        """The answer of one DynamoDB operation on this table.

        Raises:
            AwsRefusal: the operation's condition did not hold.
            StateUnavailable: anything else.
        """
        return await aws.call("dynamodb", operation, expected=_REFUSALS, TableName=self.name, **arguments)

    def call_blocking(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        """`call` for code that has a thread to wait in."""
        return aws.call_blocking("dynamodb", operation, expected=_REFUSALS, TableName=self.name, **arguments)


def partition(kind: str, principal: Principal | None) -> str:
    """The partition key of what `principal` keeps of a kind; `None` is anyone.

    Raises:
        InvalidValue: the principal's parts are longer than a key can be.
    """
    owner = "anyone" if principal is None else json.dumps(principal, separators=(",", ":"))
    key = f"{kind}#{owner}"
    if len(key.encode()) > MAX_PARTITION_KEY:
        raise InvalidValue(
            f"The caller's client id, issuer and subject together are too long to keep data under: "
            f"{len(key.encode())} bytes, {MAX_PARTITION_KEY} fit."
        )
    return key


def expiry(ttl: float) -> int:
    """The value of `expires_at` for something kept `ttl` seconds from now, in epoch seconds.

    DynamoDB removes items by an attribute in seconds and ignores one in milliseconds:
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/time-to-live-ttl-before-you-start.html

    Raises:
        InvalidValue: not a positive number of seconds up to ten years, such as an epoch time or milliseconds.
    """
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= MAX_TTL:
        raise InvalidValue(f"ttl is a time from now in seconds, above 0 and up to {MAX_TTL} (ten years): got {ttl!r}.")
    return int(time.time() + ttl) + 1
