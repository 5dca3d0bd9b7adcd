"""Changes that open subscriptions are told of: what is kept of each in the data table, and how it gets there."""

import json
from typing import Final, Literal, NamedTuple, Self, get_args

from sealane.state.errors import InvalidValue
from sealane.state.log import Log
from sealane.state.table import Table

__all__ = ["Change", "ChangeKind", "change_log", "publish_change"]

ChangeKind = Literal["tools_changed", "prompts_changed", "resources_changed", "resource_updated"]
"""What can change, by the name of the method of `McpHandler.notify`."""

_KEPT: Final = 600.0
"""Seconds. Readers are behind by a few at the most, and read nothing from before they came."""


class Change(NamedTuple):
    """One change.

    Attributes:
        kind: what has changed.
        uri: the resource, for `resource_updated`.
    """

    kind: ChangeKind
    uri: str | None = None

    def to_text(self) -> str:
        """The form in which it is kept.

        Raises:
            InvalidValue: there is no such change.
        """
        return json.dumps(self._checked(), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """What `to_text` was called on.

        Raises:
            InvalidValue: it was not called here, or by another version of this package.
        """
        try:
            change = cls(*json.loads(text))
        except (ValueError, TypeError):
            raise InvalidValue("This is no change that publish_change has written.") from None
        return change._checked()

    def _checked(self) -> Self:
        if self.kind not in get_args(ChangeKind):
            raise InvalidValue(f"A change is one of {', '.join(get_args(ChangeKind))}: got {self.kind!r}.")
        if isinstance(self.uri, str) != (self.kind == "resource_updated"):
            raise InvalidValue(f"A uri belongs to resource_updated and to nothing else: got {self.kind}, {self.uri!r}.")
        return self


def change_log(table: Table | None = None) -> Log:
    """The log of all changes of a deployment."""
    return Log("changes", kept=_KEPT, table=table)


def publish_change(kind: ChangeKind, uri: str | None = None, *, table: Table | None = None) -> None:
    """Tell every open subscription of a change, from code outside a request: another Lambda function, a job.

        publish_change("resource_updated", "notebook://a1b2")

    It needs no MCP SDK, the variable `SEALANE_TABLE` (or `table`) and the right to update and put items of that table.
    It waits for two writes; within a request, use `handler.notify` or the SDK's `ctx.notify_…`.

    Args:
        kind: what has changed.
        uri: the resource, exactly as clients name it, for `resource_updated`.
        table: the table; by default the stack's.

    Raises:
        InvalidValue: there is no such change; nothing was called.
        StateUnavailable: the table is out of reach.
    """
    change_log(table).append_blocking(Change(kind, uri).to_text())
