"""Runs in a process of its own: a question, its answer, and the sealed state between them.

    python sealed.py '{"handler": "module.name", "plain": "{…}", "ask": "{…}", "text": "Hello, World!", …}'

A round trip is two calls: one that asks, and one that brings the state back with the answer.
"""

import http.client
import json
import sys
from collections import Counter
from time import perf_counter_ns
from typing import Any

# Of this folder, which is on the path of every worker.
from worker import Context, check, load, result_of, tell_on_stdout, timed  # type: ignore[import-not-found]

_ANSWERS = {"name": {"action": "accept", "content": {"name": "Ada"}}}
_COUNTED = 50
"""Round trips whose network calls are counted."""


class Asked:
    """A handler whose tool asks.

    Args:
        handler: the handler.
        ask: the event of the first call.
        text: what the tool says in the end.
    """

    def __init__(self, handler: Any, ask: str, text: str) -> None:
        self._handler = handler
        self._ask = ask
        self._text = text
        self._context = Context()

    def call(self, event: str) -> int:
        """Nanoseconds of a call that asks nothing."""
        fresh = json.loads(event)
        started = perf_counter_ns()
        answer = self._handler(fresh, self._context)
        taken = perf_counter_ns() - started
        check(answer, self._text)
        return taken

    def round_trip(self) -> int:
        """Nanoseconds of both calls of a round trip."""
        event = json.loads(self._ask)
        started = perf_counter_ns()
        question = self._handler(event, self._context)
        taken = perf_counter_ns() - started

        again = json.loads(self._ask)
        body = json.loads(again["body"])
        body["params"] |= {"requestState": result_of(question)["requestState"], "inputResponses": _ANSWERS}
        again["body"] = json.dumps(body)
        return taken + self.call(json.dumps(again))


def watch_network() -> Counter[str]:
    """Counts HTTP requests and connections from now on."""
    counted: Counter[str] = Counter()
    put_request = http.client.HTTPConnection.putrequest

    def count(self: http.client.HTTPConnection, *arguments: Any, **options: Any) -> None:
        counted["request"] += 1
        put_request(self, *arguments, **options)

    http.client.HTTPConnection.putrequest = count  # type: ignore[method-assign]
    sys.addaudithook(lambda event, _: counted.update(["connection"] if event == "socket.connect" else []))
    return counted


def main() -> None:
    """Carry out the plan on the command line."""
    plan = json.loads(sys.argv[1])
    tell = tell_on_stdout()
    asked = Asked(load(plan["handler"]), plan["ask"], plan["text"])
    network = watch_network() if plan["count"] else Counter()
    asked.round_trip()
    first = network["request"]
    network.clear()
    for _ in range(_COUNTED if plan["count"] else 0):
        asked.round_trip()
    later = network.total() / _COUNTED

    times: dict[str, list[int]] = {"plain": [], "sealed": []}

    def both() -> int:
        times["plain"].append(asked.call(plan["plain"]))
        times["sealed"].append(asked.round_trip())
        return 0

    timed(both, plan["seconds"] / 4, plan["calls"] // 4)
    for values in times.values():
        values.clear()
    timed(both, plan["seconds"], plan["calls"])
    tell({"first": first, "later": later, **times})


if __name__ == "__main__":
    main()
