"""`route_by_era`, in front of a Lambda that answers what a test says."""

import asyncio
import base64
import json
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest
from mcp.server.mcpserver import MCPServer
from starlette.types import Message

from sealane import LegacyFunction, McpHandler, RequestRejected, RoutedHandler, create_mcp_handler, route_by_era
from sealane.gateway.buffered import BufferedGateway
from sealane.gateway.events import DEADLINE_KEY
from sealane.local.invoke_api import event_frame
from sealane.routing import _client
from tests.events import NO_CONTEXT, SHAPES, Answer, Event, Headers, answer, ask, legacy, make_event, modern
from tests.unit import moto_aws

NAME = "arn:aws:lambda:eu-west-1:123456789012:function:legacy"
SESSION = {"Mcp-Session-Id": "s" * 32}
HTML = {"statusCode": 200, "headers": {"Content-Type": "text/html"}, "body": "<p>"}


@dataclass
class Plan:
    """What Lambda answers.

    Attributes:
        status: of the Invoke API.
        code: error code of the Invoke API.
        headers: further ones.
        payload: the function's answer; of a stream, its pieces, and an exception to end it with that.
        pause: seconds before each piece.
        complete: what the end of a stream says; none: it says nothing.
    """

    status: int = 200
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: Any = None
    pause: float = 0
    complete: Mapping[str, str] | None = field(default_factory=dict)


class Lambda(ThreadingHTTPServer):
    """The Invoke API.

    Attributes:
        plan: what it answers.
        asked: the path and the event of each request.
        left: is set when a stream's reader has gone.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Invocations)
        self.plan = Plan()
        self.asked: list[tuple[str, Event]] = []
        self.left = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has hung up."""


class _Invocations(BaseHTTPRequestHandler):
    server: Lambda
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((unquote(self.path), event))
        plan = self.server.plan
        if "response-streaming" in self.path and plan.status == 200:
            self._stream(plan)
            return
        time.sleep(plan.pause)
        body = plan.payload if isinstance(plan.payload, bytes) else json.dumps(plan.payload).encode()
        self.send_response(plan.status)
        if plan.code:
            self.send_header("x-amzn-ErrorType", plan.code)
        for name, value in plan.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, plan: Plan) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/vnd.amazon.eventstream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for piece in plan.payload:
                time.sleep(plan.pause)
                if isinstance(piece, Exception):
                    self.close_connection = True
                    return
                self._frame(event_frame("PayloadChunk", "application/octet-stream", piece))
            if plan.complete is not None:
                self._frame(event_frame("InvokeComplete", "application/json", json.dumps(plan.complete).encode()))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.left.set()

    def _frame(self, frame: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def aws() -> Iterator[Lambda]:
    """The Invoke API, and the variables that lead there."""
    server = Lambda()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with moto_aws.aws_variables(f"http://127.0.0.1:{server.server_port}"):
            _client.cache_clear()
            yield server
    finally:
        _client.cache_clear()
        server.shutdown()
        thread.join()
        server.server_close()


def create_server() -> MCPServer:
    """A server of the stateless lane."""
    return MCPServer("stateless", version="2")


def routed(drain: Any = None, **options: Any) -> RoutedHandler:
    """A handler with both lanes."""
    handler = route_by_era(create_mcp_handler(create_server, **options), LegacyFunction(NAME, drain=drain))
    assert isinstance(handler, RoutedHandler)
    return handler


def served(result: Mapping[str, Any]) -> dict[str, Any]:
    """What `BufferedGateway` gives for a JSON answer."""
    return {"statusCode": 200, "headers": {"content-type": "application/json"}, "body": json.dumps(result)}


def streaming(
    handler: RoutedHandler,
    request: tuple[Headers, Any],
    *,
    seconds: float = 10,
    leave_after: float = 3600,
    **event: Any,
) -> list[Message]:
    """The ASGI messages of an answer that streams; the client leaves early, or never.

    Raises:
        Exception: what breaks the connection off.
    """
    headers, body = request
    mangum, scope = handler.gateway.request(make_event("rest", headers=headers, body=body, **event), NO_CONTEXT)
    sent: list[Message] = []

    async def run() -> None:
        unread = [mangum.body]

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.sleep(leave_after)
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        made = {**scope, DEADLINE_KEY: asyncio.get_running_loop().time() + seconds}
        await handler.app(made, receive, send)

    asyncio.run(run())
    return sent


def body_of(sent: Sequence[Message]) -> bytes:
    """The body, which has an end."""
    assert not sent[-1].get("more_body", False)
    return b"".join(message["body"] for message in sent[1:])


def head(status: int = 200, **more: Any) -> bytes:
    """What comes before the body of a stream."""
    return json.dumps(
        {"statusCode": status, "headers": {"content-type": "text/event-stream"}, **more}
    ).encode() + bytes(8)


EVENT = b'event: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\r\n\r\n'


def test_without_a_legacy_function_the_stateless_handler_is_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEALANE_LEGACY_FUNCTION", raising=False)
    handler = create_mcp_handler(create_server)
    assert route_by_era(handler, LegacyFunction.configured()) is handler


@pytest.mark.parametrize(
    ("variables", "drain"),
    [
        ({}, None),
        ({"LANE": "on"}, None),
        ({"LANE": "on", "DRAIN_TO": "compatibility"}, None),
        ({"LANE": "drain"}, "refuse"),
        ({"LANE": "drain", "DRAIN_TO": "refuse"}, "refuse"),
        ({"LANE": "drain", "DRAIN_TO": "compatibility"}, "compatibility"),
    ],
)
def test_the_environment_says_which_function(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], drain: str | None
) -> None:
    monkeypatch.setenv("SEALANE_LEGACY_FUNCTION", "sessions")
    for name, value in variables.items():
        monkeypatch.setenv(f"SEALANE_LEGACY_{name}", value)
    function = LegacyFunction.configured()
    assert function is not None
    assert (function.name, function.drain) == ("sessions", drain)


