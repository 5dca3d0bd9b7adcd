"""Who still needs the legacy lane, as metrics: CloudWatch reads them from the log.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

import os
import re
from collections import Counter
from typing import Final

__all__ = ["ACTIVE_SESSIONS", "REQUESTS", "REVERSE_REQUESTS", "SESSIONS", "LegacyMetrics", "client_label"]

NAMESPACE_VARIABLE: Final = "POWERTOOLS_METRICS_NAMESPACE"

REQUESTS: Final = "LegacyRequests"
SESSIONS: Final = "LegacySessions"
ACTIVE_SESSIONS: Final = "LegacyActiveSessions"
REVERSE_REQUESTS: Final = "LegacyReverseRequests"

_MAX_CLIENTS: Final = 20
"""Of one environment. Each client is metrics that are paid for, and clients name themselves."""
_MAX_KINDS: Final = 10
_OTHER: Final = "other"
# Dimensions are ASCII; what would need quotes in a search is not in them either.
_UNCLEAN: Final = re.compile(r"[^A-Za-z0-9 ._+@()-]")

Dimension = tuple[str, str]
"""Name and value; names of none are empty."""
_NONE: Final[Dimension] = ("", "")


class LegacyMetrics:
    """Counts what happens in an invocation, and writes it to the log with `flush`.

    | metric | dimensions | |
    |---|---|---|
    | `LegacyRequests` | `client` | HTTP requests that belong to a session, or would open one |
    | `LegacySessions` | `client`, and without | sessions that were opened |
    | `LegacyActiveSessions` | none | how many there are, at each that is opened |
    | `LegacyReverseRequests` | `kind` | requests that the server sent to a client |

    A client is its name and version. Each metric also has the dimension `service`, which the template sets to the
    stack. Without the variable `POWERTOOLS_METRICS_NAMESPACE` there are none.
    """

    def __init__(self) -> None:
        self._clients: set[str] = set()
        self._kinds: set[str] = set()
        self._counts: Counter[tuple[Dimension, str]] = Counter()
        if os.environ.get(NAMESPACE_VARIABLE):
            # While the environment starts, not in its first request; without a namespace nobody pays for it.
            import aws_lambda_powertools.metrics  # noqa: F401

    def request(self, client: tuple[str, str]) -> None:
        """A request of a client, by its name and version."""
        self._counts[("client", self._client(client)), REQUESTS] += 1

    def session(self, client: tuple[str, str], active: int) -> None:
        """A client has opened a session, of which there are now so many."""
        self._counts[("client", self._client(client)), SESSIONS] += 1
        self._counts[_NONE, SESSIONS] += 1
        self._counts[_NONE, ACTIVE_SESSIONS] = active

    def reverse_request(self, kind: str) -> None:
        """The server has sent a request to a client: `elicitation/create` and the like."""
        self._counts[("kind", _one_of(self._kinds, _clean(kind, 64), _MAX_KINDS)), REVERSE_REQUESTS] += 1

    def flush(self) -> None:
        """Write what was counted, and start again; to be called when an invocation ends."""
        counts, self._counts = self._counts, Counter()
        if not counts or not os.environ.get(NAMESPACE_VARIABLE):
            return
        from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

        for dimension in dict.fromkeys(dimension for dimension, _ in counts):
            metrics = EphemeralMetrics()
            if dimension != _NONE:
                metrics.add_dimension(*dimension)
            for (of, name), count in counts.items():
                if of == dimension:
                    metrics.add_metric(name=name, unit=MetricUnit.Count, value=count)
            metrics.flush_metrics()

    def _client(self, client: tuple[str, str]) -> str:
        return _one_of(self._clients, client_label(*client), _MAX_CLIENTS)


def client_label(name: str, version: str) -> str:
    """What a client is called in metrics."""
    return f"{_clean(name, 64)}/{_clean(version, 32)}"


def _clean(text: str, longest: int) -> str:
    return _UNCLEAN.sub("_", text[:longest]).strip() or "unknown"


def _one_of(known: set[str], value: str, most: int) -> str:
    """`value`, as long as no more than `most` are known; then "other"."""
    if value not in known and len(known) >= most:
        return _OTHER
    known.add(value)
    return value
