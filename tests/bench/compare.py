"""What Sealane and the alternatives make of the same events: the first table of docs/comparison.md.

    python -m tests.bench.compare --to docs/comparison.md

Handlers get their events in processes that have their artefact and nothing else. What a cell says is what came; a
process that has answered otherwise than a row asks for is ended.
"""

import json
import os
import re
import selectors
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tests.bench.aws import SESSIONS, TABLE, emulated
from tests.bench.field import FIELD, HERE, Contestant, Tool
from tests.bench.processes import PYTHON
from tests.events import MODERN, Answer, Event, answer, legacy, load_event, make_event, modern

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

COMPARED: Final = ("ours", "obvious", "fastmcp", "awslabs", "modmex")
"""Names of the contestants, in the order of the columns."""
ASKING: Final = {"ours": "ours_sealed.handler", "obvious": "obvious.handler", "fastmcp": "with_fastmcp.handler"}
"""The handlers with a tool that asks its caller, of the frameworks whose tools can."""
LANE: Final = Contestant(
    "lane", "Sealane's legacy lane", "app.handler", ("ours/{tree}/LegacyFunction", "ours/{tree}/SealaneLayer/python")
)
PACKAGES: Final = {
    "obvious": ("mcp", "mangum"),
    "fastmcp": ("fastmcp", "mangum"),
    "awslabs": ("awslabs.mcp-lambda-handler",),
    "modmex": ("modmex-lambda",),
}
"""Whose versions are in the heads of the columns."""

TEXT: Final = "Hello, World!"
BEGIN, END = "<!-- Written by make compare. -->", "<!-- To here. -->"
_LIMIT: Final = 10
"""Seconds after which there will be no answer."""
_FOREIGN: Final = "evil.example"
_ASKED: Final = "mcp-protocol-version,mcp-method,mcp-name,mcp-param-region,authorization,content-type"
_CAN_BE_ASKED: Final[dict[str, Any]] = {"elicitation": {"form": {}}}
_ANSWERS: Final = {"name": {"action": "accept", "content": {"name": "Ada"}}}


class Differs(Exception):
    """What came is not what the row asks for; the text says what it was."""


