"""One line in the log and a few metrics for every request, of both lanes and of the authorizer.

`docs/telemetry.md` lists the fields, the metrics and the words of a refusal. Nothing here is given arguments, results,
tokens or request state.
"""

import functools
import hmac
import json
import logging
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from sealane import snapshot

if TYPE_CHECKING:
    from sealane.tracing import Tracing

__all__ = ["Exchange", "Lane", "Metric", "clean", "count", "current", "exchange", "has_served", "one_of", "start"]

logger = logging.getLogger(__name__)

Lane = Literal["stateless", "compatibility", "legacy", "authorizer"]
Metric = Literal[
    "Requests",
    "Errors",
    "Latency",
    "Refused",
    "ColdStart",
    "StateSealed",
    "StateRefused",
    "KmsCalls",
    "ListenStreams",
    "LegacyRequests",
    "LegacySessions",
    "LegacyActiveSessions",
    "LegacyReverseRequests",
]
Dimension = tuple[str, str]
"""Name and value; names of none are empty."""

NAMESPACE_VARIABLE: Final = "POWERTOOLS_METRICS_NAMESPACE"
"""Namespace of the metrics. Default: none, and no metrics are written."""
SERVICE_VARIABLE: Final = "POWERTOOLS_SERVICE_NAME"
"""Name of the deployment in logs, metrics and traces. Default: `sealane`."""
KEY_VARIABLE: Final = "SEALANE_LOG_KEY"
"""Key of the hash that stands for a caller in the log; secret from those who see the logs only. Default: random bytes,
so that hashes of one environment are not those of another."""
TRACING_VARIABLE: Final = "SEALANE_TRACING"
"""Where spans are sent: `off`, `xray` or `otlp`. Default: `off`."""

REQUESTS: Final = __name__
"""Logger of the lines of requests."""
REQUEST_FIELDS: Final = ("status", "error_code", "refused_for", "reason", "duration_ms")
"""What such a line has of its own; `None` where there is none."""

_ALONE: Final[Dimension] = ("", "")
_BESIDE_THE_TOTAL: Final = ("tool", "reason")
"""Dimensions whose metrics are written without them too."""
_MAX_TOOLS: Final = 50
_OTHER: Final = "other"
# Dimensions are ASCII; what would need quotes in a search is not in them either.
_UNCLEAN: Final = re.compile(r"[^A-Za-z0-9 ._+@()-]")
_LONGEST: Final = 128
"""Characters of a value that a client has chosen."""

_TOOL_ERROR: Final = "tool_error"
"""What OpenTelemetry's conventions for MCP call it too."""
_NAMED: Final = {
    "tools/call": ("tool", "name"),
    "prompts/get": ("prompt", "name"),
}
_META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_META_CLIENT: Final = "io.modelcontextprotocol/clientInfo"
# What an answer of this status or code was refused for; all else that fails is an error. Spelled out because this
# imports neither an SDK nor what the authorizer has not got.
_BY_CODE: Final = {
    -32700: "parse",
    -32601: "method-not-found",
    -32602: "params",
    -32020: "header-mismatch",
    -32021: "capability",
    -32022: "version",
}
_BY_STATUS: Final = {
    401: "token",
    405: "http-method",
    406: "accept",
    409: "conflict",
    413: "body-size",
    415: "media-type",
    421: "host",
}

_as_json: Final = json.JSONEncoder(separators=(",", ":")).encode

Counts = defaultdict[tuple[Dimension, Metric], float]

_current: ContextVar["Exchange | None"] = ContextVar("sealane_exchange", default=None)
_pending: Counts = defaultdict(float)
"""What happens outside of a request, and is written with the next one."""
_tools: set[str] = set()
_names = "", "sealane"
"""Namespace of the metrics, and the deployment's name."""
_tracing: "Tracing | None" = None
_sample: Callable[[], None] = lambda: None  # noqa: E731
_write_line: Callable[[int, str, Mapping[str, object]], bool] = lambda *_: False  # noqa: E731


