"""One modern request, one fresh server, through the SDK's kernel."""

import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import anyio
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server._streamable_http_modern import _mcp_param_rejection
from mcp.server.connection import Connection
from mcp.server.lowlevel.server import Server
from mcp.server.runner import ServerRunner, aclose_shielded, modern_error_data
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    HEADER_MISMATCH,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive

from sealane.errors import INVALID_REQUEST, RequestRejected, error_response
from sealane.response_mode import ResponseShaper

__all__ = ["NO_BACK_CHANNEL", "ModernCall", "check_media_types", "modern_call", "rejected", "serve"]

NO_BACK_CHANNEL: Final = (
    "{method} needs a client that the server can call back, and this server keeps no session. "
    "To the author: return input_required (InputRequiredResult, or a Resolve(...) parameter), which clients of "
    "revision 2026-07-28 answer, or serve this server with the legacy lane."
)
_NOT_A_MESSAGE: Final = "The body must be a single JSON-RPC request or notification"


class ModernCall(NamedTuple):
    """A request of revision 2026-07-28 whose envelope and routing headers are right."""

    request: JSONRPCRequest
    route: InboundModernRoute


def check_media_types(request: Request, json_response: bool) -> None:
    """Refuse a POST whose body is not JSON or whose client cannot read the answer.

    Clients MUST accept both JSON and event streams (transports, "Sending Messages"); JSON is enough for a server
    that never streams.

    Raises:
        RequestRejected: 415 for a body that does not say it is JSON; 406 for a client that does not accept what it
            would get.
    """
    if not _is_json(request.headers.get("content-type", "")):
        raise RequestRejected(415, INVALID_REQUEST, "Unsupported media type: send Content-Type: application/json")
    has_json, has_sse = _accepted(request.headers.get("accept", ""))
    if not has_json or not (has_sse or json_response):
        wanted = "application/json" if json_response else "application/json, text/event-stream"
        raise RequestRejected(406, INVALID_REQUEST, f"Not acceptable: send Accept: {wanted}")


