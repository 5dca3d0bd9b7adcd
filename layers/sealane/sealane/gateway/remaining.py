"""How long an invocation may take: as Lambda says, or less where the function that asks waits for less."""

import base64
import json
import math
import time
from collections.abc import Mapping
from typing import Final

__all__ = ["client_context", "remaining_seconds", "seconds_to_answer"]

_UNTIL: Final = "sealane-until-ms"
_MARGIN: Final = 1.0
"""Seconds that are kept for the last words of an answer."""


def client_context(seconds: float) -> str:
    """The `ClientContext` with which one function tells another how long it waits.

    https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html
    """
    until = int((time.time() + seconds) * 1000)
    return base64.b64encode(json.dumps({"custom": {_UNTIL: until}}).encode()).decode()


def remaining_seconds(context: object) -> float:
    """What is left of an invocation with this context, in seconds; without one, there is no end."""
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    seconds: float = math.inf if remaining is None else remaining() / 1000
    custom = getattr(getattr(context, "client_context", None), "custom", None)
    until = custom.get(_UNTIL) if isinstance(custom, Mapping) else None
    return min(seconds, until / 1000 - time.time()) if isinstance(until, int) else seconds


def seconds_to_answer(remaining: float, margin: float = _MARGIN) -> float:
    """How long an answer may take, so that there is time left to say that it did not come.

    Args:
        remaining: seconds until the end of the invocation.
        margin: seconds that are left then; a tenth of the time where there is little.
    """
    return remaining - min(margin, remaining / 10)
