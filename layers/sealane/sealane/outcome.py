"""What the SDK makes of a request, for the log and the metrics."""

from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult
from pydantic import ValidationError

from sealane import telemetry
from sealane.catalog import called_name
from sealane.factory import AnyServer

__all__ = ["called_tool", "observe_outcome"]


async def observe_outcome(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Server middleware, the outermost: tells the telemetry the codes of errors, and of tools that have failed."""
    exchange = telemetry.current()
    if ctx.method != exchange.keys.get("method"):
        # The `tools/list` that the SDK checks headers by before it calls a tool.
        return await call_next(ctx)
    try:
        result = await call_next(ctx)
    except MCPError as error:
        exchange.answer_error(error.error.code)
        raise
    except ValidationError:
        exchange.answer_error(INVALID_PARAMS)
        raise
    except Exception as error:
        exchange.answer_error(INTERNAL_ERROR)
        exchange.explain(type(error).__name__)
        raise
    if ctx.method == "tools/call":
        match result:
            case CallToolResult(is_error=True) | {"isError": True}:
                exchange.answer_tool_error()
    return result


def called_tool(server: AnyServer, message: object) -> str | None:
    """The tool that a message calls, if the server has it. Of low-level servers that is not known."""
    if not isinstance(server, MCPServer) or (name := called_name(message)) is None:
        return None
    return None if server._tool_manager.get_tool(name) is None else name
