"""Which browser origins are served (MCP transports: servers MUST validate the `Origin` header)."""

import re
from collections.abc import Collection, Iterable
from typing import Final, Literal

from starlette.requests import Request

from sealane.errors import INVALID_REQUEST, RequestRejected
from sealane.policy.hosts import LOCALHOST_NAMES, aws_name, endpoint_hostname, hostname_of

__all__ = ["check_origin", "origin_hostname", "origin_hostnames"]

# RFC 6454 section 7.1, http and https only: no path, no user information, never "null".
_ORIGIN: Final = re.compile(r"https?://(?P<authority>[^/?#@\s]+)", re.IGNORECASE | re.ASCII)


def origin_hostname(origin: str) -> str | None:
    """The host name of a well-formed http(s) origin, lower case and without port, else `None`."""
    match = _ORIGIN.fullmatch(origin)
    return hostname_of(match["authority"]) if match else None


def origin_hostnames(origins: Iterable[str]) -> frozenset[str]:
    """The host names of those origins that are concrete (`*` is not)."""
    return frozenset(name for origin in origins if (name := origin_hostname(origin)))


def check_origin(
    request: Request, allowed: Collection[str] | Literal["*"] | None, cors_hostnames: frozenset[str]
) -> None:
    """Refuse a request that a web page of an unlisted origin sends; a request without `Origin` passes.

    Without a list, localhost names, the endpoint's own AWS name and `cors_hostnames` are accepted; `"*"`
    accepts every origin.

    Raises:
        RequestRejected: 403 for an `Origin` whose host is not allowed.
    """
    origins = request.headers.getlist("origin")
    if not origins or allowed == "*":
        return
    if allowed is None:
        own = aws_name(endpoint_hostname(request.scope))
        allowed = LOCALHOST_NAMES | cors_hostnames | ({own} if own else frozenset())
    name = origin_hostname(origins[0]) if len(origins) == 1 else None
    if name not in allowed:
        raise RequestRejected(
            403,
            INVALID_REQUEST,
            "Forbidden: this Origin is not allowed",
            reason=f"Origin {', '.join(origins)!r} is none of {sorted(allowed)}; name it in allowed_origin_hostnames",
        )
