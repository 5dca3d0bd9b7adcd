"""Which era a request speaks. Decided once, from the body first, then the headers."""

from collections.abc import Mapping
from typing import Literal

from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request

from sealane.policy.json_text import UNPARSABLE, decode

__all__ = ["UNPARSABLE", "Era", "claims_version", "decode", "era_of", "is_legacy_request"]

Era = Literal["modern", "legacy"]


def claims_version(message: object) -> bool:
    """Whether a JSON-RPC message carries the per-request protocol version in `params._meta`.

    The key is reserved by revision 2026-07-28 (basic, "Per-request protocol fields"), so its presence alone is
    the claim; what is wrong with the rest of the envelope is for the modern path to say.
    """
    if not isinstance(message, dict):
        return False
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


def era_of(method: str, headers: Mapping[str, str], message: object) -> Era:
    """The era of an HTTP request.

    Args:
        method: HTTP method; the modern era has only POST.
        headers: HTTP headers by lower-case name.
        message: decoded body, or `UNPARSABLE`.
    """
    if method != "POST" or message is UNPARSABLE:
        return "legacy"
    if any(claims_version(item) for item in (message if isinstance(message, list) else [message])):
        return "modern"
    # No claim in the body: the header decides, and only the handshake revisions' names speak legacy.
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return "legacy" if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS else "modern"


async def is_legacy_request(request: Request, parsed_body: object = None) -> bool:
    """Whether `create_mcp_handler` would serve `request` as legacy, for code that routes in front of it.

    Args:
        request: stays readable: its body is kept by the request object.
        parsed_body: the decoded JSON body when it was read already; the request is then not read.
    """
    if request.method != "POST":
        return True
    message = decode(await request.body()) if parsed_body is None else parsed_body
    return era_of(request.method, request.headers, message) == "legacy"
