"""`make fuzz`: a million cases, on all processors.

A failure is printed with its event, which can be kept as a file of events/ and sent again with `--replay`.
"""

import argparse
import json
import logging
import multiprocessing
import random
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.fuzz.grammar import Case, copied, make_case, places
from tests.fuzz.invariants import faults
from tests.fuzz.server import HANDLERS

CHUNK: Final = 500
SHOWN: Final = 5


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines: there would be thousands."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Failure(NamedTuple):
    """A case with a fault in its answer."""

    number: int
    case: Case
    fault: str


def cases(seed: str, numbers: range) -> Iterator[tuple[int, Case]]:
    """The cases of a seed with these numbers; each depends on seed and number alone."""
    for number in numbers:
        yield number, make_case(random.Random(f"{seed}/{number}"))  # noqa: S311


def failures(seed: str, numbers: range) -> list[Failure]:
    """What fails of the cases of a seed with these numbers."""
    with _quiet():
        return [Failure(number, case, fault) for number, case in cases(seed, numbers) for fault in faults(case)]


def shrunk(failure: Failure, seconds: float = 20) -> Failure:
    """The same failure with less around it."""
    until = time.monotonic() + seconds
    case, smaller = failure.case, True
    with _quiet():
        while smaller and time.monotonic() < until:
            smaller = False
            for event in _smaller(case.event):
                candidate = Case(case.handler, event)
                if time.monotonic() < until and failure.fault in faults(candidate):
                    case, smaller = candidate, True
                    break
    return failure._replace(case=case)


def _smaller(event: Any) -> Iterator[Any]:
    """Copies of an event, each without one member or without a piece of one text."""
    for index, (container, key) in enumerate(places(event)):
        made = copied(event)
        inside, _ = list(places(made))[index]
        del inside[key]
        yield made
        if isinstance(text := container[key], str):
            for size in (len(text) // 2, len(text) // 8, 1):
                for at in range(0, len(text) if size > 1 or len(text) < 200 else 0, size or 1):
                    made = copied(event)
                    list(places(made))[index][0][key] = text[:at] + text[at + max(size, 1) :]
                    yield made


def describe(failure: Failure, seed: str) -> str:
    """A failure for the reader, and its event as JSON."""
    title = f"case {failure.number} of seed {seed}, handler {failure.case.handler}: {failure.fault}"
    return f"{title}\n{json.dumps(failure.case.event)}"


def replay(path: Path) -> int:
    """Send the event of a file to every handler; 1 when one answer has a fault."""
    event = json.loads(path.read_text(encoding="utf-8"))
    with _quiet():
        found = {name: fault for name in HANDLERS if (fault := faults(Case(name, copied(event))))}
    for name, fault in found.items():
        print(f"{path}, handler {name}: {'; '.join(fault)}")
    return 1 if found else 0


def main() -> int:
    """Run, with a line of progress; 1 when something failed."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="the same seed makes the same cases")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--replay", type=Path, metavar="EVENT.json", help="send this event instead")
    options = parser.parse_args()
    if options.replay:
        return replay(options.replay)
    print(f"seed {options.seed}: {options.cases:,} cases in {options.processes} processes")
    chunks = [
        (options.seed, range(start, min(start + CHUNK, options.cases))) for start in range(0, options.cases, CHUNK)
    ]
    found: dict[str, Failure] = {}
    failed, begun = 0, time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for number, chunk in enumerate(pool.imap_unordered(_failures, chunks), 1):
            failed += len(chunk)
            for failure in chunk:
                found.setdefault(failure.fault, failure)
            if sys.stdout.isatty() or number % 100 == 0 or number == len(chunks):
                done, taken = min(number * CHUNK, options.cases), time.monotonic() - begun
                line = f"{done:,} cases, {failed} failed, {done / taken:,.0f} a second, {taken:.0f} s"
                print(line, end="\r" if sys.stdout.isatty() and number < len(chunks) else "\n", flush=True)
    for failure in list(found.values())[:SHOWN]:
        print(describe(shrunk(failure), options.seed))
    return 1 if found else 0


def _failures(chunk: tuple[str, range]) -> list[Failure]:
    return failures(*chunk)


if __name__ == "__main__":
    sys.exit(main())
