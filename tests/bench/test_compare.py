"""The table of docs/comparison.md: that its cells tell what came, and that Sealane's are still so."""

import os
import sys
from collections.abc import Mapping

from tests.bench.aws import emulated
from tests.bench.compare import BEGIN, COMPARED, END, ROWS, Probe, column, heads, session
from tests.bench.field import FLOOR, OURS, ROOT, Contestant

DOCUMENT = (ROOT / "docs/comparison.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def asked(contestant: Contestant, rows: Mapping[str, Probe]) -> dict[str, str]:
    """What comes with this environment's packages in place of the artefact."""
    own = contestant.variables("built")
    path = [own["PYTHONPATH"].partition(os.pathsep)[0], *sys.path]
    with emulated() as aws:
        return column(contestant, {**own, **aws, "PYTHONPATH": os.pathsep.join(path)}, rows)


def documented(name: str) -> dict[str, str]:
    """A contestant's column in the document."""
    return {cells[0]: cells[1 + COMPARED.index(name)] for cells in rows()}


def rows() -> list[list[str]]:
    """The table's rows, without head and rule."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in DOCUMENT.strip().splitlines()[2:]]


def test_the_table_is_that_of_the_program() -> None:
    head = DOCUMENT.strip().splitlines()[0]
    assert head == f"|  | {' | '.join(heads())} |"
    assert [cells[0] for cells in rows()] == list(ROWS)
    assert all(cell == "yes" or cell.startswith("no: ") for cells in rows() for cell in cells[1:])


def test_the_readme_shows_rows_of_the_table() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Compared")[2].partition("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("|")]

    assert len(shown) > 2
    assert set(shown) <= set(DOCUMENT.splitlines())


def test_sealane_does_what_the_table_says() -> None:
    """But for sessions, which the legacy lane keeps, with another SDK than this environment's."""
    of_the_function = {what: probe for what, probe in ROWS.items() if probe is not session}
    told = asked(OURS, of_the_function)
    assert told == {what: documented("ours")[what] for what in of_the_function}


def test_a_cell_tells_what_came() -> None:
    told = asked(FLOOR, ROWS)
    assert told["a second call in the same environment"] == "yes"
    assert told["`tools/call` of revision 2026-07-28"] == "no: a result without `resultType`"
    assert told["`GET`: 405 with `Allow: POST`"] == "no: raises TypeError"
    assert told["the event `{}`: an answer 4xx"] == "no: raises KeyError"
    assert told["`Mcp-Name` differs from the body: -32020"] == "no: HTTP 200"
    assert told["a changed state: -32602"] == "no: its tools cannot ask"
