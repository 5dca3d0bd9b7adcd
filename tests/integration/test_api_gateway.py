"""Every kind of API: the events that functions get, the answers that clients get, the limits, over real HTTP."""

import http.client
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from tests import events
from tests.integration import test_client

from sealane.local import Call, LocalError, LocalGateway, Record, TemplateError
from sealane.local.api_gateway import BODY_LIMIT, EVENT_LIMIT, HEADER_LIMIT, by_precision
from sealane.local.template import load_template

ROOT = Path(__file__).parents[2]

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Rest:
    Type: AWS::Serverless::Api
    Properties: {StageName: dev, OpenApiVersion: 3.0.1}
  Named:
    Type: AWS::Serverless::HttpApi
    Properties: {StageName: prod}
  Layer:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: LAYER}
  Function:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: CODE
      Handler: app.handler
      Runtime: python3.11
      Timeout: 2
      Layers: [!Ref Layer]
      FunctionUrlConfig: {AuthType: NONE}
      Events:
        Rest: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /mcp, Method: ANY}}
        RestUser: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: "/users/{id}/{rest+}", Method: GET}}
        RestPhoto: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: "/users/{id}/photo", Method: POST}}
        RestMe: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /users/me/photo, Method: POST}}
        RestSlow: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /slow, Method: ANY, TimeoutInMillis: 300}}
        Http: {Type: HttpApi, Properties: {Path: /mcp, Method: ANY}}
        HttpUser: {Type: HttpApi, Properties: {Path: "/users/{id}/{rest+}", Method: GET}}
        HttpPhoto: {Type: HttpApi, Properties: {Path: "/users/{id}/photo", Method: POST}}
        HttpMe: {Type: HttpApi, Properties: {Path: /users/me/photo, Method: POST}}
        HttpBoth: {Type: HttpApi, Properties: {Path: /users/me/photo, Method: ANY}}
        HttpSlow: {Type: HttpApi, Properties: {Path: /slow, Method: ANY, TimeoutInMillis: 300}}
        HttpV1: {Type: HttpApi, Properties: {Path: /v1/mcp, Method: ANY, PayloadFormatVersion: "1.0"}}
        Named: {Type: HttpApi, Properties: {ApiId: !Ref Named, Path: /mcp, Method: ANY}}
        Default: {Type: HttpApi, Properties: {ApiId: !Ref Named}}
"""

FUNCTION = """
import json, time


def handler(event, context):
    command, _, argument = (event.get("body") or "").partition(" ")
    if command == "raise":
        raise ValueError(argument)
    if command == "sleep":
        time.sleep(float(argument))
    if command == "answer":
        return json.loads(argument)
    return {"statusCode": 200, "headers": {"content-type": "application/json"}, "body": json.dumps(event)}
