"""What the legacy lane tells CloudWatch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sealane import telemetry
from sealane.legacy.metrics import LegacyMetrics


@pytest.fixture(autouse=True)
def namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the template has it."""
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "Sealane")
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "stack")
    telemetry.start()


def written(capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """The dimensions and the lane's own metrics of each line that has some."""
    for line in capsys.readouterr().out.splitlines():
        blob: dict[str, Any] = json.loads(line)
        [directive] = blob["_aws"]["CloudWatchMetrics"]
        assert directive["Namespace"] == "Sealane"
        [names] = directive["Dimensions"]
        own = [each for each in directive["Metrics"] if each["Name"].startswith("Legacy")]
        assert {each["Unit"] for each in own} <= {"Count"}
        if own:
            yield {name: blob[name] for name in names}, {each["Name"]: blob[each["Name"]] for each in own}


@contextmanager
def request() -> Iterator[None]:
    """A request, at whose end metrics are written."""
    with telemetry.exchange() as exchange:
        yield
        exchange.end(200)


def test_a_request_is_written_once_by_client_and_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = LegacyMetrics()
    with request():
        metrics.request(("claude-ai", "0.1.0"))
        metrics.request(("claude-ai", "0.1.0"))
        metrics.session(("claude-ai", "0.1.0"), 7)
        metrics.reverse_request("elicitation/create")
        metrics.reverse_request("elicitation/create")
        metrics.reverse_request("roots/list")
        assert capsys.readouterr().out == ""
    assert list(written(capsys)) == [
        ({"client": "claude-ai/0.1.0", "service": "stack"}, {"LegacyRequests": 2, "LegacySessions": 1}),
        ({"service": "stack"}, {"LegacySessions": 1, "LegacyActiveSessions": 7}),
        ({"kind": "elicitation_create", "service": "stack"}, {"LegacyReverseRequests": 2}),
        ({"kind": "roots_list", "service": "stack"}, {"LegacyReverseRequests": 1}),
    ]
    with request():
        pass
    assert list(written(capsys)) == []


@pytest.mark.parametrize(
    ("client", "label"),
    [
        (("", ""), "unknown/unknown"),
        (("  ", "\n"), "unknown/_"),
        (("Café \x1b[2J", "1.0'\"{"), "Caf_ __2J/1.0___"),
        ((":name", "1"), "_name/1"),
        (("a" * 100, "9" * 100), f"{'a' * 64}/{'9' * 32}"),
    ],
)
def test_clients_name_themselves(capsys: pytest.CaptureFixture[str], client: tuple[str, str], label: str) -> None:
    with request():
        LegacyMetrics().request(client)
    [(dimensions, _)] = written(capsys)
    assert dimensions["client"] == label


def test_an_environment_knows_so_many_clients_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = LegacyMetrics()
    for number in (*range(100), 3):
        with request():
            metrics.request(("bot", str(number)))
    clients = [dimensions["client"] for dimensions, _ in written(capsys)]
    assert clients == [*(f"bot/{number}" for number in range(20)), *["other"] * 80, "bot/3"]


def test_without_a_namespace_nothing_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POWERTOOLS_METRICS_NAMESPACE")
    telemetry.start()
    with request():
        LegacyMetrics().request(("claude-ai", "0.1.0"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
