"""What holds for the answer to every event, and the statuses that Sealane documents."""

import base64
import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn

from tests.events import NO_CONTEXT
from tests.fuzz.grammar import Case
from tests.fuzz.server import HANDLERS

STATUSES: Final = {
    200: "a result; any JSON-RPC error of a handshake revision; a preflight",
    202: "a notification; a response, which nobody waits for",
    204: "a warm-up ping",
    400: "no HTTP event, no JSON, no JSON-RPC; headers and body disagree; a preflight that is refused",
    401: "a gateway that says who calls, and names nobody",
    403: "Origin",
    404: "no such path; no such method of revision 2026-07-28",
    405: "no POST",
    406: "Accept",
    413: "the body is too large",
    415: "Content-Type; Content-Encoding",
    421: "Host",
    500: "the user's own code fails",
}
"""Every status that leaves a handler, with what it is for."""

CPU_SECONDS: Final = 1.0
"""What one answer may take. Processor time: others may be using this machine."""
HANGS_AFTER: Final = 60
"""Seconds."""
LARGEST_HEADERS: Final = 10_240
LARGEST_ANSWER: Final = 6 * 1024 * 1024
UNREADABLE: Final = object()
_KEYS: Final = {"statusCode", "headers", "multiValueHeaders", "cookies", "body", "isBase64Encoded"}
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_INTERNALS: Final = re.compile(
    r"Traceback|File \"|\.py\b|site-packages|/var/task|\b[A-Z]\w+(?:Error|Exception)\b|pydantic|validation errors? for"
)


def faults(case: Case) -> list[str]:
    """What is wrong with the answer to a case; nothing, if all is well."""
    with _alarm() as hanging:
        begun = time.process_time()
        try:
            result: object = HANDLERS[case.handler](case.event, NO_CONTEXT)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            result, found = None, [f"it raised {type(error).__name__}"]
        else:
            found = []
        if time.process_time() - begun > CPU_SECONDS:
            found.append(f"it took more than {CPU_SECONDS} s")
    if hanging:
        return [f"it had no answer after {HANGS_AFTER} s"]
    if not isinstance(result, dict):
        return found or ["the answer is no dict"]
    return [*found, *_of_lambda(case.event, result), *_of_http(case, result)]


class _Hangs(BaseException):
    pass