"""

KINDS = {
    "rest": ("Rest", "/mcp"),
    "http": ("ServerlessHttpApi", "/mcp"),
    "http-v1": ("ServerlessHttpApi", "/v1/mcp"),
    "url": ("FunctionUrl", "/mcp"),
}
"""Logical id of the API and path of its endpoint, by shape of the events."""
every_kind = pytest.mark.parametrize("kind", KINDS)


class Reply:
    """An HTTP response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Stub:
    """A gateway with every kind of API in front of the function above, and what it told."""

    def __init__(self, gateway: LocalGateway, records: list[Record]) -> None:
        self.urls = gateway.urls
        self.records = records

    def request(
        self,
        kind: str,
        body: bytes | str | None = None,
        path: str | None = None,
        method: str = "POST",
        headers: list[tuple[str, str]] | None = None,
    ) -> Reply:
        """Sends a request; `kind` is a shape of events, or the logical id of an API."""
        api, endpoint = KINDS.get(kind, (kind, "/mcp"))
        url = urlsplit(self.urls[api] + (path or endpoint))
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=15)
        connection.putrequest(method, f"{url.path}?{url.query}" if url.query else url.path, skip_accept_encoding=True)
        for name, value in headers or [("Content-Type", "text/plain")]:
            connection.putheader(name, value)
        data = body.encode() if isinstance(body, str) else body
        if data is not None:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        reply = Reply(connection.getresponse())
        connection.close()
        return reply

    def event(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The event that the function got."""
        reply = self.request(*args, **kwargs)
        assert reply.status == 200
        event: dict[str, Any] = reply.json
        return event

    def answer(self, kind: str, answer: object, **kwargs: Any) -> Reply:
        """What the client gets when the function returns this."""
        return self.request(kind, f"answer {json.dumps(answer)}", **kwargs)

    def call(self, reply: Reply) -> Call:
        """What the gateway told of the request that was answered so."""
        wanted = reply.headers.get("x-amzn-RequestId") or reply.headers["apigw-requestid"]
        return next(each for each in self.records if isinstance(each, Call) and each.request_id == wanted)

    def problem(self, reply: Reply) -> str | None:
        """Why the gateway answered in the function's place."""
        return self.call(reply).problem


def write_template(folder: Path, code_dir: Path, text: str = TEMPLATE) -> Path:
    template = folder / "template.yaml"
    template.write_text(text.replace("LAYER", str(ROOT / "layers" / "sealane")).replace("CODE", str(code_dir)))
    return template


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apis")
    (folder / "app.py").write_text(FUNCTION)
    return write_template(folder, folder)


@pytest.fixture(scope="module")
def stub(template: Path) -> Iterator[Stub]:
    records: list[Record] = []
    with LocalGateway(template, concurrency=2, observe=records.append) as gateway:
        yield Stub(gateway, records)


# Where the APIs are


def test_each_api_has_a_port_of_its_own(stub: Stub) -> None:
    assert list(stub.urls) == ["Rest", "Named", "ServerlessHttpApi", "FunctionUrl"]
    assert len({urlsplit(url).port for url in stub.urls.values()}) == 4
    assert urlsplit(stub.urls["Named"]).path == "/prod"
    assert urlsplit(stub.urls["Rest"]).path == ""


def test_a_given_port_is_the_first_apis_and_the_others_follow(template: Path) -> None:
    with LocalGateway(template) as gateway:
        free = int(gateway.base_url.rpartition(":")[2])
    for port in range(free, free + 200, 4):
        try:
            with LocalGateway(template, port=port) as gateway:
                assert [urlsplit(url).port for url in gateway.urls.values()] == [port, port + 1, port + 2, port + 3]
                assert gateway.base_url == f"http://127.0.0.1:{port}"
                assert gateway.url.startswith(f"{gateway.base_url}/")
                return
        except LocalError as error:
            if "is taken" not in str(error):
                raise
    pytest.fail("no four ports in a row are free")


@pytest.mark.parametrize(
    ("events_", "url"),
    [
        ("Events: {A: {Type: HttpApi, Properties: {ApiId: !Ref Named, Path: /x, Method: GET}}}", "/prod/x"),
        ("Events: {A: {Type: HttpApi}}", "/"),
        ("FunctionUrlConfig: {AuthType: AWS_IAM, Cors: {AllowOrigins: ['*']}}", "/"),
    ],
)
def test_one_api_of_any_kind_is_enough(template: Path, tmp_path: Path, events_: str, url: str) -> None:
    head, _, _ = TEMPLATE.partition("      FunctionUrlConfig")
    gateway = LocalGateway(write_template(tmp_path, template.parent, f"{head}      {events_}"))
    assert urlsplit(gateway.url).path == url
    if "AWS_IAM" in events_:
        assert set(gateway.not_emulated) >= {
            "the authorization of FunctionUrl",
            "the CORS configuration of FunctionUrl",
        }


def test_no_api_at_all_is_refused(template: Path, tmp_path: Path) -> None:
    head, _, _ = TEMPLATE.partition("      FunctionUrlConfig")
    with pytest.raises(TemplateError, match="has no API with a route to a Python function, and no function URL"):
        LocalGateway(write_template(tmp_path, template.parent, head))


# Events


@every_kind
def test_events_have_the_fields_of_those_in_the_other_tests(stub: Stub, kind: str) -> None:
    made = stub.event(kind, "x", path=f"{KINDS[kind][1]}?a=1")
    expected = events.load_event(f"{kind}-discover")
    assert made.keys() == {*expected, "queryStringParameters"}
    extra = {"authentication", "authorizer"} if kind == "url" else set()
    assert made["requestContext"].keys() - extra == expected["requestContext"].keys()


def test_an_event_of_payload_2_0(stub: Stub) -> None:
    headers = [
        ("X-CaSe", "one"),
        ("x-case", "two"),
        ("Cookie", "a=1; b=2"),
        ("Cookie", "c=3"),
        ("Content-Type", "application/problem+json; charset=utf-8"),
        ("X-Forwarded-For", "203.0.113.9"),
        ("Connection", "keep-alive"),
    ]
    event = stub.event("http", "é", path="/mcp/?a=1&a=2&b=&c=%C3%A9", method="PUT", headers=headers)

    assert (event["version"], event["routeKey"], event["rawPath"]) == ("2.0", "ANY /mcp", "/mcp/")
    assert event["rawQueryString"] == "a=1&a=2&b=&c=%C3%A9"
    assert event["queryStringParameters"] == {"a": "1,2", "b": "", "c": "é"}
    assert event["cookies"] == ["a=1", "b=2", "c=3"]
    assert event["headers"]["x-case"] == "one,two"
    assert event["headers"]["x-forwarded-for"] == "203.0.113.9, 127.0.0.1"
    assert event["headers"]["x-forwarded-port"] == event["headers"]["host"].partition(":")[2]
    assert event["headers"]["content-length"] == "2"
    assert not {"cookie", "connection"} & event["headers"].keys()
    assert all(name == name.lower() for name in event["headers"])
    assert (event["body"], event["isBase64Encoded"]) == ("é", False)
    assert "pathParameters" not in event
    assert "stageVariables" not in event

    context = event["requestContext"]
    assert (context["stage"], context["routeKey"], context["domainName"]) == ("$default", "ANY /mcp", "localhost")
    assert context["http"] | {"userAgent": ""} == {
        "method": "PUT",
        "path": "/mcp/",
        "protocol": "HTTP/1.1",
        "sourceIp": "127.0.0.1",
        "userAgent": "",
    }
    assert abs(context["timeEpoch"] / 1000 - time.time()) < 60
    assert time.strptime(context["time"], "%d/%b/%Y:%H:%M:%S +0000")


def test_what_is_empty_is_left_out_of_payload_2_0(stub: Stub) -> None:
    for kind in ("http", "url"):
        event = stub.event(kind, method="GET", headers=[("Accept", "*/*")])
        assert not {"body", "cookies", "queryStringParameters", "pathParameters"} & event.keys()
        assert (event["rawQueryString"], event["isBase64Encoded"]) == ("", False)


def test_an_event_of_a_function_url(stub: Stub) -> None:
    event = stub.event("url", "x", path="/any/p%2Fth?q=%20", method="DELETE")
    assert (event["routeKey"], event["rawPath"], event["rawQueryString"]) == ("$default", "/any/p%2Fth", "q=%20")
    context = event["requestContext"]
    assert (context["accountId"], context["apiId"], context["stage"]) == ("anonymous", "FunctionUrl", "$default")
    assert context["authentication"] is context["authorizer"] is None
    assert context["domainName"] == "localhost"
    assert context["http"]["method"] == "DELETE"


def test_an_event_of_payload_1_0_of_an_http_api(stub: Stub) -> None:
    headers = [("X-CaSe", "one"), ("X-CaSe", "two"), ("Content-Type", "text/plain"), ("Cookie", "a=1")]
    event = stub.event("http-v1", "x", path="/v1/mcp?a=1&a=2", headers=headers)
    assert (event["version"], event["resource"], event["path"]) == ("1.0", "/v1/mcp", "/v1/mcp")
    assert event["headers"]["X-CaSe"] == "two"
    assert event["multiValueHeaders"]["X-CaSe"] == ["one", "two"]
    assert event["headers"]["Cookie"] == "a=1"
    assert event["multiValueQueryStringParameters"] == {"a": ["1", "2"]}
    assert event["requestContext"]["resourceId"] == "ANY /v1/mcp"
    assert event["requestContext"]["domainName"] == "localhost"
    assert "cookies" not in event


def test_a_named_stage_is_in_the_path(stub: Stub) -> None:
    event = stub.event("Named", "x")
    assert (event["rawPath"], event["routeKey"], event["requestContext"]["stage"]) == ("/prod/mcp", "ANY /mcp", "prod")
    assert event["requestContext"]["http"]["path"] == "/prod/mcp"
    event = stub.event("Named", "x", path="/anything/else")
    assert (event["rawPath"], event["routeKey"]) == ("/prod/anything/else", "$default")


@pytest.mark.parametrize("kind", ["rest", "http"])
def test_path_parameters(stub: Stub, kind: str) -> None:
    event = stub.event(kind, method="GET", path="/users/7/a/b/", headers=[("Accept", "*/*")])
    assert event["pathParameters"] == {"id": "7", "rest": "a/b"}


def test_the_most_precise_route_serves(stub: Stub) -> None:
    for path, resource in (("/users/me/photo", "/users/me/photo"), ("/users/7/photo", "/users/{id}/photo")):
        assert stub.event("rest", "x", path=path)["resource"] == resource
        assert stub.event("http", "x", path=path)["routeKey"] == f"POST {resource}"
    assert stub.event("http", "x", path="/users/me/photo", method="PUT")["routeKey"] == "ANY /users/me/photo"
    # An HTTP API looks for a route with the method, a REST API for a path and then for its method.
    assert stub.event("http", path="/users/7/photo", method="GET")["routeKey"] == "GET /users/{id}/{rest+}"
    assert stub.request("rest", path="/users/7/photo", method="GET").status == 403


def test_the_order_of_routes_in_the_template_does_not_count(template: Path) -> None:
    [routes] = [api.routes for api in load_template(template).apis if api.name == "ServerlessHttpApi"]
    precise = ["POST /users/me/photo", "ANY /users/me/photo", "POST /users/{id}/photo", "GET /users/{id}/{rest+}"]
    for order in (routes, routes[::-1]):
        assert [route.key for route in by_precision(order) if route.key in precise] == precise


def test_how_long_an_api_waits(template: Path) -> None:
    waits = {(api.kind, route.path): route.timeout for api in load_template(template).apis for route in api.routes}
    assert (waits["rest", "/mcp"], waits["rest", "/slow"]) == (29, 0.3)
    assert (waits["http", "/mcp"], waits["http", "/slow"]) == (30, 0.3)
    assert waits["url", "$default"] == math.inf


@pytest.mark.parametrize(
    ("content_type", "body", "is_base64"),
    [
        ("application/json", b"{}", False),
        ("text/css; charset=utf-8", b"a", False),
        ("application/x-www-form-urlencoded", b"a=1", True),
        ("image/png", b"a", True),
        ("text/plain", b"\xff", True),
        (None, b"{}", True),
    ],
)
def test_what_is_not_text_is_base64_in_events_of_http_apis_and_urls(
    stub: Stub, content_type: str | None, body: bytes, is_base64: bool
) -> None:
    for kind in ("http", "http-v1", "url"):
        headers = [("Accept", "*/*"), *([("Content-Type", content_type)] if content_type else [])]
        assert stub.event(kind, body, headers=headers)["isBase64Encoded"] is is_base64


# Answers


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        ({"hello": "world"}, b'{"hello":"world"}'),
        (["hello", 3, True], b'["hello",3,true]'),
        ("hello", b"hello"),
        (3.1, b"3.1"),
        (None, b"null"),
        ({"body": "é"}, '{"body":"é"}'.encode()),
    ],
)
def test_json_without_a_status_is_the_body(stub: Stub, answer: object, body: bytes) -> None:
    for kind in ("http", "url"):
        reply = stub.answer(kind, answer)
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/json", body)


