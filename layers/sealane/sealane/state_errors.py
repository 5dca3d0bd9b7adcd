"""Errors that leave a tool, a resource or a prompt: those of `sealane.state` reach the model, all are told the log."""

from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import ValidationError

from sealane import telemetry
from sealane.factory import AnyServer
from sealane.state.errors import StateError, StateNotConfigured

__all__ = ["tell_state_errors"]


def tell_state_errors(server: AnyServer) -> None:
    """Let a fresh server tell its client what to do about an error of `sealane.state`.

    Their texts are written for models, and such errors are foreseen: the SDK has `ToolError` and `ResourceError` for
    that, and hides the text of every other exception. `sealane.state` cannot raise those, for it knows no SDK. A
    low-level server answers its exceptions itself.
    """
    if isinstance(server, MCPServer):
        server.call_tool = _telling(server.call_tool, ToolError)  # type: ignore[method-assign]
        server.read_resource = _telling(server.read_resource, ResourceError)  # type: ignore[method-assign]
        server.get_prompt = _telling(server.get_prompt, _PromptError)  # type: ignore[method-assign]


class _PromptError(MCPError):
    """The SDK has no error for prompts that keeps its text, but every method may answer with one of the protocol."""

    def __init__(self, text: str) -> None:
        super().__init__(INTERNAL_ERROR, text)


def _telling(method: Callable[..., Awaitable[Any]], foreseen: Callable[[str], Exception]) -> Callable[..., Any]:
    async def telling(*args: Any, **options: Any) -> Any:
        try:
            return await method(*args, **options)
        except Exception as error:
            telemetry.current().explain(_why(error))
            if (cause := _state_error(error)) is None:
                raise
            raise foreseen(str(cause)) from cause

    return telling


def _state_error(error: BaseException) -> StateError | None:
    """The error of `sealane.state` that the SDK has wrapped, if it is one for the client and not for the operator."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, StateError):
        cause = cause.__cause__
    return None if isinstance(cause, StateNotConfigured) else cause


def _why(error: BaseException) -> str:
    """What has failed, for the log: messages have arguments and results in them, so only type and parameters.

    `StateNotConfigured` says which variable is missing, and nothing of a request.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ValidationError):
        places = (each["loc"] for each in error.errors(include_url=False, include_context=False, include_input=False))
        return f"ValidationError: {', '.join(sorted({str(place[0]) for place in places if place}))}"
    if isinstance(error, StateNotConfigured):
        return f"StateNotConfigured: {error}"
    return type(error).__name__
