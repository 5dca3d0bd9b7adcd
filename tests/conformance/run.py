"""Runs the official conformance suite, the referee, against the local gateway, and writes docs/conformance.md.

    python -m tests.conformance.run

The referee's exit code says less than its checks: a warning, a skipped check, a scenario that checked nothing and a
pass on the error of an unknown tool all count as success there. Here each of them has to be listed with its reason.
"""

import asyncio
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult
from rich.console import Console
from rich.table import Table

from sealane.local.testing import ObservedGateway

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE = "node/bin/node"
REFEREE = "@modelcontextprotocol/conformance"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ENVIRONMENTS = 4
"""The referee sends up to three requests at a time."""


@dataclass(frozen=True)
class Target:
    """One run of the referee.

    Attributes:
        name: what is tested.
        revision: the protocol revision that it is tested for.
        frozen: whether only what that revision required when it was released counts.
        expected: name of the file that lists what does not pass.
        passes: how many checks pass; fewer mean that checks have vanished.
    """

    name: str
    revision: str
    frozen: bool
    expected: str
    passes: int

    @property
    def arguments(self) -> list[str]:
        """The referee's arguments that select the scenarios."""
        return ["--requirements", self.revision] if self.frozen else ["--suite", "all", "--spec-version", self.revision]


TARGETS = [
    Target("stateless, buffered", "2026-07-28", False, "expected-failures-stateless-buffered.yml", 147),
    Target("compatibility", "2025-11-25", False, "expected-failures-compatibility.yml", 61),
    Target("frozen set", "2026-07-28", True, "expected-failures-stateless-buffered.yml", 115),
    Target("frozen set", "2025-11-25", True, "expected-failures-compatibility.yml", 53),
]


@dataclass(frozen=True)
class Check:
    """One finding of the referee."""

    scenario: str
    id: str
    status: str
    message: str
    details: Any


@dataclass(frozen=True)
class Expected:
    """A check that does not pass, and why."""

    scenario: str
    check: str
    status: str
    reason: str


@dataclass(frozen=True)
class Result:
    """What became of a target.

    Attributes:
        target: the target.
        checks: all findings that count.
        listed: those that were expected not to pass.
        problems: all that makes the run fail, one line each.
        requests: how many requests each environment served.
        unscored: scenarios that ran without counting, because the revision does not require them.
        seconds: how long it took.
    """

    target: Target
    checks: list[Check]
    listed: list[Expected]
    problems: list[str]
    requests: Counter[int]
    unscored: list[str]
    seconds: float

    def count(self, status: str) -> int:
        """How many checks have `status`."""
        return sum(check.status == status for check in self.checks)


def load_expected(name: str) -> list[Expected]:
    """The entries of a file, one for each check."""
    entries: list[dict[str, Any]] = yaml.safe_load((HERE / name).read_text("utf-8"))
    return [
        Expected(entry["scenario"], check, entry["status"], entry["reason"].strip())
        for entry in entries
        for check in entry["checks"]
    ]


def read_checks(folder: Path) -> list[Check]:
    """Everything that the referee found; it makes a folder `server-<scenario>-<time>` for each scenario."""
    checks = []
    for file in sorted(folder.glob("*/checks.json")):
        scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", file.parent.name)
        checks += [
            Check(scenario, each["id"], each["status"], each.get("errorMessage") or "", each.get("details"))
            for each in json.loads(file.read_text("utf-8"))
        ]
    return checks


def judge(checks: list[Check], expected: list[Expected]) -> list[str]:
    """What the findings and the list do not agree on.

    Args:
        checks: findings of all scenarios that count.
        expected: what is listed; entries of scenarios that did not run are ignored.
    """
    problems = []
    listed = {(each.scenario, each.check, each.status) for each in expected}
    for scenario in dict.fromkeys(check.scenario for check in checks):
        own = [check for check in checks if check.scenario == scenario]
        open_findings = [check for check in own if check.status not in ("SUCCESS", "INFO")]
        if not open_findings and not any(c.status == "SUCCESS" and c.id != "wire-schema-valid" for c in own):
            # The scenario ran and checked nothing.
            open_findings = [check for check in own if check.status == "INFO"]
        problems += [
            f"{scenario}: {check.id} is {check.status}: {check.message or json.dumps(check.details)}"
            for check in open_findings
            if (scenario, check.id, check.status) not in listed
        ]
        problems += [
            f"{scenario}: {each.check} is listed as {each.status} and is not"
            for each in expected
            if each.scenario == scenario
            and (each.check, each.status) not in {(check.id, check.status) for check in open_findings}
        ]
    problems += [
        f"{check.scenario}: {check.id} passes on a tool's error"
        for check in checks
        if check.status == "SUCCESS" and check.scenario != "tools-call-error" and _has_tool_error(check.details)
    ]
    return problems


def _has_tool_error(details: Any) -> bool:
    if isinstance(details, dict):
        return details.get("isError") is True or any(_has_tool_error(value) for value in details.values())
    return isinstance(details, list) and any(_has_tool_error(value) for value in details)