class Environment:
    """A process with a handler: one environment of Lambda's.

    Args:
        handler: `module.name`.
        variables: its environment variables.
    """

    def __init__(self, handler: str, variables: Mapping[str, str]) -> None:
        path = os.pathsep.join([variables["PYTHONPATH"], str(HERE)])
        self._process = subprocess.Popen(  # noqa: S603
            [*PYTHON, str(HERE / "probe.py"), handler],
            env={**variables, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._told(60)

    def send(self, event: Event) -> Answer:
        """The answer to an event.

        Raises:
            Differs: there is none, or it is no HTTP answer.
        """
        assert self._process.stdin
        print(json.dumps(event), file=self._process.stdin, flush=True)
        told = self._told(_LIMIT)
        if "raised" in told:
            raise Differs(f"raises {told['raised']}")
        try:
            return answer(told["answer"])
        except (AttributeError, KeyError, TypeError):
            raise Differs(f"`{json.dumps(told['answer'])[:40]}`") from None

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _told(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(seconds) else None
        if not line:
            raise Differs(f"no answer within {seconds} s" if line is None else "the process ends")
        told: dict[str, Any] = json.loads(line)
        return told


@dataclass
class Subject:
    """A contestant that is asked, in as many environments as a row needs.

    Attributes:
        contestant: who it is.
        variables: environment variables of its processes.
        started: the environments of the row that is being asked.
        kept: the environments that any row's single events are sent to, by their further variables.
    """

    contestant: Contestant
    variables: Mapping[str, str]
    started: list[Environment] = field(default_factory=list)
    kept: dict[str, Environment] = field(default_factory=dict)

    @property
    def tool(self) -> Tool:
        """A tool that it serves."""
        return self.contestant.tools[0]

    def start(self, handler: str | None = None, **variables: str) -> Environment:
        """Another environment."""
        variables = {**self.variables, "BENCH_TOOL": self.tool, **variables}
        self.started.append(Environment(handler or self.contestant.handler, variables))
        return self.started[-1]

    def asking(self) -> Environment:
        """Another environment, with a tool that asks.

        Raises:
            Differs: the framework has no way to ask.
        """
        if self.contestant.name not in ASKING:
            raise Differs("its tools cannot ask")
        return self.start(ASKING[self.contestant.name], BENCH_ASK="1")

    def with_sessions(self) -> Environment:
        """Another environment, which keeps sessions if the framework has a way."""
        match self.contestant.name:
            case "ours":
                path = LANE.variables("compiled")["PYTHONPATH"]
                return self.start(LANE.handler, PYTHONPATH=path, SEALANE_LEGACY_TABLE=TABLE)
            case "awslabs":
                return self.start(BENCH_SESSIONS=SESSIONS)
            case _:
                return self.start()

    def send(self, event: Event) -> Answer:
        """The answer of an environment that has answered other events before, if any."""
        api = "BENCH_HTTP_API" if event.get("version") == "2.0" else "BENCH_REST_API"
        if api not in self.kept:
            self.start(**{api: "1"})
            self.kept[api] = self.started.pop()
        return self.kept[api].send(event)

    def end_row(self) -> None:
        """End the environments that no other row uses."""
        while self.started:
            self.started.pop().end()

    def close(self) -> None:
        """End all environments."""
        self.end_row()
        while self.kept:
            self.kept.popitem()[1].end()

    def call(self) -> Event:
        """A REST API's event that calls a tool, in a revision that it speaks."""
        return self.contestant.event(self.tool, name="World")


Probe = Callable[[Subject], None]
"""Asks a subject for one thing, and raises `Differs` where something else comes."""


def told(came: Answer) -> str:
    """What came, in a few words."""
    message = _message(came)
    if "error" in message:
        return f"HTTP {came.status}, error {message['error'].get('code')}"
    result = message.get("result", {})
    kind = "a tool error" if result.get("isError") else result.get("resultType", "")
    return f"HTTP {came.status}, {kind}" if kind else f"HTTP {came.status}"


def check(came: Answer, *conditions: bool) -> None:
    """Raises `Differs` unless all conditions hold."""
    if not all(conditions):
        raise Differs(told(came))


def is_hello(came: Answer) -> None:
    """Look for the tool's greeting."""
    content = _message(came).get("result", {}).get("content")
    check(came, came.status == 200, bool(content))
    if content[0].get("text") != TEXT:
        raise Differs(f"the text `{content[0].get('text', '')[:25]}…`")


def _message(came: Answer) -> dict[str, Any]:
    """The last JSON-RPC message of an answer; empty where there is none."""
    try:
        message = came.messages[-1]
    except (KeyError, IndexError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


def modern_call(subject: Subject) -> None:
    came = subject.send(_rest(modern("tools/call", name=subject.tool, arguments={"name": "World"})))
    is_hello(came)
    if _message(came)["result"].get("resultType") != "complete":
        raise Differs("a result without `resultType`")


def discovery(subject: Subject) -> None:
    came = subject.send(_rest(modern("server/discover")))
    check(came, MODERN in _message(came).get("result", {}).get("supportedVersions", ()))


def handshake(revision: str) -> Probe:
    def probe(subject: Subject) -> None:
        environment = subject.start()
        came = environment.send(_rest(legacy("initialize", version=revision)))
        found = _message(came).get("result", {}).get("protocolVersion")
        if found not in (revision, None):
            raise Differs(f"speaks {found}")
        check(came, found == revision)
        call = legacy("tools/call", version=revision, name=subject.tool, arguments={"name": "World"})
        is_hello(environment.send(_rest(call)))

    return probe


def session(subject: Subject) -> None:
    came = subject.with_sessions().send(_rest(legacy("initialize")))
    check(came, came.status == 200)
    if not (made := came.headers.get("mcp-session-id")):
        raise Differs("no session")
    other = subject.with_sessions()
    headers, body = legacy("tools/call", name=subject.tool, arguments={"name": "World"})
    is_hello(other.send(_rest(({**headers, "Mcp-Session-Id": made}, body))))
    came = other.send(_rest(({**headers, "Mcp-Session-Id": made[::-1]}, body)))
    check(came, came.status == 404)


def warm(subject: Subject) -> None:
    environment = subject.start()
    for _ in range(2):
        is_hello(environment.send(subject.call()))


def async_tool(subject: Subject) -> None:
    is_hello(subject.start(BENCH_TOOL="hello").send(subject.contestant.event("hello", name="World")))


def stage(subject: Subject) -> None:
    event = _http(subject, path="/prod/mcp")
    event["requestContext"]["stage"] = "prod"
    is_hello(subject.send(event))


def load_balancer(subject: Subject) -> None:
    rest = subject.call()
    is_hello(subject.send(make_event("alb", headers=rest["headers"], body=rest["body"])))


def trailing_slash(subject: Subject) -> None:
    is_hello(subject.send({**subject.call(), "path": "/mcp/"}))


def notification(subject: Subject) -> None:
    headers, body = legacy("notifications/initialized")
    came = subject.send(make_event("http", headers=headers, body=body))
    if came.status == 202 and (came.body or "content-type" in came.headers):
        raise Differs("HTTP 202 with a body" if came.body else f"HTTP 202 with `{came.headers['content-type']}`")
    check(came, came.status == 202)


def get(subject: Subject) -> None:
    came = subject.send(make_event("rest", "GET", headers={"Accept": "text/event-stream"}))
    check(came, came.status == 405, "POST" in came.headers.get("allow", ""))


def listening(subject: Subject) -> None:
    came = subject.send(_rest(modern("subscriptions/listen", notifications={"toolsListChanged": True})))
    check(came, _message(came).get("error", {}).get("code") == -32601)


def other_name(subject: Subject) -> None:
    headers, body = modern("tools/call", name=subject.tool, arguments={"name": "World"})
    came = subject.send(_rest(({**headers, "Mcp-Name": "another"}, body)))
    check(came, came.status == 400, _message(came).get("error", {}).get("code") == -32020)


def foreign_host(subject: Subject) -> None:
    event = subject.call()
    event["headers"]["Host"], event["multiValueHeaders"]["Host"] = _FOREIGN, [_FOREIGN]
    came = subject.send(event)
    check(came, came.status in (403, 421))


def preflight(subject: Subject) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": _ASKED}
    came = subject.send(make_event("rest", "OPTIONS", headers={"Origin": "https://app.example", **asked}))
    allowed = {each.strip().lower() for each in came.headers.get("access-control-allow-headers", "").split(",")}
    check(
        came, came.status in (200, 204), "access-control-allow-origin" in came.headers, {*_ASKED.split(",")} <= allowed
    )


def not_json(subject: Subject) -> None:
    came = subject.send({**subject.call(), "body": "{"})
    check(came, came.status == 400, _message(came).get("error", {}).get("code") == -32700)


def empty(subject: Subject) -> None:
    came = subject.send({})
    check(came, 400 <= came.status < 500)


def after_empty(subject: Subject) -> None:
    environment = subject.start()
    with suppress(Differs):
        environment.send({})
    is_hello(environment.send(subject.call()))


def ping(subject: Subject) -> None:
    try:
        came = subject.send(load_event("scheduled-ping"))
    except Differs as differs:
        if str(differs).startswith("`"):  # Whatever it is, it is an answer.
            return
        raise
    check(came, came.status < 500)


def sealed(subject: Subject) -> None:
    state = _question(subject.asking())["requestState"]
    came = subject.asking().send(_answered(state))
    is_hello(came)


def changed(subject: Subject) -> None:
    environment = subject.asking()
    state = _question(environment)["requestState"]
    place = len(state) // 2
    came = environment.send(_answered(f"{state[:place]}{'A' if state[place] != 'A' else 'B'}{state[place + 1 :]}"))
    check(came, _message(came).get("error", {}).get("code") == -32602)


def undeclared(subject: Subject) -> None:
    came = subject.asking().send(_rest(modern("tools/call", name="greet", arguments={})))
    check(came, came.status == 400, _message(came).get("error", {}).get("code") == -32021)


def _question(environment: Environment) -> dict[str, Any]:
    came = environment.send(_rest(modern("tools/call", name="greet", arguments={}, client_capabilities=_CAN_BE_ASKED)))
    result: dict[str, Any] = _message(came).get("result", {})
    check(came, result.get("resultType") == "input_required")
    return result


def _answered(state: str) -> Event:
    headers, body = modern("tools/call", name="greet", arguments={}, client_capabilities=_CAN_BE_ASKED)
    body["params"] |= {"requestState": state, "inputResponses": _ANSWERS}
    return _rest((headers, body))


def _rest(request: tuple[Mapping[str, str], Any]) -> Event:
    return make_event("rest", headers=request[0], body=request[1])


def _http(subject: Subject, path: str) -> Event:
    """The same call as an HTTP API sends it."""
    rest = subject.call()
    return make_event("http", path=path, headers=rest["headers"], body=rest["body"])


ROWS: Final[Mapping[str, Probe]] = {
    "`tools/call` of revision 2026-07-28": modern_call,
    "`server/discover`": discovery,
    "`initialize` and `tools/call` of 2025-11-25": handshake("2025-11-25"),
    "the same of 2025-06-18": handshake("2025-06-18"),
    "the same of 2024-11-05": handshake("2024-11-05"),
    "a session that another environment serves, and 404 for one that there is not": session,
    "a second call in the same environment": warm,
    "a tool that is `async`": async_tool,
    "HTTP API with a stage: `/prod/mcp` is `/mcp`": stage,
    "an event of a load balancer": load_balancer,
    "`/mcp/` is served": trailing_slash,
    "`notifications/initialized`: 202, no body, no content type": notification,
    "`GET`: 405 with `Allow: POST`": get,
    "`subscriptions/listen` without a bus: -32601 at once": listening,
    "`Mcp-Name` differs from the body: -32020": other_name,
    "a `Host` that is not the API's is refused": foreign_host,
    "a browser's preflight for all headers of MCP": preflight,
    "a body that is no JSON: 400 and -32700": not_json,
    "the event `{}`: an answer 4xx": empty,
    "a call after the event `{}`": after_empty,
    "a scheduler's ping: no error": ping,
    "a tool that asks: the state of one environment is opened in another": sealed,
    "a changed state: -32602": changed,
    "a question that the client cannot answer: -32021": undeclared,
}
"""What is asked for, and how."""


def column(
    contestant: Contestant, variables: Mapping[str, str], rows: Mapping[str, Probe] | None = None
) -> dict[str, str]:
    """A contestant's cells, by row: `yes`, or what came.

    Args:
        contestant: who is asked.
        variables: environment variables of its processes, with those that lead to DynamoDB and KMS.
        rows: what is asked for, by default all `ROWS`.
    """
    cells = {}
    with closing(Subject(contestant, variables)) as subject:
        for what, probe in (ROWS if rows is None else rows).items():
            try:
                probe(subject)
                cells[what] = "yes"
                subject.end_row()
            except Differs as differs:
                cells[what] = f"no: {differs}"
                subject.close()
    return cells


def heads() -> list[str]:
    """Heads of the columns: who it is, with versions."""
    return [
        " + ".join(f"{package} {_version(name, package)}" for package in PACKAGES[name])
        if name in PACKAGES
        else "Sealane"
        for name in COMPARED
    ]


def _version(name: str, package: str) -> str:
    required = (HERE / f"requirements-{name}.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(package)}==(.+)$", required, re.MULTILINE)
    assert found
    return found[1]


def table(columns: Sequence[Mapping[str, str]]) -> str:
    """The table, in Markdown."""
    lines = [["", *heads()], ["---"] * (len(columns) + 1)]
    lines += [[what, *(cells[what] for cells in columns)] for what in ROWS]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@app.command()
def main(to: Annotated[Path, typer.Option(help="The document whose table to write.")]) -> None:
    """Ask all, and write the table."""
    field = {each.name: each for each in FIELD}
    with emulated() as aws:
        columns = [column(field[name], {**field[name].variables("compiled"), **aws}) for name in COMPARED]
    before, _, rest = to.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    to.write_text(f"{before}{BEGIN}\n\n{table(columns)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    app()
