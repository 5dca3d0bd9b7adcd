"""The official suite's requests, answered with cuts in what is imported and without: byte for byte the same."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conformance.traffic import requests


def answers(cuts: str) -> list[list[Any]]:
    """Status, headers and body of each answer that a fresh process gives."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.traffic", "replay"],
        env={**os.environ, "SEALANE_IMPORT_CUTS": cuts, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def test_cuts_change_no_byte_of_an_answer() -> None:
    with ThreadPoolExecutor() as threads:
        cut, uncut = threads.map(answers, ("on", "off"))
    asked = requests()
    assert len(cut) == len(uncut) == len(asked)
    assert sum(status == 200 for status, _, _ in uncut) > len(asked) / 2
    assert sum("requestState" in body for _, _, body in uncut) > 5
    for request, with_cuts, without in zip(asked, cut, uncut, strict=True):
        assert with_cuts == without, request["body"]
