"""The options of `create_mcp_handler`: their defaults and what they refuse."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from mcp.server.subscriptions import SubscriptionBus

from sealane.policy.options import EndpointOptions, check_least, made_of
from sealane.state.keyring import Keyring

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
class HandlerOptions(EndpointOptions):
    """Options of `create_mcp_handler`, all keyword-only: those of `EndpointOptions`, and these.

    Args:
        legacy: `"stateless"` serves old clients one request at a time, without a session; `"reject"` is strict.
        response_mode: `"auto"` answers JSON, or an event stream when the tool sends something before its result;
            `"json"` never streams and drops mid-call notifications; `"sse"` always streams results.
        subscriptions: the bus for `subscriptions/listen`; without one it is neither advertised nor served.
        max_subscriptions: how many `subscriptions/listen` streams may be open at once: in the whole deployment with
            `DynamoDBSubscriptionBus`, where each holds an environment; in one environment with a bus of its own.
        listen_seconds: how long such a stream stays open before it ends with its result and its client listens again.
            Default: 300 where answers stream. Where they leave as a whole it is a long poll, which ends 200 ms after
            the first event and else after 20 seconds; 25 at most, whatever is said here.
        keyring: data keys for the request state of servers that have no `request_state_security` of their own. Default:
            `Keyring.from_environment()` where the environment names a table and a key, as on Lambda; elsewhere a key
            of this process.
    """

    legacy: Legacy = "stateless"
    response_mode: ResponseMode = "auto"
    subscriptions: SubscriptionBus | None = None
    max_subscriptions: int = 100
    listen_seconds: float | None = None
    keyring: Keyring | None = None

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is made anew after its body was read.
        EndpointOptions.__post_init__(self)
        for name, literal in (("legacy", Legacy), ("response_mode", ResponseMode)):
            if getattr(self, name) not in get_args(literal):
                raise ValueError(f"{name} is one of {get_args(literal)}: got {getattr(self, name)!r}")
        check_least(self, max_subscriptions=1)
        if self.listen_seconds is not None and not 0 < self.listen_seconds < math.inf:
            raise ValueError(f"listen_seconds is above 0 and finite: got {self.listen_seconds!r}")
        if self.keyring is not None and not isinstance(self.keyring, Keyring):
            raise TypeError(f"keyring is a Keyring: got {self.keyring!r}")


def handler_options(**options: Any) -> HandlerOptions:
    """`HandlerOptions(**options)`, with help for options that it does not have.

    Raises:
        TypeError: for an option of the session generation, naming its replacement, and for an unknown one.
        ValueError: for a value that an option refuses.
    """
    for name in options:
        if name in _SESSION_OPTIONS:
            raise TypeError(f"create_mcp_handler is stateless and has no option {name!r}: {_SESSION_OPTIONS[name]}")
    return made_of(HandlerOptions, "create_mcp_handler", options)
