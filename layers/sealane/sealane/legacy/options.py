"""The options of `create_legacy_mcp_handler`: their defaults and what they refuse."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from sealane.legacy.events import EventStore
from sealane.legacy.sessions import Limits, Session, SessionStore, new_session_id
from sealane.policy.options import EndpointOptions, check_least, made_of

__all__ = ["LaneMode", "LegacyOptions", "legacy_options"]

LaneMode = Literal["on", "drain"]

MODE_VARIABLE: Final = "SEALANE_LEGACY_LANE"
"""Whether the legacy lane takes new sessions: `on` or `drain`. Both lanes read it. Default: `on`."""


def _mode() -> Any:
    return os.environ.get(MODE_VARIABLE) or "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyOptions(EndpointOptions):
    """Options of `create_legacy_mcp_handler`, all keyword-only: those of `EndpointOptions`, and these.

    Args:
        mode: `"drain"` takes no new sessions and lets those that are there live out. Default: the variable
            `SEALANE_LEGACY_LANE`.
        session_store: where sessions are. Default: the lane's table.
        event_store: where events wait for clients that come back. Default: the lane's table.
        session_id_generator: makes session ids: visible ASCII, 16 characters or more, none of them ever again.
        on_session_initialized: is called with each new `Session`; may be async.
        on_session_closed: is called with each `Session` that its client ends; may be async. Those that expire are
            not told of.
        enable_json_response: answer requests with JSON. What a call sends before its result is dropped, and what it
            asks the client goes to the standalone stream.
        retry_interval: milliseconds after which a client whose stream has ended is to come back.
        idle_timeout: seconds without a request after which a session is gone; events are kept as long.
        max_session_age: seconds after which a session is gone anyway.
        max_sessions: how many there may be; one more is refused with 503.
        max_sessions_per_principal: how many a known caller may have.
        reverse_request_timeout: seconds that a call waits for its client's answer.
        listen_seconds: how long a standalone stream stays open before its client has to come back. Default: 300 where
            answers stream; 20 where they leave as a whole, which is a long poll that ends 200 ms after its first event.
    """

    mode: LaneMode = field(default_factory=_mode)
    session_store: SessionStore | None = None
    event_store: EventStore | None = None
    session_id_generator: Callable[[], str] = new_session_id
    on_session_initialized: Callable[[Session], object] | None = None
    on_session_closed: Callable[[Session], object] | None = None
    enable_json_response: bool = False
    retry_interval: int = 1000
    idle_timeout: int = 1800
    max_session_age: int = 86_400
    max_sessions: int = 1000
    max_sessions_per_principal: int = 100
    reverse_request_timeout: float = 60.0
    listen_seconds: float | None = None

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is made anew after its body was read.
        EndpointOptions.__post_init__(self)
        if self.mode not in get_args(LaneMode):
            raise ValueError(f"mode is one of {get_args(LaneMode)}: got {self.mode!r}")
        check_least(
            self,
            retry_interval=0,
            idle_timeout=1,
            max_session_age=1,
            max_sessions=1,
            max_sessions_per_principal=1,
            reverse_request_timeout=0.1,
        )
        if self.listen_seconds is not None and not self.listen_seconds > 0:
            raise ValueError(f"listen_seconds is above 0: got {self.listen_seconds!r}")
        for name in ("session_id_generator", "on_session_initialized", "on_session_closed"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise TypeError(f"{name} is a function: got {value!r}")

    @property
    def limits(self) -> Limits:
        """How long sessions live, and how many at once."""
        return Limits(
            idle=self.idle_timeout,
            age=self.max_session_age,
            total=self.max_sessions,
            each=self.max_sessions_per_principal,
        )


def legacy_options(**options: Any) -> LegacyOptions:
    """`LegacyOptions(**options)`, with help for options that it does not have.

    Raises:
        TypeError: for an option that does not exist.
        ValueError: for a value that an option refuses.
    """
    return made_of(LegacyOptions, "create_legacy_mcp_handler", options)
