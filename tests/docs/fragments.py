"""Fragments of a template, as documents show them."""

from pathlib import Path
from typing import Any

import yaml

from sealane.local.template import _Loader

__all__ = ["load", "merged"]


def load(text: str) -> Any:
    """What YAML says, with CloudFormation's short forms.

    Raises:
        yaml.MarkedYAMLError: it is none.
    """
    return yaml.load(text, _Loader)  # noqa: S506 - a safe one


def merged(template: Path, fragment: str) -> dict[str, Any]:
    """The template with a fragment in it, whose members add to mappings and replace all else."""
    whole: dict[str, Any] = _over(load(template.read_text("utf-8")), load(fragment))
    return whole


def _over(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: _over(old.get(name), new.get(name, old.get(name))) for name in {**old, **new}}
    return new
