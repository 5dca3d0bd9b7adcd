"""Sealane: an MCP server on AWS Lambda behind API Gateway."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sealane.catalog import Catalog
    from sealane.era import is_legacy_request
    from sealane.errors import RequestRejected
    from sealane.factory import RequestContext
    from sealane.handler import McpHandler, create_mcp_handler
    from sealane.options import HandlerOptions
    from sealane.policy.auth_context import get_auth_context
    from sealane.policy.cors import Cors

__all__ = [
    "Catalog",
    "Cors",
    "HandlerOptions",
    "McpHandler",
    "RequestContext",
    "RequestRejected",
    "create_mcp_handler",
    "get_auth_context",
    "is_legacy_request",
]

# Imported on first use: the gateway, the policy and the local tools must come without either SDK.
_MODULES = {
    "Catalog": "sealane.catalog",
    "Cors": "sealane.policy.cors",
    "HandlerOptions": "sealane.options",
    "McpHandler": "sealane.handler",
    "RequestContext": "sealane.factory",
    "RequestRejected": "sealane.errors",
    "create_mcp_handler": "sealane.handler",
    "get_auth_context": "sealane.policy.auth_context",
    "is_legacy_request": "sealane.era",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sealane' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
