"""What the legacy lane imports: the SDK's generation 1, and of Sealane what both generations share."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layers" / "sealane" / "sealane"
LANE = sorted((PACKAGE / "legacy").glob("*.py"))
# The commands are for the developer's machine, as the local gateway is.
COMMANDS = PACKAGE / "legacy" / "cli.py"
SHARED = tuple(
    f"sealane.{name}"
    for name in ("bound", "errors", "gateway", "import_cuts", "legacy", "policy", "snapshot", "state", "telemetry")
)


def is_shared(name: str) -> bool:
    return f"{name}.".startswith(tuple(f"{each}." for each in SHARED))


@pytest.mark.parametrize("file", LANE, ids=[file.name for file in LANE])
def test_it_uses_only_what_both_generations_share(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"sealane.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module == "sealane"
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for name in names:
            assert name.partition(".")[0] not in ("mcp_types", "httpx2")
            assert not name.startswith("sealane") or is_shared(name) or (file == COMMANDS and "sealane.local." in name)


def test_it_loads_neither_generation_2_nor_what_needs_it() -> None:
    modules = [f"sealane.legacy.{file.stem}" for file in LANE if file.stem not in ("__init__", "cli")]
    code = "import sys\nfrom sealane.legacy import create_legacy_mcp_handler\n"
    code += "".join(f"import {name}\n" for name in modules) + "print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    loaded = set(ran.stdout.split())
    assert "mcp.server.lowlevel" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in ("mcp_types", "httpx2", "typer", "moto")}
    assert not {name for name in loaded if name.startswith("sealane.") and not is_shared(name)}


def test_nothing_is_cut_from_generation_1() -> None:
    code = "import sealane, sys, mcp\nprint(*map(type, (mcp, *sys.meta_path)))"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    assert ran.stdout.startswith("<class 'module'>")
    assert "import_cuts" not in ran.stdout
