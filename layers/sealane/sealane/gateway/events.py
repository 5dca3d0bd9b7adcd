"""Makes events right before Mangum reads them: what gateways, consoles and scanners really send."""

import base64
import binascii
import functools
import os
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from mangum.types import LambdaEvent, Scope

from sealane.policy.hosts import ENDPOINT_KEY, aws_name, hostname_of

__all__ = ["BUFFERED_KEY", "DEADLINE_KEY", "HttpEvent", "NotAnHttpEvent", "http_event"]

DEADLINE_KEY: Final = "sealane.deadline"
"""Where the ASGI scope says when an answer has to be whole, in the event loop's time; not set where nobody watches."""
BUFFERED_KEY: Final = "sealane.buffered"
"""Where the ASGI scope says how long an answer that leaves as a whole may take, in seconds; not set for a live one."""

# RFC 9110 section 5.1: a token. Starlette cannot look up a name with other letters.
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# RFC 9110 section 5.5: dangerous, to be rejected. No gateway lets them through.
_NOT_IN_A_VALUE: Final = re.compile(r"[\0\r\n]")
_PORT: Final = re.compile(r":([0-9]{1,5})\Z")
_FORWARDED_PORT: Final = re.compile(r"[0-9]{1,5}")


class NotAnHttpEvent(ValueError):
    """The event is not one that API Gateway, a function URL or an ALB sends."""


class HttpEvent(NamedTuple):
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
    if not isinstance(event, dict):
        raise NotAnHttpEvent("the event is not a JSON object")
    context = event.get("requestContext")
    if not isinstance(context, dict):
        raise NotAnHttpEvent("the event has no requestContext")
    made = {**event, "body": _body(event), "isBase64Encoded": False}
    http = context.get("http")
    if event.get("version") == "2.0" and isinstance(http, dict):
        path, stage = _text(event.get("rawPath")) or _text(http.get("path")), _text(context.get("stage"))
        path = _routed_path(path, _text(event.get("routeKey")).partition(" ")[2], event.get("pathParameters"), stage)
        method = _text(http.get("method"))
        made["requestContext"] = {
            **context,
            "http": {"path": path, "method": method.upper(), "sourceIp": _text(http.get("sourceIp"))},
        }
        made["rawQueryString"] = _text(event.get("rawQueryString"))
        made["cookies"] = _texts(event.get("cookies"))
    else:
        method, path = _text(event.get("httpMethod")), _text(event.get("path"))
        # A REST API has no stage in its path; an HTTP API has it in this payload too, which then has a version.
        stage = _text(context.get("stage")) if "version" in event else ""
        path = _routed_path(path, _text(event.get("resource")), event.get("pathParameters"), stage)
        made["httpMethod"], made["path"] = method.upper(), path
        query = {name: _texts([value]) for name, value in _items(event.get("queryStringParameters"))}
        query |= {name: _texts(values) for name, values in _items(event.get("multiValueQueryStringParameters"))}
        made["multiValueQueryStringParameters"], made["queryStringParameters"] = query, None
        # Mangum tells REST from HTTP events by `version`, which payload 1.0 of an HTTP API has too.
        made.pop("version", None)
        made["resource"] = _text(event.get("resource"))
        made["requestContext"] = {
            **context,
            "identity": identity if isinstance(identity := context.get("identity"), dict) else {},
        }
    if not method or not path.startswith("/"):
        raise NotAnHttpEvent("the event names no HTTP method and path")
    hosts = _headers(made, event)
    return HttpEvent(made, hosts, _endpoint(context))


def _endpoint(context: Mapping[str, Any]) -> str | None:
    """The name under which the gateway was reached.

    `sam local start-api` copies it from the client's `Host`; there, what is not AWS's own name is this machine.
    """
    domain_name = _text(context.get("domainName")) or None
    if aws_name(domain_name) is None and os.environ.get("AWS_SAM_LOCAL") == "true":
        return "localhost"
    return domain_name


def _headers(made: dict[str, Any], event: Mapping[str, Any]) -> list[str]:
    """Write the event's headers into `made`, under lower-case names, and return those named `Host`.

    Headers with a malformed name are left out.

    Raises:
        NotAnHttpEvent: a value has a line break or NUL in it.
    """
    multi: dict[str, list[str]] = {}
    for given, value in _items(event.get("headers")):
        if isinstance(value, str) and (name := _field_name(given)):
            multi[name] = [value]
    for given, value in _items(event.get("multiValueHeaders")):
        if (name := _field_name(given)) and (values := _texts(value)):
            multi[name] = values
    if _NOT_IN_A_VALUE.search("".join(chain.from_iterable(multi.values()))):
        raise NotAnHttpEvent("a header's value has a line break or NUL in it")
    hosts = multi.pop("host", [])
    if not _FORWARDED_PORT.fullmatch(",".join(multi.get("x-forwarded-port", []))):
        multi.pop("x-forwarded-port", None)
    made["headers"] = {name: ",".join(texts) for name, texts in multi.items()}
    if "multiValueHeaders" in event:
        made["multiValueHeaders"] = multi
    return hosts


@functools.lru_cache(maxsize=256)
def _field_name(name: str) -> str | None:
    """A header's name in lower case; `None` for a malformed one."""
    return name.lower() if _HEADER_NAME.fullmatch(name) else None


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


def _routed_path(path: str, template: str, parameters: object, stage: str) -> str:
    """`path` without what stands before the API's own: a custom domain's base path, an HTTP API's named stage.

    The API's route, filled in, ends the path wherever it is known. Without one the stage is taken off;
    "/production" is not stage "prod".
    """
    if template.startswith("/"):
        for name, value in _items(parameters):
            if isinstance(value, str):
                template = template.replace(f"{{{name}+}}", value).replace(f"{{{name}}}", value)
        if path.rstrip("/").endswith(template.rstrip("/")):
            return template
    if stage in ("", "$default") or not f"{path}/".startswith(f"/{stage}/"):
        return path
    return path[len(stage) + 1 :] or "/"


def _items(value: object) -> list[tuple[str, Any]]:
    return [item for item in value.items() if isinstance(item[0], str)] if isinstance(value, dict) else []


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        return []
    if len(value) == 1 and isinstance(value[0], str):
        return value
    return [item for item in value if isinstance(item, str)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
