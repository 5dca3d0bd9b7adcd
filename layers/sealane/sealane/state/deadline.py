"""Until when what serves an invocation may wait: the gateway says so, whoever waits asks."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["last_words", "seconds_left", "within"]

_LAST_WORDS: Final = 0.5
"""Seconds, of those that the gateway keeps when it says how long an answer may take."""

_deadline: ContextVar[float] = ContextVar("sealane_deadline", default=math.inf)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Serve one invocation inside the block, whose answer has to be whole in so many seconds."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def last_words() -> Iterator[None]:
    """Do inside the block what ends an answer, for which there is time although the answer's is up."""
    token = _deadline.set(max(_deadline.get(), time.monotonic() + _LAST_WORDS))
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float:
    """Seconds until the answer has to be whole, negative after that; infinite where nothing ends the wait."""
    return _deadline.get() - time.monotonic()
