"""A grammar of Lambda events around JSON-RPC messages, and of what breaks them.

It draws from a `random.Random`. Plain seeded randomness makes a million cases for the price of serving them; the same
grammar under hypothesis's own `Random` gives it cases that it can shrink.
"""

import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

from tests.events import (
    LEGACY,
    MODERN,
    SHAPES,
    Event,
    Message,
    event_names,
    legacy,
    load_event,
    make_event,
    modern,
)
from tests.fuzz.server import HANDLERS, LISTED_HOST, LISTED_ORIGIN, rounds

Random = random.Random


class Case(NamedTuple):
    """One event for one of the fuzzer's handlers."""

    handler: str
    event: Any


def make_case(rng: Random) -> Case:
    """A case: now and then in order, most often damaged somewhere."""
    handler = rng.choices(list(HANDLERS), weights=[8, 3, 3, 3, 3, 2, 1])[0]
    event = copied(rng.choice(FILES)) if rng.random() < 0.1 else _event(rng, handler)
    for _ in range(rng.choices([0, 1, 2, 3], weights=[10, 3, 1, 1])[0]):
        damage(rng, event)
    return Case(handler, rng.choice(SCALARS) if rng.random() < 0.001 else event)


T = TypeVar("T")


def copied(value: T) -> T:
    """A copy of a JSON value that shares nothing with it."""
    return cast(T, json.loads(json.dumps(value)))


# Messages

CAPABILITIES: Final[list[Any]] = [{}, {"elicitation": {}}, {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}]
REVISIONS: Final = [MODERN, LEGACY, "2025-06-18", "2025-03-26", "2024-11-05", "2027-01-01", "", "1", "DRAFT"]
ARGUMENTS: Final[dict[str, Any]] = {
    "hello": {"name": "Ada"},
    "echo": {"value": [1, "two", None, {"three": 3.0}]},
    "move": {"point": {"x": 1.5, "label": "p"}, "by": 2},
    "count": {"to": 2},
    "delete": {"name": "a"},
    "transfer": {},
    "fails": {},
    "no_such_tool": {},
    "café": {},
}
PARAMS: Final[dict[str, Any]] = {
    "server/discover": {},
    "ping": {},
    "initialize": {},
    "tools/list": {"cursor": "1"},
    "prompts/list": {},
    "prompts/get": {"name": "greeting", "arguments": {"name": "Ada"}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "data://static"},
    "resources/subscribe": {"uri": "data://items/1"},
    "resources/unsubscribe": {"uri": "data://items/1"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greeting"},
        "argument": {"name": "name", "value": "A"},
        "context": {"arguments": {"style": "plain"}},
    },
    "logging/setLevel": {"level": "debug"},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
    "elicitation/create": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
    "roots/list": {},
    "tasks/get": {"taskId": "1"},
    "notifications/initialized": {},
    "notifications/cancelled": {"requestId": 1, "reason": "none"},
    "notifications/progress": {"progressToken": 1, "progress": 1},
    "notifications/roots/list_changed": {},
    "notifications/elicitation/complete": {"elicitationId": "1"},
    "no/such-method": {"a": 1},
    "__class__": {},
    "": {},
}
"""Every method of every revision, requests of the server to the client too, with parameters that it takes."""
RESPONSES: Final[list[Message]] = [
    {"jsonrpc": "2.0", "id": 1, "result": {}},
    {"jsonrpc": "2.0", "id": "a", "error": {"code": -1, "message": "no"}},
]
INPUT_RESPONSES: Final[list[Any]] = [
    {"confirm": {"action": "accept", "content": {"confirm": True}}},
    {"to": {"action": "accept", "content": {"to": "Bob"}}},
    {"to": {"action": "decline"}},
    {"to": {"roots": []}},
    {"": {"action": "accept"}},
    {"to": {"action": "accept", "content": {"to": "x" * 5000}}},
    {},
    [],
    "{}",
    None,
]
ROUNDS: Final = rounds()
IDS: Final[list[Any]] = [
    1,
    0,
    -1,
    2**53 + 1,
    10**400,
    "",
    "a",
    "x" * 5000,
    1.0,
    1.5,
    None,
    True,
    [],
    {},
    "\ud800",
    "\0",
]
SCALARS: Final[list[Any]] = [None, True, 0, -1, 1.5, "", "text", [], {}, [None], [[]], {"": None}]
STATES: Final = [*(asked.state for asked in ROUNDS), "", "v1.", "v1.AAAA", "x" * 10_000, "é", "\ud800", "{}", "a.b.c"]
FILES: Final[list[Event]] = [load_event(name) for name in event_names()]


