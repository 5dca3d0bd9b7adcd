"""The JSON of a request body, read so that every parser behind this one reads the same."""

import gc
import json
import math
from typing import Final

from pydantic_core import from_json

__all__ = ["UNPARSABLE", "decode"]

UNPARSABLE: Final = object()
"""What `decode` returns for a body that is not JSON."""


def decode(body: bytes) -> object:
    """The JSON value of `body`, or `UNPARSABLE`.

    What is checked here and what runs must be the same, and the SDK reads the body again: a request of a handshake
    revision with pydantic's parser, one of 2026-07-28 with Python's. Only what both read alike is JSON here, and no
    member may be named twice, of which parsers take the first or the last. That is I-JSON (RFC 7493, sections 2.1 to
    2.3): UTF-8 without a byte order mark, no half of a surrogate pair, no number beyond a double, unique names.
    Beyond it, what pydantic's parser does not read: nesting beyond 200 levels, integers beyond 4,300 digits.
    """
    # Parsing leaves no garbage, and looking for some meanwhile is most of its cost when a body holds a million values.
    collecting = gc.isenabled()
    gc.disable()
    try:
        value: object = from_json(body, allow_inf_nan=False)
        _CHECK.decode(body.decode())
    except (ValueError, RecursionError):
        return UNPARSABLE
    finally:
        if collecting:
            gc.enable()
    return value


def _check_names(members: list[tuple[str, object]]) -> None:
    if len(dict(members)) != len(members):
        raise ValueError("a member is named twice")


def _check_number(literal: str) -> None:
    if not math.isfinite(float(literal)):
        raise ValueError("a number is beyond a double")


# Keeps nothing of what it reads: half the price of building the value again.
_CHECK: Final = json.JSONDecoder(object_pairs_hook=_check_names, parse_float=_check_number)
