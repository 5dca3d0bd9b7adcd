"""One modern request, one fresh server, through the SDK's HTTP entry."""

import logging
from collections.abc import Mapping
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import check_accept_headers
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types import HEADER_MISMATCH
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from sealane.errors import INVALID_REQUEST, RequestRejected

__all__ = ["check_media_types", "check_routable", "rejected", "serve"]


def check_media_types(request: Request, json_response: bool) -> None:
    """Refuse a POST whose body is not JSON or whose client cannot read the answer.

    Clients MUST accept both JSON and event streams (transports, "Sending Messages"); JSON is enough for a server
    that never streams.

    Raises:
        RequestRejected: 415 or 406, saying what to send.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestRejected(415, INVALID_REQUEST, "Unsupported media type: send Content-Type: application/json")
    has_json, has_sse = check_accept_headers(request)
    if not has_json or not (has_sse or json_response):
        wanted = "application/json" if json_response else "application/json, text/event-stream"
        raise RequestRejected(406, INVALID_REQUEST, f"Not acceptable: send Accept: {wanted}")


def check_routable(request: Request, message: object) -> None:
    """Refuse a request that claims the modern era in its body while its headers do not.

    The SDK's entry chooses the era from `MCP-Protocol-Version` alone and would serve such a request as legacy.

    Raises:
        RequestRejected: 400 with the SDK's own verdict.
    """
    version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
    if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return
    if not isinstance(message, Mapping):
        raise RequestRejected(400, INVALID_REQUEST, "A batch cannot hold requests of revision 2026-07-28")
    if duplicated := find_duplicated_routing_header(request.headers.items()):
        raise RequestRejected(400, HEADER_MISMATCH, f"{duplicated} header appears more than once")
    verdict = classify_inbound_request(message, headers=request.headers)
    if isinstance(verdict, InboundLadderRejection):
        raise rejected(verdict)
    raise AssertionError("a handshake revision in the header never matches a modern claim")


def rejected(verdict: InboundLadderRejection) -> RequestRejected:
    """The SDK's verdict on an envelope, as a refusal with the HTTP status that the SDK gives it."""
    return RequestRejected(ERROR_CODE_HTTP_STATUS[verdict.code], verdict.code, verdict.message, data=verdict.data)


# The SDK tells of each manager's start and end, which here is each request's.
logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)
logging.getLogger("mcp.server.streamable_http").setLevel(logging.WARNING)


async def serve(
    server: Server[Any], scope: Scope, receive: Receive, send: Send, *, json_response: bool, max_body_size: int
) -> None:
    """Run one HTTP request through the SDK on a server that serves no other.

    Args:
        json_response: answer JSON whatever the handler sends before its result.
        max_body_size: bytes; the body was checked already, the SDK's own limit must only not be smaller.
    """
    manager = StreamableHTTPSessionManager(
        server, json_response=json_response, stateless=True, max_request_body_size=max_body_size
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)
