"""Who still needs the legacy lane, as metrics."""

from typing import Final

from sealane import telemetry
from sealane.telemetry import Metric, clean, one_of

__all__ = ["ACTIVE_SESSIONS", "REQUESTS", "REVERSE_REQUESTS", "SESSIONS", "LegacyMetrics", "client_label"]

REQUESTS: Final[Metric] = "LegacyRequests"
SESSIONS: Final[Metric] = "LegacySessions"
ACTIVE_SESSIONS: Final[Metric] = "LegacyActiveSessions"
REVERSE_REQUESTS: Final[Metric] = "LegacyReverseRequests"

_MAX_CLIENTS: Final = 20
"""Of one environment. Each client is metrics that are paid for, and clients name themselves."""
_MAX_KINDS: Final = 10


class LegacyMetrics:
    """Counts what happens in a request, in the metrics that are written when it ends.

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

    def request(self, client: tuple[str, str]) -> None:
        """A request of a client, by its name and version."""
        telemetry.current().describe_client(*client)
        telemetry.count(REQUESTS, dimension=("client", self._client(client)))

    def session(self, client: tuple[str, str], active: int) -> None:
        """A client has opened a session, of which there are now so many."""
        telemetry.count(SESSIONS, dimension=("client", self._client(client)))
        telemetry.count(SESSIONS)
        telemetry.count(ACTIVE_SESSIONS, active)

    def reverse_request(self, kind: str) -> None:
        """The server has sent a request to a client: `elicitation/create` and the like."""
        telemetry.count(REVERSE_REQUESTS, dimension=("kind", one_of(self._kinds, clean(kind, 64), _MAX_KINDS)))

    def _client(self, client: tuple[str, str]) -> str:
        return one_of(self._clients, client_label(*client), _MAX_CLIENTS)


def client_label(name: str, version: str) -> str:
    """What a client is called in metrics."""
    return f"{clean(name, 64)}/{clean(version, 32)}"
