"""Refusals: one exception for "this request is not served", and the JSON-RPC error that tells the client."""

import json
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

__all__ = ["INTERNAL_ERROR", "INVALID_REQUEST", "PARSE_ERROR", "RequestId", "RequestRejected", "error_response"]

# JSON-RPC 2.0, section 5.1. Spelled out because the policy and the gateway import no SDK.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603

RequestId = str | int


class RequestRejected(Exception):
    """A request that is refused, with what the client is told and what only the log says.

    Args:
        status: HTTP status of the answer.
        code: JSON-RPC error code of the answer.
        message: text of the answer; carries no internals.
        reason: text for the log and `on_error`; defaults to `message`.
        data: `error.data` of the answer.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        data: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.reason = reason or message
        self.data = data
        self.headers = headers
        super().__init__(f"{status}, {code}: {self.reason}")


def error_response(rejection: RequestRejected, request_id: RequestId | None = None) -> Response:
    """The HTTP answer for a refusal: a JSON-RPC error, with `id: null` where no single request id is known."""
    error: dict[str, object] = {"code": rejection.code, "message": rejection.message}
    if rejection.data is not None:
        error["data"] = rejection.data
    return Response(
        json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}, separators=(",", ":")),
        status_code=rejection.status,
        headers=rejection.headers,
        media_type="application/json",
    )