class _Environment:
    """What the lines of one execution environment have in common. A restored snapshot is a new one.

    Attributes:
        id: its name, by chance.
        has_served: a request has come.
        key: what callers are hashed with.
    """

    def __init__(self) -> None:
        self.id = os.urandom(6).hex()
        self.has_served = False
        # Without a key that all environments share, names are at least told apart within one.
        self.key = os.environ.get(KEY_VARIABLE, "").encode() or os.urandom(32)

    def is_cold(self) -> bool:
        """Whether a request that begins now is the first."""
        first, self.has_served = not self.has_served, True
        return first and os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") != "provisioned-concurrency"


_environment = _Environment()


class Exchange:
    """One request, as the log and the metrics have it.

    Args:
        request_id: Lambda's.
        is_served: it is one, and not what stands for none.

    Attributes:
        keys: what every line of the request says.
        appended: what the server's own code has added to that.
        counts: its metrics so far.
        tool: the called tool, if it is one that the server has.
        left: the client went away before it had its answer.
        forwarded: another function answers the request, and counts it.
    """

    def __init__(self, request_id: str | None = None, *, is_served: bool = True) -> None:
        self.is_served = is_served
        self.keys: dict[str, Any] = {}
        self.appended: dict[str, Any] = {}
        if is_served:
            self.keys.update(environment=_environment.id, cold_start=_environment.is_cold())
        _put(self.keys, "request_id", request_id)
        self.counts: Counts = defaultdict(float)
        self.tool: str | None = None
        self.left = False
        self.forwarded = False
        self._error: int | str | None = None
        self._reason: str | None = None
        self._refused_for: str | None = None
        self._started = time.perf_counter()
        self._started_ns = time.time_ns()
        self._spans: ExitStack | None = None
        self._ended = False

    def describe(self, message: object, headers: Mapping[str, str], *, era: str, lane: Lane) -> None:
        """Take from a JSON-RPC message what may be told; of a batch that is nothing.

        Args:
            message: the decoded body.
            headers: HTTP headers by lower-case name.
        """
        keys = self.keys
        keys["era"], keys["lane"] = era, lane
        version: object = headers.get("mcp-protocol-version")
        if isinstance(message, dict):
            method, params = message.get("method"), _mapping(message.get("params"))
            _put(keys, "rpc_id", message.get("id"))
            _put(keys, "method", method)
            if isinstance(method, str) and (named := _NAMED.get(method)):
                _put(keys, named[0], params.get(named[1]))
            elif method == "resources/read" and isinstance(uri := params.get("uri"), str):
                # Behind the scheme are arguments: those of a template, handles too.
                _put(keys, "resource", uri.partition(":")[0])
            meta = _mapping(params.get("_meta"))
            if method == "initialize":
                version = params.get("protocolVersion")
            version = meta.get(_META_VERSION, version)
            client = _mapping(meta.get(_META_CLIENT, params.get("clientInfo")))
            self.describe_client(client.get("name"), client.get("version"))
            if _tracing is not None and self.is_served:
                self._spans = ExitStack()
                keys["trace_id"] = self._spans.enter_context(_tracing.request(keys, meta, headers, self._started_ns))
        _put(keys, "revision", version)

    def describe_client(self, name: object, version: object) -> None:
        """Take what a client says of itself."""
        _put(self.keys, "client_name", name)
        _put(self.keys, "client_version", version)

    def identify(self, principal: tuple[str | None, ...]) -> None:
        """Say who the caller is, as 64 bits of a keyed hash (HMAC-SHA256, RFC 2104), which does not tell the name.

        The key is `SEALANE_LOG_KEY`. Without it the hashes of one environment are not those of another.
        """
        name = "\0".join(part or "" for part in principal).encode("utf-8", "surrogatepass")
        self.keys["principal"] = hmac.digest(_environment.key, name, "sha256").hex()[:16]

    def refuse(self, status: int, code: int, reason: str) -> None:
        """The request is refused, or has failed; what is said of it first counts.

        Args:
            status: HTTP status of the answer.
            code: JSON-RPC code of the answer.
            reason: text for the log.
        """
        if self._error is None:
            self._error, self._reason = code, self._reason or reason
        self._refused_for = self._refused_for or self._word(status, code)

    def answer_error(self, code: int) -> None:
        """The server answers with a JSON-RPC error, whose text is for its client: it may repeat what was asked."""
        if self._error is None:
            self._error = code
        self._refused_for = self._refused_for or _BY_CODE.get(code)

    def refuse_state(self) -> None:
        """The request state that the client sent is not accepted."""
        self._refused_for = "state"
        self.explain("the request state is not accepted")
        count("StateRefused")

    def answer_tool_error(self) -> None:
        """The called tool says that it has failed."""
        self._error = _TOOL_ERROR

    def explain(self, reason: str) -> None:
        """Say why the request is going to fail; what is said first counts."""
        self._reason = self._reason or reason

    def end(self, status: int | None) -> None:
        """Write the line and the metrics. Only the first call does.

        Args:
            status: HTTP status of the answer; `None` where there is none.
        """
        if self._ended:
            return
        self._ended = True
        milliseconds = round((time.perf_counter() - self._started) * 1000, 1)
        refused = self._refused_for is not None
        failed = not refused and not self.left and (self._error is not None or status is None or status >= 500)
        reason = self._reason or (None if self._error is None else str(self._error))
        fields = dict(zip(REQUEST_FIELDS, (status, self._error, self._refused_for, reason, milliseconds), strict=True))
        if refused:
            level, message = logging.WARNING, f"refused: {reason}"
        elif failed:
            # Models try again what a tool says to have failed; there is nothing wrong with the server.
            level, message = logging.WARNING if self._error == _TOOL_ERROR else logging.ERROR, f"failed: {reason}"
        else:
            level, message = logging.INFO, "the client left before it had its answer" if self.left else "served"
        if not _write_line(level, message, fields):
            # As an argument: Powertools tries to read a message that has none as JSON.
            logger.log(level, "%s", message, extra=fields)
        self._measure(milliseconds, failed)

    def __enter__(self) -> "Exchange":
        """Begin: what is logged and counted from now on, and in tasks and threads that begin now, belongs to it."""
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """End the request's span, and stand for the request no longer."""
        if self._spans is not None:
            self._spans.close()
        _current.reset(self._token)

    def _word(self, status: int, code: int) -> str | None:
        """What a request is refused for, in one of the words of the metric `Refused`; `None` for a failure."""
        if not 400 <= status < 500:
            return None
        if code in _BY_CODE:
            return _BY_CODE[code]
        if status == 403:
            return "scope" if "principal" in self.keys else "origin"
        if status == 404:
            return "session" if "era" in self.keys else "route"
        return _BY_STATUS.get(status, "request")

    def _measure(self, milliseconds: float, failed: bool) -> None:
        tool = _ALONE if self.tool is None else ("tool", one_of(_tools, clean(self.tool, _LONGEST), _MAX_TOOLS))
        counts = self.counts
        if not self.forwarded or failed or self._refused_for is not None:
            counts[tool, "Requests"] += 1
        if failed:
            counts[tool, "Errors"] += 1
        if not self.forwarded and self.keys.get("method") not in (None, "subscriptions/listen"):
            counts[tool, "Latency"] = milliseconds
        if self._refused_for is not None:
            counts[("reason", self._refused_for), "Refused"] += 1
        if self.keys["cold_start"]:
            counts[_ALONE, "ColdStart"] += 1
        for key, amount in _pending.items():
            counts[key] += amount
        _pending.clear()
        # What a thread that nobody waits for still does is written with the next request.
        self.counts = _pending
        _write(counts)


