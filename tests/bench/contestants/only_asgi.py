"""An event's way to an ASGI application and back, with next to nothing at its end."""

from collections.abc import Awaitable, Callable
from typing import Any

from mangum import Mangum

from sealane.gateway.buffered import BufferedGateway

BODY = b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "Hello, World!"}]}}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]

Message = dict[str, Any]


async def app(
    scope: Any, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer every request with the same."""
    while scope["type"] == "lifespan":
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


mangum = Mangum(app)  # type: ignore[arg-type]
mangum_without_lifespan = Mangum(app, lifespan="off")  # type: ignore[arg-type]
ours = BufferedGateway(app)  # type: ignore[arg-type]
