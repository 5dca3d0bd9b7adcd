"""Which `Host` names are served: the defence against DNS rebinding (MCP transports, "Security Warning")."""

import functools
import re
from collections.abc import Collection
from typing import Final

from starlette.requests import Request
from starlette.types import Scope

from sealane.errors import INVALID_REQUEST, RequestRejected

__all__ = ["ENDPOINT_KEY", "LOCALHOST_NAMES", "aws_name", "check_host", "endpoint_hostname", "hostname_of"]

ENDPOINT_KEY: Final = "sealane.endpoint"
"""ASGI scope key under which the gateway leaves the name that reached it, or `None` where it proves none."""

LOCALHOST_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

# RFC 9110 section 7.2: uri-host [ ":" port ], without user information. ASCII: else the Kelvin sign is a "k".
_AUTHORITY: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{0,5})?", re.IGNORECASE | re.ASCII
)
# API Gateway and Lambda function URL names, in every AWS partition.
_AWS_NAME: Final = re.compile(
    r"[a-z0-9-]+\.(?:execute-api|lambda-url)\.[a-z0-9-]+\.(?:amazonaws\.com(?:\.cn)?|on\.aws)"
)


@functools.lru_cache(maxsize=64)
def hostname_of(authority: str) -> str | None:
    """The host name of a `Host` value or authority: lower case, no port, no brackets; `None` when malformed."""
    match = _AUTHORITY.fullmatch(authority)
    return (match["ipv6"] or match["name"]).lower() if match else None


def endpoint_hostname(scope: Scope) -> str | None:
    """The name of this endpoint as its surroundings prove it, never as the client claims it.

    Behind a gateway that is what the gateway says; under an ASGI server, the address that the connection reached.
    """
    if ENDPOINT_KEY in scope:
        endpoint: str | None = scope[ENDPOINT_KEY]
        return hostname_of(endpoint) if endpoint else None
    server: tuple[str, int | None] | None = scope.get("server")
    return server[0].lower() if server else None


@functools.lru_cache(maxsize=64)
def aws_name(endpoint: str | None) -> str | None:
    """`endpoint` when it is a name that AWS gave to an API or function URL, else `None`."""
    return endpoint if endpoint and _AWS_NAME.fullmatch(endpoint) else None


def check_host(request: Request, allowed: Collection[str] | None) -> None:
    """Refuse a request whose `Host` names another server.

    Without a list, a local endpoint accepts localhost names, an AWS-named endpoint its own name, and an
    endpoint behind a custom domain whatever its gateway let through, if it is one name.

    Raises:
        RequestRejected: 421 for a `Host` that is none of the endpoint's names, or no name (RFC 9110 section 15.5.20).
    """
    hosts = request.headers.getlist("host")
    name = hostname_of(hosts[0]) if len(hosts) == 1 else None
    if allowed is None:
        endpoint = endpoint_hostname(request.scope)
        if endpoint in LOCALHOST_NAMES:
            allowed = LOCALHOST_NAMES
        elif own := aws_name(endpoint):
            allowed = {own}
        elif name is not None or not hosts:
            return
        else:
            allowed = ()
    if name not in allowed:
        raise RequestRejected(
            421,
            INVALID_REQUEST,
            "Misdirected request: this Host is not served here",
            reason=f"Host {', '.join(hosts)!r} is not one of {sorted(allowed)}; name it in allowed_hostnames",
        )
