"""The program `sealane`, and its commands that come from elsewhere, by entry points."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints, version
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from sealane.local import cli

greetings = typer.Typer()


@greetings.command()
def hello() -> None:
    """Greet."""
    print("Hello!")


@greetings.command()
def bye() -> None:
    """Leave."""


def test_commands_are_found_by_their_entry_points(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = ModuleType("a_part")
    part.greetings = greetings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_part", part)
    found = [
        EntryPoint("greet", "a_part:greetings", cli.COMMANDS),
        EntryPoint("gone", "a_part.that_was_removed:commands", cli.COMMANDS),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: EntryPoints(found).select(group=group))
    app = typer.Typer()
    app.command()(bye)
    cli.add_commands(app)
    assert CliRunner().invoke(app, ["greet", "hello"]).output == "Hello!\n"
    # One that is no more takes no other with it.
    assert "the command gone cannot be loaded" in capsys.readouterr().err


def test_the_program_tells_its_version() -> None:
    assert CliRunner().invoke(cli.app, ["--version"]).output == f"{version('sealane')}\n"


def test_without_its_extra_it_says_what_to_install() -> None:
    packages = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "layers" / "sealane")}
    command = [sys.executable, "-S", "-m", "sealane", "--version"]
    told = subprocess.run(command, env=packages, capture_output=True, text=True, check=False)  # noqa: S603
    assert told.returncode == 1
    assert told.stderr.endswith(" here: pip install 'sealane[local]'\n")
    assert "Traceback" not in told.stderr
