"""A run as a person sees it: requests and what functions write, as they come."""

import json
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sealane.local.errors import LocalError
from sealane.local.gateway import LocalGateway
from sealane.local.records import Call, LogLine, Record

_COLOURS = ("cyan", "magenta", "blue", "yellow", "green")


def complain(text: str) -> None:
    """Shows on standard error why a command cannot do what it was asked to, in one line."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(Text(f"sealane: {text}"))


def printable(text: str) -> Text:
    """What others have written, to be shown: nothing of it moves the cursor or is markup."""
    return Text("".join(each if each.isprintable() else "?" for each in text))


class Terminal:
    """Shows a run.

    Args:
        quiet: show neither requests nor functions' lines.
        log_file: a file that gets every line too, whether shown or not; it is appended to.

    Raises:
        LocalError: the log file cannot be written.
    """

    def __init__(self, *, quiet: bool = False, log_file: Path | None = None) -> None:
        self._out = Console(soft_wrap=True, highlight=False, markup=False)
        self._quiet = quiet
        try:
            # Line-buffered: what a run has told is in the file, however it ends.
            self._file = log_file.open("a", encoding="utf-8", buffering=1) if log_file else None
        except OSError as error:
            raise LocalError(f"cannot write {log_file}: {error.strerror}") from None

    def welcome(self, gateway: LocalGateway) -> None:
        """Says where the endpoint is, with a client configuration to paste, and what is not as on AWS."""
        configuration = {"mcpServers": {"sealane": {"type": "http", "url": gateway.url}}}
        for item in gateway.not_emulated:
            self._print(Text(f"Not emulated: {item}", "yellow"))
        if gateway.aws.endpoint_url:
            self._print(Text(f"DynamoDB and KMS at {gateway.aws.endpoint_url}, with dummy credentials"))
        if region := gateway.aws.variables.get("AWS_REGION"):
            self._print(Text(f"Functions use the real AWS in {region}, with your credentials", "yellow"))
        if gateway.is_open:
            self._print(Text("Anyone who knows the URL can call this server: AuthMode is none", "yellow"))
        for name, url in list(gateway.urls.items())[1:]:
            self._print(Text(f"Serving {url} ({name})"))
        self._print(Text.assemble("Serving ", (gateway.url, "bold"), " (Ctrl-C stops)"))
        self._print(Text("Configuration for MCP clients:"))
        self._print(Text(json.dumps(configuration)))

    def show(self, record: Record) -> None:
        """Shows a request, a function's line or a notice."""
        match record:
            case LogLine():
                text = _readable(record.text)
                line = _log_line(record, record.text if text is None else text)
                self._print(line, shown=text is not None and not self._quiet)
            case Call():
                self._print(_call_line(record), shown=not self._quiet)
            case _:
                self._print(Text(record.text, "dim"))

    def _print(self, text: Text, *, shown: bool = True) -> None:
        if shown:
            self._out.print(text)
        if self._file:
            self._file.write(f"{text.plain}\n")


def _log_line(line: LogLine, text: str) -> Text:
    colour = _COLOURS[line.environment % len(_COLOURS)]
    return Text.assemble((f"{line.function} {line.environment} | ", colour), text)


def _readable(line: str) -> str | None:
    """A function's line as a person reads it; `None` for those of the telemetry, which the line of the call repeats."""
    fields: object = None
    with suppress(ValueError):
        fields = json.loads(line)
    if not isinstance(fields, dict):
        return line
    if "_aws" in fields or (fields.get("message"), "duration_ms" in fields) == ("served", True):
        return None
    if not {"level", "message", "service"} <= fields.keys():
        return line
    return "\n".join(str(fields[key]).rstrip() for key in ("message", "exception") if key in fields)


def _call_line(call: Call) -> Text:
    style = "green" if call.status < 400 else "yellow" if call.status < 500 else "red"
    parts = [f"{call.duration_ms:.0f} ms"]
    if call.init_ms is not None:
        parts.append(f"init {call.init_ms:.0f} ms")
    if call.environment is not None:
        parts.append(f"environment {call.environment}")
    if call.memory is not None:
        parts.append(f"{call.memory} MiB")
    if call.problem is not None:
        parts.append(call.problem)
    what = [call.method, call.path, *(text for text in (call.message, call.era) if text)]
    return Text.assemble(f"{' '.join(what)} ", (str(call.status), style), " ", ", ".join(parts))
