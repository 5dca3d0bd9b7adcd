"""Runs in a process of its own: imports a contestant's handler, answers events, and tells what that took.

    python worker.py '{"handler": "module.name", "event": "{…}", "text": "Hello, World!", "seconds": 1, "calls": 1000}'

It is the same for every contestant. It needs the standard library alone, and imports next to nothing: each module that
is there already would be a present to those who need it.
"""

import base64
import importlib
import json
import os
import sys
from collections.abc import Callable
from time import monotonic_ns, perf_counter_ns, process_time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REQUEST_ID = 1
"""JSON-RPC id of every request."""
_FEWEST = 5
"""Calls that are timed even when they take longer than there is time."""


class WrongAnswer(Exception):
    """A handler's answer is not the result of the tool that was called."""


class Context:
    """Lambda's context object."""

    aws_request_id = "5e8c3a52-4f0e-4b1c-9d3a-000000000000"
    client_context = None
    function_name = "bench"
    function_version = "$LATEST"
    identity = None
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:bench"
    log_group_name = "/aws/lambda/bench"
    log_stream_name = "bench"
    memory_limit_in_mb = "1024"

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds before Lambda ends the invocation."""
        return 30_000


def result_of(answer: object) -> "dict[str, Any]":
    """The JSON-RPC result in a handler's answer.

    Raises:
        WrongAnswer: there is none, or it is the result of something else.
    """
    if not isinstance(answer, dict) or answer.get("statusCode") != 200:
        raise WrongAnswer(f"not an answer with status 200: {answer!r:.500}")
    body = answer.get("body") or ""
    if answer.get("isBase64Encoded"):
        body = base64.b64decode(body).decode()
    try:
        # The last message of an event stream, or the only one.
        lines = [line[5:] for line in body.splitlines() if line.startswith("data:")]
        message = json.loads(lines[-1] if lines else body)
    except (AttributeError, ValueError):
        raise WrongAnswer(f"the body is not JSON: {body!r:.500}") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or message.get("id") != REQUEST_ID:
        raise WrongAnswer(f"not the answer to the request: {message!r:.500}")
    result = message.get("result")
    if not isinstance(result, dict):
        raise WrongAnswer(f"not a result: {message!r:.500}")
    return result


def check(answer: object, text: str) -> None:
    """Look at a handler's answer.

    Raises:
        WrongAnswer: it is not the result of a tool that says `text`.
    """
    result = result_of(answer)
    content = result.get("content")
    if result.get("isError") or not isinstance(content, list) or len(content) != 1:
        raise WrongAnswer(f"not a tool's result: {result!r:.500}")
    if not isinstance(content[0], dict) or (content[0].get("type"), content[0].get("text")) != ("text", text):
        raise WrongAnswer(f"the tool does not say {text!r}: {content!r:.500}")


def load(name: str) -> "Callable[[Any, Any], object]":
    """The handler `module.name`."""
    module, _, attribute = name.rpartition(".")
    handler: Callable[[Any, Any], object] = getattr(importlib.import_module(module), attribute)
    return handler


def timed(call: Callable[[], int], seconds: float, most: int) -> list[int]:
    """Nanoseconds that calls took, as they say themselves.

    Args:
        call: makes one call and returns its nanoseconds.
        seconds: when to stop.
        most: calls after which to stop, however little time has passed.
    """
    end = monotonic_ns() + seconds * 1e9
    times: list[int] = []
    while len(times) < most and (len(times) < _FEWEST or monotonic_ns() < end):
        times.append(call())
    return times


def peak_memory() -> int:
    """Most memory that this process has had resident, in KiB; 0 where the system does not tell (Linux does).

    Not `ru_maxrss`: that begins with what the parent process had.
    """
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except OSError:
        return 0


def tell_on_stdout() -> Callable[[object], None]:
    """What writes JSON on standard output; all else that is written there goes to standard error from now on."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(value: object) -> None:
        with own:
            json.dump(value, own)

    return tell


def main() -> None:
    """Carry out the plan on the command line."""
    plan = json.loads(sys.argv[1])
    event, text = plan["event"], plan["text"]
    tell = tell_on_stdout()
    handler = load(plan["handler"])
    context = Context()
    answer = handler(json.loads(event), context)
    answered, cpu, peak = monotonic_ns(), process_time_ns(), peak_memory()
    check(answer, text)

    def call() -> int:
        fresh = json.loads(event)
        started = perf_counter_ns()
        answer = handler(fresh, context)
        taken = perf_counter_ns() - started
        check(answer, text)
        return taken

    timed(call, plan["seconds"] / 4, plan["calls"] // 4)
    tell({"answered": answered, "cpu": cpu, "peak": peak, "times": timed(call, plan["seconds"], plan["calls"])})


if __name__ == "__main__":
    main()