def _request(rng: Random) -> tuple[dict[str, Any], Any]:
    """Headers and a message that go together, of any method and revision."""
    method = rng.choice(["tools/call", rng.choice(list(PARAMS))])
    params = PARAMS.get(method, {})
    if method == "tools/call":
        name = rng.choice(list(ARGUMENTS))
        params = {"name": name, "arguments": ARGUMENTS[name]}
        if rng.random() < 0.15:
            asked = rng.choice(ROUNDS)
            params = {"name": asked.tool, "arguments": asked.arguments, "requestState": asked.state}
            params["inputResponses"] = {asked.key: {"action": "accept", "content": {"confirm": True}}}
        elif name in ("delete", "transfer") or rng.random() < 0.05:
            params |= {"inputResponses": rng.choice(INPUT_RESPONSES), "requestState": _state(rng)}
    identifier = 1 if rng.random() < 0.8 else rng.choice(IDS)
    if method.startswith("notifications/") and rng.random() < 0.8:
        identifier = None
    if rng.random() < 0.6:
        meta = {"progressToken": rng.choice(IDS)} if rng.random() < 0.3 else {}
        made = modern(method, id=identifier, client_capabilities=rng.choice(CAPABILITIES), meta=meta, **params)
    else:
        made = legacy(method, id=identifier, version=rng.choice([LEGACY, None, *REVISIONS]), **params)
    headers, message = made
    return headers, copied(message)


def _state(rng: Random) -> Any:
    state = rng.choice(STATES)
    if state and rng.random() < 0.3:
        at = rng.randrange(len(state))
        state = state[:at] + rng.choice("Aa0._=\u212a") + state[at + 1 :]
    return state


def _message(rng: Random, message: Any) -> Any:
    """What is posted in the place of a good message: itself, a damaged one, a batch, or no message at all."""
    chosen = rng.random()
    if chosen < 0.55:
        return message
    if chosen < 0.90:
        for _ in range(rng.randint(1, 3)):
            damage(rng, message)
        return message
    if chosen < 0.95:
        return rng.choice([[message], [message, message], [_request(rng)[1], message], ["", message]])
    return copied(rng.choice([*RESPONSES, *SCALARS]))


# The text of a message

Spoil = Callable[[Random, str], str | bytes]
"""Makes other JSON, or none, of a JSON text."""


def twice(rng: Random, text: str) -> str:
    """One member of one object named twice."""
    at = rng.choice([i for i, letter in enumerate(text) if letter == "{"] or [0])
    name = rng.choice(["jsonrpc", "id", "method", "params", "_meta", "name", "arguments", "io.modelcontextprotocol/x"])
    more = "," if text[at + 1 : at + 2] != "}" else ""
    return f'{text[: at + 1]}"{name}":{rng.choice(["1", "null", "{}", chr(34) * 2])}{more}{text[at + 1 :]}'


def with_literal(rng: Random, text: str) -> str:
    """One number that JSON does not have, or that is beyond what is served."""
    literals = [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-0",
        "-1e999",
        "9" * 4301,
        "9" * 4300,
        "01",
        "+1",
        "1.",
        "0x1",
    ]
    before, one, after = text.partition(":1")
    return f"{before}:{rng.choice(literals)}{after}" if one else text


