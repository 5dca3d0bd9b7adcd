"""Which era a request speaks. Decided once, from the body first, then the headers."""

import gc
import json
import math
from collections.abc import Mapping
from typing import Final, Literal

from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import from_json
from starlette.requests import Request

__all__ = ["UNPARSABLE", "Era", "claims_version", "decode", "era_of", "is_legacy_request"]

Era = Literal["modern", "legacy"]

UNPARSABLE: Final = object()
"""What `decode` returns for a body that is not JSON."""


def decode(body: bytes) -> object:
    """The JSON value of `body`, or `UNPARSABLE`.

    What is checked here and what runs must be the same, and the SDK reads the body again: a request of a handshake
    revision with pydantic's parser, one of 2026-07-28 with Python's. Only what both read alike is JSON here, and no
    member may be named twice, of which parsers take the first or the last. That is I-JSON (RFC 7493, sections 2.1 to
    2.3): UTF-8 without a byte order mark, no half of a surrogate pair, no number beyond a double, unique names.
    Beyond it, what pydantic's parser does not read: nesting beyond 200 levels, integers beyond 4,300 digits.
    """
    # Parsing leaves no garbage, and looking for some meanwhile is most of its cost when a body holds a million values.
    collecting = gc.isenabled()
    gc.disable()
    try:
        value: object = from_json(body, allow_inf_nan=False)
        _CHECK.decode(body.decode())
    except (ValueError, RecursionError):
        return UNPARSABLE
    finally:
        if collecting:
            gc.enable()
    return value


def _check_names(members: list[tuple[str, object]]) -> None:
    if len(dict(members)) != len(members):
        raise ValueError("a member is named twice")


def _check_number(literal: str) -> None:
    if not math.isfinite(float(literal)):
        raise ValueError("a number is beyond a double")


# Keeps nothing of what it reads: half the price of building the value again.
_CHECK: Final = json.JSONDecoder(object_pairs_hook=_check_names, parse_float=_check_number)


def claims_version(message: object) -> bool:
    """Whether a JSON-RPC message carries the per-request protocol version in `params._meta`.

    The key is reserved by revision 2026-07-28 (basic, "Per-request protocol fields"), so its presence alone is
    the claim; what is wrong with the rest of the envelope is for the modern path to say.
    """
    if not isinstance(message, Mapping):
        return False
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    return isinstance(meta, Mapping) and PROTOCOL_VERSION_META_KEY in meta


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
