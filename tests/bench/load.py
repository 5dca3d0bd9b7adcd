"""Sends the same request over several connections at once, each as fast as it is answered, and tells what that took.

    python -m tests.bench.load '{"url": "http://…/mcp", "connections": 4, "seconds": 2, …}'

A process of its own: the gateway should not wait for its caller.
"""

import http
import http.client
import json
import sys
import threading
import time
import urllib.parse
from typing import Any

from tests.bench.worker import check

_PAUSE = 0.005
"""Seconds before a refused request is sent again."""


class Connection(threading.Thread):
    """One connection.

    Args:
        plan: what to send where, and until when.

    Attributes:
        times: milliseconds of each answer; until the last try where the gateway has refused others.
        refused: how often it did, because all environments were busy (429).
        error: what ended it early.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.times: list[float] = []
        self.refused = 0
        self.error: Exception | None = None
        self._plan = plan

    def run(self) -> None:
        """Send until time is up."""
        try:
            self._send()
        except Exception as error:
            self.error = error

    def _send(self) -> None:
        plan = self._plan
        url = urllib.parse.urlsplit(plan["url"])
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        end = time.monotonic() + plan["seconds"]
        while not self.times or time.monotonic() < end:
            started = time.perf_counter()
            while True:
                connection.request("POST", url.path, plan["body"], plan["headers"])
                response = connection.getresponse()
                body = response.read()
                if response.status != http.HTTPStatus.TOO_MANY_REQUESTS:
                    break
                self.refused += 1
                time.sleep(_PAUSE)
            self.times.append((time.perf_counter() - started) * 1000)
            check({"statusCode": response.status, "body": body.decode()}, plan["text"])
        connection.close()


def main() -> None:
    """Carry out the plan on the command line."""
    plan = json.loads(sys.argv[1])
    connections = [Connection(plan) for _ in range(plan["connections"])]
    started = time.perf_counter()
    for connection in connections:
        connection.start()
    for connection in connections:
        connection.join()
    seconds = time.perf_counter() - started
    for connection in connections:
        if connection.error is not None:
            raise SystemExit(f"{plan['url']}: {connection.error!r}")
    times = [each for connection in connections for each in connection.times]
    refused = sum(connection.refused for connection in connections)
    json.dump({"times": times, "seconds": seconds, "refused": refused}, sys.stdout)


if __name__ == "__main__":
    main()
