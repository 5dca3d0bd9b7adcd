"""What the local gateway tells whoever watches it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LogLine:
    """One line that a function wrote to its standard output or error.

    Attributes:
        function: the function's logical id.
        environment: number of the environment, counted from 1 for each function.
        text: the line, without its end.
    """

    function: str
    environment: int
    text: str


@dataclass(frozen=True)
class Call:
    """One HTTP request and how it was answered.

    Attributes:
        method: HTTP method.
        path: path as the client sent it.
        status: HTTP status of the answer.
        duration_ms: milliseconds from the first byte of the request to the answer.
        request_id: the gateway's request id, also in the answer's `x-amzn-RequestId`.
        environment: number of the environment that served the call, None when none did.
        init_ms: milliseconds of its cold start, None when it was warm.
        problem: why the gateway answered in the function's place, or what else is wrong with its answer.
        memory: peak memory of the invocation in MiB, None where it is not known.
        message: JSON-RPC method of the request's body and the tool, prompt or resource that it names; never arguments.
        era: `modern` or `legacy`, as the body says; None when it is no JSON-RPC message.
    """

    method: str
    path: str
    status: int
    duration_ms: float
    request_id: str
    environment: int | None = None
    init_ms: float | None = None
    problem: str | None = None
    memory: int | None = None
    message: str | None = None
    era: str | None = None


@dataclass(frozen=True)
class Notice:
    """What the local gateway does of its own accord.

    Attributes:
        text: one line.
    """

    text: str


Record = LogLine | Call | Notice
