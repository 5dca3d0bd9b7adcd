"""The command `sealane`."""

import asyncio
import signal
from contextlib import suppress
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Final

import typer

from sealane.local.errors import LocalError
from sealane.local.gateway import LocalGateway
from sealane.local.keys import keys
from sealane.local.project import new, update
from sealane.local.smoke import smoke
from sealane.local.terminal import Terminal, complain

COMMANDS: Final = "sealane.commands"
"""Entry points of further commands, each a `typer.Typer`: those of parts that this one must not need."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(keys, name="keys")
app.command()(smoke)
app.command()(new)
app.command()(update)


def add_commands(app: typer.Typer) -> None:
    """Add the commands that are installed, by the names of their entry points."""
    for found in sorted(entry_points(group=COMMANDS)):
        try:
            app.add_typer(found.load(), name=found.name)
        except ImportError as error:
            complain(f"the command {found.name} cannot be loaded: {error}. Install the package again")


add_commands(app)


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(version("sealane"))
        raise typer.Exit


@app.callback()
def sealane(
    tell_version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An MCP server on AWS Lambda behind API Gateway."""


@app.command()
def run(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 3000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    template: Annotated[Path, typer.Option(help="SAM template.")] = Path("template.yaml"),
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Parameter of the template.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Environments that each function may have.")] = 4,
    endpoint_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Emulator of DynamoDB and KMS to use instead of moto, or 'aws': the real ones, with your credentials.",
        ),
    ] = None,
    no_freeze: Annotated[bool, typer.Option("--no-freeze", help="Let environments run between invocations.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show neither requests nor functions' lines.")] = False,
    log_file: Annotated[Path | None, typer.Option(help="File that gets every line too.")] = None,
) -> None:
    """Run the template's API and functions on this machine, until Ctrl-C."""
    try:
        terminal = Terminal(quiet=quiet, log_file=log_file)
        parameters = _parameters(parameter or [])
        gateway = LocalGateway(
            template,
            host=host,
            port=port,
            parameters=parameters,
            concurrency=concurrency,
            endpoint_url=endpoint_url,
            freeze=not no_freeze,
            reload=True,
            observe=terminal.show,
        )
        asyncio.run(_serve(gateway, terminal))
    except LocalError as error:
        complain(str(error))
        raise typer.Exit(1) from None


async def _serve(gateway: LocalGateway, terminal: Terminal) -> None:
    serving = asyncio.ensure_future(_serve_forever(gateway, terminal))
    for ending in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(ending, _cancel_once, serving)
    with suppress(asyncio.CancelledError):
        await serving


def _cancel_once(serving: "asyncio.Future[None]") -> None:
    """A second Ctrl-C must not break off what the first one has begun: ending every process."""
    if not (isinstance(serving, asyncio.Task) and serving.cancelling()):
        serving.cancel()


async def _serve_forever(gateway: LocalGateway, terminal: Terminal) -> None:
    async with gateway.serving():
        terminal.welcome(gateway)
        await asyncio.Event().wait()


def _parameters(pairs: list[str]) -> dict[str, str]:
    parameters = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or not separator:
            raise LocalError(f"--parameter takes NAME=VALUE, not {pair!r}")
        parameters[name] = value
    return parameters
