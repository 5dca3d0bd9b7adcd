"""What a request's body says of itself, for the line that a person sees; without the MCP SDK, slow to import."""

import json
from typing import Final, Literal

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def rpc_of(body: bytes) -> tuple[str | None, Literal["modern", "legacy"] | None]:
    """The method of a JSON-RPC message with the tool, prompt or resource that it names, and the message's era.

    Modern is a message with the per-request protocol version of revision 2026-07-28 in `params._meta`. Both are None
    for a body that is no such message. What cannot be printed is escaped: a client must not write to the terminal.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return None, None
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    era: Literal["modern", "legacy"] = "modern" if isinstance(meta, dict) and _VERSION_KEY in meta else "legacy"
    method = message.get("method")
    if not isinstance(method, str):
        return None, era
    name = params.get(_NAMED_BY.get(method, ""))
    text = f"{method} {name}" if isinstance(name, str) else method
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii"), era
