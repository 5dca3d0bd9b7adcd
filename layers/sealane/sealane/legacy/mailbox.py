"""What clients send to a running call: replies, progress, cancellations; posted in one environment, read in another."""

import hashlib
import json
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from sealane.errors import RequestId
from sealane.legacy.texts import get_texts, legacy_table, put_text
from sealane.state.aws import AwsRefusal
from sealane.state.table import Table

__all__ = ["ENDED", "DynamoDBMailbox", "InMemoryMailbox", "Mail", "Mailbox", "cancellation_of"]

ENDED: Final = "ended"
"""The address at which all calls of a session learn that it has ended."""

_KEPT: Final = 900.0
"""Seconds; no call runs longer."""


class Mail(NamedTuple):
    """Something that was posted.

    Attributes:
        address: for whom.
        key: tells it apart from what else is posted there, and gives the order.
        message: JSON.
    """

    address: str
    key: str
    message: str


def cancellation_of(request_id: RequestId) -> str:
    """The address at which a call learns that its client does not want it any more."""
    return f"cancel-{hashlib.sha256(json.dumps(request_id).encode()).hexdigest()[:32]}"


class Mailbox(Protocol):
    """The mailboxes of all sessions."""

    async def post(self, session_id: str, address: str, message: str, key: str | None = None) -> None:
        """Leave a message.

        Args:
            key: what is posted twice under one key counts once; by default each message counts, in the order of time.
        """
        ...

    async def collect(self, session_id: str, addresses: Collection[str]) -> list[Mail]:
        """What there is for `addresses`."""
        ...

    async def discard(self, session_id: str, mail: Mail) -> None:
        """Remove what was collected and done with."""
        ...


def _in_order_of_time() -> str:
    return f"{time.time_ns():020}-{secrets.token_hex(4)}"


class DynamoDBMailbox:
    """`Mailbox` over the lane's table. What nobody collects is gone after a quarter of an hour.

    Args:
        table: the table; by default the lane's.
    """

    def __init__(self, table: Table | None = None) -> None:
        self._table = legacy_table(table)

    async def post(self, session_id: str, address: str, message: str, key: str | None = None) -> None:
        """See `Mailbox`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        # What is there already is a doubled reply, or our own after a lost answer.
        with suppress(AwsRefusal):
            sk = f"{address}#{key or _in_order_of_time()}"
            await put_text(self._table, f"mail#{session_id}", sk, message, ttl=_KEPT, new=True)

    async def collect(self, session_id: str, addresses: Collection[str]) -> list[Mail]:
        """See `Mailbox`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        found = []
        for sort_key, text, _ in await get_texts(self._table, f"mail#{session_id}"):
            address, _, key = sort_key.partition("#")
            if address in addresses and text is not None:
                found.append(Mail(address, key, text))
        return found

    async def discard(self, session_id: str, mail: Mail) -> None:
        """See `Mailbox`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        key = {"pk": {"S": f"mail#{session_id}"}, "sk": {"S": f"{mail.address}#{mail.key}"}}
        await self._table.call("delete_item", Key=key)


class InMemoryMailbox:
    """`Mailbox` of one process, for tests."""

    def __init__(self) -> None:
        self._mail: dict[str, dict[tuple[str, str], Mail]] = {}

    async def post(self, session_id: str, address: str, message: str, key: str | None = None) -> None:
        """See `Mailbox`."""
        mail = Mail(address, key or _in_order_of_time(), message)
        self._mail.setdefault(session_id, {}).setdefault((mail.address, mail.key), mail)

    async def collect(self, session_id: str, addresses: Collection[str]) -> list[Mail]:
        """See `Mailbox`."""
        mails = self._mail.get(session_id, {}).values()
        return sorted(mail for mail in mails if mail.address in addresses)

    async def discard(self, session_id: str, mail: Mail) -> None:
        """See `Mailbox`."""
        self._mail.get(session_id, {}).pop((mail.address, mail.key), None)
