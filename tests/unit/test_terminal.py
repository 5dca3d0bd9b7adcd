"""What a person sees of the lines that functions write."""

from pathlib import Path

import pytest

from sealane.local.records import LogLine
from sealane.local.terminal import Terminal

SERVED = '{"level":"INFO","message":"served","service":"s","duration_ms":1.0}'
METRICS = '{"_aws":{"CloudWatchMetrics":[]},"Requests":[1.0]}'


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("printed", "F 1 | printed\n"),
        ('{"of": "the user"}', 'F 1 | {"of": "the user"}\n'),
        ("[1]", "F 1 | [1]\n"),
        ('{"level":"INFO","message":"looked up","service":"s","tool":"t"}', "F 1 | looked up\n"),
        (
            '{"level":"ERROR","message":"failed","service":"s","exception":"  File x\\nbuiltins.KeyError\\n"}',
            "F 1 | failed\n  File x\nbuiltins.KeyError\n",
        ),
        (SERVED, ""),
        (METRICS, ""),
    ],
)
def test_lines_of_the_log_are_readable(line: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().show(LogLine("F", 1, line))
    assert capsys.readouterr().out == shown


def test_the_file_gets_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(log_file=tmp_path / "log")
    for line in (SERVED, METRICS):
        terminal.show(LogLine("F", 1, line))
    assert (tmp_path / "log").read_text() == f"F 1 | {SERVED}\nF 1 | {METRICS}\n"
    assert capsys.readouterr().out == ""
