"""Real clients, made by others, against the sample server: what each does and what must come back.

Each script of clients/ takes a URL and an era, walks through `STEPS`, and prints what it got as one line of JSON.
"""

import asyncio
import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcp import Client

from sealane.local.testing import ObservedGateway
from tests.conformance.prepare import served_by
from tests.conformance.report import Check, Expected, Result
from tests.conformance.scripts import said_by

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

Era = Literal["modern", "legacy"]

LANES: dict[tuple[Era, bool], tuple[str, str]] = {
    ("modern", True): ("stateless, streaming", "2026-07-28"),
    ("modern", False): ("stateless, buffered", "2026-07-28"),
    ("legacy", False): ("compatibility", "2025-11-25"),
}
"""Name and revision of the lane that serves an era, with streaming or without."""

STEPS = ("list", "call", "progress", "ask", "read", "prompt", "listen")

ENVIRONMENTS = {False: 3, True: 5}
"""Environments without streaming, and with it: a client that ends without a word leaves one busy for a while."""


@dataclass(frozen=True)
class RealClient:
    """A client that others made.

    Attributes:
        name: what it is.
        script: its script in clients/.
        eras: what it speaks.
        environment: name of the virtual environment that has it; none for a script that Node runs.
        cannot: steps that it has no way to do, with what is missing.
    """

    name: str
    script: str
    eras: tuple[Era, ...]
    environment: str | None = None
    cannot: dict[str, str] = field(default_factory=dict)

    def command(self, node: Path) -> list[str]:
        """What runs the script."""
        python = ROOT / f".venv-{self.environment}/bin/python"
        return [str(python if self.environment else node), str(HERE / "clients" / self.script)]


CLIENTS = [
    RealClient(
        "MCP Inspector CLI",
        "inspector.mjs",
        ("modern", "legacy"),
        cannot={"progress": "Its command lines show no progress."},
    ),
    RealClient("TypeScript SDK v1", "typescript_v1.mjs", ("legacy",)),
    RealClient("TypeScript SDK v2", "typescript_v2.mjs", ("modern", "legacy")),
    RealClient("Python SDK v1", "python_v1.py", ("legacy",), "python_v1"),
    RealClient("Python SDK v2", "python_v2.py", ("modern", "legacy"), "python_v2"),
    RealClient(
        "FastMCP",
        "fastmcp_client.py",
        ("modern", "legacy"),
        "fastmcp",
        cannot={"listen": "It has no method for subscriptions."},
    ),
]

REFUSED: dict[tuple[Era, str], str] = {
    ("legacy", "listen"): "A subscription belongs to a session, which the legacy lane keeps. Without one the method is "
    "neither advertised nor served.",
    ("legacy", "ask"): "A client of these revisions is asked by a reverse request, which takes a session. Without one "
    "the tool fails at once, changes nothing and tells its author what to do. Such servers are what the legacy lane is "
    "for.",
}
"""The steps that the server refuses, and why."""

NOTES = ["Milk", "Bread"]
EXPECTED = {
    "call": ["Hello, Ada!", {"title": "Groceries", "owner": "", "notes": NOTES}],
    "progress": [[1, 2, 3], "Counted to 3."],
    "read": ["A sample MCP server on AWS Lambda, made with Sealane.", "Bonjour"],
    "prompt": "Introduce Ada in two sentences. Write in the language 'fr'.",
}
LISTEN: dict[Era, Any] = {
    "modern": "told",
    # What the client says of -32601, or of a capability that the server does not have.
    "legacy": {"error": re.compile(r".*(Method not found|Server does not support resource subscriptions).*")},
}
ASK: dict[Era, Any] = {
    "modern": {
        "transferred": re.compile(r"'Groceries' belongs to Ada now\. Its new handle is any\.[\w-]{32}"),
        "notes": {"title": "Groceries", "owner": "Ada", "notes": NOTES},
        "deleted": "The notebook is deleted.",
        "questions": [
            "Who shall get the notebook 'Groceries'?",
            "Give 'Groceries' to Ada? You cannot open it afterwards.",
            "Delete the notebook 'Groceries' with its 2 notes?",
        ],
    },
    "legacy": {
        "transferred": {"error": re.compile(r"This result is input_required, .*To the author: .*the legacy lane\.")},
        "notes": {"title": "Groceries", "owner": "", "notes": NOTES},
        "deleted": {
            "error": re.compile(r"elicitation/create needs a client that .*To the author: .*the legacy lane\.")
        },
        "questions": [],
    },
}


