"""What the official suite asks a server: recorded once, and asked again.

python -m tests.conformance.traffic record    writes traffic.jsonl; needs what "make conformance" installs
python -m tests.conformance.traffic replay    asks a server in this process, and writes its answers
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.events import NO_CONTEXT, Answer, Event, Handler, answer, make_event

HERE = Path(__file__).parent
TRAFFIC = HERE / "traffic.jsonl"
"""One request a line: method, path, headers and body; in the body `<state N>` is the request state that request N was
answered with."""

Request = dict[str, Any]

_CLIENTS = ("accept", "content-type", "mcp-", "origin")
"""How the names of headers begin that tell more than who is calling."""
_STATE = re.compile(r'(?<="requestState":")[^"]+')
_RECORDER = """
import json, os, time
from served import handler as serve

def handler(event, context):
    answer = serve(event, context)
    with open(f"{folder}/{{os.getpid()}}.jsonl", "a") as file:
        print(json.dumps([time.time(), event, answer]), file=file)
    return answer
"""


def requests() -> list[Request]:
    """The recorded requests."""
    return [json.loads(line) for line in TRAFFIC.read_text("utf-8").splitlines()]


def replayed(handler: Handler) -> Iterator[Answer]:
    """A handler's answers to the recorded requests."""
    states: dict[str, str] = {}
    for number, request in enumerate(requests()):
        body = request["body"] and re.sub("<state [0-9]+>", lambda found: states.get(found[0], ""), request["body"])
        event = make_event("rest", request["method"], request["path"], headers=request["headers"], body=body)
        given = answer(handler(event, NO_CONTEXT))
        states.update({f"<state {number}>": state for state in _STATE.findall(given.body)})
        yield given


def told() -> Iterator[tuple[int, dict[str, str], str]]:
    """What a conformance server answers: status, headers and body, without the sealed states, which are never twice
    the same."""
    # What is imported before a function is, must not be more than Lambda has imported.
    from sealane import create_mcp_handler
    from mcp.server.subscriptions import InMemorySubscriptionBus  # isort: skip
    from tests.conformance.server import create_server  # isort: skip

    handler = create_mcp_handler(create_server, subscriptions=InMemorySubscriptionBus(), listen_seconds=0.1)
    for given in replayed(handler):
        yield given.status, dict(given.headers), _STATE.sub("sealed", given.body)


def compact(events: Iterable[tuple[Event, dict[str, Any]]]) -> list[Request]:
    """The different requests in events and their answers."""
    found: list[Request] = []
    states: dict[str, int] = {}
    for event, given in events:
        body = event["body"]
        for state, number in states.items():
            body = body and body.replace(state, f"<state {number}>")
        headers = {
            name: values[0] if len(values) == 1 else values
            for name, values in event["multiValueHeaders"].items()
            if name.lower().startswith(_CLIENTS) and name.lower() not in ("accept-encoding", "accept-language")
        }
        request = {"method": event["httpMethod"], "path": event["path"], "headers": headers, "body": body}
        if request not in found:
            found.append(request)
        states.update(dict.fromkeys(_STATE.findall(answer(given).body), found.index(request)))
    return found


def record() -> None:
    """Run the suite against a function that keeps what it is asked, and write it down."""
    from tests.conformance import run
    from tests.conformance.prepare import prepare

    node = run.find_node()
    assert node
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = folder / "code"
        code.mkdir()
        shutil.copy(HERE / "server.py", code)
        shutil.copy(HERE / "app.py", code / "served.py")
        (code / "app.py").write_text(_RECORDER.format(folder=folder), "utf-8")
        with run.serve(code, run.ENVIRONMENTS[False], streaming=False) as gateway:
            referee = run.Referee(node, gateway)
            problems = prepare(gateway, run.ENVIRONMENTS[False], referee.names())
            for target in run.TARGETS[False]:
                # The frozen sets ask the same.
                problems += [] if target.frozen else referee.run(target).problems
        lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text("utf-8").splitlines()]
    if problems:
        raise SystemExit("\n".join(problems))
    found = compact((event, given) for _, event, given in sorted(lines, key=lambda line: float(line[0])))
    TRAFFIC.write_text("".join(f"{json.dumps(request)}\n" for request in found), "utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record()
    else:
        json.dump([*told()], sys.stdout)
