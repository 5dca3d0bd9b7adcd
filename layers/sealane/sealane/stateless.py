"""One modern request, one fresh server, through the SDK's HTTP entry."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import anyio
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server._streamable_http_modern import handle_modern_request
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types import HEADER_MISMATCH
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from starlette.requests import Request
from starlette.types import Receive

from sealane.errors import INVALID_REQUEST, RequestRejected
from sealane.gateway.events import BUFFERED_KEY
from sealane.options import ResponseMode
from sealane.policy.body import receive_again
from sealane.response_mode import ResponseShaper

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


async def serve(
    server: Server[Any], request: Request, body: bytes, message: object, shaper: ResponseShaper, mode: ResponseMode
) -> None:
    """Run one request through the SDK's entry for revision 2026-07-28, on a server that serves no other.

    The public way there, `StreamableHTTPSessionManager`, prepares for sessions first. In `auto` mode the entry is asked
    for JSON, and what the handler sends before its result goes to `shaper`: the entry's own event streams take two
    tasks and a queue between them, which most calls have no use for.

    Args:
        body: the request's, decoded as `message`.
        mode: how the request is answered, but for `subscriptions/listen`: always by a stream.
    """
    scope = request.scope
    method = message.get("method") if isinstance(message, Mapping) else None

    async def with_events(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        # Not those of the `tools/list` that the SDK checks headers by before it calls a tool.
        if ctx.method == method:
            ctx.session._request_outbound.sink = SimpleNamespace(send=shaper.send_event)  # type: ignore[attr-defined]
        return await call_next(ctx)

    if isinstance(get_tracer_provider(), ProxyTracerProvider) and b"traceparent" not in body:
        # Nobody records spans, and there is no trace of the client for tools to pass on: the SDK's would be nothing.
        server.middleware[:] = [each for each in server.middleware if not isinstance(each, OpenTelemetryMiddleware)]

    async with server.lifespan(server) as state, anyio.create_task_group() as tasks:
        if mode == "auto" and method != "subscriptions/listen":
            server.middleware.insert(0, with_events)
            if BUFFERED_KEY not in scope:
                shaper.watch(_cancel_when_left(request.receive, tasks.cancel_scope))
        # In a task, since what a handler does to its context, or to the task that it runs in, is its own affair.
        receive = receive_again(body, request.receive)
        tasks.start_soon(handle_modern_request, server, None, mode != "sse", state, scope, receive, shaper.send)


async def _cancel_when_left(receive: Receive, exchange: anyio.CancelScope) -> None:
    """Cancel an exchange when its client leaves, as the SDK does for event streams."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.cancel()
