"""Who takes part, and what each is asked."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.events import Event, legacy, make_event, modern

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
ARTEFACTS: Final = ROOT / ".bench"
"""Made by the Makefile: a folder for each contestant, with a tree for each `Tree`, and Lambda's runtime."""

TELLING: Final = {
    "AWS_LAMBDA_RUNTIME_API": "127.0.0.1:9001",
    "POWERTOOLS_METRICS_NAMESPACE": "Sealane",
    "POWERTOOLS_SERVICE_NAME": "bench",
    "SEALANE_LOG_KEY": "bench",
}
"""The variables by which Sealane knows that it is on Lambda, and those of telemetry in the project's template."""

Tool = Literal["hello", "hello_sync"]
Tree = Literal["built", "bare", "compiled"]
"""An artefact as its build leaves it, without any bytecode, or with bytecode for each module."""


@dataclass(frozen=True)
class Contestant:
    """A way to serve MCP from a Lambda function.

    Attributes:
        name: names it in results.
        title: what tables call it.
        handler: `module.name` in contestants/.
        artefact: the folders that Lambda would have on `sys.path`, below those of `ARTEFACTS`; `{tree}` is the tree.
        era: the revisions that it speaks.
        tools: the tools that it can serve; the first is called where it does not matter.
        is_telling: it finds the surroundings in which Sealane logs and counts each request: those of Lambda.
    """

    name: str
    title: str
    handler: str
    artefact: tuple[str, ...]
    era: Literal["modern", "legacy"] = "modern"
    tools: tuple[Tool, ...] = ("hello", "hello_sync")
    is_telling: bool = True

    def folders(self, tree: Tree) -> list[Path]:
        """The folders of its artefact."""
        return [ARTEFACTS / each.format(tree=tree) for each in self.artefact]

    def variables(self, tree: Tree, tool: Tool = "hello", tools: int = 1) -> dict[str, str]:
        """Environment variables of its process: nothing of this machine but what it takes to start.

        Lambda's disk is read-only, so nothing writes bytecode. Lambda's own packages come last, with bytecode. Sets
        have the same order in every process, which makes instructions countable. What is logged is written at once.
        """
        path = [HERE / "contestants", *self.folders(tree), ARTEFACTS / "runtime" / "compiled"]
        return {
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1024",
            "AWS_LAMBDA_FUNCTION_NAME": "bench",
            "BENCH_TOOL": tool,
            "BENCH_TOOLS": str(tools),
            "LANG": "en_US.UTF-8",
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONUNBUFFERED": "1",
            **(TELLING if self.is_telling else {}),
        }

    def event(self, tool: str, **arguments: str) -> Event:
        """A REST API's event that calls a tool."""
        make = legacy if self.era == "legacy" else modern
        headers, body = make("tools/call", name=tool, arguments=arguments)
        return make_event("rest", headers=headers, body=body)

    def size(self) -> int:
        """Bytes of its artefact, unzipped."""
        return sum(
            path.stat().st_size for folder in self.folders("built") for path in folder.rglob("*") if path.is_file()
        )

    def has_bytecode(self) -> bool:
        """Whether the build of its artefact leaves any."""
        return any(path for folder in self.folders("built") for path in folder.rglob("*.pyc"))


OURS_ARTEFACT: Final = ("ours/{tree}/StatelessFunction", "ours/{tree}/SealaneLayer/python")

FLOOR: Final = Contestant("floor", "floor: no server, JSON in and out", "floor.handler", ())
OBVIOUS: Final = Contestant("obvious", "obvious: SDK + Mangum", "obvious.handler", ("obvious/{tree}",))
OURS: Final = Contestant("ours", "Sealane", "ours.handler", OURS_ARTEFACT)
QUIET: Final = Contestant("quiet", "Sealane, without telemetry", "ours.handler", OURS_ARTEFACT, is_telling=False)
SEALED: Final = Contestant("sealed", "Sealane, asking", "ours_sealed.handler", OURS_ARTEFACT)
FIELD: Final = (
    FLOOR,
    OBVIOUS,
    Contestant("fastmcp", "FastMCP + Mangum", "with_fastmcp.handler", ("fastmcp/{tree}",)),
    Contestant(
        "awslabs",
        "awslabs.mcp-lambda-handler",
        "with_awslabs.handler",
        ("awslabs/{tree}",),
        era="legacy",
        tools=("hello_sync",),
    ),
    Contestant("modmex", "modmex-lambda", "with_modmex.handler", ("modmex/{tree}",), tools=("hello_sync",)),
    OURS,
    QUIET,
)
GATEWAYS: Final = (
    Contestant("mangum", "Mangum as it comes", "only_asgi.mangum", OURS_ARTEFACT),
    Contestant("mangum-off", 'Mangum, lifespan="off"', "only_asgi.mangum_without_lifespan", OURS_ARTEFACT),
    Contestant("ours", "Sealane", "only_asgi.ours", OURS_ARTEFACT),
)
"""Ways from an event to an ASGI application and back."""


def as_json(event: Event) -> str:
    """What Lambda's runtime gets of an event."""
    return json.dumps(event)
