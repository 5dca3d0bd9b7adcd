"""The legacy lane: real sessions for an unchanged SDK v1 server, on any number of environments.

Temporary: nothing outside imports it, and it is deleted with its function when its last client is gone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sealane.legacy.events import DynamoDBEventStore, EventStore, InMemoryEventStore
    from sealane.legacy.handler import LegacyMcpHandler, create_legacy_mcp_handler
    from sealane.legacy.options import LegacyOptions
    from sealane.legacy.sessions import DynamoDBSessionStore, InMemorySessionStore, Session, SessionStore

__all__ = [
    "DynamoDBEventStore",
    "DynamoDBSessionStore",
    "EventStore",
    "InMemoryEventStore",
    "InMemorySessionStore",
    "LegacyMcpHandler",
    "LegacyOptions",
    "Session",
    "SessionStore",
    "create_legacy_mcp_handler",
]

_MODULES = {
    "DynamoDBEventStore": "events",
    "DynamoDBSessionStore": "sessions",
    "EventStore": "events",
    "InMemoryEventStore": "events",
    "InMemorySessionStore": "sessions",
    "LegacyMcpHandler": "handler",
    "LegacyOptions": "options",
    "Session": "sessions",
    "SessionStore": "sessions",
    "create_legacy_mcp_handler": "handler",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: who ends a session from a command line needs no SDK.
    if name not in _MODULES:
        raise AttributeError(f"module 'sealane.legacy' has no attribute {name!r}")
    return getattr(import_module(f"sealane.legacy.{_MODULES[name]}"), name)
