"""What can go wrong with what is kept between requests. The texts reach models: they say what to do next."""

__all__ = [
    "HandleNotFound",
    "InProgress",
    "InvalidValue",
    "NoPrincipal",
    "StaleVersion",
    "StateError",
    "StateNotConfigured",
    "StateUnavailable",
    "UnstorableResult",
]


class StateError(Exception):
    """Base of every error of `sealane.state`."""


class HandleNotFound(StateError):
    """There is no such handle for this principal: unknown, expired, deleted and somebody else's are the same."""


class StaleVersion(StateError):
    """The value was changed since it was read; nothing was overwritten."""


class InvalidValue(StateError, ValueError):
    """A value, key, time or cursor that cannot be kept or is none of ours; no call to AWS was made."""


class NoPrincipal(StateError):
    """The caller is not known, and it was not said that anyone may do this."""


class StateUnavailable(StateError):
    """DynamoDB or KMS did not do what was asked: throttled, out of reach, denied. The log has the reason."""


class StateNotConfigured(StateError):
    """The environment does not say where the table or the key is."""


class InProgress(StateError):
    """The effect is being carried out by another call at this moment, or was left unfinished a short time ago."""


class UnstorableResult(StateError, TypeError):
    """An effect took place, but its result cannot be kept: not JSON, or too large. It is not carried out again."""
