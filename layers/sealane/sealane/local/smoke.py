"""The command `sealane smoke`: whether a deployment does what clients need, in a plain report."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import anyio
import typer
from rich.console import Console
from rich.text import Text

from sealane.local.terminal import complain, printable

if TYPE_CHECKING:
    from sealane.local.smoke_steps import Step

__all__ = ["smoke"]

# RFC 6750 section 2.1.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_STYLES: Final = {"ok": "green", "FAILED": "bold red", "skipped": "yellow"}


def smoke(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the MCP endpoint, such as the output Endpoint.")],
    token: Annotated[
        str | None,
        typer.Option(envvar="SEALANE_TOKEN", show_envvar=True, help="Bearer token, where callers sign in."),
    ] = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Tool to call.")] = None,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="Arguments of --tool.")] = "{}",
    ask_tool: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tool that asks its caller a question, which is declined.")
    ] = None,
    ask_arguments: Annotated[str, typer.Option(metavar="JSON", help="Arguments of --ask-tool.")] = "{}",
    origin: Annotated[
        str | None, typer.Option(metavar="ORIGIN", help="Origin of a web page that may call, https://app.example.com.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="STEP", help="Step to leave out.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a step may take.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Report in JSON.")] = False,
) -> None:
    """Test a deployment over HTTP as clients would use it. Exit code 1 where a step fails."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise typer.BadParameter(
            f"{url!r} is no URL of HTTP: write it whole, https://….example.com/mcp", param_hint="URL"
        )
    if token and not _TOKEN.fullmatch(token):
        raise typer.BadParameter(
            "no bearer token: letters, digits and -._~+/= (RFC 6750 section 2.1), without 'Bearer '",
            param_hint="--token",
        )
    known = {"arguments": _object("--arguments", arguments), "ask_arguments": _object("--ask-arguments", ask_arguments)}
    try:
        from sealane.local.smoke_steps import STEPS, Target, run_steps
    except ImportError:
        complain("smoke needs the client of the MCP SDK 2: pip install 'sealane[stateless,local]'")
        raise typer.Exit(1) from None
    left_out = frozenset(without or ())
    if unknown := left_out - set(STEPS):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: the steps are {', '.join(STEPS)}", param_hint="--without"
        )
    target = Target(
        url=url,
        token=token or None,
        timeout=timeout,
        tool=tool,
        ask_tool=ask_tool,
        origin=origin,
        leave_out=left_out,
        **known,
    )
    steps = anyio.run(_run, run_steps(target), not as_json)
    counts = Counter(step.outcome.value for step in steps)
    if as_json:
        report = [{"step": step.name, "outcome": step.outcome.lower(), "detail": step.detail} for step in steps]
        print(json.dumps({"url": url, "ok": not counts["FAILED"], "steps": report}, indent=2))
    else:
        _print(Text(f"{counts['ok']} ok, {counts['FAILED']} failed, {counts['skipped']} skipped"))
    raise typer.Exit(1 if counts["FAILED"] else 0)


async def _run(running: AsyncIterator["Step"], show: bool) -> list["Step"]:
    """All steps, each shown as it ends."""
    steps = []
    async for step in running:
        steps.append(step)
        if show:
            outcome = step.outcome.value
            _print(Text.assemble((f"{outcome:<8} ", _STYLES[outcome]), f"{step.name:<13} ", printable(step.detail)))
    return steps


def _object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text!r} is no JSON object", param_hint=option)
    return value


def _print(text: Text) -> None:
    Console(soft_wrap=True, highlight=False).print(text)