@contextmanager
def _alarm() -> Iterator[list[int]]:
    """Interrupts what hangs; gives a list that is then no longer empty."""
    hanging: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        hanging.append(number)
        raise _Hangs

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(HANGS_AFTER)
    try:
        yield hanging
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _of_lambda(event: object, result: dict[str, Any]) -> list[str]:
    """What Lambda would not take, or the gateway that sent the event would not read."""
    found = []
    if extra := result.keys() - _KEYS:
        found.append(f"keys {sorted(extra)}")
    if not isinstance(result.get("body", ""), str):
        found.append("the body is no text")
    if not isinstance(result.get("isBase64Encoded", False), bool):
        found.append("isBase64Encoded is no bool")
    headers, multiple = result.get("headers", {}), result.get("multiValueHeaders", {})
    if not isinstance(headers, dict) or not isinstance(multiple, dict):
        return [*found, "the headers are no maps"]
    if not all(isinstance(values, list) for values in multiple.values()):
        return [*found, "a multi-value header is no list"]
    pairs = [*headers.items(), *((name, value) for name, values in multiple.items() for value in values)]
    for name, value in pairs:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            found.append("the name of a header is none")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            found.append(f"the value of {name} is none")
    if len({str(name).lower() for name in (*headers, *multiple)}) != len(headers) + len(multiple):
        found.append("a header is there twice")
    if sum(len(str(name)) + len(str(value)) for name, value in pairs) > LARGEST_HEADERS:
        found.append("the headers are larger than API Gateway's limit")
    if len(str(result.get("body"))) > LARGEST_ANSWER:
        found.append("the body is larger than Lambda's limit")
    if unread := result.keys() & {"headers", "multiValueHeaders", "cookies"} - _read_by_sender(event):
        found.append(f"{sorted(unread)}, which the sender of this event does not read")
    try:
        json.dumps(result, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        found.append("it cannot be sent")
    return found


def _read_by_sender(event: object) -> set[str]:
    """The kinds of headers that whoever sent the event reads in the answer."""
    context = event.get("requestContext") if isinstance(event, Mapping) else None
    if not isinstance(event, Mapping) or not isinstance(context, Mapping):
        return {"headers", "multiValueHeaders"}
    if event.get("version") == "2.0" and isinstance(context.get("http"), Mapping):
        return {"headers", "cookies"}
    if "elb" in context:
        return {"multiValueHeaders"} if "multiValueHeaders" in event else {"headers"}
    return {"headers", "multiValueHeaders"}


def _of_http(case: Case, result: dict[str, Any]) -> list[str]:
    """What a client would not understand."""
    status, body = result.get("statusCode"), str(result.get("body", ""))
    headers = {name.lower(): value for name, value in result.get("headers", {}).items()}
    headers |= {name.lower(): ", ".join(values) for name, values in result.get("multiValueHeaders", {}).items()}
    media_type = headers.get("content-type", "")
    if not isinstance(status, int) or isinstance(status, bool) or status not in STATUSES:
        return [f"status {status!r}"]
    if status == 500 and case.handler != "failing":
        return ["status 500, though it is the request that is at fault"]
    if result.get("isBase64Encoded"):
        return ["text as base64"]
    if media_type.startswith("text/plain"):
        return [] if body == "OK" or body.startswith("Disallowed CORS") else ["a text that is no preflight's answer"]
    sent = sent_message(case.event)
    if status in (200, 202) and sent is UNREADABLE:
        return ["served, though the body is not I-JSON"]
    if status in (202, 204):
        return ["a body or its type where there is none"] if body or media_type else []
    if media_type.startswith("text/event-stream"):
        # Not splitlines: U+2028 ends no line of an event stream.
        texts = [line[5:] for line in re.split(r"[\r\n]+", body) if line.startswith("data:")]
    else:
        texts = [body]
    return [fault for text in texts for fault in _of_message(text, sent, status)]


def _of_message(text: str, sent: object, status: int) -> list[str]:
    """What is wrong with one JSON-RPC message of the answer."""
    try:
        message = json.loads(text, parse_constant=_not_json)
    except ValueError:
        return [f"no JSON, status {status}"]
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return [f"no JSON-RPC, status {status}"]
    if "method" in message:
        return [] if status == 200 else [f"a notification, status {status}"]
    asked = sent.get("id") if isinstance(sent, dict) else None
    if "result" in message:
        return [] if (status, message.get("id")) == (200, asked) else [f"a result that is none, status {status}"]
    error = message.get("error")
    if not isinstance(error, dict) or type(error.get("code")) is not int or not isinstance(error.get("message"), str):
        return [f"no JSON-RPC error, status {status}"]
    found = []
    if message.get("id", UNREADABLE) not in (None, asked):
        found.append("the id is not the one that was sent")
    if leaked := _INTERNALS.search(json.dumps(error)):
        found.append(f"internals: {leaked[0]!r}")
    return found


def sent_message(event: Any) -> object:
    """The event's body as JSON, read without Sealane; `UNREADABLE` where parsers could differ."""
    try:
        body = event["body"]
        raw = base64.b64decode(body, validate=True) if event.get("isBase64Encoded") is True else body.encode()
        value: object = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_not_json)
        # Refuses Infinity, which is what "1e400" becomes, and halves of surrogate pairs.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return UNREADABLE
    return value


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(names := dict(members)) != len(members):
        raise ValueError("a name twice")
    return names


def _not_json(literal: str) -> NoReturn:
    raise ValueError(literal)
