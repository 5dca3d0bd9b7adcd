"""A local gateway that remembers what happened, for tests."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from sealane.local.aws_services import absent, deny, slow, throttle
from sealane.local.gateway import LocalGateway
from sealane.local.records import Call, LogLine, Record

__all__ = ["ObservedGateway", "absent", "deny", "slow", "throttle"]


class ObservedGateway(LocalGateway):
    """A `LocalGateway` with the records of its run.

    Args:
        template: a SAM template.
        options: those of `LocalGateway`, but for `observe`.

    Attributes:
        calls: every request so far, with the environment that served it.
        lines: every line that a function wrote so far.
    """

    def __init__(self, template: str | Path, **options: Any) -> None:
        self.calls: list[Call] = []
        self.lines: list[LogLine] = []
        super().__init__(template, observe=self._remember, **options)

    def _remember(self, record: Record) -> None:
        match record:
            case Call():
                self.calls.append(record)
            case LogLine():
                self.lines.append(record)

    def call(self, request_id: str) -> Call:
        """The request that was answered with this `x-amzn-RequestId`.

        Raises:
            KeyError: there was none.
        """
        for call in self.calls:
            if call.request_id == request_id:
                return call
        raise KeyError(request_id)

    def logs(self, environment: int) -> list[str]:
        """What an environment wrote, one text a line."""
        return [line.text for line in self.lines if line.environment == environment]

    def kill(self, environment: int) -> None:
        """Ends an environment's process as the kernel would (SIGKILL), whatever it is doing, and waits for its end.

        Raises:
            KeyError: there is no such environment, or no longer.
        """
        for running in self.environments:
            if running.number == environment and running.pid is not None:
                os.kill(running.pid, signal.SIGKILL)
                while running.alive:
                    time.sleep(0.005)
                return
        raise KeyError(environment)