def test_the_answer_of_payload_2_0(stub: Stub) -> None:
    answer = {
        "statusCode": "201",
        "headers": {"X-One": 1, "Content-Type": "image/png", "Content-Length": "99"},
        "cookies": ["a=1; Path=/", "b=2"],
        "body": "aGk=",
        "isBase64Encoded": True,
        "unknown": 1,
    }
    for kind in ("http", "url"):
        reply = stub.answer(kind, answer)
        assert (reply.status, reply.body) == (201, b"hi")
        assert reply.headers.get_all("set-cookie") == ["a=1; Path=/", "b=2"]
        assert reply.headers["X-One"] == "1"
        assert reply.headers["content-type"] == "image/png"
        assert reply.headers["content-length"] == "2"


def test_the_answer_of_payload_1_0_of_an_http_api(stub: Stub) -> None:
    answer = {"statusCode": 200, "multiValueHeaders": {"X-Two": ["a", "b"]}, "body": "aGk=", "isBase64Encoded": True}
    reply = stub.answer("http-v1", answer)
    assert reply.body == b"hi"
    assert reply.headers.get_all("X-Two") == ["a", "b"]


@every_kind
def test_a_challenge_is_renamed(stub: Stub, kind: str) -> None:
    reply = stub.answer(kind, {"statusCode": 401, "headers": {"WWW-Authenticate": "Bearer"}})
    assert reply.status == 401
    assert reply.headers["www-authenticate"] is None
    assert reply.headers["x-amzn-remapped-www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("kind", "with_body", "without"),
    [
        ("rest", "application/json", "application/json"),
        ("http", "text/plain; charset=utf-8", None),
        ("http-v1", "text/plain; charset=utf-8", None),
        ("url", "application/json", None),
    ],
)
def test_the_type_of_an_answer_that_names_none(stub: Stub, kind: str, with_body: str, without: str | None) -> None:
    assert stub.answer(kind, {"statusCode": 200, "body": "x"}).headers["content-type"] == with_body
    reply = stub.answer(kind, {"statusCode": 202})
    assert (reply.status, reply.body, reply.headers["content-type"]) == (202, b"", without)


