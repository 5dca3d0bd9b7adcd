"""Twenty thousand malformed events, always the same ones, and a few hundred that hypothesis looks for.

The many come from plain seeded randomness, which costs next to nothing beside serving them. Hypothesis draws from the
same grammar ten times slower; what it is for is the other end: it shrinks what it finds.
"""

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from sealane.era import UNPARSABLE, decode
from tests.events import EVENTS, SHAPES, event_names, make_event, modern
from tests.fuzz import invariants, run
from tests.fuzz.grammar import Case, make_case
from tests.fuzz.invariants import UNREADABLE, faults
from tests.fuzz.server import HANDLERS, REASON

CASES: Final = 20_000
CHUNKS: Final = 20
SEED: Final = "0"


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log lines: there would be thousands."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_event_is_answered_as_documented(chunk: int) -> None:
    size = CASES // CHUNKS
    found = run.failures(SEED, range(chunk * size, (chunk + 1) * size))
    assert not found, run.describe(run.shrunk(found[0]), SEED)


@pytest.mark.usefixtures("quiet")
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(st.randoms(use_true_random=False, note_method_calls=False))
def test_every_event_that_hypothesis_finds_is_answered_as_documented(rng: random.Random) -> None:
    case = make_case(rng)
    note(f"handler {case.handler}: {json.dumps(case.event)}")
    assert not faults(case)


def test_a_case_depends_on_seed_and_number_alone() -> None:
    def made(*numbers: int) -> list[str]:
        return [repr(case) for number in numbers for _, case in run.cases("seed", range(number, number + 1))]

    assert made(*range(300)) == list(reversed(made(*range(299, -1, -1))))


# What would be noticed


def error(identifier: Any, message: str) -> str:
    """The body of a JSON-RPC error."""
    return json.dumps({"jsonrpc": "2.0", "id": identifier, "error": {"code": -32600, "message": message}})


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (None, "no dict"),
        ({"statusCode": 200, "headers": {}, "body": "OK"}, "no JSON"),
        ({"statusCode": 418, "headers": {}, "body": ""}, "status 418"),
        ({"statusCode": 500, "headers": {}, "body": "{}"}, "the request that is at fault"),
        ({"statusCode": 202, "headers": {"content-type": "application/json"}, "body": ""}, "where there is none"),
        ({"statusCode": 202, "headers": {"x": "a\r\nb"}, "body": ""}, "the value of x"),
        ({"statusCode": 202, "headers": {"x": 1}, "body": ""}, "the value of x"),
        ({"statusCode": 202, "headers": {"x:": "a"}, "body": ""}, "the name of a header"),
        ({"statusCode": 202, "headers": {"x": "a", "X": "a"}, "body": ""}, "there twice"),
        ({"statusCode": 202, "headers": {"x": "a" * 11_000}, "body": ""}, "larger than"),
        ({"statusCode": 202, "headers": {}, "body": None}, "no text"),
        ({"statusCode": 202, "headers": {}, "body": "", "isBase64Encoded": 0}, "no bool"),
        ({"statusCode": 202, "multiValueHeaders": {}, "body": ""}, "does not read"),
        ({"statusCode": 202, "headers": {"x": "\ud800"}, "body": ""}, "cannot be sent"),
        ({"statusCode": 200, "headers": {}, "body": '{"jsonrpc":"2.0","id":2,"result":{}}'}, "a result that is none"),
        ({"statusCode": 200, "headers": {}, "body": '{"jsonrpc":"2.0","id":1,"result":NaN}'}, "no JSON"),
        ({"statusCode": 400, "headers": {}, "body": '{"jsonrpc":"2.0","id":1,"result":{}}'}, "a result that is none"),
        ({"statusCode": 400, "headers": {}, "body": '{"jsonrpc":"2.0","id":1,"error":{}}'}, "no JSON-RPC error"),
        ({"statusCode": 400, "headers": {}, "body": error("x", "no")}, "not the one that was sent"),
        ({"statusCode": 400, "headers": {}, "body": error(1, "KeyError")}, "internals"),
        ({"statusCode": 400, "headers": {}, "body": error(1, REASON)}, "internals"),
    ],
)
def test_a_fault_is_noticed(result: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, Any], HANDLERS), "faulty", lambda event, context: result)
    headers, body = modern("tools/list")
    found = faults(Case("faulty", make_event("http", headers=headers, body=body)))
    assert any(fault in text for text in found), found


def test_what_raises_hangs_or_takes_its_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(event: Any, context: Any) -> Any:
        raise SystemExit

    def hangs(event: Any, context: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr(invariants, "HANGS_AFTER", 1)
    monkeypatch.setattr(invariants, "CPU_SECONDS", -1.0)
    monkeypatch.setitem(cast(dict[str, Any], HANDLERS), "raises", raises)
    monkeypatch.setitem(cast(dict[str, Any], HANDLERS), "hangs", hangs)
    assert faults(Case("raises", {})) == ["it raised SystemExit", "it took more than -1.0 s"]
    assert faults(Case("hangs", {})) == ["it had no answer after 1 s"]


def test_a_failure_is_shrunk_printed_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_on_x(event: Any, context: Any) -> Any:
        if "x" in str(event.get("body")):
            raise ValueError
        return {"statusCode": 202}

    monkeypatch.setitem(cast(dict[str, Any], HANDLERS), "default", fails_on_x)
    headers, _ = modern("tools/list")
    case = Case("default", make_event(SHAPES[0], headers=headers, body="aaa" * 50 + "x" + "bbb" * 50))
    found = run.shrunk(run.Failure(7, case, "it raised ValueError"))
    assert found.case.event == {"body": "x"}

    title, _, event = run.describe(found, SEED).partition("\n")
    assert title == "case 7 of seed 0, handler default: it raised ValueError"
    (tmp_path / "kept.json").write_text(event, encoding="utf-8")
    assert run.replay(tmp_path / "kept.json") == 1
    assert "handler default: it raised ValueError" in capsys.readouterr().out


@pytest.mark.parametrize("name", event_names())
def test_the_events_of_the_repository_are_answered_as_documented(name: str) -> None:
    assert run.replay(EVENTS / f"{name}.json") == 0


# The JSON that is read

JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=20,
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(JSON, st.booleans())
def test_all_that_is_json_is_read(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    readable = invariants.sent_message({"body": text.decode("utf-8", "surrogatepass")}) is not UNREADABLE
    assert repr(decode(text)) == repr(value if readable else UNPARSABLE)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.binary() | st.text(alphabet='[]{}:,"\\ud8001e.-+ \n\tnultrefasNI0', max_size=30).map(str.encode))
@example(b"1e400")
@example(b'{"a":1,"\\u0061":2}')
def test_what_is_read_is_read_alike_by_every_parser(text: bytes) -> None:
    if (value := decode(text)) is not UNPARSABLE:
        assert repr(value) == repr(json.loads(text)) == repr(from_json(text))
