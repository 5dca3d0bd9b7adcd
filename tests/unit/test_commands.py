"""Commands of `sealane` that come from elsewhere, by entry points."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
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
