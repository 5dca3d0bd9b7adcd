"""Makes events right before Mangum reads them: what gateways, consoles and scanners really send."""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mangum.types import LambdaEvent, Scope

from sealane.policy.hosts import ENDPOINT_KEY, hostname_of

__all__ = ["HttpEvent", "NotAnHttpEvent", "http_event"]

_PORT: Final = re.compile(r":([0-9]{1,5})$")


class NotAnHttpEvent(ValueError):
    """The event is not one that API Gateway, a function URL or an ALB sends."""


@dataclass(frozen=True, slots=True)
class HttpEvent:
    """An event that Mangum can read, and what it cannot put into the ASGI scope.

    Attributes:
        event: the event, completed; the headers named in `hosts` taken out.
        hosts: values of the `Host` header: Mangum splits them at the first colon and fails on IPv6.
        endpoint: the domain name that the gateway says the request reached; `None` where it says none.
    """

    event: LambdaEvent
    hosts: list[str]
    endpoint: str | None

    def complete(self, scope: Scope, original: object) -> None:
        """Put into Mangum's ASGI scope what was kept from it."""
        host = self.hosts[0] if self.hosts else ""
        port = _PORT.search(host)
        scope["server"] = (hostname_of(host) or "", int(port[1]) if port else 443)
        scope["headers"] += [[b"host", value.encode("utf-8", "replace")] for value in self.hosts]
        scope["aws.event"] = original
        scope[ENDPOINT_KEY] = self.endpoint


def http_event(event: object) -> HttpEvent:
    """Complete an event of any HTTP shape: REST API (payload 1.0), HTTP API and function URL (2.0), ALB.

    Raises:
        NotAnHttpEvent: it has none of these shapes, or a body that is not what it says.
    """
    if not isinstance(event, Mapping):
        raise NotAnHttpEvent("the event is not a JSON object")
    context = event.get("requestContext")
    if not isinstance(context, Mapping):
        raise NotAnHttpEvent("the event has no requestContext")
    made = {**event, "body": _body(event), "isBase64Encoded": False}
    http = context.get("http")
    if event.get("version") == "2.0" and isinstance(http, Mapping):
        path = _text(event.get("rawPath")) or _text(http.get("path"))
        stage = _text(context.get("stage"))
        # An HTTP API puts a named stage before the path; "/production" is not stage "prod".
        if stage and stage != "$default" and path.startswith(f"/{stage}/"):
            path = path[len(stage) + 1 :]
        path = _routed_path(path, _text(event.get("routeKey")).partition(" ")[2], event.get("pathParameters"))
        method = _text(http.get("method"))
        made["requestContext"] = {
            **context,
            "http": {"path": path, "method": method.upper(), "sourceIp": _text(http.get("sourceIp"))},
        }
        made["rawQueryString"] = _text(event.get("rawQueryString"))
        made["cookies"] = [item for item in event.get("cookies") or () if isinstance(item, str)]
    else:
        method = _text(event.get("httpMethod"))
        path = _routed_path(_text(event.get("path")), _text(event.get("resource")), event.get("pathParameters"))
        made["httpMethod"], made["path"] = method.upper(), path
        for name in ("queryStringParameters", "multiValueQueryStringParameters"):
            made[name] = value if isinstance(value := event.get(name), Mapping) else {}
        # Mangum tells REST from HTTP events by `version`, which payload 1.0 of an HTTP API has too.
        made.pop("version", None)
        made["resource"] = _text(event.get("resource"))
        made["requestContext"] = {
            **context,
            "identity": identity if isinstance(identity := context.get("identity"), Mapping) else {},
        }
    if not method or not path.startswith("/"):
        raise NotAnHttpEvent("the event names no HTTP method and path")
    hosts = _headers(made, event)
    local = os.environ.get("AWS_SAM_LOCAL") == "true"
    return HttpEvent(made, hosts, "localhost" if local else _text(context.get("domainName")) or None)


def _headers(made: dict[str, Any], event: Mapping[str, Any]) -> list[str]:
    """Write the event's well-formed headers into `made`, under lower-case names, and return those named `Host`."""
    multi: dict[str, list[str]] = {}
    for name, value in _items(event.get("headers")):
        if isinstance(value, str):
            multi[name.lower()] = [value]
    for name, values in _items(event.get("multiValueHeaders")):
        if isinstance(values, list):
            multi[name.lower()] = [value for value in values if isinstance(value, str)]
    multi = {name: values for name, values in multi.items() if values}
    hosts = multi.pop("host", [])
    if not multi.get("x-forwarded-port", ["0"])[0].isdecimal():
        del multi["x-forwarded-port"]
    made["headers"] = {name: ",".join(values) for name, values in multi.items()}
    if "multiValueHeaders" in event:
        made["multiValueHeaders"] = multi
    return hosts


def _body(event: Mapping[str, Any]) -> bytes:
    body = event.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise NotAnHttpEvent("the event's body is not a string")
    try:
        return base64.b64decode(body, validate=True) if event.get("isBase64Encoded") is True else body.encode()
    except (binascii.Error, ValueError):
        raise NotAnHttpEvent("the event's body is not in the encoding that it names") from None


def _routed_path(path: str, template: str, parameters: object) -> str:
    """`path` without the base path of a custom domain: what the API's own route, filled in, ends it with."""
    if not template.startswith("/"):
        return path
    for name, value in _items(parameters):
        if isinstance(value, str):
            template = template.replace(f"{{{name}+}}", value).replace(f"{{{name}}}", value)
    return template if path.rstrip("/").endswith(template.rstrip("/")) else path


def _items(value: object) -> list[tuple[str, Any]]:
    return [item for item in value.items() if isinstance(item[0], str)] if isinstance(value, Mapping) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
