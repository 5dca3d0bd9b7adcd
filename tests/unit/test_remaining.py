"""How long an invocation may take."""

import base64
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from sealane.gateway.remaining import client_context, remaining_seconds


def context(milliseconds: int, custom: Any = None) -> SimpleNamespace:
    asker = None if custom is None else SimpleNamespace(custom=custom)
    return SimpleNamespace(get_remaining_time_in_millis=lambda: milliseconds, client_context=asker)


def given(seconds: float) -> Any:
    """What Lambda makes of the `ClientContext` of a caller that waits so long."""
    return json.loads(base64.b64decode(client_context(seconds)))["custom"]


def test_lambda_says_how_long() -> None:
    assert remaining_seconds(context(2500)) == 2.5


def test_who_asks_may_wait_for_less() -> None:
    assert remaining_seconds(context(30_000, given(5))) == pytest.approx(5, abs=0.5)
    assert remaining_seconds(context(3_000, given(5))) == 3


@pytest.mark.parametrize("custom", [{}, {"sealane-until-ms": "soon"}, {"sealane-until-ms": None}, []])
def test_what_else_a_caller_says_of_itself_changes_nothing(custom: Any) -> None:
    assert remaining_seconds(context(3_000, custom)) == 3


@pytest.mark.parametrize("nothing", [None, object(), {}])
def test_without_lambda_there_is_no_end(nothing: object) -> None:
    assert remaining_seconds(nothing) == math.inf