def start() -> None:
    """Make JSON of all that is logged, and be ready to write metrics: once, while an environment starts.

    Off Lambda the log is left as it is: whoever runs the application there has set up `logging`.
    """
    global _names, _sample, _tracing, _write_line
    _names = os.environ.get(NAMESPACE_VARIABLE, ""), os.environ.get(SERVICE_VARIABLE, "sealane")
    if "AWS_LAMBDA_RUNTIME_API" in os.environ:
        from sealane import logs

        logs.take_over()
        _sample, _write_line = logs.sample, logs.write_request_line
    if _tracing is None and (mode := os.environ.get(TRACING_VARIABLE) or "off") != "off":
        # OpenTelemetry's SDK: who does not trace neither has it nor pays for it.
        from sealane.tracing import Tracing

        _tracing = Tracing(mode, _names[1])


def _renew() -> None:
    global _environment
    _environment = _Environment()


snapshot.after_restore(_renew)


def exchange(request_id: str | None = None) -> Exchange:
    """A request, for a `with` block: what is logged and counted inside it belongs to the request.

    Whoever knows how it has ended calls `Exchange.end`.
    """
    made = Exchange(request_id)
    _sample()
    return made


def has_served() -> bool:
    """Whether a request has come to this environment: before that, nothing that is logged can have anything of one."""
    return _environment.has_served


