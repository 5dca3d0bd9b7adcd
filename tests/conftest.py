"""What all tests share: whose turn it is, and the sample function's folder on the path, as Lambda has it."""

import sys
from importlib.metadata import version
from pathlib import Path

TESTS = Path(__file__).parent
LEGACY = version("mcp").startswith("1.")
"""Each environment has one generation of the SDK. In .venv-legacy tests/legacy runs, in .venv all others."""

sys.path.insert(0, str(TESTS.parent / "functions" / ("legacy" if LEGACY else "stateless")))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out what the other environment runs."""
    if collection_path == TESTS or TESTS not in collection_path.parents:
        return None
    return True if (collection_path.relative_to(TESTS).parts[0] == "legacy") != LEGACY else None
