"""The legacy lane under the referee, and clients with sessions, made by others, against its sample server.

Each script of clients/sessions_* takes two URLs, walks through `STEPS` on the first, has a call cut on the second, and
prints what it got as one line of JSON.
"""

import json
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealane.local.records import Call
from sealane.local.testing import ObservedGateway
from tests.conformance.cuts import CuttingProxy
from tests.conformance.report import Check, Result
from tests.conformance.scripts import said_by

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LANE = ROOT / "tests" / "legacy"
NAME = "legacy lane"
REVISION = "2025-11-25"

REFEREE_ENVIRONMENTS = 3
"""It sends up to three requests at a time, beside the stream of the session and of the one before: some wait."""
CLIENT_ENVIRONMENTS = 4

MENU = ["Gnocchi with sage butter", "Risotto with saffron", "Tiramisu"]
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
TOOLS = ["book_table", "change_menu", "change_staff", "cook", "cook_slowly", "describe", "hello", "inspect_kitchen"]
EXPECTED: dict[str, Any] = {
    "tools": [[*TOOLS, "pay_deposit", "receipt_folder"], "Hello, Ada!"],
    "read": [MENU, "Recommend risotto to Ada in two sentences.", ["risotto"]],
    "progress": [[1, 2, 3], "Risotto with saffron is ready."],
    "elicitation": [
        "A table for 4 is booked for Ada, outside.",
        "20 euros are paid.",
        ["form: A table for Friday: for whom?", "url: Please pay 20 euros.", "elicitation/complete"],
    ],
    "sampling": ["Soft and sweet.", ["model: Describe tiramisu in one sentence."]],
    "roots": "file:///home/ada/receipt.pdf",
    "subscriptions": [
        "The menu has changed.",
        ["resources/updated menu://today"],
        ["prompts/list_changed", "resources/list_changed", "tools/list_changed"],
    ],
    "log level": [LEVELS[LEVELS.index("error") :], len(LEVELS)],
    "polling": ["Gnocchi with sage butter is ready at last.", ["info", "info"]],
    "resume": [[1, 2, 3, 4, 5, 6, 7], "Risotto with saffron is ready."],
}
STEPS = ("initialize", *EXPECTED, "delete")
CUT = "step 2 of 7"
"""What a call says before its wire breaks."""


@dataclass(frozen=True)
class SessionClient:
    """A client with sessions that others made.

    Attributes:
        name: what it is.
        script: its script in clients/.
        python: a Python that has it; none for a script that Node runs.
    """

    name: str
    script: str
    python: Path | None = None


CLIENTS = [
    SessionClient("TypeScript SDK v1", "sessions_typescript_v1.mjs"),
    SessionClient("Python SDK v1", "sessions_python_v1.py", ROOT / ".venv-python_v1/bin/python"),
    SessionClient("Python SDK v2", "sessions_python_v2.py", ROOT / ".venv-python_v2/bin/python"),
]


def suite_gateway() -> ObservedGateway:
    """Serves what the referee asks a server for."""
    code_dirs = {"LegacyFunction": LANE / "conformance"}
    return ObservedGateway(
        LANE / "template.yaml",
        code_dirs=code_dirs,
        concurrency=REFEREE_ENVIRONMENTS,
        choose=random.choice,
        queue=True,
    )


def client_gateway() -> ObservedGateway:
    """Serves the sample server, each request by any of the environments that are idle."""
    return ObservedGateway(LANE / "template.yaml", concurrency=CLIENT_ENVIRONMENTS, choose=random.choice)


def warm(gateway: ObservedGateway, environments: int) -> list[str]:
    """Start every environment, by requests at the same time, each of which waits for a cold start.

    Returns:
        What is not as it should be, one line each.
    """

    def refused(_: int) -> None:
        request = urllib.request.Request(gateway.url, method="PUT")  # noqa: S310 - our own gateway
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=20).close()  # noqa: S310

    for _ in range(10):
        with ThreadPoolExecutor(environments) as threads:
            list(threads.map(refused, range(environments)))
        if (started := len(gateway.environments)) == environments:
            return []
    return [f"{NAME}: {started} environments are warm, not {environments}"]


class SessionField:
    """The clients, one after the other, at one gateway.

    Args:
        gateway: serves the sample server.
        node: the program.
        cuts: how often the wire of each is to be cut: once, or not where answers leave as a whole.
    """

    def __init__(self, gateway: ObservedGateway, node: Path, *, cuts: int = 1) -> None:
        self._gateway = gateway
        self._node = node
        self._cuts = cuts

    def run(self, client: SessionClient) -> Result:
        """Let one client walk through the steps, and judge what it got."""
        started, first = time.monotonic(), len(self._gateway.calls)
        said, problems = self._walk(client)
        steps = said.get("steps", {})
        if said:
            steps["initialize"] = [said["revision"], bool(said["session"])]
            steps["delete"] = self._status(said["session"], said["revision"])
        seconds = time.monotonic() - started
        calls, requests = self._calls(first)

        title = f"{client.name} {said.get('version', '')}".strip()
        expected = {"initialize": [REVISION, True], **EXPECTED, "delete": 404}
        checks = []
        for step in STEPS:
            passed = step in steps and steps[step] == expected[step]
            checks.append(Check(title, step, "SUCCESS" if passed else "FAILURE"))
            if said and not passed:
                problems.append(f"{step} gives {json.dumps(steps.get(step))}")
        if len(requests) < CLIENT_ENVIRONMENTS:
            problems.append(f"{len(requests)} environments have served it, not {CLIENT_ENVIRONMENTS}")
        problems += [f"the gateway answered {call.status}: {call.problem}" for call in calls if call.status >= 500]
        return Result(NAME, REVISION, title, checks, [], problems, requests, seconds)

    def _calls(self, first: int) -> tuple[list[Call], Counter[int]]:
        """What the gateway has answered, and how much of it each environment; the session's stream ends last."""
        for _ in range(50):
            calls = self._gateway.calls[first:]
            requests = Counter(call.environment for call in calls if call.environment is not None)
            if len(requests) >= CLIENT_ENVIRONMENTS:
                break
            time.sleep(0.1)
        return calls, requests

    def _walk(self, client: SessionClient) -> tuple[dict[str, Any], list[str]]:
        """What the script says, and its problem if it fails."""
        mark = CUT if self._cuts else "never said"
        with CuttingProxy(self._gateway.url, mark) as proxy:
            script = HERE / "clients" / client.script
            said, problems = said_by([client.python or self._node, script, self._gateway.url, proxy.url])
        if said and proxy.cuts != self._cuts:
            problems.append(f"its wire was cut {proxy.cuts} times")
        return said, problems

    def _status(self, session: str, revision: str) -> int:
        """How a request with the id of a session is answered."""
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Mcp-Session-Id": session,
            "MCP-Protocol-Version": revision,
        }
        ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        request = urllib.request.Request(self._gateway.url, ping, headers)  # noqa: S310 - our own gateway
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
