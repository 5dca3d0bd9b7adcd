"""Measures what Sealane serves beside what people would otherwise build, and writes docs/performance.md.

    python -m tests.bench.run --rounds 3 --quick

In every round each contestant has its turn, in a process of its own; what is compared is of the same rounds. A wrong
answer ends the run.
"""

import asyncio
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from sealane.local.gateway import LocalGateway
from tests.bench import processes, runtime
from tests.bench.aws import emulated
from tests.bench.field import (
    ARTEFACTS,
    FIELD,
    GATEWAYS,
    HERE,
    OBVIOUS,
    OURS,
    ROOT,
    SEALED,
    Contestant,
    Tool,
    Tree,
    as_json,
)
from tests.bench.figures import percentile
from tests.bench.processes import Failed, Sample
from tests.bench.report import Results, document, show
from tests.events import modern

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TEXT: Final = "Hello, World!"
WITHOUT_END: Final = 1e6
"""Seconds, where calls are counted instead."""
MANY: Final = 50
CONNECTIONS: Final = (1, 4, 16)
ENVIRONMENTS: Final = 2 * max(CONNECTIONS)
"""More than connections: who has an answer, a streamed one above all, may be back before its environment is."""
APIS: Final = {"obvious": "ObviousApi", "ours": "OursApi", "streaming": "StreamingApi"}

_KIND: Final[Mapping[Tool, str]] = {"hello": "async", "hello_sync": "sync"}
_COUNTED: Final = 40
"""Warm calls whose instructions are counted; a quarter as many come before them, as a warm-up."""
_SETTLING: Final = 5
"""Loads before those that count, at most: until no new environment has started."""
_STRIDE: Final = 5
"""Turns by which each round begins later than the one before."""

WHAT: Final = {
    "floor": "a bare handler, which no server can be faster than.",
    "obvious": "the MCP SDK behind Mangum, server and Starlette application made for each request, boto3 clients for "
    "DynamoDB and KMS made at import.",
    "fastmcp": "one application for all requests. No state: boto3 is not imported.",
    "awslabs": "revision 2024-11-05 only, sync tools only, no sessions here. Imports boto3 by itself.",
    "modmex": "its own, smaller reading of revision 2026-07-28; sync tools only when buffered. No state.",
    "ours": "as the template deploys it, with table and key, a line of JSON in the log and metrics for each request; "
    "boto3 is imported when state is first used.",
    "quiet": "the same with neither lines nor metrics.",
}


