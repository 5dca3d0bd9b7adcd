"""What all tests share: whose turn it is, the sample function's folder on the path, and the search for secrets."""

import sys
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from sealane.local.records import LogLine
from tests.planted import SECRETS

TESTS = Path(__file__).parent
LEGACY = version("mcp").startswith("1.")
"""Each environment has one generation of the SDK. In .venv-legacy tests/legacy runs, in .venv all others."""

# As Lambda has it.
sys.path.insert(0, str(TESTS.parent / "functions" / ("legacy" if LEGACY else "stateless")))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out what the other environment runs."""
    if collection_path == TESTS or TESTS not in collection_path.parents:
        return None
    return True if (collection_path.relative_to(TESTS).parts[0] == "legacy") != LEGACY else None


leaks: set[str] = set()
"""What has a secret in it, of all that was written in this run."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Look for secrets in what a test has written to its output, its error output and its log."""
    report = yield
    leaks.update(f"{item.nodeid}: {name}: {text}" for name, text in report.sections if SECRETS.search(text))
    return report


@pytest.fixture(autouse=True, scope="session")
def no_secrets() -> Iterator[None]:
    """Look for secrets in every line that a function writes under a local gateway, and tell of all that are found."""
    made = LogLine.__init__

    def seen(self: LogLine, *args: Any, **fields: Any) -> None:
        made(self, *args, **fields)
        if SECRETS.search(self.text):
            leaks.add(f"{self.function}: {self.text}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogLine, "__init__", seen)
        yield
    assert leaks == set()
