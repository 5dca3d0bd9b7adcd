"""What a run found, as a table on the terminal and as docs/conformance.md."""

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

STATUSES = ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")


@dataclass(frozen=True)
class Check:
    """One finding: of the referee, or a step of a client."""

    scenario: str
    id: str
    status: str
    message: str = ""
    details: Any = None


@dataclass(frozen=True)
class Expected:
    """A check that does not pass, and why."""

    scenario: str
    check: str
    status: str
    reason: str


@dataclass(frozen=True)
class Result:
    """What became of one run against one target.

    Attributes:
        target: what was tested.
        revision: the protocol revision that it was tested for.
        run: what tested it.
        checks: all findings that count.
        listed: those that were expected not to pass.
        problems: all that makes the run fail, one line each.
        requests: how many requests each environment served.
        seconds: how long it took.
        unscored: scenarios that ran without counting, because the revision does not require them.
    """

    target: str
    revision: str
    run: str
    checks: list[Check]
    listed: list[Expected]
    problems: list[str]
    requests: Counter[int]
    seconds: float
    unscored: list[str] = field(default_factory=list)

    def numbers(self) -> list[str]:
        """How many checks have each of `STATUSES`, and how many are listed."""
        counted = Counter(check.status for check in self.checks)
        return [*(str(counted[status]) for status in STATUSES), str(len(self.listed))]


def all_problems(unprepared: Sequence[str], results: Sequence[Result]) -> list[str]:
    """Everything that makes the run fail, one line each."""
    return [
        *unprepared,
        *(f"{each.target} {each.revision}, {each.run}: {problem}" for each in results for problem in each.problems),
    ]


def show(console: Console, results: Sequence[Result]) -> None:
    """Print a table of the results."""
    table = Table("target", "run", "passed", "failed", "warned", "skipped", "listed", "requests", "s")
    for each in results:
        spread = "+".join(str(each.requests[number]) for number in sorted(each.requests))
        run = each.run.strip("`")
        table.add_row(f"{each.target} {each.revision}", run, *each.numbers(), spread, f"{each.seconds:.1f}")
    console.print(table)


def document(suite: Sequence[Result], clients: Sequence[Result], problems: Sequence[str], tools: str) -> str:
    """The text of docs/conformance.md.

    Args:
        suite: what the referee found.
        clients: how real clients fared.
        problems: everything that makes the run fail.
        tools: the referee and what it runs on, with versions.
    """
    lines = [
        "# Conformance",
        "",
        "Written by `make conformance`; do not edit.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d} · Sealane {version('sealane')} · MCP SDK {version('mcp')} · "
        f"Python {platform.python_version()} · {tools}",
        "",
    ]
    if problems:
        lines += ["**This run failed:**", "", *(f"- {problem}" for problem in problems), ""]
    lines += [
        "Everything goes through the local gateway, which sends requests in a row to different environments. The "
        "official suite runs against [a server that offers all it asks for](../tests/conformance/server.py), the "
        "clients against [the sample server](../functions/stateless/server.py); the legacy lane has "
        "[its](../tests/legacy/conformance/server.py) [own](../functions/legacy/server.py), and streams. All else that "
        "is not called streaming runs with `ResponseStreaming=false`. Each finding that is not a pass is listed below "
        "with its reason; any other makes the run fail, as does a listed one that passes.",
        "",
        "| target | run | passed | failed | warnings | skipped | listed below |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {each.target} | {' | '.join([each.run, *each.numbers()])} |" for each in [*suite, *clients]]
    for each in suite:
        lines += ["", f"## {each.target.capitalize()}, {each.revision}", ""]
        lines += _reasons(each.listed) or ["Every check passes."]
        if each.unscored:
            names = ", ".join(f"`{scenario}`" for scenario in each.unscored)
            lines += ["", f"Run by the referee, but not required by the revision and not counted: {names}."]
    lines += [
        "",
        "## Clients",
        "",
        "Each lists what there is, calls tools (a notebook is made, written and read), follows the progress of one, "
        "answers questions (one by a resolver, two rounds by hand), reads resources, gets a prompt, and listens to a "
        "notebook until it is told of a change that another environment has made: "
        "[what must come back](../tests/conformance/real_clients.py). A failed step is one that the server refuses, "
        "with the text that it must have.",
        "",
        "Clients of the legacy lane, whose requests reach any of four environments by chance, list and call tools, "
        "read, follow progress, answer a form, a page to open, requests for their model and their folders, are told of "
        "what they have subscribed to and of lists that change, set a log level, come back to a stream that the server "
        "has ended and to one whose wire was cut, and end their session: "
        "[what must come back](../tests/conformance/legacy_lane.py).",
        "",
        *_steps([listed for each in clients for listed in each.listed]),
        "",
        "## What a pass does not say",
        "",
        "- `logging-set-level`: the level is accepted and not kept, since there is no session; log messages of every "
        "level are sent.",
        "- `tools-call-with-progress`, `tools-call-with-logging`, and a client's progress: notifications are counted, "
        "and not asked when they arrive. Through a buffering gateway they arrive together with the result.",
        "- Listening through a buffering gateway: everything arrives when the poll ends, the acknowledgement too. The "
        "referee waits 0.8 s for it, so polls of its server last [0.4 s](../tests/conformance/app.py) and not 20, and "
        "`sep-2575-server-honors-notification-filter` passes because the poll has ended. Inspector, and a client of "
        "TypeScript SDK v2 with `listChanged` handlers, listen as they connect and wait for the acknowledgement: 4 s "
        "with the polls of [this run](../tests/conformance/sample/app.py), 20 s by default.",
        "- `server-stateless`, the checks of response streams: the answers that it looks at are single JSON messages.",
        "- `dns-rebinding-protection` sends a foreign Host and a foreign Origin at once. The `input-required-result` "
        "scenarios may see one environment only, and append to a state instead of changing it. Before the referee "
        "starts, [the run](../tests/conformance/prepare.py) sends each header alone, lets every environment open what "
        "one has sealed with the stack's key, and changes a state in many places.",
        "- The referee sends up to three requests at a time beside the stream of its session, and leaves streams open "
        "behind it. Where its server is the legacy lane, [three environments](../tests/conformance/legacy_lane.py) "
        "serve it, and what finds them all busy waits; Lambda starts others, or refuses.",
        "- Nothing in the table is about revisions 2025-06-18 and older, which the referee does not speak and these "
        "clients do not ask for: [tests of our own](../tests/conformance/test_old_wires.py) do.",
    ]
    return "\n".join(lines) + "\n"


def _reasons(listed: Sequence[Expected]) -> list[str]:
    """One line for each reason, with all the checks that it holds for."""
    lines = [] if listed else ["Every check passes."]
    for reason in dict.fromkeys(each.reason for each in listed):
        checks = [f"`{each.check}` ({each.status})" for each in listed if each.reason == reason]
        lines.append(f"- {', '.join(checks)}: {reason}")
    return lines


def _steps(listed: Sequence[Expected]) -> list[str]:
    """One line for each reason, with the step and the clients that it holds for."""
    lines = []
    for reason in dict.fromkeys(each.reason for each in listed):
        own = [each for each in listed if each.reason == reason]
        who = ", ".join(dict.fromkeys(each.scenario for each in own))
        lines.append(f"- `{own[0].check}` ({own[0].status}), {who}: {reason}")
    return lines