@every_kind
@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_has_none(stub: Stub, kind: str, status: int) -> None:
    reply = stub.answer(kind, {"statusCode": status, "body": "x"})
    assert (reply.status, reply.body) == (status, b"")
    assert stub.request(kind, "again").status == 200


def test_a_rest_api_needs_no_field_of_an_answer(stub: Stub) -> None:
    reply = stub.answer("rest", {})
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"", "application/json")


FAILED = {
    "rest": (502, b'{"message":"Internal server error"}'),
    "http": (500, b'{"message":"Internal Server Error"}'),
    "http-v1": (500, b'{"message":"Internal Server Error"}'),
    "url": (502, b"Internal Server Error"),
}


@every_kind
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"statusCode": "ok"}, "statusCode must be an HTTP status, not 'ok'"),
        ({"statusCode": 200, "body": {}}, "body must be text, not an object"),
        ({"statusCode": 200, "headers": ["a"]}, "headers must be an object, not a list"),
        ({"statusCode": 200, "headers": {"a": "b\r\nc: d"}}, "header a has a line break"),
        ({"statusCode": 200, "headers": {"a b": "c"}}, "'a b' cannot be the name of a header"),
    ],
)
def test_a_malformed_answer(stub: Stub, kind: str, answer: object, reason: str) -> None:
    reply = stub.answer(kind, answer)
    assert (reply.status, reply.body) == FAILED[kind]
    assert stub.problem(reply) == f"malformed answer: {reason}"


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("rest", [1]),
        ("http-v1", {"body": "x"}),
        ("http", {"statusCode": 200, "body": "?", "isBase64Encoded": True}),
        ("http-v1", {"statusCode": 200, "body": "?", "isBase64Encoded": True}),
        ("url", {"statusCode": 200, "body": "?", "isBase64Encoded": True}),
        ("url", {"statusCode": 200, "cookies": "a=1"}),
    ],
)
def test_an_answer_that_is_malformed_for_this_kind(stub: Stub, kind: str, answer: object) -> None:
    reply = stub.answer(kind, answer)
    assert (reply.status, reply.body) == FAILED[kind]
    assert str(stub.problem(reply)).startswith("malformed answer: ")