@pytest.mark.parametrize(("name", "value"), [("LANE", "off"), ("LANE", "onn")])
def test_a_lane_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("SEALANE_LEGACY_FUNCTION", "sessions")
    monkeypatch.setenv(f"SEALANE_LEGACY_{name}", value)
    with pytest.raises(ValueError, match="SEALANE_LEGACY_LANE is 'on' or 'drain'"):
        LegacyFunction.configured()


def test_what_cannot_work_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="the name of the legacy function is empty"):
        LegacyFunction("")
    with pytest.raises(ValueError, match="drain is one of"):
        LegacyFunction("sessions", drain="later")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='needs legacy="stateless"'):
        routed("compatibility", legacy="reject")


def test_it_is_a_handler_for_both_runtimes() -> None:
    stateless = create_mcp_handler(create_server)
    handler = route_by_era(stateless, LegacyFunction(NAME))
    assert isinstance(handler.gateway, BufferedGateway)
    assert handler.gateway.app == handler.app
    assert handler.notify is stateless.notify


@pytest.mark.parametrize("shape", SHAPES)
def test_legacy_requests_reach_the_function_with_the_event_as_it_came(aws: Lambda, shape: Any) -> None:
    aws.plan.payload = served({"jsonrpc": "2.0", "id": 1, "result": {}})
    headers, body = legacy("tools/call", name="café 🦊", arguments={})
    event = make_event(shape, headers={**headers, **SESSION}, body=body)
    event["requestContext"]["authorizer"] = {"principalId": "ada", "client_id": "c", "null": None}
    before = json.loads(json.dumps(event))
    got = answer(routed()(event, NO_CONTEXT))
    assert (got.status, got.json["result"], got.was_base64) == (200, {}, False)
    assert aws.asked == [(f"/2015-03-31/functions/{NAME}/invocations", before)]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_the_other_methods_of_sessions_reach_the_function(aws: Lambda, method: str) -> None:
    aws.plan.payload = {"statusCode": 204, "headers": {"x-own": "1"}}
    got = ask(routed(), (SESSION, None), method=method)
    assert (got.status, got.body, got.headers["x-own"]) == (204, "", "1")
    assert aws.asked[0][1]["httpMethod"] == method


