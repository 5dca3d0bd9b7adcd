"""Contestants' processes: started, watched, and read."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.bench.field import HERE

PYTHON: Final[list[str]] = [getattr(sys, "_base_executable", sys.executable), "-S", "-P"]
"""The interpreter without its virtual environment and without site-packages: a contestant has its artefact, no more."""
_LIMIT: Final = 600
"""Seconds that a process may take."""


class Failed(Exception):
    """A contestant's process has failed; the text says how."""


@dataclass(frozen=True)
class Sample:
    """What one process has shown.

    Attributes:
        cold: milliseconds from its start to its first answer.
        cpu: milliseconds of a core that it had used by then; 0 where that was not looked at.
        memory: most memory that it had resident by then, in MB (10**6 bytes).
        times: milliseconds that each further answer took.
    """

    cold: float
    cpu: float
    memory: float
    times: list[float]


def run(program: str, plan: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[int, Any]:
    """Run a program of this folder in a process of a contestant's.

    Returns:
        When it was started, in nanoseconds of the monotonic clock, and what it told.

    Raises:
        Failed: it did not get to its end, as with a wrong answer.
    """
    with tempfile.TemporaryFile("w+") as log:
        started = time.monotonic_ns()
        process = subprocess.run(  # noqa: S603
            [*PYTHON, str(HERE / program), json.dumps(plan)],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        if process.returncode != 0:
            log.seek(0)
            raise Failed(f"{plan['handler']}: {log.read()[-2000:]}")
    return started, json.loads(process.stdout)


def answers(plan: Mapping[str, Any], variables: Mapping[str, str]) -> Sample:
    """What the worker tells of a handler.

    Raises:
        Failed: an answer was wrong, or something else.
    """
    started, told = run("worker.py", plan, variables)
    return Sample(
        cold=(told["answered"] - started) / 1e6,
        cpu=told["cpu"] / 1e6,
        memory=told["peak"] * 1024 / 1e6,
        times=[each / 1e6 for each in told["times"]],
    )


def instructions(plan: Mapping[str, Any], variables: Mapping[str, str], valgrind: str) -> int:
    """Instructions that the worker takes from its start to its end, as valgrind counts them.

    Raises:
        Failed: an answer was wrong, or something else.
    """
    command: Sequence[str] = [
        valgrind,
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        *PYTHON,
        str(HERE / "worker.py"),
        json.dumps(plan),
    ]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_LIMIT, check=False)  # noqa: S603
    counted = re.search(r"I +refs: +([\d,]+)", process.stderr)
    if process.returncode != 0 or counted is None:
        raise Failed(f"{plan['handler']}: {process.stderr[-2000:]}")
    return int(counted[1].replace(",", ""))
