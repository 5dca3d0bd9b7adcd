"""What imports what: the arrows of the design go down only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "layers" / "sealane" / "sealane"
BELOW = {
    "policy": {"bound", "errors"},
    "state": {"bound", "policy", "snapshot", "telemetry"},
    "gateway": {"errors", "logs", "policy", "state", "telemetry"},
    "local": {"policy", "state"},
}
"""What each folder may import of the package, beside itself."""


def modules_after(statement: str) -> set[str]:
    """Top-level and sealane modules that a fresh interpreter has after `statement`."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())  # noqa: S603


@pytest.mark.parametrize(
    "module",
    [
        "sealane",
        "sealane.errors",
        "sealane.gateway.buffered",
        "sealane.gateway.authentication",
        "sealane.gateway.authorizer",
        "sealane.gateway.endpoint",
        "sealane.gateway.identity",
        "sealane.gateway.streaming",
        "sealane.policy.auth_context",
        "sealane.policy.bearer",
        "sealane.policy.body",
        "sealane.policy.cors",
        "sealane.policy.gateway_auth",
        "sealane.policy.hosts",
        "sealane.policy.json_text",
        "sealane.policy.options",
        "sealane.policy.origins",
        "sealane.policy.principal",
        "sealane.policy.protected_resource",
        "sealane.state.handles",
        "sealane.state.keyring",
        "sealane.state.once",
        "sealane.telemetry",
        "sealane.logs",
    ],
)
def test_what_both_sdk_generations_use_imports_neither(module: str) -> None:
    assert not {"mcp", "mcp_types"} & modules_after(f"import {module}")


@pytest.mark.parametrize("folder", BELOW)
def test_a_folder_imports_what_is_below_it(folder: str) -> None:
    imported = {
        name.split(".")[1]
        for file in (PACKAGE / folder).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".") for alias in node.names)
        if name.startswith("sealane.")
    }
    assert imported - {folder} <= BELOW[folder]
    assert folder in imported


def test_what_keeps_no_data_pays_for_none() -> None:
    names = 'for name in sealane.__all__ if name != "logger"'
    loaded = modules_after(f"import sealane, sealane.handler, sealane.catalog\n[getattr(sealane, name) {names}]")
    assert not {name for name in loaded if name.startswith(("boto", "aws_lambda_powertools", "urllib3"))}


def test_what_verifies_no_tokens_pays_for_none() -> None:
    loaded = modules_after("from sealane import McpHandler, create_mcp_handler, Catalog")
    assert "sealane.policy.bearer" not in loaded
    assert "jwt" not in loaded


def test_the_handler_imports_nothing_of_the_local_gateway() -> None:
    loaded = modules_after("from sealane import *\nimport sealane.handler, sealane.catalog")
    assert "mcp" in loaded
    assert not {name for name in loaded if name.startswith(("sealane.local", "samtranslator", "typer", "awslambdaric"))}


def test_what_does_not_stream_pays_for_none() -> None:
    assert "sealane.gateway.streaming" not in modules_after("import sealane.handler")


def test_what_streams_needs_nothing_that_the_managed_runtime_brings() -> None:
    assert not {name for name in modules_after("import sealane.gateway.streaming") if name.startswith("awslambdaric")}


def test_every_public_name_can_be_imported() -> None:
    import sealane

    for name in sealane.__all__:
        value = getattr(sealane, name)
        assert getattr(value, "__name__", name) == name
    with pytest.raises(AttributeError, match="no attribute 'create_handler'"):
        sealane.create_handler  # noqa: B018
