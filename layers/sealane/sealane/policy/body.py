"""The request body, read once and never beyond its limit, and given to whoever reads it again."""

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from sealane.errors import INVALID_REQUEST, RequestRejected

__all__ = ["read_body", "receive_again"]


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body of `request`.

    Args:
        limit: largest accepted size in bytes.

    Raises:
        RequestRejected: 415 for a compressed body, since what is checked is what was sent, and its size (RFC 9110
            section 15.5.16); else see `_too_large`. What lies beyond the limit is not read.
        starlette.requests.ClientDisconnect: the client left before it had sent the body.
    """
    coding = request.headers.get("content-encoding", "").lower()
    if coding not in ("", "identity"):
        text = "Unsupported content coding: send the body as it is, without Content-Encoding"
        raise RequestRejected(415, INVALID_REQUEST, text, headers={"Accept-Encoding": "identity"})
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return bytes(body)


def receive_again(body: bytes, receive: Receive) -> Receive:
    """An ASGI `receive` that gives a body that was read, then what `receive` has to say (the client's disconnect)."""
    unread = [body]

    async def receive_body() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return receive_body


def _too_large(limit: int) -> RequestRejected:
    """The answer is 413 for a body beyond `max_request_body_size`."""
    return RequestRejected(413, INVALID_REQUEST, f"Content too large: the body may have {limit} bytes")
