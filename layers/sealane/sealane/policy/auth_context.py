"""Application properties of the caller, for tools to read without a parameter."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from sealane.bound import Bound

__all__ = ["auth_context", "get_auth_context"]

_properties: ContextVar[Mapping[str, Any] | None] = ContextVar("sealane_auth_context", default=None)


def get_auth_context() -> Mapping[str, Any] | None:
    """The application properties of this request: the handler's `auth_context`, else the verified caller's claims.

    Works in factories, tools, resources, prompts and what they call, threads included. `None` where the
    caller is not known, and outside a request.
    """
    return _properties.get()


def auth_context(properties: Mapping[str, Any] | None) -> Bound[Mapping[str, Any] | None]:
    """Make `properties` what `get_auth_context` returns inside a `with` block."""
    return Bound(_properties, properties)
