"""The commands `sealane keys`: what operators do with the data keys that seal request state."""

import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import anyio
import typer
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from botocore.session import get_session  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table as Grid

from sealane.local.errors import LocalError
from sealane.local.terminal import complain
from sealane.state.errors import StateUnavailable
from sealane.state.keyring import REFRESH, KeyRefused, Keyring, StoredKey
from sealane.state.table import Table

__all__ = ["keys"]

T = TypeVar("T")

keys = typer.Typer(no_args_is_help=True, help="The data keys of a deployed stack, which seal request state.")

Stack = Annotated[str, typer.Option(help="Name of the deployed stack.")]
Server = Annotated[str, typer.Argument(help="Name of the MCP server, as `sealane keys list` shows it.")]


@keys.command("list")
def list_keys(stack: Stack = "sealane") -> None:
    """Show every data key that the table has."""
    found = _with_keyring(stack, Keyring.keys)
    grid = Grid("server", "key", "made", "state", box=None)
    newest = {(key.audience, key.day): key.id for key in found if key.revoked_at is None}
    for key in found:
        grid.add_row(key.audience, key.id, _moment(key.created_at), _state(key, newest.get((key.audience, key.day))))
    Console().print(grid if found else "There is no data key yet: the first is made when a server first asks a caller.")


@keys.command()
def rotate(server: Server, stack: Stack = "sealane") -> None:
    """Make a new data key now. What the one before has sealed is still opened."""
    key_id = _with_keyring(stack, lambda keyring: keyring.rotate(server))
    Console().print(f"{key_id} seals for {server}, in every environment within {REFRESH} seconds.")


@keys.command()
def revoke(
    server: Server,
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `sealane keys list` shows it.")],
    stack: Stack = "sealane",
) -> None:
    """Take a data key out of use. What it has sealed is refused: callers start again."""
    _with_keyring(stack, lambda keyring: keyring.revoke(server, key_id))
    Console().print(f"{key_id} is revoked; no environment opens what it sealed after {REFRESH} seconds from now.")


def _with_keyring(stack: str, use: Callable[[Keyring], Coroutine[Any, Any, T]]) -> T:
    try:
        return anyio.run(use, _keyring(stack))
    except KeyRefused:
        complain("there is no such key: `sealane keys list` shows those that are")
    except (LocalError, StateUnavailable) as error:
        complain(str(error))
    raise typer.Exit(1)


def _keyring(stack: str) -> Keyring:
    """The keyring of a deployed stack, found by its outputs.

    Raises:
        LocalError: there is no such stack, or AWS cannot be asked.
    """
    try:
        [found] = get_session().create_client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        outputs = {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}
        return Keyring(stack=stack, key_id=outputs["KeyArn"], table=Table(outputs["DataTableName"]))
    except (BotoCoreError, ClientError) as error:
        raise LocalError(f"the stack {stack} cannot be read: {' '.join(str(error).split())}") from None
    except KeyError as missing:
        raise LocalError(f"the stack {stack} has no output {missing}: is it one of template.yaml?") from None


def _state(key: StoredKey, newest: str | None) -> str:
    if key.revoked_at is not None:
        return f"revoked {_moment(key.revoked_at)}"
    if key.day == int(time.time()) // 86_400 and key.id == newest:
        return "seals"
    return "opens what it sealed"


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
