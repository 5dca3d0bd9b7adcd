"""Fragments of a template, as documents show them."""

from pathlib import Path
from typing import Any

import yaml

from sealane.local.template import _Loader

__all__ = ["merged"]


def merged(template: Path, fragment: str) -> dict[str, Any]:
    """The template with a fragment in it, whose members add to mappings and replace all else."""
    loaded: dict[str, Any] = _over(*(yaml.load(text, _Loader) for text in (template.read_text("utf-8"), fragment)))  # noqa: S506
    return loaded


def _over(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: _over(old.get(name), new.get(name, old.get(name))) for name in {**old, **new}}
    return new
