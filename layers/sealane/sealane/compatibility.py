"""One legacy request, one fresh server, no session."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import HandlerEntry, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER, unsupported_protocol_version_rejection
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolResult,
    InputRequiredResult,
    JSONRPCRequest,
    TextContent,
    jsonrpc_message_adapter,
)
from mcp_types.methods import is_input_required
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from sealane.era import UNPARSABLE
from sealane.errors import RequestRejected
from sealane.options import Legacy
from sealane.stateless import NO_BACK_CHANNEL, rejected

__all__ = ["check_method", "explain_unreachable_client", "is_only_acknowledged", "serve"]

_UNREADABLE_RESULT: Final = (
    "This result is input_required, which clients of this protocol revision cannot read. "
    "To the author: check RequestContext.era, or serve this server with the legacy lane."
)


def check_method(request: Request) -> None:
    """Refuse the methods of sessions: no stream is kept open and no session can be ended.

    Raises:
        RequestRejected: 405 for GET and DELETE, which belong to sessions.
    """
    if request.method != "POST":
        raise RequestRejected(405, INVALID_REQUEST, "Method not allowed: send POST", headers={"Allow": "POST"})


def is_only_acknowledged(request: Request, message: object, legacy: Legacy) -> bool:
    """Whether a legacy message is owed no more than a 202: there is no session for it to act on.

    Raises:
        RequestRejected: 400 for a legacy request or response, with `legacy="reject"`; see `rejected` for the revision.
    """
    if not _is_request(message):
        if legacy == "reject" and not (isinstance(message, Mapping) and "method" in message):
            raise RequestRejected(400, INVALID_REQUEST, "This server sends no requests that could be responded to")
        return True
    if legacy == "reject":
        params = message.get("params") if isinstance(message, Mapping) else None
        requested = params.get("protocolVersion") if isinstance(params, Mapping) else None
        if not isinstance(requested, str):
            # "If the server does not receive an MCP-Protocol-Version header …" (2025-06-18, transports)
            requested = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        if (verdict := unsupported_protocol_version_rejection(requested)) is None:
            raise RequestRejected(
                400, INVALID_REQUEST, f"Revision {requested} has no initialize: send requests at once"
            )
        raise rejected(verdict)
    return False


def _is_request(message: object) -> bool:
    """Whether the message is owed a result; a notification or a posted response is only acknowledged.

    Raises:
        RequestRejected: 400 for a body that is not one JSON-RPC message in UTF-8.
    """
    if message is UNPARSABLE:
        raise RequestRejected(400, PARSE_ERROR, "Parse error: the body is not JSON in UTF-8, or names a member twice")
    try:
        return isinstance(jsonrpc_message_adapter.validate_python(message, by_name=False), JSONRPCRequest)
    except ValidationError:
        raise RequestRejected(400, INVALID_REQUEST, "The body must be a single JSON-RPC message") from None


def explain_unreachable_client(server: Server[Any]) -> None:
    """Make requests that need the client's help fail at once, with a text for the author.

    Elicitation, sampling and roots have no way back to the client of a stateless request, and `input_required`
    is a result that clients of the handshake revisions cannot read.
    """
    for method in ("tools/call", "prompts/get", "resources/read"):
        if entry := server.get_request_handler(method):
            server.add_request_handler(method, entry.params_type, _explaining(method, entry))


def _explaining(method: str, entry: HandlerEntry[Any]) -> Any:
    async def handler(ctx: ServerRequestContext[Any], params: Any) -> HandlerResult:
        try:
            result = await entry.handler(ctx, params)
        except NoBackChannelError as error:
            return _unreachable(method, NO_BACK_CHANNEL.format(method=error.method))
        if isinstance(result, InputRequiredResult) or (isinstance(result, Mapping) and is_input_required(result)):
            return _unreachable(method, _UNREADABLE_RESULT)
        return result

    return handler


def _unreachable(method: str, text: str) -> CallToolResult:
    """A tool error, which the model reads; other methods have only the JSON-RPC error.

    Raises:
        MCPError: -32600 for a prompt or resource that asks a client which has no way to answer.
    """
    if method != "tools/call":
        raise MCPError(INVALID_REQUEST, text)
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


# The SDK tells of each manager's start and end, which here is each request's.
logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)
logging.getLogger("mcp.server.streamable_http").setLevel(logging.WARNING)


async def serve(
    server: Server[Any], scope: Scope, receive: Receive, send: Send, *, json_response: bool, max_body_size: int
) -> None:
    """Run one request through the SDK's entry for the handshake revisions, on a server that serves no other.

    Args:
        json_response: answer JSON whatever the handler sends before its result.
        max_body_size: bytes; the body was checked already, the SDK's own limit must only not be smaller.
    """
    manager = StreamableHTTPSessionManager(
        server, json_response=json_response, stateless=True, max_request_body_size=max_body_size
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)
