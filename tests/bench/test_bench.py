"""What the benchmark says is right: its statistics, and that a wrong answer never counts. No time is asserted."""

import asyncio
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import processes, runtime
from tests.bench.artefacts import make_trees
from tests.bench.aws import emulated
from tests.bench.field import FLOOR, GATEWAYS, HERE, OBVIOUS, OURS, QUIET, SEALED, Contestant, as_json
from tests.bench.figures import Summary, percentile, ratio, summary
from tests.bench.processes import Failed
from tests.bench.report import GOALS, Results, document
from tests.bench.run import TEXT, WHAT, sealed_plan
from tests.bench.worker import WrongAnswer, check

CONTENT = [{"type": "text", "text": TEXT}]
RESULT = {"content": CONTENT, "isError": False}
GOOD = {"jsonrpc": "2.0", "id": 1, "result": RESULT}


def http_answer(body: object, status: int = 200) -> dict[str, Any]:
    return {"statusCode": status, "body": body if isinstance(body, str) else json.dumps(body)}


def variables(contestant: Contestant, *more: Path) -> dict[str, str]:
    """Those of a contestant's process, with this environment's packages in place of the artefact."""
    own = contestant.variables("built")
    path = [*map(str, more), own["PYTHONPATH"].partition(os.pathsep)[0], *sys.path]
    return {**own, "AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": os.pathsep.join(path)}


def plan(contestant: Contestant, text: str = TEXT, calls: int = 8) -> dict[str, Any]:
    event = as_json(contestant.event("hello", name="World"))
    return {"handler": contestant.handler, "event": event, "text": text, "seconds": 60, "calls": calls}


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 99, 7),
        ([3, 1, 2], 50, 2),
        ([4, 1, 3, 2], 50, 2.5),
        (range(101), 99, 99),
        ([0, 10], 25, 2.5),
        ([5, 6], 0, 5),
        ([5, 6], 100, 6),
    ],
)
def test_percentiles(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_summary_is_the_median_and_the_quartiles() -> None:
    assert summary([9, 1, 2, 3, 4]) == Summary(3, 2, 4)


def test_a_ratio_is_taken_within_each_round() -> None:
    """What slows a whole round down changes no ratio, whatever it does to the medians."""
    assert ratio([1, 100, 3], [2, 200, 6]) == Summary(0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="argument"):
        ratio([1], [1, 2])


@pytest.mark.parametrize(
    "answer",
    [
        http_answer(GOOD),
        {**http_answer(base64.b64encode(json.dumps(GOOD).encode()).decode()), "isBase64Encoded": True},
        http_answer(f"event: message\r\ndata: {json.dumps(GOOD)}\r\n\r\n"),
        http_answer(f'data: {{"jsonrpc": "2.0", "method": "notifications/progress"}}\n\ndata: {json.dumps(GOOD)}\n\n'),
        http_answer({**GOOD, "result": {"content": CONTENT, "resultType": "complete"}}),
    ],
)
def test_right_answers_count(answer: object) -> None:
    check(answer, TEXT)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        GOOD,
        http_answer(GOOD, 500),
        http_answer(GOOD, 202),
        http_answer(""),
        http_answer("Hello, World!"),
        http_answer([GOOD]),
        http_answer({**GOOD, "id": 2}),
        http_answer({**GOOD, "jsonrpc": "1.0"}),
        http_answer({"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": TEXT}}),
        http_answer({**GOOD, "result": {**RESULT, "isError": True}}),
        http_answer({**GOOD, "result": {"content": []}}),
        http_answer({**GOOD, "result": {"content": [{"type": "text", "text": "Hello, Ada!"}]}}),
        http_answer({**GOOD, "result": {"content": [{"type": "image", "text": TEXT}]}}),
        http_answer({**GOOD, "result": {"content": CONTENT * 2}}),
        {"statusCode": 200, "body": None},
    ],
)
def test_wrong_answers_do_not(answer: object) -> None:
    with pytest.raises(WrongAnswer):
        check(answer, TEXT)


@pytest.mark.parametrize("contestant", [FLOOR, OBVIOUS, OURS, *GATEWAYS], ids=lambda each: each.handler)
def test_contestants_answer_right(contestant: Contestant) -> None:
    sample = processes.answers(plan(contestant), variables(contestant))
    assert len(sample.times) == 8
    assert sample.cold > 0
    assert sample.cpu > 0
    assert all(each > 0 for each in sample.times)
    if sys.platform == "linux":
        assert sample.memory > 5


def test_a_sealed_round_trip_costs_network_calls_only_once() -> None:
    with emulated() as aws:
        own = {**variables(SEALED, HERE), **aws}
        _, told = processes.run("sealed.py", {**sealed_plan(60, 8), "count": True}, own)
    assert told["first"] > 0
    assert told["later"] == 0
    assert {len(told[name]) for name in ("plain", "sealed")} == {8}


