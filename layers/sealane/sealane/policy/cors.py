"""Cross-origin access for browser clients: Starlette's CORS middleware, told what MCP needs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

__all__ = ["Cors", "cors_middleware"]

PROTOCOL_HEADERS: Final = (
    "Accept",
    "Authorization",
    "Content-Type",
    "Last-Event-ID",
    "MCP-Protocol-Version",
    "Mcp-Method",
    "Mcp-Name",
    "Mcp-Session-Id",
)
"""Every fixed request header of the MCP transports, 2024-11-05 to 2026-07-28."""

PROTOCOL_RESPONSE_HEADERS: Final = ("Mcp-Session-Id", "WWW-Authenticate")

# `Mcp-Param-` and a token of RFC 9110 section 5.6.2: the tool's author chooses the rest of the name.
_PARAM_HEADER: Final = re.compile(r"mcp-param-[!#$%&'*+\-.^_`|~0-9a-z]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cors:
    """What browsers of other origins may do. MCP's own headers are always allowed and exposed.

    Args:
        origins: allowed origins (`https://app.example.com`), or `("*",)` for all.
        headers: further request headers to allow.
        methods: allowed methods.
        expose_headers: further response headers that scripts may read.
        max_age: seconds for which a browser may keep the preflight's answer.
    """

    origins: Sequence[str] = ("*",)
    headers: Sequence[str] = ()
    methods: Sequence[str] = ("GET", "POST", "DELETE", "OPTIONS")
    expose_headers: Sequence[str] = ()
    max_age: int = 86400

    def __post_init__(self) -> None:
        for name in ("origins", "headers", "methods", "expose_headers"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"Cors({name}=…) is a sequence of strings: write ({getattr(self, name)!r},)")


class McpCorsMiddleware(CORSMiddleware):
    """Starlette's CORS middleware, which also allows each `Mcp-Param-*` header that a preflight asks for."""

    def preflight_response(self, request_headers: Headers) -> Response:
        requested = [name.strip() for name in request_headers.get("access-control-request-headers", "").split(",")]
        params = [name for name in requested if _PARAM_HEADER.fullmatch(name)]
        if not params:
            return super().preflight_response(request_headers)
        others = ", ".join(name for name in requested if name not in params)
        asked = {**request_headers, "access-control-request-headers": others or "accept"}
        response = super().preflight_response(Headers(asked))
        response.headers["Access-Control-Allow-Headers"] += ", " + ", ".join(params)
        return response


def cors_middleware(app: ASGIApp, cors: Cors) -> ASGIApp:
    """`app`, answering preflights itself and with the CORS headers of `cors` on every answer, errors too."""
    return McpCorsMiddleware(
        app,
        allow_origins=cors.origins,
        allow_methods=cors.methods,
        allow_headers=(*PROTOCOL_HEADERS, *cors.headers),
        expose_headers=(*PROTOCOL_RESPONSE_HEADERS, *cors.expose_headers),
        max_age=cors.max_age,
    )