# Rules


@every_kind
def test_a_function_that_raises(stub: Stub, kind: str) -> None:
    reply = stub.request(kind, "raise no")
    assert (reply.status, reply.body) == FAILED[kind]
    assert str(stub.problem(reply)).startswith("ValueError: no")


@every_kind
def test_a_function_that_exceeds_its_own_timeout(stub: Stub, kind: str) -> None:
    reply = stub.request(kind, "sleep 5")
    assert (reply.status, reply.body) == FAILED[kind]
    assert "Task timed out after 2.00 seconds" in str(stub.problem(reply))
    assert stub.request(kind, "again").status == 200


@pytest.mark.parametrize(
    ("kind", "status", "text"), [("rest", 504, "Endpoint request timed out"), ("http", 503, "Service Unavailable")]
)
def test_an_api_gives_up_before_the_function(stub: Stub, kind: str, status: int, text: str) -> None:
    reply = stub.request(kind, "sleep 1", path="/slow")
    assert (reply.status, reply.json) == (status, {"message": text})
    assert stub.problem(reply) == "no answer within 0.3 s"
    time.sleep(1)  # The function goes on, and its environment is busy.


@pytest.mark.parametrize(
    ("kind", "path", "method", "status", "text"),
    [
        ("rest", "/nope", "POST", 403, "Missing Authentication Token"),
        ("rest", "/users/7/a", "POST", 403, "Missing Authentication Token"),
        ("http", "/nope", "POST", 404, "Not Found"),
        ("http", "/users/7/a", "POST", 404, "Not Found"),
        ("http", "/prod/mcp", "POST", 404, "Not Found"),
    ],
)
def test_an_unknown_route(stub: Stub, kind: str, path: str, method: str, status: int, text: str) -> None:
    reply = stub.request(kind, "", path=path, method=method)
    assert (reply.status, reply.json) == (status, {"message": text})


