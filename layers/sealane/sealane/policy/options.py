"""The options that the handlers of both lanes have: their defaults and what they refuse."""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from sealane.policy.cors import Cors
from sealane.policy.gateway_auth import GatewayAuth
from sealane.policy.hosts import hostname_of

if TYPE_CHECKING:
    from sealane.policy.bearer import BearerAuth

__all__ = ["LEFT_OPEN", "EndpointOptions", "check_least", "made_of"]

OptionsT = TypeVar("OptionsT", bound="EndpointOptions")

LEFT_OPEN: Final = (
    "the server has auth settings, which only its own HTTP application obeys: it would be open to anyone. "
    "Write auth=BearerAuth(…) or auth=GatewayAuth(…), or set AuthMode in the template"
)
"""Why a server of the SDK that is to check tokens itself is not served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Options of an endpoint, whatever it serves; all keyword-only.

    Args:
        route: exact path, served with and without a trailing slash; all else is 404.
        cors: what browsers of other origins may do; `False` removes every CORS header.
        allowed_hostnames: served `Host` names, without scheme or port, compared without case. Default: localhost
            names for a local endpoint; the API's own `execute-api` or `lambda-url` name when the event proves it;
            any custom domain.
        allowed_origin_hostnames: host names of served origins; a present `Origin` must be http(s), well formed and
            listed. Default: localhost names, the endpoint's own AWS name and concrete `cors` origins. `"*"` switches
            the check off, for trusted middleware in front.
        auth: who verifies callers, so that a request without a verified caller is refused: `BearerAuth(…)` for tokens
            that this function verifies itself, `GatewayAuth(…)` for an authorizer of API Gateway. Default: what the
            template's `AuthMode` says; without it the server is open, and knows callers where the gateway does.
        public_url: URL of the deployment without the route, such as `https://mcp.example.com`, that challenges and the
            resource metadata are made from. Default: the variable `SEALANE_PUBLIC_URL`, or else the name that AWS gave
            the API, as the event proves it; never the client's `Host`.
        auth_context: application properties for `get_auth_context()`. Default: the verified caller's claims.
        keep_alive: seconds between comment lines on an open stream; 0 sends none.
        max_request_body_size: bytes; a larger body is answered with 413.
        on_error: is told of out-of-band errors and of rejected requests (`RequestRejected`); cannot change the answer.
    """

    route: str = "/mcp"
    cors: Cors | Literal[False] = field(default_factory=Cors)
    allowed_hostnames: Collection[str] | None = None
    allowed_origin_hostnames: Collection[str] | Literal["*"] | None = None
    auth: "BearerAuth | GatewayAuth | None" = None
    public_url: str | None = None
    auth_context: Mapping[str, Any] | None = None
    keep_alive: float = 15.0
    max_request_body_size: int = 4 * 1024 * 1024
    on_error: Callable[[Exception], None] | None = None

    def __post_init__(self) -> None:
        if not self.route.startswith("/"):
            raise ValueError(f"route is a path that starts with '/': got {self.route!r}")
        if self.cors is not False and not isinstance(self.cors, Cors):
            raise TypeError(f"cors is a Cors(…) or False: got {self.cors!r}")
        check_least(self, keep_alive=0, max_request_body_size=1)
        if self.auth is not None and not (isinstance(self.auth, GatewayAuth) or hasattr(self.auth, "verify")):
            raise TypeError(f"auth is a BearerAuth(…) or a GatewayAuth(…): got {self.auth!r}")
        if self.public_url is not None and not self.public_url.startswith(("https://", "http://")):
            raise ValueError(f"public_url is a whole URL, without the route: got {self.public_url!r}")
        if self.on_error is not None and not callable(self.on_error):
            raise TypeError(f"on_error is called with an exception: got {self.on_error!r}")
        for name in ("allowed_hostnames", "allowed_origin_hostnames"):
            if (names := getattr(self, name)) is not None and not (names == "*" and "origin" in name):
                object.__setattr__(self, name, _hostnames(name, names))


def check_least(options: object, /, **smallest: float) -> None:
    """Refuse options that are smaller than they may be.

    Raises:
        ValueError: naming the option.
    """
    for name, least in smallest.items():
        if not getattr(options, name) >= least:
            raise ValueError(f"{name} is at least {least}: got {getattr(options, name)!r}")


def made_of(kind: type[OptionsT], function: str, given: Mapping[str, Any]) -> OptionsT:
    """`kind(**given)`, with help for options that it does not have.

    Args:
        function: the name of what was called with these options.

    Raises:
        TypeError: for an option that does not exist.
        ValueError: for a value that an option refuses.
    """
    known = [option.name for option in fields(kind)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            raise TypeError(f"{function} has no option {name!r}: {hint}")
    return kind(**given)


def _hostnames(option: str, names: Collection[str]) -> frozenset[str]:
    """`names` in the form that requests are compared with."""
    if isinstance(names, str):
        raise TypeError(f"{option} is a collection of names: write [{names!r}]")
    normalised = set()
    for name in names:
        # A bare IPv6 address has colons of its own; everything else with a colon has a scheme or a port.
        hostname = hostname_of(f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name)
        if hostname is None or name.endswith("*") or name.rpartition("]")[2].count(":") == 1:
            raise ValueError(f"{option} holds host names without scheme or port: got {name!r}")
        normalised.add(hostname)
    return frozenset(normalised)
