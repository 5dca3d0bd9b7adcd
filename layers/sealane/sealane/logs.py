"""The log as JSON, with what is known of the request: by Powertools' Logger, and on Lambda for all that is logged.

https://docs.aws.amazon.com/powertools/python/latest/core/logger/
"""

import copy
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, TextIO

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.logging.filters import SuppressFilter
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.logging.types import LogRecord

from sealane.telemetry import REQUEST_FIELDS, REQUESTS, SERVICE_VARIABLE, current, has_served

__all__ = ["logger", "sample", "take_over", "write_request_line"]

_NAME: Final = "sealane"
_DEVELOPMENT_VARIABLE: Final = "POWERTOOLS_DEV"
"""`true` writes exceptions with their messages, which have arguments in them, and indents lines: not for production.
Default: `false`."""
_TALKATIVE: Final = (
    "asyncio",
    "aws_lambda_powertools",
    "boto3",
    "botocore",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "mangum",
    "mcp",
    "python_multipart",
    "sse_starlette",
    "urllib3",
)
"""Libraries that log messages, bodies, headers or URLs below the level WARNING."""
_LONGEST_CHAIN: Final = 8
"""Exceptions that one was raised from, or holds."""


class _Formatter(LambdaPowertoolsFormatter):
    """Powertools' formatter, with the keys of the request, and exceptions without their messages.

    There are arguments and results in those (`KeyError`, pydantic's `ValidationError`). Types and frames remain. While
    an environment starts, and in development (`POWERTOOLS_DEV=true`), they are written as Python writes them.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        if record.name == REQUESTS:
            fields = {name: getattr(record, name) for name in REQUEST_FIELDS}
            return self.request_line(record.levelname, record.getMessage(), record.created, fields)
        error = record.exc_info[1] if record.exc_info else None
        if (error is not None or record.name == "asyncio") and has_served() and not _is_development():
            # Other handlers have the same record.
            record = copy.copy(record)
            if error is not None:
                record.exc_info = record.exc_text = None
                record.__dict__.update(exception_name=type(error).__name__, exception="".join(_frames(error)))
            if record.name == "asyncio":
                # What follows is the failed task's representation, with its exception's message.
                record.msg, record.args = record.getMessage().partition("\n")[0], ()
            if record.name.startswith("mcp.") and isinstance(record.args, tuple):
                # Behind the scheme of a resource's URI are arguments.
                record.args = tuple(each.partition("://")[0] if isinstance(each, str) else each for each in record.args)
        return super().format(record)

    def request_line(self, level: str, message: str, created: float, fields: Mapping[str, object]) -> str:
        """The line of a request, as the library would make it, whose way to it is most of what the line costs.

        Args:
            created: seconds since the epoch.
            fields: what it has of its own, `REQUEST_FIELDS`.
        """
        milliseconds = int(created % 1 * 1000)
        own = {
            "level": level,
            # Which line of ours that was says nothing.
            "location": None,
            "message": message,
            "timestamp": time.strftime(f"%Y-%m-%d %H:%M:%S,{milliseconds:03d}%z", self.converter(created)),
            "xray_trace_id": self._get_latest_trace_id(),
        }
        return self.serialize(self._strip_none_records({**self.log_format, **own, **fields}))

    def serialize(self, log: LogRecord) -> str:
        """A line with the keys of the request, behind its own, which win."""
        exchange = current()
        return super().serialize({**log, **exchange.appended, **exchange.keys, **log})

    def append_keys(self, **additional_keys: Any) -> None:
        """Add keys to the lines of this request; outside of one, to all."""
        if (exchange := current()).is_served:
            exchange.appended.update(additional_keys)
        else:
            super().append_keys(**additional_keys)

    def remove_keys(self, keys: Iterable[str]) -> None:
        """Take keys away that were added."""
        keys = list(keys)
        for key in keys:
            current().appended.pop(key, None)
        super().remove_keys(keys)


def _is_development() -> bool:
    return os.environ.get(_DEVELOPMENT_VARIABLE, "").lower() in ("1", "true")


def _frames(error: BaseException, depth: int = _LONGEST_CHAIN) -> list[str]:
    """An exception and those that it comes from, as Python prints them, without the messages."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines = [*_frames(earlier, depth - 1), "\n"] if earlier is not None and depth else []
    lines += [*traceback.format_tb(error.__traceback__), f"{type(error).__module__}.{type(error).__qualname__}\n"]
    if isinstance(error, BaseExceptionGroup) and depth:
        for each in error.exceptions:
            lines += ["\n", *_frames(each, depth - 1)]
    return lines


class _Output(logging.StreamHandler[TextIO]):
    """Writes to whatever is standard output at the time, as the library's own handler does to standard error."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard output."""
        return sys.stdout


# The library makes an encoder for each line.
_encode: Final = json.JSONEncoder(default=str, ensure_ascii=False, separators=(",", ":")).encode
_formatter: Final = _Formatter(json_serializer=None if _is_development() else _encode)


def _made() -> Logger:
    """The logger `sealane`, whose handler all loggers of the package share."""
    made = Logger(service=_NAME, logger_formatter=_formatter, logger_handler=_Output())
    # Powertools has the logger's name here.
    LambdaPowertoolsFormatter.append_keys(_formatter, service=os.environ.get(SERVICE_VARIABLE, _NAME))
    return made


logger: Final = _made()
"""For tools: `logger.info("looked up", rows=3)`. The keys of the request are in every line, those that are added with
`append_keys` in the lines of their request only."""


_requests: Final = logging.getLogger(REQUESTS)
_ours: Final = logging.getLogger(_NAME)
_root: Final = logging.getLogger()
_outputs: list[logging.Handler] = []
"""Those that the lines of a request would come by."""


def take_over() -> None:
    """Let everything else be logged in the same form, and nothing with messages, headers or bodies in it."""
    output = _Output()
    output.setFormatter(_formatter)
    output.addFilter(SuppressFilter(_NAME))
    _root.handlers[:] = [output]
    _outputs[:] = [*_ours.handlers, output]
    for name in _TALKATIVE:
        library = logging.getLogger(name)
        library.setLevel(max(library.level, logging.WARNING))
    # They show values of results.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")


def write_request_line(level: int, message: str, fields: Mapping[str, object]) -> bool:
    """Write the line of a request past `logging`, which would be most of its price, if nobody else listens there.

    Args:
        fields: `REQUEST_FIELDS`.

    Returns:
        Whether that was done; `logging` has to do it else.
    """
    if [*_requests.handlers, *_ours.handlers, *_root.handlers] != _outputs:
        return False
    if _requests.isEnabledFor(level):
        line = _formatter.request_line(logging.getLevelName(level), message, time.time(), fields)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return True


def sample() -> None:
    """Decide anew, for a request, whether `POWERTOOLS_LOGGER_SAMPLE_RATE` makes its level DEBUG."""
    if logger.sampling_rate:
        logger.refresh_sample_rate_calculation()