class Referee:
    """The official suite as npm installs it.

    Args:
        node_modules: where it is.
        gateway: what is tested.
    """

    def __init__(self, node_modules: Path, gateway: ObservedGateway) -> None:
        self._folder = node_modules / REFEREE
        self._command = [str(node_modules / NODE), str(self._folder / "dist/index.js")]
        self._gateway = gateway

    def names(self) -> set[str]:
        """The tools and prompts that its scenarios use; those of extensions have other names, with one exception."""
        source = (self._folder / "dist/index.js").read_text("utf-8")
        used = re.findall(r"(?:`(?:tools/call|prompts/get)`,|callTool\(|params:)\{name:`(test_\w+)`", source)
        return {*used, "json_schema_2020_12_tool"} - {"test_tool_with_task"}

    def unscored(self, revision: str) -> list[str]:
        """The scenarios that a frozen set runs without counting them."""
        document = yaml.safe_load((self._folder / f"requirements/{revision}.yaml").read_text("utf-8"))
        return [entry["scenario"] for entry in document["not_scored"] if entry["leg"] == "server"]

    def run(self, target: Target) -> Result:
        """Run one target and judge what it finds."""
        started, first = time.monotonic(), len(self._gateway.calls)
        with tempfile.TemporaryDirectory() as folder:
            output = subprocess.run(  # noqa: S603 - our own command
                [*self._command, "server", "--url", self._gateway.url, *target.arguments, "--output-dir", folder],
                capture_output=True,
                text=True,
                timeout=600,
            ).stdout
            found = read_checks(Path(folder))
        seconds = time.monotonic() - started
        calls = self._gateway.calls[first:]

        announced = re.search(r"Running .*\((\d+) scenarios\)", output)
        ran = {check.scenario for check in found}
        unscored = self.unscored(target.revision) if target.frozen else []
        checks = [check for check in found if check.scenario not in unscored]
        listed = load_expected(target.expected)
        expected = [each for each in listed if each.scenario in ran.difference(unscored)]
        problems = judge(checks, expected)
        if not target.frozen:
            problems += [f"{each.scenario} is listed and did not run" for each in listed if each.scenario not in ran]
        if announced is None or int(announced[1]) != len(ran):
            problems.append(f"the referee announced {announced and announced[1]} scenarios, {len(ran)} left checks")
        if (passes := sum(check.status == "SUCCESS" for check in checks)) != target.passes:
            problems.append(f"{passes} checks pass, not {target.passes}")
        problems += [f"the gateway answered {call.status}: {call.problem}" for call in calls if call.status >= 500]
        requests = Counter(call.environment for call in calls if call.environment is not None)
        return Result(target, checks, expected, problems, requests, [s for s in unscored if s in ran], seconds)