def test_outside_a_named_stage_there_is_nothing(stub: Stub) -> None:
    url = urlsplit(stub.urls["Named"])
    for path in ("/mcp", "/", "/production/mcp"):
        connection = http.client.HTTPConnection(str(url.hostname), url.port)
        connection.request("GET", path)
        reply = Reply(connection.getresponse())
        assert (reply.status, reply.json) == (404, {"message": "Not Found"})


TOO_LONG = {
    "rest": b"HTTP content length exceeded 10485760 bytes.",
    "http": b'{"message":"Request Entity Too Large"}',
    "http-v1": b'{"message":"Request Entity Too Large"}',
    "url": b'{"Message":"Request must be smaller than 6291456 bytes for the InvokeFunction operation"}',
}


@every_kind
def test_a_body_beyond_the_limit_is_413(stub: Stub, kind: str) -> None:
    reply = stub.request(kind, b"x" * (BODY_LIMIT + 1))
    assert (reply.status, reply.body) == (413, TOO_LONG[kind])


@every_kind
def test_an_event_beyond_lambdas_limit_is_413(stub: Stub, kind: str) -> None:
    reply = stub.request(kind, b"x" * EVENT_LIMIT)
    assert reply.status == 413
    if kind == "rest":
        assert reply.json == {"message": "Request Too Long"}
    assert "Lambda takes 6291456" in str(stub.problem(reply))


