"""A function with hooks for SnapStart."""

from typing import Any

from snapshot_restore_py import register_after_restore, register_before_snapshot  # type: ignore[import-untyped]

said: list[str] = []
register_before_snapshot(said.append, "first registered")
register_before_snapshot(said.append, "last registered")
register_after_restore(said.append, "restored")


def handler(event: dict[str, Any], context: Any) -> list[str]:
    """What the hooks have said."""
    return said