@pytest.mark.parametrize(
    ("request_", "event", "status"),
    [
        (modern("server/discover"), {}, 200),
        (modern("server/discover"), {"path": "/mcp/"}, 200),
        (({"Content-Type": "application/json", "MCP-Protocol-Version": "2027-01-01"}, {"method": "x"}), {}, 406),
        (({"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}, None), {"method": "OPTIONS"}, 200),
        (({}, None), {"shape": "url", "method": "GET", "path": "/.well-known/oauth-protected-resource/mcp"}, 404),
        (legacy("initialize"), {"path": "/other"}, 404),
        (({}, None), {"method": "PUT"}, 405),
    ],
)
def test_all_else_is_for_the_stateless_handler(aws: Lambda, request_: Any, event: Any, status: int) -> None:
    assert ask(routed(legacy="reject"), request_, **event).status == status
    assert aws.asked == []


@pytest.mark.parametrize(
    "request_",
    [
        legacy("initialize"),
        legacy("tools/list", version=None),
        legacy("notifications/initialized"),
        ({"Content-Type": "application/json", "MCP-Protocol-Version": " 2025-06-18\t"}, {"method": "x"}),
        ({"Content-Type": "application/json"}, [legacy("ping")[1], legacy("ping", id=2)[1]]),
        ({"Content-Type": "application/json"}, "no JSON"),
        ({}, ""),
    ],
)
def test_what_is_legacy_is_said_by_the_one_classification(aws: Lambda, request_: Any) -> None:
    aws.plan.payload = {"statusCode": 418}
    assert ask(routed(), request_).status == 418


def test_the_answer_is_passed_on_unread(aws: Lambda) -> None:
    aws.plan.payload = {
        "statusCode": 404,
        "headers": {"X-One": "1", "X-Two": "lost", "Content-Length": "3"},
        "multiValueHeaders": {"x-two": ["2", "3"], "Content-Type": ["image/png"]},
        "cookies": ["a=1; Path=/", "b=2"],
        "body": base64.b64encode(b"\0\xff\0").decode(),
        "isBase64Encoded": True,
    }
    got = routed()(make_event("rest", headers=legacy("ping")[0], body=legacy("ping")[1]), NO_CONTEXT)
    assert got["statusCode"] == 404
    assert got["isBase64Encoded"] is True
    assert base64.b64decode(got["body"]) == b"\0\xff\0"
    headers = {name: [value] for name, value in got["headers"].items()}
    assert {**headers, **got["multiValueHeaders"]} == {
        "x-one": ["1"],
        "x-two": ["2", "3"],
        "content-type": ["image/png"],
        "set-cookie": ["a=1; Path=/", "b=2"],
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_without_a_body_stays_without_a_type(aws: Lambda, shape: Any) -> None:
    aws.plan.payload = {"statusCode": 202, "headers": {}, "body": ""}
    got = ask(routed(), legacy("notifications/initialized"), shape)
    assert (got.status, got.body) == (202, "")
    assert "content-type" not in got.headers


def test_a_whole_answer_that_comes_as_a_stream(aws: Lambda) -> None:
    """Of a function that streams, Invoke gives all that it has sent, one after the other."""
    aws.plan.payload = head(201, cookies=["a=1"]) + EVENT
    got = ask(routed(), legacy("ping"))
    assert (got.status, got.body, got.headers["set-cookie"]) == (201, EVENT.decode(), "a=1")


GONE = 503
UNAVAILABLE = "Sessions are not available at the moment"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "expected", "text"),
    [
        (429, "TooManyRequestsException", 503, "Too many requests"),
        (502, "EC2ThrottledException", 503, "Too many requests"),
        (404, "ResourceNotFoundException", 503, UNAVAILABLE),
        (403, "AccessDeniedException", 503, UNAVAILABLE),
        (500, "ServiceException", 503, UNAVAILABLE),
        (413, "RequestTooLargeException", 413, "Content too large"),
    ],
)
def test_what_lambda_refuses(
    aws: Lambda,
    caplog: pytest.LogCaptureFixture,
    streamed: bool,
    status: int,
    code: str,
    expected: int,
    text: str,
) -> None:
    aws.plan = Plan(status, code, payload={"Message": "internals"})
    told: list[Exception] = []
    handler = routed(on_error=told.append)
    headers, body = legacy("tools/list", id="seven")
    request = ({**headers, "Origin": "https://app.example"}, body)
    if streamed:
        start, *rest = streaming(handler, request)
        got = Answer(start["status"], _named(start), body_of([start, *rest]).decode(), was_base64=False)
    else:
        got = ask(handler, request)
    assert (got.status, got.json["id"], got.json["error"]["code"]) == (
        expected,
        "seven",
        -32600 if expected == 413 else -32603,
    )
    assert text in got.json["error"]["message"]
    assert "internals" not in got.body
    assert got.headers.get("retry-after") == ("1" if text.startswith("Too many") else None)
    # C3: scripts of other origins may read it.
    assert "Mcp-Session-Id" in got.headers["access-control-expose-headers"]
    assert code in caplog.text
    assert isinstance(told[0], RequestRejected)
    # A call must not run twice.
    assert len(aws.asked) == 1


def _named(start: Message) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize(
    ("report", "status", "logged"),
    [
        ({"errorType": "ValueError", "errorMessage": "a secret", "stackTrace": ["a secret"]}, 502, "ValueError"),
        ({"errorType": "Runtime.ExitError", "errorMessage": "Runtime exited"}, 502, "Runtime.ExitError"),
        (
            {"errorType": "Sandbox.Timedout", "errorMessage": "Error: Task timed out after 3.00 seconds"},
            504,
            "own time",
        ),
        ({"errorMessage": "2026-11-30T00:00:00Z x Task timed out after 3.00 seconds"}, 504, "own time"),
        ("no report", 502, "Unhandled"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_function_that_fails(
    aws: Lambda, caplog: pytest.LogCaptureFixture, streamed: bool, report: Any, status: int, logged: str
) -> None:
    if streamed:
        aws.plan = Plan(payload=[], complete={"ErrorCode": "Unhandled", "ErrorDetails": json.dumps(report)})
        start, *rest = streaming(routed(), legacy("ping"))
        found, body = start["status"], json.loads(body_of([start, *rest]))
    else:
        aws.plan = Plan(headers={"X-Amz-Function-Error": "Unhandled"}, payload=report)
        got = ask(routed(), legacy("ping"))
        found, body = got.status, got.json
    assert (found, body["id"], body["error"]["code"]) == (status, 1, -32603)
    assert logged in caplog.text
    assert "a secret" not in caplog.text + json.dumps(body)


def test_what_nobody_thought_of(aws: Lambda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(seconds: int) -> None:
        raise KeyError("a secret")

    monkeypatch.setattr("sealane.routing._client", fail)
    got = ask(routed(), legacy("ping"))
    assert (got.status, got.json["id"], got.json["error"]["message"]) == (502, 1, "Internal server error")
    assert "a request could not be forwarded" in caplog.text


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "text",
        {},
        {"statusCode": "200"},
        {"statusCode": True},
        {"statusCode": 7},
        {"statusCode": 200, "headers": ["a"]},
        {"statusCode": 200, "headers": {"a": "☃"}},
        {"statusCode": 200, "multiValueHeaders": {"a": 1}},
        {"statusCode": 200, "body": 1},
        {"statusCode": 200, "body": "no base64", "isBase64Encoded": True},
        b"no JSON",
        b"",
        b"{" + bytes(8),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_is_none(aws: Lambda, payload: Any, streamed: bool) -> None:
    if streamed:
        aws.plan.payload = [payload if isinstance(payload, bytes) else json.dumps(payload).encode()]
        assert streaming(routed(), legacy("ping"))[0]["status"] == 502
    else:
        aws.plan.payload = payload
        assert ask(routed(), legacy("ping")).status == 502


class Context:
    """Lambda's context of an invocation with little time."""

    def __init__(self, seconds: float) -> None:
        self._milliseconds = int(seconds * 1000)

    def get_remaining_time_in_millis(self) -> int:
        """What is left."""
        return self._milliseconds


def test_a_function_that_is_slow(aws: Lambda, caplog: pytest.LogCaptureFixture) -> None:
    aws.plan = Plan(payload=HTML, pause=3)
    headers, body = legacy("ping")
    started = time.monotonic()
    got = answer(routed()(make_event("rest", headers=headers, body=body), Context(1)))  # type: ignore[arg-type]
    assert time.monotonic() - started < 2
    assert (got.status, got.json["id"]) == (504, 1)
    assert "the time of the invocation is up" in caplog.text


def test_nobody_there(aws: Lambda, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", moto_aws.NOWHERE)
        _client.cache_clear()
        got = ask(routed(), legacy("ping"))
    assert got.status == GONE
    assert "EndpointConnectionError" in caplog.text


def test_a_stream_is_passed_on_as_it_comes(aws: Lambda) -> None:
    # The head comes in pieces too, cut where it is hardest.
    whole = head(cookies=["a=1", "b=2"]) + EVENT
    cut = whole.index(bytes(8)) + 5
    aws.plan = Plan(payload=[whole[:1], whole[1:cut], whole[cut:], EVENT, EVENT])
    start, *rest = streaming(routed(), legacy("ping"))
    assert start["status"] == 200
    assert start["headers"] == [
        (b"content-type", b"text/event-stream"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]
    assert [message["body"] for message in rest] == [EVENT, EVENT, EVENT, b""]
    assert aws.asked[0][0] == f"/2021-11-15/functions/{NAME}/response-streaming-invocations"


def test_a_function_that_does_not_stream_behind_one_that_does(aws: Lambda) -> None:
    text = json.dumps(HTML).encode()
    aws.plan.payload = [text[:20], text[20:]]
    start, *rest = streaming(routed(), legacy("ping"))
    assert (start["status"], body_of([start, *rest])) == (200, b"<p>")


BROKEN = {
    "crash": Plan(
        payload=[head() + EVENT],
        complete={"ErrorCode": "Unhandled", "ErrorDetails": json.dumps({"errorType": "Runtime.ExitError"})},
    ),
    "cut": Plan(payload=[head() + EVENT, OSError()]),
    "no end": Plan(payload=[head() + EVENT], complete=None),
    "slow": Plan(payload=[head() + EVENT, EVENT], pause=2),
}


@pytest.mark.parametrize("plan", BROKEN.values(), ids=BROKEN)
def test_an_event_stream_that_breaks_off_ends_with_an_error(aws: Lambda, plan: Plan) -> None:
    aws.plan = plan
    start, *rest = streaming(routed(), legacy("tools/call", id="a", name="x", arguments={}), seconds=3.5)
    assert start["status"] == 200
    body = body_of([start, *rest])
    assert body.startswith(EVENT)
    error = json.loads(body.removeprefix(EVENT).removeprefix(b"event: message\r\ndata: "))
    assert (error["id"], error["error"]["code"]) == ("a", -32603)
    assert body.endswith(b"\r\n\r\n")


def test_half_an_event_is_not_taken_for_one(aws: Lambda) -> None:
    aws.plan = Plan(payload=[head() + EVENT + EVENT[:-20], OSError()])
    batch = [legacy("ping", id=id)[1] for id in (1, 2)]
    body = body_of(streaming(routed(), (legacy("ping")[0], batch)))
    events = re.split(rb"\r\n\r\n", body)
    assert [json.loads(event.partition(b"data: ")[2])["id"] for event in events[2:4]] == [1, 2]
    assert events[4:] == [b""]


def test_a_standalone_stream_that_breaks_off_just_ends(aws: Lambda) -> None:
    """There is no request to answer, and clients come back."""
    aws.plan = Plan(payload=[head() + EVENT, OSError()])
    assert body_of(streaming(routed(), (SESSION, None), method="GET")) == EVENT


def test_what_is_no_event_stream_breaks_the_connection(aws: Lambda) -> None:
    metadata = json.dumps({"statusCode": 200, "headers": {"content-type": "application/json"}}).encode() + bytes(8)
    aws.plan = Plan(payload=[metadata + b'{"jsonrpc', OSError()])
    with pytest.raises(RuntimeError, match="not whole"):
        streaming(routed(), legacy("ping"))


def test_a_client_that_leaves_is_not_waited_for(aws: Lambda, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    aws.plan = Plan(payload=[head(), *[EVENT] * 40], pause=0.1)
    started = time.monotonic()
    sent = streaming(routed(), legacy("ping"), leave_after=0.5)
    assert time.monotonic() - started < 3.5
    assert len(sent) < 10
    assert "the client left" in caplog.text
    assert aws.left.wait(5)


def test_drained_to_compatibility_who_has_no_session_is_served_without(aws: Lambda) -> None:
    aws.plan.payload = {"statusCode": 418}
    handler = routed("compatibility")
    assert ask(handler, legacy("initialize")).json["result"]["serverInfo"]["name"] == "stateless"
    assert ask(handler, ({}, None), method="GET").status == 405
    assert aws.asked == []
    headers, body = legacy("tools/list")
    assert ask(handler, ({**headers, **SESSION}, body)).status == 418
    assert ask(handler, (SESSION, None), method="GET").status == 418
    assert ask(handler, modern("server/discover")).status == 200


def test_drained_to_a_refusal_the_function_refuses(aws: Lambda) -> None:
    aws.plan.payload = {"statusCode": 400}
    assert ask(routed("refuse"), legacy("initialize")).status == 400
    assert len(aws.asked) == 1


def test_the_stateless_handlers_limit_counts_for_both_lanes(aws: Lambda) -> None:
    handler = routed(max_request_body_size=50)
    assert ask(handler, legacy("initialize")).status == 413
    headers, body = legacy("ping")
    assert ask(handler, ({**headers, "Content-Encoding": "gzip"}, body)).status == 415
    assert aws.asked == []


def test_a_request_that_is_no_event_cannot_be_forwarded() -> None:
    scope = {"type": "http", "method": "GET", "path": "/mcp", "query_string": b"", "headers": []}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        await routed(cors=False).app(scope, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == GONE


def test_warm_calls_use_one_client(aws: Lambda) -> None:
    aws.plan.payload = {"statusCode": 204}
    handler = routed()
    for _ in range(3):
        assert ask(handler, legacy("ping")).status == 204
    assert _client.cache_info().misses == 1


def test_the_stateless_handler_is_what_it_was(aws: Lambda) -> None:
    """Nothing of routing shows where there is no lane."""
    handler = route_by_era(create_mcp_handler(create_server), None)
    assert isinstance(handler, McpHandler)
    assert ask(handler, legacy("initialize")).status == 200
    assert aws.asked == []