@every_kind
def test_request_headers_beyond_the_limit(stub: Stub, kind: str) -> None:
    fits = [("X-Long", "x" * (HEADER_LIMIT - 500)), ("Content-Type", "text/plain")]
    assert stub.request(kind, "x", headers=fits).status == 200
    reply = stub.request(kind, "x", headers=[("X-One", "x" * 6000), ("X-Two", "x" * 6000)])
    # A function URL takes 1 MB of them.
    assert reply.status == (200 if kind == "url" else 431)
    if kind != "url":
        assert reply.json == {"message": "Request Header Fields Too Large"}


def test_header_names_count_for_a_rest_api(stub: Stub) -> None:
    headers = [(f"X-{number:0100}", "x") for number in range(100)]
    assert stub.request("rest", headers=headers).status == 431
    assert stub.request("http", headers=headers).status == 200


def test_the_request_line_counts_for_an_http_api(stub: Stub) -> None:
    path = f"/mcp?{'x' * 6000}"
    headers = [("X-Long", "x" * 6000), ("Content-Type", "text/plain")]
    assert stub.request("http", "x", path=path, headers=headers).status == 431
    assert stub.request("rest", "x", path=path, headers=headers).status == 200


@pytest.mark.parametrize("kind", ["rest", "http", "http-v1"])
def test_answer_headers_beyond_the_limit(stub: Stub, kind: str) -> None:
    headers = {f"x-{number}": "x" * 6000 for number in range(2)}
    reply = stub.answer(kind, {"statusCode": 200, "headers": headers})
    assert (reply.status, reply.body) == FAILED[kind]
    assert "its headers have " in str(stub.problem(reply))
    assert stub.answer(kind, {"statusCode": 200, "headers": {"x-1": headers["x-1"]}}).status == 200


@every_kind
def test_over_the_pool_is_429(stub: Stub, kind: str) -> None:
    start = threading.Barrier(4)

    def call(_: int) -> Reply:
        start.wait()
        return stub.request(kind, "sleep 1")

    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(call, range(4)))
    assert sorted(reply.status for reply in replies) == [200, 200, 429, 429]
    refused = next(reply for reply in replies if reply.status == 429)
    assert refused.json == ({"Message": "Rate Exceeded."} if kind == "url" else {"message": "Too Many Requests"})


@every_kind
def test_every_answer_tells_the_request_id_of_its_event(stub: Stub, kind: str) -> None:
    reply = stub.request(kind, "x")
    name = "apigw-requestid" if kind.startswith("http") else "x-amzn-RequestId"
    assert reply.headers[name] == reply.json["requestContext"]["requestId"]


@pytest.mark.parametrize(
    ("body", "told", "era"),
    [
        (json.dumps(events.modern("tools/call", name="hello", arguments={"a": 1})[1]), "tools/call hello", "modern"),
        (json.dumps(events.legacy("resources/read", uri="info://x")[1]), "resources/read info://x", "legacy"),
        (json.dumps(events.legacy("tools/list")[1]), "tools/list", "legacy"),
        (json.dumps(events.legacy("tools/call", name="\x1b[2J\n")[1]), "tools/call \\x1b[2J\\n", "legacy"),
        ('{"jsonrpc": "2.0", "id": 1, "result": {}}', None, "legacy"),
        ("[]", None, None),
        ("x", None, None),
        (None, None, None),
    ],
)
def test_a_call_is_told_with_its_message(stub: Stub, body: str | None, told: str | None, era: str | None) -> None:
    call = stub.call(stub.request("rest", body))
    assert (call.message, call.era) == (told, era)
    assert call.environment is not None


