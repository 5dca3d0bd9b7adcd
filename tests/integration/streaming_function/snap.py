"""A function with hooks for SnapStart."""

import os
from typing import Any

from snapshot_restore_py import register_after_restore, register_before_snapshot  # type: ignore[import-untyped]

said: list[str] = []
register_before_snapshot(said.append, "first registered")
register_before_snapshot(said.append, "last registered")
register_after_restore(said.append, "restored")


def fail() -> None:
    """A hook that fails."""
    raise ValueError("a hook has failed")


match os.environ.get("FAILING_HOOK"):
    case "before":
        register_before_snapshot(fail)
    case "after":
        register_after_restore(fail)


def handler(event: dict[str, Any], context: Any) -> list[str]:
    """What the hooks have said."""
    return said