class Bench:
    """A run.

    Args:
        variables: environment variables that lead to DynamoDB and KMS.
        seconds: how long each process is asked for warm answers.
        calls: warm answers after which a process has been asked enough.
    """

    def __init__(self, variables: Mapping[str, str], seconds: float, calls: int) -> None:
        self._variables = variables
        self._seconds = seconds
        self._calls = calls
        self.measures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def round(self, number: int) -> None:
        """Measure everybody once, in another order than in the round before.

        Raises:
            Failed: an answer was wrong, or something else.
        """
        turns: list[Callable[[], None]] = [
            turn
            for contestants, measure in self._turns()
            for each in (contestants if number % 2 == 0 else reversed(contestants))
            for turn in [functools.partial(measure, each)]
        ]
        first = number * _STRIDE % len(turns)
        for turn in [*turns[first:], *turns[:first]]:
            turn()
        self._sealing()

    def sizes(self) -> None:
        """Size of each artefact, in MB."""
        for each in FIELD:
            if each.artefact:
                self._add("size", each, each.size() / 1e6)

    def network(self) -> None:
        """Network calls of a sealed round trip."""
        _, told = processes.run("sealed.py", {**sealed_plan(self._seconds, 0), "count": True}, self._sealed_variables())
        if told["first"] == 0:
            raise Failed("the first round trip has got its key from nowhere: network calls are not seen")
        self._add("network-first", OURS, told["first"])
        self._add("network", OURS, told["later"])

    def instructions(self, valgrind: str) -> None:
        """Millions of instructions of a cold process and of a warm call, for as many at once as there are cores."""

        def count(each: Contestant) -> tuple[int, int]:
            cold, warm = (
                processes.instructions(
                    {**self._plan(each), "seconds": WITHOUT_END, "calls": calls},
                    self._variables_of(each, "compiled", each.tools[0]),
                    valgrind,
                )
                for calls in (0, _COUNTED)
            )
            return cold, warm

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for each, (cold, warm) in zip(FIELD, pool.map(count, FIELD), strict=True):
                self._add("instructions-cold", each, cold / 1e6)
                self._add("instructions-warm", each, (warm - cold) / (_COUNTED + _COUNTED // 4) / 1e6)

    def load(self, rounds: int, seconds: float) -> None:
        """Answers through the local gateway over several connections."""
        with LocalGateway(HERE / "template.yaml", concurrency=ENVIRONMENTS) as gateway:
            urls = {name: f"{gateway.urls[api]}/mcp" for name, api in APIS.items()}
            for url in urls.values():
                # A few environments at a time: all at once would take longer to start than they may.
                for connections in range(1, max(CONNECTIONS) + 1, 3):
                    _load(url, connections, 0)
                for _ in range(_SETTLING):
                    known = len(gateway.environments)
                    _load(url, max(CONNECTIONS), 2)
                    if len(gateway.environments) == known:
                        break
            for number in range(rounds):
                for connections in CONNECTIONS:
                    for name in list(urls) if number % 2 == 0 else reversed(urls):
                        told = _load(urls[name], connections, seconds)
                        measure = f"load-{connections}"
                        self.measures[f"{measure}-p50"][name].append(percentile(told["times"], 50))
                        self.measures[f"{measure}-p99"][name].append(percentile(told["times"], 99))
                        self.measures[f"{measure}-refused"][name].append(told["refused"])
                        self.measures[f"{measure}-rate"][name].append(len(told["times"]) / told["seconds"])

    def _turns(self) -> list[tuple[Sequence[Any], Callable[[Any], None]]]:
        """What is measured of whom. Those that are compared follow each other, within seconds."""
        return [
            (FIELD, self._one_tool),
            (FIELD, self._without_bytecode),
            (FIELD, self._other_tool),
            (FIELD, self._many_tools),
            ((OBVIOUS, OURS), self._keeping),
            (GATEWAYS, self._gateway),
            (runtime.RUNTIMES, self._runtime),
        ]

    def _one_tool(self, each: Contestant) -> None:
        sample = self._answers(each, "compiled", each.tools[0])
        self._add("cold", each, sample.cold)
        self._add("cold-cpu", each, sample.cpu)
        self._add("memory", each, sample.memory)
        self._add_warm("warm", each, sample)
        self._add_warm(_KIND[each.tools[0]], each, sample)

    def _other_tool(self, each: Contestant) -> None:
        for tool in each.tools[1:]:
            self._add_warm(_KIND[tool], each, self._answers(each, "compiled", tool))

    def _many_tools(self, each: Contestant) -> None:
        self._add_warm("many", each, self._answers(each, "compiled", each.tools[0], MANY))

    def _without_bytecode(self, each: Contestant) -> None:
        bare = self._answers(each, "bare", each.tools[0], calls=0)
        built = self._answers(each, "built", each.tools[0], calls=0) if each.has_bytecode() else bare
        self._add("cold-bare", each, bare.cold)
        self._add("cold-bare-cpu", each, bare.cpu)
        self._add("cold-built", each, built.cold)

    def _keeping(self, each: Contestant) -> None:
        plan = {**self._plan(each), "event": as_json(each.event("keep", text="this")), "text": "Kept this.", "calls": 0}
        variables = {**self._variables_of(each, "compiled", "hello"), "BENCH_KEEP": "1"}
        self._add("cold-state", each, processes.answers(plan, variables).cold)

    def _gateway(self, each: Contestant) -> None:
        sample = self._answers(each, "compiled", "hello")
        self._add("gateway", each, percentile(sample.times, 50))

    def _runtime(self, each: runtime.Runtime) -> None:
        sample = asyncio.run(
            runtime.answers(
                each,
                as_json(each.contestant.event("hello", name="World")),
                TEXT,
                self._variables_of(each.contestant, "compiled", "hello"),
                seconds=self._seconds,
                calls=self._calls,
            )
        )
        for measure, value in [
            ("cold", sample.cold),
            ("memory", sample.memory),
            ("p50", percentile(sample.times, 50)),
            ("p99", percentile(sample.times, 99)),
        ]:
            self.measures[f"runtime-{measure}"][each.name].append(value)

    def _sealing(self) -> None:
        _, told = processes.run(
            "sealed.py", {**sealed_plan(self._seconds, self._calls), "count": False}, self._sealed_variables()
        )
        plain, sealed = (percentile(told[name], 50) / 1e6 for name in ("plain", "sealed"))
        self._add("two-calls", OURS, 2 * plain)
        self._add("round-trip", OURS, sealed)
        self._add("sealing", OURS, (sealed - 2 * plain) / 2)

    def _sealed_variables(self) -> dict[str, str]:
        variables = self._variables_of(SEALED, "compiled", "hello")
        return {**variables, "PYTHONPATH": os.pathsep.join([variables["PYTHONPATH"], str(HERE)])}

    def _answers(self, each: Contestant, tree: Tree, tool: Tool, tools: int = 1, *, calls: int | None = None) -> Sample:
        plan = self._plan(each, tool)
        if calls is not None:
            plan["calls"] = calls
        return processes.answers(plan, self._variables_of(each, tree, tool, tools))

    def _plan(self, each: Contestant, tool: Tool | None = None) -> dict[str, Any]:
        event = as_json(each.event(tool or each.tools[0], name="World"))
        return {"handler": each.handler, "event": event, "text": TEXT, "seconds": self._seconds, "calls": self._calls}

    def _variables_of(self, each: Contestant, tree: Tree, tool: Tool, tools: int = 1) -> dict[str, str]:
        return {**each.variables(tree, tool, tools), **self._variables}

    def _add(self, measure: str, each: Contestant, value: float) -> None:
        self.measures[measure][each.name].append(value)

    def _add_warm(self, measure: str, each: Contestant, sample: Sample) -> None:
        self._add(f"{measure}-p50", each, percentile(sample.times, 50))
        self._add(f"{measure}-p99", each, percentile(sample.times, 99))


def sealed_plan(seconds: float, calls: int) -> dict[str, Any]:
    """What sealed.py is to do, but for `count`."""
    can_be_asked: dict[str, Any] = {"elicitation": {"form": {}}}
    _, body = modern("tools/call", name="greet", arguments={}, client_capabilities=can_be_asked)
    return {
        "handler": SEALED.handler,
        "plain": as_json(SEALED.event("hello", name="World")),
        "ask": as_json({**SEALED.event("greet"), "body": json.dumps(body)}),
        "text": TEXT,
        "seconds": seconds,
        "calls": calls,
    }


def _load(url: str, connections: int, seconds: float) -> dict[str, Any]:
    headers, body = modern("tools/call", name="hello", arguments={"name": "World"})
    plan = {
        "url": url,
        "connections": connections,
        "seconds": seconds,
        "headers": headers,
        "body": json.dumps(body),
        "text": TEXT,
    }
    command = [sys.executable, "-m", "tests.bench.load", json.dumps(plan)]
    sent = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)  # noqa: S603
    if sent.returncode != 0:
        raise Failed(f"load: {sent.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(sent.stdout)
    return told


@contextmanager
def _telling(console: Console, what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    console.print(f"{what}: {time.monotonic() - started:.0f} s", style="dim")


def _missing() -> list[str]:
    """Artefacts that were not made."""
    folders = {folder for each in FIELD for folder in each.folders("built")}
    return [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not folder.is_dir()]


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each contestant has its turn.")] = 12,
    quick: Annotated[bool, typer.Option(help="A tenth of the warm calls, short loads, no instructions.")] = False,
    instructions: Annotated[bool, typer.Option(help="Count instructions, where valgrind is installed.")] = True,
    results_file: Annotated[Path | None, typer.Option("--json", help="Write every value of every round here.")] = None,
    to: Annotated[Path | None, typer.Option(help="The document to write, such as docs/performance.md.")] = None,
    chart: Annotated[Path | None, typer.Option(help="The chart to draw, such as docs/performance.png.")] = None,
) -> None:
    """Measure Sealane beside what people would otherwise build."""
    console = Console(soft_wrap=True, width=max(Console().width, 120))
    if missing := _missing():
        console.print(f'Not made: {", ".join(missing)}. Run "make bench"', style="red")
        raise typer.Exit(2)
    written = results_file or ARTEFACTS / "results.json"
    try:
        with emulated() as variables:
            bench = Bench(variables, seconds=0.1 if quick else 1.0, calls=100 if quick else 1000)
            bench.sizes()
            bench.network()
            for number in range(rounds):
                with _telling(console, f"round {number + 1} of {rounds}"):
                    bench.round(number)
                _write(written, bench, number + 1, quick)
            with _telling(console, "load"):
                bench.load(min(rounds, 5), 0.3 if quick else 2.0)
            valgrind = shutil.which("valgrind") if instructions and not quick else None
            if valgrind is not None:
                with _telling(console, "instructions"):
                    bench.instructions(valgrind)
    except Failed as failed:
        console.print(str(failed), style="red", markup=False)
        raise typer.Exit(1) from None
    results = _write(written, bench, rounds, quick)
    show(console, results)
    if to is not None:
        to.write_text(document(results), "utf-8")
    if chart is not None:
        _draw(written, chart)


def _write(file: Path, bench: Bench, rounds: int, quick: bool) -> Results:
    """Write what was measured so far."""
    results = Results(
        titles={each.name: each.title for each in FIELD},
        measures={measure: dict(values) for measure, values in bench.measures.items()},
        about={
            "bytecode": [each.title for each in FIELD if each.has_bytecode()],
            "connections": CONNECTIONS,
            "cores": os.cpu_count(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "gateways": {each.name: each.title for each in GATEWAYS},
            "machine": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "quick": quick,
            "rounds": rounds,
            "runtimes": {each.name: each.title for each in runtime.RUNTIMES},
            "what": WHAT,
        },
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(results), indent=1), "utf-8")
    return results


def _draw(results: Path, chart: Path) -> None:
    python = ROOT / ".venv-chart" / "bin" / "python"
    subprocess.run([python, HERE / "chart.py", results, chart], check=True)  # noqa: S603


if __name__ == "__main__":
    app()
