"""The function behind POST /inbox/HANDLE: it is no MCP server, and has no SDK. It tells those who listen to one."""

import asyncio
import base64
from http import HTTPStatus
from typing import Any

from sealane import HandleNotFound, HandleStore, StateError, logger, publish_change

inboxes = HandleStore("inbox")

LONGEST = 1_000
"""Bytes of a message."""
MOST = 100
"""Messages of an inbox; the oldest goes."""


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Put a message into an inbox.

    Args:
        event: of an HTTP API, payload 2.0.
        context: Lambda's.
    """
    body: str = event.get("body") or ""
    message = base64.b64decode(body) if event["isBase64Encoded"] else body.encode()
    inbox: str = event["pathParameters"]["inbox"]
    if not 0 < len(message) <= LONGEST:
        return _answer(HTTPStatus.BAD_REQUEST, f"A message is 1 to {LONGEST} bytes of text.")
    try:
        asyncio.run(put(inbox, message.decode(errors="replace")))
        publish_change("resource_updated", f"inbox://{inbox}")
    except HandleNotFound:
        return _answer(HTTPStatus.NOT_FOUND, "There is no such inbox.")
    except StateError as error:
        # The table was out of reach, or another message came at the same moment.
        logger.warning("a message was not taken", reason=type(error).__name__)
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "Send it again in a second.")
    return _answer(HTTPStatus.ACCEPTED, "Thank you.")


async def put(inbox: str, message: str) -> None:
    """Add a message to an inbox, as anyone: this function knows no caller."""
    messages, version, _ = await inboxes.get(inbox)
    assert isinstance(messages, list)  # noqa: S101 - only this function writes it
    await inboxes.put(inbox, [*messages, message][-MOST:], version=version)


def _answer(status: HTTPStatus, text: str) -> dict[str, Any]:
    return {"statusCode": int(status), "headers": {"content-type": "text/plain"}, "body": f"{text}\n"}