async def offered() -> dict[str, list[str]]:
    """What the sample server has, as its own factory says."""
    sys.path.insert(0, str(ROOT / "functions/stateless"))
    from server import create_server

    server = create_server()
    return {
        "tools": sorted(tool.name for tool in await server.list_tools()),
        "resources": sorted(resource.uri for resource in await server.list_resources()),
        "templates": sorted(template.uri_template for template in await server.list_resource_templates()),
        "prompts": sorted(prompt.name for prompt in await server.list_prompts()),
    }


def agrees(expected: Any, found: Any) -> bool:
    """Whether `found` is what was expected, which may have patterns in the place of strings."""
    match expected:
        case re.Pattern():
            return isinstance(found, str) and expected.fullmatch(found) is not None
        case dict():
            return (
                isinstance(found, dict)
                and found.keys() == expected.keys()
                and all(agrees(value, found[key]) for key, value in expected.items())
            )
        case _:
            return bool(expected == found)


class Field:
    """The clients, one after the other, at one gateway.

    Args:
        gateway: serves the sample server.
        node: the program.
        streaming: whether the gateway passes answers on as they come.
    """

    def __init__(self, gateway: ObservedGateway, node: Path, streaming: bool) -> None:
        self._gateway = gateway
        self._node = node
        self._streaming = streaming
        self._environments = ENVIRONMENTS[streaming]
        self._expected = {"list": asyncio.run(offered()), **EXPECTED}

    async def warm(self) -> list[str]:
        """Start every environment; returns what is not as it should be, one line each."""
        async with Client(self._gateway.url) as client:
            await client.list_tools()
            for message in ("server/discover", "tools/list"):
                await served_by(self._gateway, message, 1)
            await asyncio.gather(*(client.call_tool("count", {"to": 2}) for _ in range(self._environments)))
            await served_by(self._gateway, "tools/call count", self._environments)
        warm = len(self._gateway.environments)
        if warm == self._environments:
            return []
        return [f"{warm} environments of the sample are warm, not {self._environments}"]

    def run(self, client: RealClient, era: Era) -> Result:
        """Let one client walk through the steps, and judge what it got."""
        started, first = time.monotonic(), len(self._gateway.calls)
        said, problems = said_by([*client.command(self._node), self._gateway.url, era])
        seconds = time.monotonic() - started
        calls = self._gateway.calls[first:]

        lane, revision = LANES[era, self._streaming]
        title = f"{client.name} {said.get('version', '')}".strip()
        checks, listed = [], []
        for step in STEPS:
            status, reason = self._judge(client, era, step, said.get("steps", {}), problems)
            checks.append(Check(title, step, status))
            if reason:
                listed.append(Expected(title, step, status, reason))
        if said and said["revision"] != revision:
            problems.append(f"it speaks {said['revision']}, not {revision}")
        # A stream is recorded at its end, which may be in the time of the next client.
        own = [call for call in calls if call.message != "subscriptions/listen"]
        if eras := {call.era for call in own if call.era not in (None, era)}:
            problems.append(f"it has sent requests that are {', '.join(map(str, eras))}")
        requests = Counter(call.environment for call in calls if call.environment is not None)
        if len(requests) < 2:
            problems.append("no two environments have served it")
        problems += [f"the gateway answered {call.status}: {call.problem}" for call in calls if call.status >= 500]
        return Result(lane, revision, title, checks, listed, problems, requests, seconds)

    def _judge(
        self, client: RealClient, era: Era, step: str, steps: dict[str, Any], problems: list[str]
    ) -> tuple[str, str | None]:
        """Status of a step and, of one that does not pass as expected, the reason; adds to `problems`."""
        if step in client.cannot and step not in steps:
            return "SKIPPED", client.cannot[step]
        expected = {**self._expected, "ask": ASK[era], "listen": LISTEN[era]}[step]
        if step in steps and agrees(expected, steps[step]):
            reason = REFUSED.get((era, step))
            return ("FAILURE", reason) if reason else ("SUCCESS", None)
        if steps:
            problems.append(f"{step} gives {json.dumps(steps.get(step))}")
        return "FAILURE", None