def current() -> Exchange:
    """The request that is being served; outside of one, an object that nobody looks at."""
    return _current.get() or Exchange(is_served=False)


def aws_call(service: str, operation: str) -> AbstractContextManager[None]:
    """A call to AWS, from the beginning of the block to its end."""
    return nullcontext() if _tracing is None else _tracing.call(service, operation)


def send_spans() -> "Callable[[], None] | None":
    """What sends the spans that have ended, and may wait for that; `None` where there are none."""
    return None if _tracing is None else _tracing.flush


def count(metric: Metric, value: float = 1, dimension: Dimension = _ALONE) -> None:
    """Add to a metric of the request; outside of one, of the next.

    Args:
        dimension: name and value, of which there must be few (`one_of`): each is a metric that is paid for.
    """
    exchange = _current.get()
    counts = _pending if exchange is None else exchange.counts
    counts[dimension, metric] += value


def clean(text: str, longest: int) -> str:
    """`text` as the value of a dimension."""
    return _UNCLEAN.sub("_", text[:longest]).strip() or "unknown"


def one_of(known: set[str], value: str, most: int) -> str:
    """`value`, as long as no more than `most` are known; then "other"."""
    if value not in known and len(known) >= most:
        return _OTHER
    known.add(value)
    return value


def _write(counts: Counts) -> None:
    """Write metrics to the log, from which CloudWatch reads them: a line for each dimension's value.

    By hand, since it is so little that Powertools' checks of it would be most of what a request's metrics cost.
    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
    """
    namespace, service = _names
    if not namespace:
        return
    of_dimension: defaultdict[Dimension, dict[Metric, float]] = defaultdict(dict)
    for (dimension, metric), amount in counts.items():
        of_dimension[dimension][metric] = amount
    now = time.time_ns() // 1_000_000
    lines = ""
    for (name, value), amounts in of_dimension.items():
        values = {"service": service, name: value} if name else {"service": service}
        directive = _directive(namespace, name, tuple(amounts))
        lines += (
            f'{{"_aws":{{"Timestamp":{now},"CloudWatchMetrics":[{directive}]}},{_as_json({**values, **amounts})[1:]}\n'
        )
    sys.stdout.write(lines)


@functools.lru_cache(maxsize=64)
def _directive(namespace: str, name: str, metrics: tuple[Metric, ...]) -> str:
    """What tells CloudWatch which values of a line are metrics, in which dimensions: few lines differ in it."""
    dimensions = ["service", name] if name else ["service"]
    return _as_json(
        {
            "Namespace": namespace,
            "Dimensions": [["service"], dimensions] if name in _BESIDE_THE_TOTAL else [dimensions],
            "Metrics": [{"Name": each, "Unit": "Milliseconds" if each == "Latency" else "Count"} for each in metrics],
        }
    )


def _put(keys: dict[str, Any], key: str, value: object) -> None:
    """Put in what a client has said, if it is a name or a number, and not more of it than a line can bear."""
    if isinstance(value, str) and value:
        keys[key] = value[:_LONGEST]
    elif isinstance(value, int) and not isinstance(value, bool):
        keys[key] = value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