async def prepare(wanted: set[str], gateway: ObservedGateway) -> list[str]:
    """Start every environment, and look for what the referee takes for granted.

    Many of its checks take the tool error with which an unknown tool is answered for an answer. And its second round
    may reach the environment that served the first one, so that it does not see whether they share a key.

    Args:
        wanted: the tools and prompts that the referee uses.
        gateway: what is tested.

    Returns:
        What is not as it should be, one line each.
    """
    sealed_by: int | None = None
    busy: set[asyncio.Task[CallToolResult]] = set()

    async def confirm(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Answer the question once the environment that asked it is busy (or another one, and it is not the next)."""
        nonlocal sealed_by
        sealed_by = gateway.calls[-1].environment
        busy.add(asyncio.create_task(client.call_tool("test_tool_with_progress")))
        await asyncio.sleep(0.05)
        return ElicitResult(action="accept", content={"ok": True})

    async with Client(gateway.url, elicitation_callback=confirm) as client:
        # Slower than a request needs to arrive, so that no environment serves two of them.
        await asyncio.gather(*(client.call_tool("test_tool_with_progress") for _ in range(ENVIRONMENTS)))
        tools, prompts = await client.list_tools(), await client.list_prompts()
        offered = {tool.name for tool in tools.tools} | {prompt.name for prompt in prompts.prompts}
        problems = [f"the server does not offer {name}" for name in sorted(wanted - offered)]
        try:
            result = await client.call_tool("test_input_required_result_request_state")
            if result.is_error or gateway.calls[-1].environment == sealed_by:
                problems.append("no state went from one environment to another")
        except MCPError as error:
            problems.append(f"a state that another environment has sealed is refused: {error}")
        await asyncio.gather(*busy)
    return problems


def admits_strangers(url: str) -> list[str]:
    """Whether a foreign Host, or a foreign Origin, is served; the referee sends both at once."""
    endpoint = urlsplit(url)
    problems = []
    for header, value in (("Host", "evil.example.com"), ("Origin", "http://evil.example.com")):
        connection = HTTPConnection(endpoint.netloc, timeout=10)
        connection.request("POST", endpoint.path, "{}", {"Content-Type": "application/json", header: value})
        if (status := connection.getresponse().status) not in (403, 421):
            problems.append(f"{header}: {value} is answered {status}")
        connection.close()
    return problems


def show(console: Console, results: list[Result]) -> None:
    """Print a table of the results, and their problems."""
    table = Table("target", "passed", "failed", "warned", "skipped", "listed", "requests", "s")
    for each in results:
        numbers = [each.count(status) for status in ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")]
        spread = "+".join(str(each.requests[number]) for number in sorted(each.requests))
        row = [*map(str, numbers), str(len(each.listed)), spread, f"{each.seconds:.1f}"]
        table.add_row(f"{each.target.name} {each.target.revision}", *row)
    console.print(table)
    for each in results:
        for problem in each.problems:
            console.print(f"{each.target.name} {each.target.revision}: {problem}", style="red", markup=False)


def report(results: list[Result], referee: str, node: str) -> str:
    """The text of docs/conformance.md."""
    lines = [
        "# Conformance",
        "",
        "Written by `make conformance`; do not edit.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d} · Sealane {version('sealane')} · MCP SDK {version('mcp')} · "
        f"Python {platform.python_version()} · `{REFEREE}` {referee} on Node {node}",
        "",
        "The official suite, against [a server that offers all it asks for](../tests/conformance/server.py), through "
        f"the local gateway with {ENVIRONMENTS} environments. Each finding that is not a pass is listed below with its "
        "reason; any other makes the run fail, as does a listed one that passes.",
        "",
        "| target | run | passed | failed | warnings | skipped | listed below |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in results:
        numbers = [each.count(status) for status in ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")]
        row = [each.target.name, f"`{' '.join(each.target.arguments)}`", *numbers, len(each.listed)]
        lines.append(f"| {' | '.join(map(str, row))} |")
    for each in results:
        lines += ["", f"## {each.target.name.capitalize()}, {each.target.revision}", ""]
        lines += [f"- **{problem}**" for problem in each.problems]
        for reason in dict.fromkeys(listed.reason for listed in each.listed):
            checks = [f"`{listed.check}` ({listed.status})" for listed in each.listed if listed.reason == reason]
            lines.append(f"- {', '.join(checks)}: {reason}")
        if each.unscored:
            names = ", ".join(f"`{scenario}`" for scenario in each.unscored)
            lines += ["", f"Run by the referee, but not required by the revision and not counted: {names}."]
    lines += [
        "",
        "## What a pass does not say",
        "",
        "- `logging-set-level`: the level is accepted and not kept, since there is no session; log messages of every "
        "level are sent.",
        "- `tools-call-with-progress`, `tools-call-with-logging`: the referee counts notifications and does not ask "
        "when they arrive. Through a buffering gateway they arrive together with the result.",
        "- `server-stateless`, the checks of response streams: the answers that it looks at are single JSON messages.",
        "- `dns-rebinding-protection` sends a foreign Host and a foreign Origin at once, and the "
        "`input-required-result` scenarios may see one environment only. Before the referee starts, the run sends each "
        "header alone, and lets one environment open what another one has sealed.",
        "- Nothing here is about revisions 2025-06-18 and older, which the referee does not speak.",
    ]
    return "\n".join(lines) + "\n"


@app.command()
def main(
    node_modules: Annotated[Path, typer.Option(help="Where npm has installed the suite.")] = HERE / "node_modules",
    document: Annotated[Path, typer.Option(help="The file to write.")] = ROOT / "docs/conformance.md",
    logs: Annotated[bool, typer.Option(help="Show what the function writes.")] = False,
) -> None:
    """Run the official conformance suite against the local gateway."""
    console = Console(soft_wrap=True, width=max(Console().width, 110))
    if not (node_modules / NODE).is_file():
        console.print(f'No {NODE} in {node_modules}: run "npm ci" in tests/conformance', style="red")
        raise typer.Exit(2)
    code_dirs = {"StatelessFunction": HERE}
    with ObservedGateway(ROOT / "template.yaml", code_dirs=code_dirs, concurrency=ENVIRONMENTS) as gateway:
        referee = Referee(node_modules.resolve(), gateway)
        unprepared = asyncio.run(prepare(referee.names(), gateway))
        unprepared += admits_strangers(gateway.url)
        if len(gateway.environments) != ENVIRONMENTS:
            unprepared.append(f"{len(gateway.environments)} environments are warm, not {ENVIRONMENTS}")
        results = [referee.run(target) for target in TARGETS]
    if logs:
        lines = (f"environment {line.environment} | {line.text}" for line in gateway.lines)
        console.print(*lines, sep="\n", markup=False)
    show(console, results)
    for problem in unprepared:
        console.print(problem, style="red", markup=False)
    document.write_text(report(results, _version(node_modules / REFEREE), _version(node_modules / "node")), "utf-8")
    if unprepared or any(each.problems for each in results):
        sys.exit(1)


def _version(package: Path) -> str:
    return str(json.loads((package / "package.json").read_text("utf-8"))["version"])


if __name__ == "__main__":
    app()
