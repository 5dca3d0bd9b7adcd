"""Lambda events for tests: the files of events/, events made like them, and a readable form of the answers."""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

from mangum.types import LambdaContext

from tests.planted import PLANTED

Event = dict[str, Any]
Handler = Callable[[Any, LambdaContext], dict[str, Any]]
Headers = Mapping[str, str | Sequence[str]]
"""Header values by name; several values for a repeated header, none to leave one out."""
Message = dict[str, Any]
"""A JSON-RPC message."""
Shape = Literal["rest", "http", "http-v1", "url", "alb", "alb-multi", "sam-local"]

SHAPES: Final[tuple[Shape, ...]] = get_args(Shape)
MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
NO_CONTEXT: Final[LambdaContext] = None  # type: ignore[assignment]
"""Tests need nothing of Lambda's context object."""

EVENTS: Final = Path(__file__).parent.parent / "events"
_NAME_PARAMETERS: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_OF_THE_CLIENT: Final = ("accept", "content-type", "mcp-")


def event_names() -> list[str]:
    """The names of all files of events/."""
    return sorted(path.stem for path in EVENTS.glob("*.json"))


def load_event(name: str) -> Event:
    """The event in `events/<name>.json`."""
    event: Event = json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))
    return event


def make_event(
    shape: Shape,
    method: str = "POST",
    path: str = "/mcp",
    *,
    headers: Headers | None = None,
    body: str | bytes | Mapping[str, Any] | Sequence[Any] | None = None,
    domain_name: str | None = None,
) -> Event:
    """An event as AWS sends it in this shape: `events/<shape>-discover.json` with another request in it.

    Args:
        shape: who sends it.
        method: HTTP method.
        path: path of the request; an API without a stage in it.
        headers: the client's headers; what the gateway adds (Host, X-Forwarded-…) stays unless named here.
        body: text; JSON for a mapping or a list; bytes are sent as base64.
        domain_name: name of the endpoint, and the Host unless `headers` has one.
    """
    event = load_event(f"{shape}-discover")
    context = event["requestContext"]
    named = {name.lower() for name in headers or {}}
    sent = {
        name: values
        for name, values in _headers_of(event).items()
        if not name.lower().startswith(_OF_THE_CLIENT) and name.lower() not in named
    }
    if domain_name is not None:
        if "domainName" in context:
            context["domainName"] = domain_name
        sent.update({name: [domain_name] for name in sent if name.lower() == "host"})
    for name, value in (headers or {}).items():
        sent[name] = [value] if isinstance(value, str) else list(value)
    _put_headers(event, shape, {name: values for name, values in sent.items() if values})

    if shape in ("http", "url"):
        event["rawPath"] = context["http"]["path"] = path
        context["http"]["method"] = method
    else:
        event["path"], event["httpMethod"] = path, method
        context.update({name: value for name, value in (("path", path), ("httpMethod", method)) if name in context})

    event["isBase64Encoded"] = isinstance(body, bytes)
    if body is None and shape in ("http", "url"):
        del event["body"]
    elif body is None:
        event["body"] = "" if shape in ("alb", "alb-multi") else None
    elif isinstance(body, bytes):
        event["body"] = base64.b64encode(body).decode()
    else:
        event["body"] = body if isinstance(body, str) else json.dumps(body)
    return event


def modern(
    method: str,
    *,
    id: str | int | None = 1,
    client_capabilities: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    **params: Any,
) -> tuple[dict[str, str], Message]:
    """Headers and body of a request of revision 2026-07-28; of a notification when `id` is `None`.

    Args:
        method: JSON-RPC method.
        id: request id.
        client_capabilities: what the client says that it can; nothing by default.
        meta: further `_meta` entries, such as `progressToken`.
        params: the method's parameters.
    """
    envelope = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": dict(client_capabilities or {}),
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
        "X-Api-Key": PLANTED,
    }
    if (parameter := _NAME_PARAMETERS.get(method)) in params:
        headers["Mcp-Name"] = params[parameter]
    return headers, _message(method, id, {**params, "_meta": {**envelope, **(meta or {})}})


def legacy(
    method: str, *, id: str | int | None = 1, version: str | None = LEGACY, **params: Any
) -> tuple[dict[str, str], Message]:
    """Headers and body of a request of a handshake revision, or of a notification.

    Args:
        method: JSON-RPC method; `notifications/…` have no id, and `initialize` gets the parameters it needs.
        id: request id.
        version: the revision: asked for by `initialize`, else sent as a header unless `None`.
        params: the method's parameters.
    """
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "X-Api-Key": PLANTED,
    }
    if method == "initialize":
        client = {"name": "test-client", "version": "1.0.0"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client, **params}
    elif version is not None:
        headers["MCP-Protocol-Version"] = version
    return headers, _message(method, None if method.startswith("notifications/") else id, params)


@dataclass(frozen=True)
class Answer:
    """A handler's answer, whatever the shape of its event.

    Attributes:
        status: HTTP status.
        headers: values by lower-case name, from `headers` and `multiValueHeaders`; repeats joined with ", ".
        body: the body as text.
        was_base64: whether the handler had encoded it, which a text never needs.
    """

    status: int
    headers: Mapping[str, str]
    body: str
    was_base64: bool

    @cached_property
    def json(self) -> Any:
        """The body as a JSON value."""
        return json.loads(self.body)

    @cached_property
    def messages(self) -> list[Message]:
        """The JSON-RPC messages of the body: of an event stream all, in order, else the one."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            return [self.json]
        return [
            json.loads(line[5:])
            for line in re.split(r"[\r\n]+", self.body)
            if line.startswith("data:") and line[5:].strip()
        ]


def answer(result: Mapping[str, Any]) -> Answer:
    """The readable form of what a handler returned."""
    headers = {name.lower(): value for name, value in (result.get("headers") or {}).items()}
    for name, values in (result.get("multiValueHeaders") or {}).items():
        headers[name.lower()] = ", ".join(values)
    body, was_base64 = result.get("body") or "", bool(result.get("isBase64Encoded"))
    return Answer(result["statusCode"], headers, base64.b64decode(body).decode() if was_base64 else body, was_base64)


def ask(handler: Handler, request: tuple[Headers, Any], shape: Shape = "rest", **event: Any) -> Answer:
    """A handler's answer to `(headers, body)`, such as `modern(…)` and `legacy(…)` make; `event` as in `make_event`."""
    headers, body = request
    return answer(handler(make_event(shape, headers=headers, body=body, **event), NO_CONTEXT))


def _message(method: str, id: str | int | None, params: Message) -> Message:
    numbered = {} if id is None else {"id": id}
    return {"jsonrpc": "2.0", **numbered, "method": method, "params": params}


def _headers_of(event: Event) -> dict[str, list[str]]:
    return event.get("multiValueHeaders") or {name: [value] for name, value in event["headers"].items()}


def _put_headers(event: Event, shape: Shape, headers: Mapping[str, list[str]]) -> None:
    """Write headers as the shape has them: names lower-case from HTTP/2 senders, title-cased by SAM, else as sent."""
    if shape in ("http", "url", "alb", "alb-multi"):
        headers = {name.lower(): values for name, values in headers.items()}
    elif shape == "sam-local":
        headers = {name.title(): values for name, values in headers.items()}
    if "multiValueHeaders" in event:
        event["multiValueHeaders"] = dict(headers)
    if "headers" in event:
        # Payload 2.0 joins repeats; elsewhere the last one wins.
        join = shape in ("http", "url")
        event["headers"] = {name: ",".join(values) if join else values[-1] for name, values in headers.items()}
