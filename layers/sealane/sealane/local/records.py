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
    """

    method: str
    path: str
    status: int
    duration_ms: float
    request_id: str
    environment: int | None = None
    init_ms: float | None = None
    problem: str | None = None


Record = LogLine | Call