def test_a_wrong_answer_ends_the_worker() -> None:
    with pytest.raises(Failed, match="the tool does not say 'Hello, Ada!'"):
        processes.answers(plan(FLOOR, text="Hello, Ada!"), variables(FLOOR))


@pytest.mark.parametrize("contestant", [OURS, QUIET], ids=lambda each: each.name)
def test_sealane_is_measured_with_its_telemetry(contestant: Contestant) -> None:
    with pytest.raises(Failed) as failed:
        processes.answers(plan(contestant, text="Hello, Ada!"), variables(contestant))
    told = str(failed.value)
    assert ('"message":"served"' in told, '"Namespace":"Sealane"' in told) == (contestant.is_telling,) * 2


LATER = """
import floor
calls = 0
def handler(event, context):
    global calls
    calls += 1
    answer = floor.handler(event, context)
    return answer if calls < 5 else {**answer, "statusCode": 500}
"""


def test_a_later_wrong_answer_ends_it_too(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(LATER)
    contestant = Contestant("later", "", "later.handler", ())
    assert len(processes.answers(plan(contestant, calls=3), variables(contestant, tmp_path)).times) == 3
    with pytest.raises(Failed, match="not an answer with status 200"):
        processes.answers(plan(contestant), variables(contestant, tmp_path))


@pytest.mark.parametrize(
    "of",
    [runtime.Runtime("floor", "floor", FLOOR, runtime.RUNTIMES[0].program), runtime.RUNTIMES[-1]],
    ids=lambda each: each.name,
)
def test_answers_through_the_runtime_api_are_checked(of: runtime.Runtime) -> None:
    contestant = of.contestant
    event = as_json(contestant.event("hello", name="World"))

    async def answers(text: str) -> processes.Sample:
        return await runtime.answers(of, event, text, variables(contestant), seconds=60, calls=3)

    assert len(asyncio.run(answers(TEXT)).times) == 3
    with pytest.raises(Failed, match="does not say 'Hello, Ada!'"):
        asyncio.run(answers("Hello, Ada!"))


def test_a_runtime_that_does_not_start_is_no_result() -> None:
    of = runtime.Runtime("none", "none", Contestant("none", "", "nowhere.handler", ()), runtime.RUNTIMES[0].program)

    async def answers() -> None:
        await runtime.answers(of, "{}", TEXT, variables(of.contestant), seconds=1, calls=1)

    with pytest.raises(Failed, match="No module named 'nowhere'"):
        asyncio.run(answers())


def test_trees_have_bytecode_for_all_or_none(tmp_path: Path) -> None:
    built = tmp_path / "built"
    (built / "package" / "__pycache__").mkdir(parents=True)
    (built / "package" / "module.py").write_text("x = 1\n")
    (built / "package" / "broken.py").write_text("x = \n")
    (built / "package" / "__pycache__" / "module.cpython-30.pyc").write_bytes(b"")
    make_trees(tmp_path)
    assert {path.name for path in (tmp_path / "bare").rglob("*.py*")} == {"module.py", "broken.py"}
    [made] = (tmp_path / "compiled").rglob("*.pyc")
    assert made.name == f"module.{sys.implementation.cache_tag}.pyc"
    # PEP 552: the flags of bytecode that is not checked against its source.
    assert int.from_bytes(made.read_bytes()[4:8], "little") == 1


def test_the_document_has_every_goal_and_says_which_is_reached() -> None:
    results = Results(
        titles={"obvious": "obvious: SDK + Mangum", "ours": "Sealane"},
        measures={
            "cold": {"obvious": [1000.0, 2000.0, 1000.0], "ours": [400.0, 800.0, 500.0]},
            "async-p50": {"obvious": [3.0, 3.0, 3.0], "ours": [0.7, 0.6, 0.5]},
        },
        about={
            "bytecode": [],
            "connections": [1],
            "cores": 2,
            "date": "2026-11-30",
            "gateways": {},
            "machine": "Linux",
            "python": "3.13.0",
            "quick": False,
            "rounds": 3,
            "runtimes": {},
            "what": WHAT,
        },
    )
    text = document(results)
    assert all(f"| {goal.what} |" in text for goal in GOALS)
    assert "| cold start, both with bytecode | ≤ 0.45 | 0.4 (0.4 to 0.45) | 1 | reached |" in text
    assert "| warm p50, one async tool | ≤ 0.5 ms | 0.6 (0.55 to 0.65) | 3 | not reached |" in text
    assert "| Sealane | 500 (450 to 650) | 0.40 |" in text