def cut(rng: Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def trailed(rng: Random, text: str) -> str:
    return text + rng.choice(["x", "}", "]", "\0", "{}", ",", "\ufeff", "//", " \r\n\t", "\v"])


def encoded(rng: Random, text: str) -> bytes:
    encoding = rng.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig", "utf-7", "cp037"])
    return text.encode(encoding, "replace")


def compressed(rng: Random, text: str) -> bytes:
    return b"\x1f\x8b\x08\x00" + rng.randbytes(40)


def bytes_spoiled(rng: Random, text: str) -> bytes:
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(rng.randint(1, 4) if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def escaped(rng: Random, text: str) -> str:
    at = rng.choice([i for i, letter in enumerate(text) if letter == '"'] or [0])
    return (
        text[: at + 1] + rng.choice(["\\ud800", "\\udc00", "\\u0000", "\\u00zz", "\\x41", "\0", "\n"]) + text[at + 1 :]
    )


def nested(rng: Random, text: str) -> str:
    depth = rng.choice([100, 199, 200, 201, 1000, 10_000, 100_000])
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}")])
    inner = f"{opened * depth}1{closed * rng.choice([0, depth])}"
    before, one, after = text.partition(":1")
    return f"{before}:{inner}{after}" if one and rng.random() < 0.7 else inner


def large(rng: Random, text: str) -> str:
    size = rng.choice([1_000, 10_000, 100_000, 1_000_000])
    if rng.random() < 0.9:
        size = min(size, 10_000)
    return rng.choice([" " * size + text, f'"{"x" * size}"', text + " " * size, "1" * size, "[" + "{}," * size + "1]"])


SPOILS: Final[list[Spoil]] = [
    twice, twice, with_literal, cut, trailed, encoded, compressed, bytes_spoiled, escaped, nested, large,
]  # fmt: skip


def _body(rng: Random, message: Any) -> str | bytes:
    text = json.dumps(message, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.2:
        spoiled = rng.choice(SPOILS)(rng, text)
        return spoiled if isinstance(spoiled, bytes) else _plain_or_bytes(rng, spoiled)
    if rng.random() < 0.01:
        text = rng.choice(["", " ", "\n\n", "null", "\0"])
    return _plain_or_bytes(rng, text)


def _plain_or_bytes(rng: Random, text: str) -> str | bytes:
    return text if rng.random() < 0.8 else text.encode("utf-8", "surrogatepass")


# The HTTP request

METHODS: Final = ["GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "post", "", "PO ST", "\ud800", "PÖST"]
PATHS: Final = [
    "/mcp/",
    "/",
    "",
    "/mcp//",
    "//mcp",
    "/prod/mcp",
    "/mcp?x",
    "/MCP",
    "/mcp/%2e",
    "/%6dcp",
    "mcp",
    "/mcp\0",
]
HOSTS: Final = [
    "localhost", "LOCALHOST:3000", "[::1]:3000", "[::1", "::1", LISTED_HOST, f"{LISTED_HOST}.", f"{LISTED_HOST}:443",
    f"{LISTED_HOST}/path", f"user@{LISTED_HOST}", "xn--mcp-exmple-w1a.com", "mcp.ex\u0430mple.com",
    "\u212amcp.example.com", "127.0.0.1", "0x7f.1", "a:b:c", ":", "", " ", "host:٣", "evil\r\nX-Evil: 1",
    "\0", "é", "x" * 10_000,
]  # fmt: skip
ORIGINS: Final = [
    LISTED_ORIGIN, LISTED_ORIGIN.upper(), f"{LISTED_ORIGIN}.", f"{LISTED_ORIGIN}:443", f"{LISTED_ORIGIN}/", "null",
    "//evil", "https://app.example.com@evil.example", "https://evil.example", "file://", "http://localhost:8080", "",
    "https://app.example.com\r\nX-Evil: 1", "https://\u0430pp.example.com", "https://[::1]", "https://[", "\0",
    "x" * 10_000,
]  # fmt: skip
TEXTS: Final = ["application/json", "text/event-stream", "*/*", "text/plain", "", ",", ";", "q=0", "gzip", "identity"]
NAMES: Final = [
    "Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Content-Length", "Content-Encoding",
    "Transfer-Encoding", "Authorization", "Cookie", "Mcp-Session-Id", "Last-Event-ID", "Mcp-Param-Region",
    "X-Forwarded-Port", "X-Forwarded-Proto", "X-Forwarded-For", "X-Forwarded-Host", "traceparent", "Connection",
    "Access-Control-Request-Method", "Access-Control-Request-Headers", "Content-Disposition", "Expect", "Bad Name", "é",
]  # fmt: skip
VALUES: Final = [
    "", "1", "-1", "99999999999999999999999", "٣", "\r\nX-Evil: 1", "\0", "é", "\ufffd", "\t", "x" * 10_000, "POST",
    "mcp-param-a, mcp-param-é, x", "mcp-param-" + "a" * 9_000, "=?base64?!?=", "=?base64?aGVsbG8=?=", "chunked",
    "gzip", "identity", "Bearer x", "a=b; c=d", "null", *REVISIONS, *TEXTS,
]  # fmt: skip


def _headers(rng: Random, headers: Mapping[str, Any]) -> dict[str, str | list[str]]:
    made: dict[str, str | list[str]] = {
        name: value if isinstance(value, str) else "" for name, value in headers.items()
    }
    if rng.random() < 0.08:
        made["Host"] = rng.choice(HOSTS) if rng.random() < 0.8 else rng.sample(HOSTS, 2)
    if rng.random() < 0.08:
        made["Origin"] = rng.choice(ORIGINS) if rng.random() < 0.8 else rng.sample(ORIGINS, 2)
    for _ in range(rng.choices([0, 1, 2, 4], weights=[16, 3, 2, 1])[0]):
        name = rng.choice(NAMES)
        made[name] = rng.choice(VALUES) if rng.random() < 0.6 else rng.sample(VALUES, rng.choice([0, 2]))
    return made


def _event(rng: Random, handler: str) -> Event:
    headers, message = _request(rng)
    sent = _headers(rng, headers)
    method = "POST" if rng.random() < 0.93 else rng.choice(METHODS)
    if method == "OPTIONS" or rng.random() < 0.01:
        preflight = {"Origin": rng.choice(ORIGINS), "Access-Control-Request-Method": "POST"}
        asked = rng.choice([None, "mcp-method", "x-y", "Mcp-Param-Region, mcp-name", *VALUES])
        sent |= preflight if asked is None else {**preflight, "Access-Control-Request-Headers": asked}
    domain_name = LISTED_HOST if handler == "listed" else None
    return make_event(
        rng.choice(SHAPES),
        method,
        "/mcp" if rng.random() < 0.95 else rng.choice(PATHS),
        headers=sent,
        body=_body(rng, _message(rng, message)),
        domain_name=domain_name if rng.random() < 0.9 else rng.choice([LISTED_HOST, "localhost", "", "\u212a"]),
    )


# Damage to any JSON value

Damage = Callable[[Random, Any], Any]
"""Makes another value of a value."""


def retyped(rng: Random, value: Any) -> Any:
    return copied(rng.choice([10**300, float("inf"), *SCALARS]))


def truncated(rng: Random, value: Any) -> Any:
    if isinstance(value, str | list):
        return value[: rng.randrange(len(value) + 1)]
    if isinstance(value, dict):
        return dict(list(value.items())[: rng.randrange(len(value) + 1)])
    return None


def huge(rng: Random, value: Any) -> Any:
    return rng.choice([f"{value}"[:1000] * 30, "9" * 5000, ["x"] * 500, {str(i): "x" for i in range(500)}, deep(rng)])


def deep(rng: Random) -> Any:
    value: Any = "x"
    for _ in range(rng.choice([20, 100])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def wrongly_encoded(rng: Random, value: Any) -> Any:
    text = value if isinstance(value, str) else "text"
    at = rng.randrange(len(text) + 1)
    pieces = [
        "%",
        "%ff",
        "%00",
        "\0",
        "\r\n",
        "\u2028",
        "é",
        "ÿ",
        "\ufeff",
        "=?base64?!?=",
        "\ud800",
        "\udfff",
        "\udc80",
    ]
    return text[:at] + rng.choice(pieces) + text[at:]


def rebased(rng: Random, value: Any) -> Any:
    return base64.b64encode(str(value)[:2000].encode("utf-8", "replace")).decode()


def doubled(rng: Random, value: Any) -> Any:
    return [value, value] if not isinstance(value, list) else value * 2


DAMAGES: Final[list[Damage]] = [
    lambda rng, value: None, retyped, truncated, huge, wrongly_encoded, wrongly_encoded, rebased, doubled,
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value, at all depths."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, inner in items:
            yield container, key
            if isinstance(inner, dict | list):
                waiting.append(inner)


def damage(rng: Random, value: Any) -> None:
    """Damage one place of a JSON value: its content, its name, or its being there."""
    if not isinstance(value, dict | list) or not value:
        return
    container, key = rng.choice(list(places(value)))
    chosen = rng.randrange(10)
    if chosen == 0:
        del container[key]
    elif chosen == 1 and isinstance(key, str):
        container[rng.choice([key.upper(), key.title(), f"{key}\ud800", f"{key}\n", "", "é"])] = container.pop(key)
    elif chosen == 2 and isinstance(container, dict):
        container[key] = copied(rng.choice(list(places(value)))[0])
    else:
        container[key] = rng.choice(DAMAGES)(rng, container[key])
