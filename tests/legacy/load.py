"""Many sessions at once over a few environments: python -m tests.legacy.load

Every session has a name of its own, and calls tools that answer with it and with what was sent. Some calls ask their
client back, whose reply reaches another environment. Counted are answers with another session's name in them, answers
that are not what they should be, and requests without an answer.
"""

import asyncio
import json
import random
import re
import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Annotated

import httpx
import typer

from tests.legacy.conftest import ENVIRONMENTS, Lane
from tests.legacy.wire import Message, Wire

NAME = re.compile(r"session-[0-9a-f]{8}")
BUSY = (429, 502, 503)
"""How a gateway answers while all environments are busy, or when one has vanished."""


@dataclass
class Findings:
    """What a run has found.

    Attributes:
        requests: calls that were answered.
        asked: how many of them asked back.
        tries: how often a request was sent again, since no environment was free.
        seconds: how long it took.
        milliseconds: how long each call took.
        wrong_session: answers with the name of another session.
        wrong: answers that are not what they should be.
        lost: calls without an answer.
        operations: calls to DynamoDB.
    """

    requests: int = 0
    asked: int = 0
    tries: int = 0
    seconds: float = 0
    milliseconds: list[float] = field(default_factory=list)
    wrong_session: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.wrong_session or self.wrong or self.lost)

    def text(self) -> str:
        """All of it, in a few lines."""
        cuts = quantiles(self.milliseconds, n=100) if len(self.milliseconds) > 1 else [0.0] * 99
        per_call = ", ".join(f"{name} {count / self.requests:.2f}" for name, count in self.operations.most_common())
        return "\n".join(
            [
                f"{self.requests} calls in {self.seconds:.1f} s ({self.requests / self.seconds:.0f} a second), "
                f"{self.asked} of them asked back; {self.tries} tries met no free environment",
                f"ms: {cuts[49]:.0f} (median), {cuts[94]:.0f} (95 %), {cuts[98]:.0f} (99 %)",
                f"DynamoDB per call: {per_call}",
                f"wrong session: {len(self.wrong_session)}, wrong: {len(self.wrong)}, lost: {len(self.lost)}",
                *[*self.wrong_session, *self.wrong, *self.lost][:20],
            ]
        )


class Load:
    """A run against one lane.

    Args:
        lane: what is under load.
        asking: share of the calls that ask back.
    """

    def __init__(self, lane: Lane, asking: float) -> None:
        self._lane = lane
        self._asking = asking
        # One environment stays free for replies: else all could wait for one that none is free to take.
        self._slots = asyncio.Semaphore(ENVIRONMENTS - 1)
        self.findings = Findings()

    async def run(self, count: int, rate: float, seconds: float) -> None:
        """Let each of `count` sessions make `rate` calls a second; who is late makes all of them, later."""
        wires = [Wire(self._lane.url, f"session-{secrets.token_hex(4)}") for _ in range(count)]
        try:
            for wire in wires:
                await wire.connect()
            before = len(self._lane.aws.calls("dynamodb"))
            started = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                sessions = [tasks.create_task(self._session(wire, rate, round(rate * seconds))) for wire in wires]
                while not all(each.done() for each in sessions):
                    await asyncio.wait(sessions, timeout=30)
                    print(f"{time.monotonic() - started:.0f} s: {self.findings.requests} calls", file=sys.stderr)
            self.findings.seconds = time.monotonic() - started
            calls = self._lane.aws.calls("dynamodb")[before:]
            self.findings.operations = Counter(call.operation for call in calls)
        finally:
            for wire in wires:
                await wire.__aexit__()

    async def _session(self, wire: Wire, rate: float, calls: int) -> None:
        due = time.monotonic() + random.random() / rate  # noqa: S311 - nothing is secret here
        for number in range(calls):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += 1 / rate
            text = f"{number}-{secrets.token_hex(4)}"
            asks = random.random() < self._asking  # noqa: S311
            started = time.monotonic()
            async with self._slots:
                await (self._ask(wire, text) if asks else self._echo(wire, text))
            self.findings.milliseconds.append((time.monotonic() - started) * 1000)
            self.findings.requests += 1
            self.findings.asked += asks

    async def _echo(self, wire: Wire, text: str) -> None:
        message = wire.tool("echo", text=text)
        self._judge(wire, message, await self._exchange(wire, message, text), f"{wire.name} says {text}")

    async def _ask(self, wire: Wire, text: str) -> None:
        message = wire.tool("ask", question=f"{wire.name} {text}?")
        found = await self._exchange(wire, message, text)
        self._judge(wire, message, found, f"{wire.name} {text}? {wire.name} {text}!")

    async def _exchange(self, wire: Wire, message: Message, text: str) -> list[Message]:
        """Everything that a call gives; a question in it is answered."""
        found: list[Message] = []
        for _ in range(200):
            try:
                async with wire.send("POST", message) as answer:
                    if answer.status not in BUSY:
                        async for each in answer.messages():
                            found.append(each)
                            if each.get("method") == "elicitation/create":
                                await self._reply(wire, each, text)
                        return found
            except httpx.HTTPError as error:
                self.findings.lost.append(f"{wire.name}: after {wire.request_ids[-1]}: {error!r}")
                return found
            self.findings.tries += 1
            await asyncio.sleep(0.05)
        return found

    async def _reply(self, wire: Wire, request: Message, text: str) -> None:
        for _ in range(200):
            content = {"answer": f"{wire.name} {text}!"}
            if (status := await wire.reply(request, action="accept", content=content)) == 202:
                return
            if status not in BUSY:
                self.findings.wrong.append(f"{wire.name}: a reply is answered {status}")
                return
            self.findings.tries += 1
            await asyncio.sleep(0.02)
        self.findings.lost.append(f"{wire.name}: no environment takes a reply")

    def _judge(self, wire: Wire, message: Message, found: list[Message], expected: str) -> None:
        whole = json.dumps(found)
        if foreign := set(NAME.findall(whole)) - {wire.name}:
            self.findings.wrong_session.append(f"{wire.name}: has something of {', '.join(sorted(foreign))}")
        answers = [each for each in found if each.get("id") == message["id"]]
        if not answers:
            self.findings.lost.append(f"{wire.name}: no answer to {message['params']['name']}: {whole[:300]}")
        elif len(answers) > 1 or "result" not in answers[0] or answers[0]["result"]["content"][0]["text"] != expected:
            self.findings.wrong.append(f"{wire.name}: {whole[:300]} in place of {expected!r}")


def run(sessions: int, rate: float, seconds: float, asking: float = 0.1) -> Findings:
    """Put a lane of its own under load."""
    with Lane() as lane:
        lane.warm()
        load = Load(lane, asking)
        asyncio.run(load.run(sessions, rate, seconds))
        findings = load.findings
        findings.wrong += [f"gateway: {call.status}: {call.problem}" for call in lane.calls if call.status == 500]
        findings.wrong += [f"function: {line.text}" for line in lane.lines if "[ERROR]" in line.text]
    return findings


def main(
    sessions: Annotated[int, typer.Option(help="Sessions at once.")] = 200,
    rate: Annotated[float, typer.Option(help="Calls that each makes in a second.")] = 2,
    seconds: Annotated[float, typer.Option(help="How long.")] = 60,
    asking: Annotated[float, typer.Option(help="Share of the calls that ask back.")] = 0.1,
) -> None:
    """Put the legacy lane under load, through the local gateway."""
    findings = run(sessions, rate, seconds, asking)
    print(findings.text())
    sys.exit(not findings.fine)


if __name__ == "__main__":
    typer.run(main)
