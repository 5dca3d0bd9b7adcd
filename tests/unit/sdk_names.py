"""Tells what each name of the SDK stands for, as JSON: a program for a process of its own."""
# ruff: noqa: I001 - Sealane comes first, as in a function.

import sealane  # noqa: F401

import contextlib
import functools
import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import mcp
import mcp_types
from pydantic import BaseModel, TypeAdapter


def modules(package: ModuleType) -> Iterator[ModuleType]:
    """All modules of a package but its command lines, and those for other machines."""
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
        if not found.name.startswith("mcp.cli") and not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                yield importlib.import_module(found.name)


def names(module: ModuleType) -> Iterator[str]:
    """The public names of a module."""
    yield from getattr(module, "__all__", None) or (name for name in dir(module) if not name.startswith("_"))


def described(value: Any) -> object:
    """What can be told of a value in another process too."""
    if isinstance(value, Mapping):
        return {str(key): described(row) for key, row in value.items()}
    if isinstance(value, TypeAdapter):
        return digest(value.json_schema())
    if isinstance(value, type) and issubclass(value, BaseModel):
        return model(value)
    return value.__name__ if isinstance(value, ModuleType) else text(value)


@functools.cache
def model(value: type[BaseModel]) -> object:
    """A model's name and all that its users see of it."""
    schema = None
    with contextlib.suppress(Exception):
        schema = value.model_json_schema()
    signature = getattr(value, "__signature__", None)
    return repr(value), digest([schema, sorted(value.model_config.items()), value.__pydantic_complete__, signature])


def text(value: object) -> str:
    """The value's `repr`, without addresses."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def digest(value: object) -> str:
    """A short text for a long one."""
    return hashlib.sha256(text(value).encode()).hexdigest()


if __name__ == "__main__":
    found = {
        module.__name__: {name: described(getattr(module, name)) for name in names(module)}
        for package in (mcp, mcp_types)
        for module in modules(package)
    }
    print(json.dumps(found))
