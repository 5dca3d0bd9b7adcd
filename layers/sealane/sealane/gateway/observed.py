"""Every HTTP request of an ASGI application as one exchange of the telemetry."""

import asyncio
from typing import Final

import anyio.to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealane import telemetry
from sealane.gateway.events import BUFFERED_KEY
from sealane.gateway.remaining import seconds_to_answer

__all__ = ["observed"]

_LAST_WORDS: Final = 0.25
"""Seconds before the end of an invocation at which a request that is not answered yet is told of. Nothing can be told
afterwards."""


def observed(app: ASGIApp) -> ASGIApp:
    """`app`, with a line in the log for each request: one, also where an observed application is inside another."""

    async def observe(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or telemetry.current().is_served:
            await app(scope, receive, send)
            return
        status: int | None = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with telemetry.exchange(getattr(scope.get("aws.context"), "aws_request_id", None)) as exchange:

            def time_is_up() -> None:
                exchange.explain("the time of the invocation is up")
                exchange.end(None)

            last_words: asyncio.TimerHandle | None = None
            if (seconds := scope.get(BUFFERED_KEY)) is not None:
                delay = seconds_to_answer(seconds, _LAST_WORDS)
                last_words = asyncio.get_running_loop().call_later(delay, time_is_up)
            try:
                await app(scope, receive, watched)
            except BaseException as error:
                exchange.explain(type(error).__name__)
                raise
            finally:
                if last_words is not None:
                    last_words.cancel()
                exchange.end(status)
        if (send_spans := telemetry.send_spans()) is not None:
            await anyio.to_thread.run_sync(send_spans)

    return observe
