"""Until when what serves an invocation may wait: the gateway says so, whoever waits asks."""

import math
import time
from contextvars import ContextVar
from typing import Final

from sealane.bound import Bound

__all__ = ["last_words", "seconds_left", "within"]

_LAST_WORDS: Final = 0.5
"""Seconds, of those that the gateway keeps when it says how long an answer may take."""

_deadline: ContextVar[float] = ContextVar("sealane_deadline", default=math.inf)


def within(seconds: float) -> Bound[float]:
    """Serve one invocation inside a `with` block, whose answer has to be whole in so many seconds from now."""
    return Bound(_deadline, time.monotonic() + seconds)


def last_words() -> Bound[float]:
    """Do inside a `with` block what ends an answer, for which there is time although the answer's is up."""
    return Bound(_deadline, max(_deadline.get(), time.monotonic() + _LAST_WORDS))


def seconds_left() -> float:
    """Seconds until the answer has to be whole, negative after that; infinite where nothing ends the wait."""
    return _deadline.get() - time.monotonic()