@functools.lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    """Whether this is JSON's media type."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


@functools.lru_cache(maxsize=64)
def _accepted(accept: str) -> tuple[bool, bool]:
    """Whether JSON and whether event streams are accepted: few clients differ in it."""
    return check_accept_headers(Request({"type": "http", "headers": [(b"accept", accept.encode("latin-1"))]}))


def modern_call(request: Request, message: object) -> ModernCall | None:
    """The call that a modern message makes; `None` for a notification, which is owed no more than a 202.

    There is nothing that a client can notify a server of which lives for one request; it cancels by leaving
    (transports, "Sending Messages").

    Args:
        message: the decoded body.

    Raises:
        RequestRejected: 400 for a batch with modern requests in it, or a body that is no JSON-RPC message. -32020 for a
            header that comes twice; else see `rejected`.
    """
    if not isinstance(message, dict):
        text = "A batch cannot hold requests of revision 2026-07-28: send each by itself"
        raise RequestRejected(400, INVALID_REQUEST, text)
    try:
        if "id" in message:
            called = JSONRPCRequest.model_validate(message)
        else:
            JSONRPCNotification.model_validate(message)
            version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
            if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
                if (unsupported := unsupported_protocol_version_rejection(version)) is not None:
                    raise rejected(unsupported)
                return None
    except ValidationError:
        raise RequestRejected(400, INVALID_REQUEST, _NOT_A_MESSAGE) from None
    names = ((name.decode("latin-1"), "") for name, _ in request.scope["headers"] if name.startswith(b"mcp-"))
    if duplicated := find_duplicated_routing_header(names):
        raise RequestRejected(400, HEADER_MISMATCH, f"{duplicated} header appears more than once: send it once")
    verdict = classify_inbound_request(message, headers=request.headers)
    if isinstance(verdict, InboundLadderRejection):
        raise rejected(verdict)
    return ModernCall(called, verdict)


def rejected(verdict: InboundLadderRejection) -> RequestRejected:
    """The SDK's verdict on an envelope, as a refusal with the HTTP status that the SDK gives it.

    That is -32020 for a header that is missing or differs from the body; -32022 for a revision that is not served;
    -32602 for `_meta` without what every modern request carries.
    """
    reason = None
    if verdict.code == HEADER_MISMATCH:
        reason = f"{verdict.message}; proxies have to let it through as it is"
    status = ERROR_CODE_HTTP_STATUS[verdict.code]
    return RequestRejected(status, verdict.code, verdict.message, reason=reason, data=verdict.data)


async def serve(
    server: Server[Any], request: Request, call: ModernCall, shaper: ResponseShaper, exchange: anyio.CancelScope | None
) -> None:
    """Let the SDK answer one call, on a server that serves no other.

    Its own HTTP entry, behind `StreamableHTTPSessionManager`, prepares for sessions first, reads the body again, and
    has two tasks and a queue for event streams that most calls have no use for. This is made of the same parts, and
    `shaper` makes the stream.

    Args:
        request: what tools get to see of it, its body unread.
        exchange: is cancelled when the client leaves; `None` where nobody tells.
    """
    called, route = call.request, call.route
    if isinstance(get_tracer_provider(), ProxyTracerProvider) and "traceparent" not in (called.params or {})["_meta"]:
        # Nobody records spans, and there is no trace of the client for tools to pass on: the SDK's would be nothing.
        server.middleware[:] = [each for each in server.middleware if not isinstance(each, OpenTelemetryMiddleware)]
    async with server.lifespan(server) as state:
        if refused := await _mcp_param_rejection(server, request, called, route, state):
            await error_response(rejected(refused), called.id)(request.scope, request.receive, shaper.send)
            return
        if exchange is not None:
            shaper.watch(_cancel_when_left(request.receive, exchange))
        connection = Connection.from_envelope(route.protocol_version, route.client_info, route.client_capabilities)
        context = _Context(request, called, shaper)
        try:
            result = await _answered(ServerRunner(server, connection, state), context, called)
        except NoBackChannelError as error:
            unreachable = ErrorData(code=INVALID_REQUEST, message=NO_BACK_CHANNEL.format(method=error.method))
            answer: JSONRPCResponse | JSONRPCError = JSONRPCError(jsonrpc="2.0", id=called.id, error=unreachable)
        except Exception as error:
            answer = JSONRPCError(jsonrpc="2.0", id=called.id, error=modern_error_data(error))
        else:
            answer = JSONRPCResponse(jsonrpc="2.0", id=called.id, result=result)
        await shaper.answer(answer)


async def _answered(runner: ServerRunner[Any], context: "_Context", called: JSONRPCRequest) -> dict[str, Any]:
    """The SDK's `serve_one`, which shields the end of a connection also when there is nothing to end."""
    try:
        return await runner.on_request(context, called.method, called.params)
    finally:
        if runner.connection.exit_stack._exit_callbacks:  # type: ignore[attr-defined]
            await aclose_shielded(runner.connection)


async def _cancel_when_left(receive: Receive, exchange: anyio.CancelScope) -> None:
    """Cancel an exchange when its client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.cancel()


class _Context:
    """The SDK's `DispatchContext` of one call: a client that is told things, and cannot be asked any."""

    can_send_request: Final = False

    def __init__(self, request: Request, called: JSONRPCRequest, shaper: ResponseShaper) -> None:
        self.transport = TransportContext(kind="streamable-http", can_send_request=False, headers=request.headers)
        self.request_id = called.id
        self.message_metadata = ServerMessageMetadata(request_context=request)
        self._progress_token = progress_token_from_params(called.params)
        self._shaper = shaper

    @functools.cached_property
    def cancel_requested(self) -> anyio.Event:
        """Never set: a client cancels by leaving."""
        return anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Refuse to ask the client.

        Raises:
            NoBackChannelError: always.
        """
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Tell the client something before its answer."""
        body = None if params is None else dict(params)
        await self._shaper.notify(JSONRPCNotification(jsonrpc="2.0", method=method, params=body))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far its call is, if it has asked for that."""
        if self._progress_token is not None:
            told = {"progressToken": self._progress_token, "progress": progress, "total": total, "message": message}
            known = {name: value for name, value in told.items() if value is not None}
            await self.notify("notifications/progress", known)