# The sample function behind each of them


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    code_dir = ROOT / "functions" / "stateless"
    text = TEMPLATE.replace("Timeout: 2", "Timeout: 20").replace("Path: /v1/mcp", 'Path: "/mcp/"')
    text = text.replace(
        "Properties: {StageName: prod}", "Properties: {StageName: prod}\n  V1:\n    Type: AWS::Serverless::HttpApi"
    )
    text = text.replace('Path: "/mcp/"', "ApiId: !Ref V1, Path: /mcp")
    # It asks its callers, so it does not start without a key.
    variables = "{SEALANE_STACK: sample, SEALANE_TABLE: none, SEALANE_KEY: !Ref Key}"
    text = text.replace("Timeout: 20", f"Timeout: 20\n      Environment: {{Variables: {variables}}}")
    text += "  Key: {Type: AWS::KMS::Key, Properties: {KeyPolicy: {}}}\n"
    with LocalGateway(write_template(tmp_path_factory.mktemp("sample"), code_dir, text), concurrency=2) as gateway:
        yield Stub(gateway, [])


SAMPLES = {"rest": "Rest", "http": "ServerlessHttpApi", "http-stage": "Named", "http-v1": "V1", "url": "FunctionUrl"}


@pytest.fixture(params=test_client.MODES, ids=[mode for mode, _ in test_client.MODES])
def mode(request: pytest.FixtureRequest) -> ConnectMode:
    mode: ConnectMode = request.param[0]
    return mode


@pytest.fixture(params=SAMPLES)
async def client(request: pytest.FixtureRequest, mode: ConnectMode, sample: Stub) -> AsyncIterator[Client]:
    async with Client(f"{sample.urls[SAMPLES[request.param]]}/mcp", mode=mode, cache=None) as connected:
        assert connected.protocol_version == dict(test_client.MODES)[mode]
        yield connected


@pytest.mark.anyio
@pytest.mark.parametrize(
    "check",
    [
        test_client.test_lists_everything_in_the_order_of_description,
        test_client.test_calls_tools,
        test_client.test_arguments_that_do_not_fit_are_a_tool_error,
        test_client.test_progress_arrives_in_order,
        test_client.test_reads_resources,
        test_client.test_an_unknown_resource_is_an_error,
        test_client.test_gets_a_prompt,
        test_client.test_completes_arguments,
    ],
    ids=lambda check: check.__name__.removeprefix("test_"),
)
async def test_a_client_finds_the_same_behind_every_api(
    client: Client, check: Callable[[Client], Awaitable[None]]
) -> None:
    await check(client)


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_sample_server_speaks_http_behind_every_api(sample: Stub, kind: str) -> None:
    api = SAMPLES[kind]
    headers, message = events.modern("tools/call", name="hello", arguments={"name": "Ada"})
    reply = sample.request(api, json.dumps(message), headers=list(headers.items()))
    assert reply.status == 200
    assert reply.json["result"]["content"] == [{"type": "text", "text": "Hello, Ada!"}]

    headers, message = events.legacy("notifications/initialized")
    reply = sample.request(api, json.dumps(message), headers=list(headers.items()))
    assert (reply.status, reply.body) == (202, b"")
    assert reply.headers["content-type"] == ("application/json" if kind == "rest" else None)

    reply = sample.request(api, method="GET", headers=[("Accept", "text/event-stream")])
    assert (reply.status, reply.headers["allow"]) == (405, "POST")

    reply = sample.request(
        api, "{}", headers=[("Origin", "https://evil.example"), ("Content-Type", "application/json")]
    )
    assert reply.status == 403
