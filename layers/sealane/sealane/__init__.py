"""Sealane: an MCP server on AWS Lambda behind API Gateway."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sealane import import_cuts

if TYPE_CHECKING:
    from sealane.catalog import Catalog
    from sealane.era import is_legacy_request
    from sealane.errors import RequestRejected
    from sealane.factory import RequestContext
    from sealane.handler import McpHandler, create_mcp_handler
    from sealane.logs import logger
    from sealane.options import HandlerOptions
    from sealane.policy.auth_context import get_auth_context
    from sealane.policy.bearer import BearerAuth
    from sealane.policy.cors import Cors
    from sealane.policy.gateway_auth import GatewayAuth
    from sealane.policy.principal import Principal, current_principal, principal_context
    from sealane.routing import LegacyFunction, RoutedHandler, route_by_era
    from sealane.state.changes import publish_change
    from sealane.state.deadline import seconds_left
    from sealane.state.errors import (
        HandleNotFound,
        InProgress,
        InvalidValue,
        NoPrincipal,
        StaleVersion,
        StateError,
        StateNotConfigured,
        StateUnavailable,
        UnstorableResult,
    )
    from sealane.state.handles import ANYONE, Entry, Handle, HandleStore, Page
    from sealane.state.keyring import Keyring
    from sealane.state.once import once
    from sealane.state.table import Table
    from sealane.subscription_bus import DynamoDBSubscriptionBus, SharedSubscriptionBus

__all__ = [
    "ANYONE",
    "BearerAuth",
    "Catalog",
    "Cors",
    "DynamoDBSubscriptionBus",
    "Entry",
    "GatewayAuth",
    "Handle",
    "HandleNotFound",
    "HandleStore",
    "HandlerOptions",
    "InProgress",
    "InvalidValue",
    "Keyring",
    "LegacyFunction",
    "McpHandler",
    "NoPrincipal",
    "Page",
    "Principal",
    "RequestContext",
    "RequestRejected",
    "RoutedHandler",
    "SharedSubscriptionBus",
    "StaleVersion",
    "StateError",
    "StateNotConfigured",
    "StateUnavailable",
    "Table",
    "UnstorableResult",
    "create_mcp_handler",
    "current_principal",
    "get_auth_context",
    "is_legacy_request",
    "logger",
    "once",
    "principal_context",
    "publish_change",
    "route_by_era",
    "seconds_left",
]

# Before the SDK is imported, which happens below at the earliest.
import_cuts.install()

# Imported on first use: the gateway, the policy, the state and the local tools must come without either SDK.
_MODULES = {
    "ANYONE": "sealane.state.handles",
    "BearerAuth": "sealane.policy.bearer",
    "Catalog": "sealane.catalog",
    "Cors": "sealane.policy.cors",
    "DynamoDBSubscriptionBus": "sealane.subscription_bus",
    "Entry": "sealane.state.handles",
    "GatewayAuth": "sealane.policy.gateway_auth",
    "Handle": "sealane.state.handles",
    "HandleNotFound": "sealane.state.errors",
    "HandleStore": "sealane.state.handles",
    "HandlerOptions": "sealane.options",
    "InProgress": "sealane.state.errors",
    "InvalidValue": "sealane.state.errors",
    "Keyring": "sealane.state.keyring",
    "LegacyFunction": "sealane.routing",
    "McpHandler": "sealane.handler",
    "NoPrincipal": "sealane.state.errors",
    "Page": "sealane.state.handles",
    "Principal": "sealane.policy.principal",
    "RequestContext": "sealane.factory",
    "RequestRejected": "sealane.errors",
    "RoutedHandler": "sealane.routing",
    "SharedSubscriptionBus": "sealane.subscription_bus",
    "StaleVersion": "sealane.state.errors",
    "StateError": "sealane.state.errors",
    "StateNotConfigured": "sealane.state.errors",
    "StateUnavailable": "sealane.state.errors",
    "Table": "sealane.state.table",
    "UnstorableResult": "sealane.state.errors",
    "create_mcp_handler": "sealane.handler",
    "current_principal": "sealane.policy.principal",
    "get_auth_context": "sealane.policy.auth_context",
    "is_legacy_request": "sealane.era",
    "logger": "sealane.logs",
    "once": "sealane.state.once",
    "principal_context": "sealane.policy.principal",
    "publish_change": "sealane.state.changes",
    "route_by_era": "sealane.routing",
    "seconds_left": "sealane.state.deadline",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sealane' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
