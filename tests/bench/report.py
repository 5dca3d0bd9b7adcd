"""What a run found, as tables on the terminal and as docs/performance.md."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.markdown import Markdown

from tests.bench.figures import Summary, ratio, summary

BASE: Final = "obvious"
OURS: Final = "ours"
_NONE: Final = "-"


@dataclass(frozen=True)
class Results:
    """What a run found.

    Attributes:
        titles: what tables call the contestants, in the order of the tables.
        measures: by measure and contestant, one value for each round.
        about: where and how it was measured.
    """

    titles: Mapping[str, str]
    measures: Mapping[str, Mapping[str, Sequence[float]]]
    about: Mapping[str, Any]

    def summary(self, measure: str, name: str) -> Summary | None:
        """Median and quartiles, if there are any."""
        values = self.measures.get(measure, {}).get(name)
        return summary(values) if values else None

    def ratio(self, measure: str, name: str, base: str = BASE, base_measure: str | None = None) -> Summary | None:
        """The same of ratios within each round."""
        values = self.measures.get(measure, {}).get(name)
        others = self.measures.get(base_measure or measure, {}).get(base)
        return ratio(values, others) if values and others else None


@dataclass(frozen=True)
class Goal:
    """A figure to reach.

    Attributes:
        what: what is measured.
        limit: at most this.
        unit: of the limit; empty for a ratio.
        of: what was measured of it.
        obvious: the obvious server's, where it has one.
    """

    what: str
    limit: float
    unit: str
    of: Callable[[Results], Summary | None]
    obvious: Callable[[Results], Summary | None] = lambda results: None


GOALS: Final = (
    Goal(
        "cold start, both with bytecode",
        0.45,
        "",
        lambda results: results.ratio("cold", OURS),
        lambda results: results.ratio("cold", BASE),
    ),
    Goal(
        "cold start, both as `sam build` leaves them",
        0.45,
        "",
        lambda results: results.ratio("cold-built", OURS),
        lambda results: results.ratio("cold-built", BASE),
    ),
    Goal(
        "warm p50, one async tool",
        0.5,
        "ms",
        lambda results: results.summary("async-p50", OURS),
        lambda results: results.summary("async-p50", BASE),
    ),
    Goal(
        "warm p50, one sync tool",
        0.75,
        "ms",
        lambda results: results.summary("sync-p50", OURS),
        lambda results: results.summary("sync-p50", BASE),
    ),
    Goal(
        "warm p50, 50 tools to 1 tool",
        1.3,
        "times",
        lambda results: results.ratio("many-p50", OURS, OURS, "warm-p50"),
        lambda results: results.ratio("many-p50", BASE, BASE, "warm-p50"),
    ),
    Goal("what a sealed round trip adds to a call", 0.15, "ms", lambda results: results.summary("sealing", OURS)),
    Goal("its network calls", 0, "", lambda results: results.summary("network", OURS)),
    Goal(
        "event to ASGI to event (obvious: Mangum as it comes)",
        0.1,
        "ms",
        lambda results: results.summary("gateway", OURS),
        lambda results: results.summary("gateway", "mangum"),
    ),
    Goal(
        "peak memory of the cold process",
        60,
        "MB",
        lambda results: results.summary("memory", OURS),
        lambda results: results.summary("memory", BASE),
    ),
    Goal(
        "artefact unzipped, function and layer",
        28,
        "MB",
        lambda results: results.summary("size", OURS),
        lambda results: results.summary("size", BASE),
    ),
)
"""A cold start's limit is a ratio to the obvious server's."""

Column = tuple[str, str]
"""A heading and a measure."""


def document(results: Results) -> str:
    """The document, as Markdown."""
    about = results.about
    return "\n".join(
        [
            "# Performance",
            "",
            f"`make bench` on {about['date']}: {about['rounds']} interleaved {'quick ' * about['quick']}rounds "
            f"with Python {about['python']} on {about['machine']}, {about['cores']} cores. Figures of another machine "
            "differ; ratios are within one round, in which contestants take turns, and carry over better. A cell is "
            "the median of all rounds, with the quartiles behind it.",
            "",
            "![Cold start, warm calls, memory and size of all contestants](performance.png)",
            "",
            "## Goals",
            "",
            *_table(["", "goal", "Sealane", "obvious", ""], (_goal(goal, results) for goal in GOALS), right=(1, 2, 3)),
            "",
            "## Contestants",
            "",
            *[f"- **{title}**: {about['what'][name]}" for name, title in results.titles.items()],
            "",
            "## Cold start",
            "",
            "Milliseconds from the start of a process to its first right answer to `tools/call`, and the most memory "
            "that it had resident until then. CPU is what it used of a core, which other programs disturb less. "
            "Modules come with bytecode that is not checked against its source, Sealane's as its build leaves them, or "
            "with none, on a disk that takes none, as Lambda's does; Lambda's own packages (boto3) always have theirs. "
            f"By its build, bytecode is in the artefact of: {', '.join(about['bytecode']) or 'nobody'}.",
            "",
            *_compare(
                results,
                [
                    ("with bytecode, ms", "cold"),
                    ("CPU, ms", "cold-cpu"),
                    ("without, ms", "cold-bare"),
                    ("CPU, ms", "cold-bare-cpu"),
                    ("peak memory, MB", "memory"),
                ],
            ),
            "",
            "The same where the first call writes an item to DynamoDB (moto, on the same machine), which is what loads "
            "boto3 in Sealane:",
            "",
            *_compare(results, [("with bytecode, ms", "cold-state")]),
            "",
            "## What is imported",
            "",
            "Importing the SDK's server half runs its client half too, and builds some five hundred pydantic models. "
            "Sealane puts off what the SDK does not need for the request at hand: `mcp`'s own `__init__`, with the "
            "client half behind it, the OAuth server's routes and what seals request state run when they are asked for "
            "a name; models, the SDK's and the wire models of a revision, are made one by one as they are asked for; "
            "schemas are built when they are first used; nothing searches for garbage meanwhile, or for plugins of "
            "pydantic where no package says that it is one. "
            "All of it is one module, `sealane/import_cuts.py`, which says what still shows. It changes no byte of an "
            "answer (`tests/conformance/test_traffic.py` asks what the official suite asks, with and without) and no "
            "name of the SDK (`tests/unit/test_import_cuts.py`). It takes effect where `sealane` is imported before "
            "the SDK, as in the sample's `app.py`; `SEALANE_IMPORT_CUTS=off` leaves all imports as they are.",
            "",
            "## Warm calls",
            "",
            "Milliseconds in the handler, after a warm-up. The 50 tools are in the catalog; one is called. "
            "Sealane logs and counts each request as it does where it is deployed, here and in every other table of "
            "its answers; the lines go to a file. What that costs is the difference to Sealane without telemetry.",
            "",
            *_compare(
                results,
                [
                    ("async tool p50", "async-p50"),
                    ("p99", "async-p99"),
                    ("sync tool p50", "sync-p50"),
                    ("p99", "sync-p99"),
                    ("50 tools p50", "many-p50"),
                    ("p99", "many-p99"),
                ],
                ratios=("async-p50", "sync-p50", "many-p50"),
            ),
            "",
            "An event's way to an ASGI application that does nothing, and back (milliseconds, p50; ratios to Mangum as "
            "it comes):",
            "",
            *_compare(results, [("gateway", "gateway")], "mangum", about["gateways"]),
            "",
            "A question and its answer, with the sealed state between them (milliseconds of both calls together, p50):",
            "",
            *_table(
                ["", ""],
                [
                    ["round trip, sealed with data keys of KMS", _cell(results.summary("round-trip", OURS))],
                    ["two calls that ask nothing", _cell(results.summary("two-calls", OURS))],
                    ["half the difference: asking, sealing, opening", _cell(results.summary("sealing", OURS))],
                    ["network calls of the first round trip", _cell(results.summary("network-first", OURS))],
                    ["network calls of each later one", _cell(results.summary("network", OURS))],
                ],
            ),
            "",
            "## Through the Runtime API",
            "",
            "From the event at the Runtime API to the end of the answer there, loopback HTTP included. Sealane streams "
            "with a runtime of its own.",
            "",
            *_compare(
                results,
                [
                    ("cold, ms", "runtime-cold"),
                    ("peak memory, MB", "runtime-memory"),
                    ("warm p50, ms", "runtime-p50"),
                    ("p99", "runtime-p99"),
                ],
                titles=about["runtimes"],
                ratios=("runtime-cold", "runtime-memory", "runtime-p50"),
            ),
            "",
            "## Under load, through the local gateway",
            "",
            "Each connection sends its next request when it has its answer. Gateway, environments and sender share the "
            "machine's cores: the figures compare, they are not Lambda's. What is refused because all environments are "
            "busy is sent again, and its time counts.",
            "",
            *(
                line
                for connections in about["connections"]
                for line in [
                    f"{connections} connection{'s' if connections > 1 else ''}:",
                    "",
                    *_compare(
                        results,
                        [
                            ("p50, ms", f"load-{connections}-p50"),
                            ("p99, ms", f"load-{connections}-p99"),
                            ("answers per second", f"load-{connections}-rate"),
                        ],
                        titles=about["runtimes"],
                        ratios=(f"load-{connections}-p50", f"load-{connections}-rate"),
                    ),
                    "",
                ]
            ),
            "## Artefacts and instructions",
            "",
            "Size of the unzipped artefact as its build leaves it, for Sealane with the layer; boto3 is "
            "Lambda's, unless the package requires it. Instructions (valgrind) of a whole process with one call, with "
            "bytecode, and of each warm call: the same on every machine of a kind, however busy.",
            "",
            *_compare(
                results,
                [
                    ("artefact, MB", "size"),
                    ("cold, million instructions", "instructions-cold"),
                    ("warm call, million instructions", "instructions-warm"),
                ],
            ),
            "",
        ]
    )


def show(console: Console, results: Results) -> None:
    """The goals, on the terminal."""
    rows = (_goal(goal, results) for goal in GOALS)
    console.print(Markdown("\n".join(_table(["", "goal", "Sealane", "obvious", ""], rows, right=(1, 2, 3)))))


def _goal(goal: Goal, results: Results) -> list[str]:
    measured = goal.of(results)
    unit = f" {goal.unit}" if goal.unit else ""
    reached = "" if measured is None else "reached" if measured.median <= goal.limit else "not reached"
    return [goal.what, f"≤ {goal.limit:g}{unit}", _cell(measured), _cell(goal.obvious(results)), reached]


def _compare(
    results: Results,
    columns: Sequence[Column],
    base: str = BASE,
    titles: Mapping[str, str] | None = None,
    ratios: Sequence[str] | None = None,
) -> list[str]:
    """A table with one line a contestant; behind a column of `ratios` (default: all) its ratio to the base's."""
    shown = [measure for _, measure in columns] if ratios is None else ratios
    heads = [""]
    for heading, measure in columns:
        heads += [heading, "ratio"] if measure in shown else [heading]
    rows = []
    for name, title in (titles or results.titles).items():
        row = [title]
        for _, measure in columns:
            row.append(_cell(results.summary(measure, name)))
            if measure in shown:
                found = results.ratio(measure, name, base)
                row.append(_NONE if found is None else f"{found.median:.2f}")
        if any(cell != _NONE for cell in row[1:]):
            rows.append(row)
    return _table(heads, rows) if rows else ["(not measured)"]


def _cell(figure: Summary | None) -> str:
    if figure is None:
        return _NONE
    if figure.low == figure.high:
        return _number(figure.median)
    return f"{_number(figure.median)} ({_number(figure.low)} to {_number(figure.high)})"


def _number(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] | None = None) -> list[str]:
    """A Markdown table; all columns but the first are right-aligned, or those of `right`."""
    aligned = range(1, len(heads)) if right is None else right
    lines = [heads, ["--:" if place in aligned else "---" for place in range(len(heads))], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
