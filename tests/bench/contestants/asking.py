"""A tool that asks its caller, for servers that can: BENCH_ASK."""

from collections.abc import Awaitable, Callable
from typing import Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult


def greeter(context: type) -> Callable[..., Awaitable[str | InputRequiredResult]]:
    """The tool, for a framework with this class of contexts."""

    async def greet(ctx: Any) -> str | InputRequiredResult:
        """Greet whoever says who they are."""
        if ctx.input_responses:
            return f"Hello, {ctx.request_state}!"
        form = ElicitRequestFormParams(
            message="Who are you?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
        )
        return InputRequiredResult(input_requests={"name": ElicitRequest(params=form)}, request_state="World")

    greet.__annotations__["ctx"] = context
    return greet
