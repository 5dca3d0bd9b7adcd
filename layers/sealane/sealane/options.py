"""The options of `create_mcp_handler`: their defaults and what they refuse."""

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from mcp.server.subscriptions import SubscriptionBus

from sealane.authentication import GatewayAuth
from sealane.policy.cors import Cors
from sealane.policy.hosts import hostname_of
from sealane.state.keyring import Keyring

if TYPE_CHECKING:
    from sealane.policy.bearer import BearerAuth

__all__ = ["HandlerOptions", "Legacy", "ResponseMode", "handler_options"]

Legacy = Literal["stateless", "reject"]
ResponseMode = Literal["auto", "json", "sse"]

_LEGACY_LANE: Final = "it belongs to sessions; serve them with the legacy lane, create_legacy_mcp_handler"
_SESSION_OPTIONS: Final[Mapping[str, str]] = {
    "transport": _LEGACY_LANE,
    "storage": _LEGACY_LANE,
    "session_id_generator": _LEGACY_LANE,
    "on_session_initialized": _LEGACY_LANE,
    "on_session_closed": _LEGACY_LANE,
    "event_store": _LEGACY_LANE,
    "retry_interval": _LEGACY_LANE,
    "enable_json_response": 'write response_mode="json"',
    "allowed_hosts": "write allowed_hostnames=[…], names without scheme or port",
    "allowed_origins": "write allowed_origin_hostnames=[…], names without scheme or port",
    "enable_dns_rebinding_protection": (
        "Host and Origin are always checked; write allowed_hostnames=[…] and allowed_origin_hostnames=[…]"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """Options of `create_mcp_handler`, all keyword-only.

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
        legacy: `"stateless"` serves old clients one request at a time, without a session; `"reject"` is strict.
        response_mode: `"auto"` answers JSON, or an event stream when the tool sends something before its result;
            `"json"` never streams and drops mid-call notifications; `"sse"` always streams results.
        keep_alive: seconds between comment lines on an open stream; 0 sends none.
        subscriptions: the bus for `subscriptions/listen`; without one it is neither advertised nor served.
        max_subscriptions: how many `subscriptions/listen` streams may be open at once: in the whole deployment with
            `DynamoDBSubscriptionBus`, where each holds an environment; in one environment with a bus of its own.
        listen_seconds: how long such a stream stays open before it ends with its result and its client listens again.
            Default: 300 where answers stream. Where they leave as a whole it is a long poll, which ends 200 ms after
            the first event and else after 20 seconds; 25 at most, whatever is said here.
        keyring: data keys for the request state of servers that have no `request_state_security` of their own. Default:
            `Keyring.from_environment()` where the environment names a table and a key, as on Lambda; elsewhere a key
            of this process.
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
    legacy: Legacy = "stateless"
    response_mode: ResponseMode = "auto"
    keep_alive: float = 15.0
    subscriptions: SubscriptionBus | None = None
    max_subscriptions: int = 100
    listen_seconds: float | None = None
    keyring: Keyring | None = None
    max_request_body_size: int = 4 * 1024 * 1024
    on_error: Callable[[Exception], None] | None = None

    def __post_init__(self) -> None:
        if not self.route.startswith("/"):
            raise ValueError(f"route is a path that starts with '/': got {self.route!r}")
        if self.cors is not False and not isinstance(self.cors, Cors):
            raise TypeError(f"cors is a Cors(…) or False: got {self.cors!r}")
        for name, literal in (("legacy", Legacy), ("response_mode", ResponseMode)):
            if getattr(self, name) not in get_args(literal):
                raise ValueError(f"{name} is one of {get_args(literal)}: got {getattr(self, name)!r}")
        for name, smallest in (("keep_alive", 0), ("max_subscriptions", 1), ("max_request_body_size", 1)):
            if not getattr(self, name) >= smallest:
                raise ValueError(f"{name} is at least {smallest}: got {getattr(self, name)!r}")
        if self.listen_seconds is not None and not 0 < self.listen_seconds < math.inf:
            raise ValueError(f"listen_seconds is above 0 and finite: got {self.listen_seconds!r}")
        if self.auth is not None and not (isinstance(self.auth, GatewayAuth) or hasattr(self.auth, "verify")):
            raise TypeError(f"auth is a BearerAuth(…) or a GatewayAuth(…): got {self.auth!r}")
        if self.public_url is not None and not self.public_url.startswith(("https://", "http://")):
            raise ValueError(f"public_url is a whole URL, without the route: got {self.public_url!r}")
        if self.keyring is not None and not isinstance(self.keyring, Keyring):
            raise TypeError(f"keyring is a Keyring: got {self.keyring!r}")
        if self.on_error is not None and not callable(self.on_error):
            raise TypeError(f"on_error is called with an exception: got {self.on_error!r}")
        for name in ("allowed_hostnames", "allowed_origin_hostnames"):
            if (names := getattr(self, name)) is not None and not (names == "*" and "origin" in name):
                object.__setattr__(self, name, _hostnames(name, names))


def handler_options(**options: Any) -> HandlerOptions:
    """`HandlerOptions(**options)`, with help for options that it does not have.

    Raises:
        TypeError: for an option of the session generation, naming its replacement, and for an unknown one.
        ValueError: for a value that an option refuses.
    """
    known = [option.name for option in fields(HandlerOptions)]
    for name in options:
        if name in _SESSION_OPTIONS:
            raise TypeError(f"create_mcp_handler is stateless and has no option {name!r}: {_SESSION_OPTIONS[name]}")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            raise TypeError(f"create_mcp_handler has no option {name!r}: {hint}")
    return HandlerOptions(**options)


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
