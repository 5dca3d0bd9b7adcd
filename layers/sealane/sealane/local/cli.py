"""The command `sealane`."""

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sealane.local.errors import LocalError
from sealane.local.gateway import LocalGateway
from sealane.local.records import LogLine, Record

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def sealane() -> None:
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
) -> None:
    """Run the template's API and functions on this machine, until Ctrl-C."""
    terminal = Terminal()
    try:
        parameters = _parameters(parameter or [])
        gateway = LocalGateway(
            template, host=host, port=port, parameters=parameters, concurrency=concurrency, observe=terminal.show
        )
        asyncio.run(_serve(gateway, terminal))
    except LocalError as error:
        terminal.error(str(error))
        raise typer.Exit(1) from None


async def _serve(gateway: LocalGateway, terminal: "Terminal") -> None:
    serving = asyncio.ensure_future(_serve_forever(gateway, terminal))
    for ending in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(ending, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving


async def _serve_forever(gateway: LocalGateway, terminal: "Terminal") -> None:
    async with gateway.serving():
        terminal.welcome(gateway)
        await asyncio.Event().wait()


class Terminal:
    """Shows a run to a person: functions' lines and requests on standard output, an error on standard error."""

    def __init__(self) -> None:
        self._out = Console(soft_wrap=True, highlight=False, markup=False)
        self._err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

    def welcome(self, gateway: LocalGateway) -> None:
        """Says where the endpoint is, with a client configuration to paste, and what is not as on AWS."""
        configuration = {"mcpServers": {"sealane": {"type": "http", "url": gateway.url}}}
        for item in gateway.not_emulated:
            self._out.print(Text(f"Not emulated: {item}", "yellow"))
        self._out.print(Text.assemble("Serving ", (gateway.url, "bold"), " (Ctrl-C stops)"))
        self._out.print(json.dumps(configuration))

    def error(self, text: str) -> None:
        """Shows why the run cannot start, in one line."""
        self._err.print(Text(f"sealane: {text}"))

    def show(self, record: Record) -> None:
        """Shows a request or a function's line."""
        if isinstance(record, LogLine):
            self._out.print(Text.assemble((f"{record.function} {record.environment} | ", "dim"), record.text))
            return
        style = "green" if record.status < 400 else "yellow" if record.status < 500 else "red"
        parts = [f"{record.duration_ms:.0f} ms"]
        if record.environment is not None:
            parts.append(f"environment {record.environment}")
        if record.init_ms is not None:
            parts.append(f"init {record.init_ms:.0f} ms")
        if record.problem is not None:
            parts.append(record.problem)
        self._out.print(
            Text.assemble(f"{record.method} {record.path} ", (str(record.status), style), " ", ", ".join(parts))
        )


def _parameters(pairs: list[str]) -> dict[str, str]:
    parameters = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or not separator:
            raise LocalError(f"--parameter takes NAME=VALUE, not {pair!r}")
        parameters[name] = value
    return parameters
