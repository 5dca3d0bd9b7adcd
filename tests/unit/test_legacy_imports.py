"""The legacy lane is to be deleted one day: nothing outside of it may need it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layers" / "sealane" / "sealane"
SOURCES = [
    file
    for folder in (PACKAGE, ROOT / "functions")
    for file in sorted(folder.rglob("*.py"))
    if "legacy" not in file.relative_to(folder).parts[:1]
]


def imported(file: Path) -> Iterator[str]:
    """The modules and names that a file imports, `module.name` for `from module import name`."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # What is imported on first use is named by a string.
            yield node.value


@pytest.mark.parametrize("file", SOURCES, ids=[str(file.relative_to(ROOT)) for file in SOURCES])
def test_nothing_outside_the_legacy_lane_imports_it(file: Path) -> None:
    assert not [name for name in imported(file) if f"{name}.".startswith("sealane.legacy.")]


def test_the_stateless_function_never_loads_it() -> None:
    code = "import app, sys\nimport sealane\n[getattr(sealane, name) for name in sealane.__all__]\nprint(*sys.modules)"
    loaded = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", code],
        cwd=ROOT / "functions" / "stateless",
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert {"app", "mcp", "sealane.handler"} <= set(loaded)
    assert not [name for name in loaded if f"{name}.".startswith("sealane.legacy.")]


def test_its_commands_need_neither_generation_of_the_sdk() -> None:
    code = "import sys\nfrom sealane.legacy import cli\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()  # noqa: S603
    assert not {"mcp", "mcp_types"} & set(loaded)
