"""An ordered log in the data table, which every environment can add to and follow."""

import time
from typing import Any, Final, NamedTuple

import anyio.to_thread

from sealane.state.errors import InvalidValue
from sealane.state.table import Table, expiry

__all__ = ["Log", "LogEntry", "LogReader"]

_DIGITS: Final = 20
_END: Final = "end"
"""Sort key of the item that counts a log's entries; where it has no time to live, numbers never begin anew."""
_PAGE: Final = 100
"""Entries that are read at once: a reader that is behind is not flooded."""
_PATIENCE: Final = 15.0
"""Seconds after which an entry that was counted and never came is given up: no writer's call takes that long."""
_MAX_TEXT: Final = 100_000
"""Bytes; a quarter of what an item can hold."""


class LogEntry(NamedTuple):
    """What was added to a log.

    Attributes:
        number: its place; counts from 1.
        text: what was given.
    """

    number: int
    text: str


class Log:
    """Texts in the order in which they were added.

    Adding takes two writes: one counts, the next keeps the text under the number. So no writer waits for another, and
    a reader can tell that an entry is still on its way. See `LogReader`.

    Args:
        name: names the log, in its table; a partition key.
        kept: how long entries are kept, in seconds.
        table: the table; by default the stack's.
        forgotten: seconds after its last entry at which a log may begin anew; by default never. For logs whose
            readers are all gone by then.
    """

    def __init__(self, name: str, *, kept: float, table: Table | None = None, forgotten: float | None = None) -> None:
        self._name = name
        self._kept = kept
        self._forgotten = forgotten
        self._table = table or Table()

    async def append(self, text: str) -> int:
        """Add a text; the number that it has got.

        Raises:
            InvalidValue: it is too long; nothing was called.
            StateUnavailable: the table is out of reach; the text may be in the log all the same.
        """
        return await anyio.to_thread.run_sync(self.append_blocking, text)

    def append_blocking(self, text: str) -> int:
        """`append` for code that has a thread to wait in."""
        if (size := len(text.encode())) > _MAX_TEXT:
            raise InvalidValue(f"An entry of a log has {_MAX_TEXT} bytes at most: got {size}.")
        update, values = "ADD last_number :one", {":one": {"N": "1"}}
        if self._forgotten is not None:
            update += " SET expires_at = :forgotten"
            values[":forgotten"] = {"N": str(expiry(self._forgotten))}
        counted = self._table.call_blocking(
            "update_item",
            Key=self._key(_END),
            UpdateExpression=update,
            ExpressionAttributeValues=values,
            ReturnValues="UPDATED_NEW",
        )
        number = int(counted["Attributes"]["last_number"]["N"])
        item = {"text": {"S": text}, "expires_at": {"N": str(expiry(self._kept))}}
        self._table.call_blocking("put_item", Item=self._key(_sort_key(number)) | item)
        return number

    async def end(self) -> int:
        """The number of the newest entry; 0 in a log that never had one.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        answer = await self._table.call("get_item", Key=self._key(_END), ConsistentRead=True)
        return int(answer["Item"]["last_number"]["N"]) if "Item" in answer else 0

    async def read(self, first: int, last: int | None = None) -> list[LogEntry]:
        """Entries from number `first` on, up to number `last`, in their order; a page of them.

        Whether they have expired is not asked: readers want what was added since they came.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        answer = await self._table.call(
            "query",
            KeyConditionExpression="pk = :log AND sk BETWEEN :first AND :last",
            ExpressionAttributeValues={
                ":log": {"S": self._name},
                ":first": {"S": _sort_key(first)},
                ":last": {"S": "9" * _DIGITS if last is None else _sort_key(last)},
            },
            ConsistentRead=True,
            Limit=_PAGE,
        )
        return [LogEntry(int(item["sk"]["S"]), item["text"]["S"]) for item in answer["Items"]]

    def _key(self, sort_key: str) -> dict[str, Any]:
        return {"pk": {"S": self._name}, "sk": {"S": sort_key}}


class LogReader:
    """Reads what is added to a log, each entry once, and those of one writer in their order.

    Args:
        log: the log.
        position: number of an entry; those after it are read.
    """

    def __init__(self, log: Log, position: int) -> None:
        self._log = log
        self._position = position
        self._missing: dict[int, float] = {}

    async def read(self) -> list[LogEntry]:
        """The next entries; none when there is nothing new.

        Raises:
            StateUnavailable: the table is out of reach; nothing is lost by it.
        """
        # What raises leaves the reader as it was.
        first = self._position + 1
        entries = await self._log.read(first)
        if entries and len(entries) <= entries[-1].number - first:
            # A query is no snapshot: it can pass the place of an entry before that is written, and find what the same
            # writer wrote next. The second one finds both.
            entries = await self._log.read(first, entries[-1].number)
        # After those, for the same reason.
        late = [entry for number in self._missing for entry in await self._log.read(number, number)]
        now = time.monotonic()
        missing = {number: until for number, until in self._missing.items() if until > now}
        if entries:
            self._position = entries[-1].number
            missing |= dict.fromkeys(range(first, self._position), now + _PATIENCE)
        for entry in (*late, *entries):
            missing.pop(entry.number, None)
        self._missing = missing
        return late + entries


def _sort_key(number: int) -> str:
    return f"{number:0{_DIGITS}}"
