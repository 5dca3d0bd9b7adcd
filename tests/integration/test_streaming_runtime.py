"""The runtime that streams: through the local gateway, and against a Runtime API that does as a test says."""

import base64
import http.client
import json
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from tests.events import Event, legacy, make_event, modern

# What is true of the sample behind a gateway that buffers has to be true of it here: the same tests, other fixtures.
from tests.integration.test_client import (  # noqa: F401
    MODES,
    test_an_unknown_resource_is_an_error,
    test_arguments_that_do_not_fit_are_a_tool_error,
    test_calls_tools,
    test_completes_arguments,
    test_discovers_what_the_server_says_of_itself,
    test_every_client_finds_any_environment,
    test_gets_a_prompt,
    test_lists_everything_in_the_order_of_description,
    test_progress_arrives_in_order,
    test_reads_resources,
)

from sealane.local.errors import LocalError
from sealane.local.gateway import LocalGateway
from sealane.local.process import peak_memory
from sealane.local.records import Call
from sealane.local.testing import ObservedGateway

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
FUNCTION = Path(__file__).parent / "streaming_function"


@pytest.fixture(scope="module")
def gateway() -> Iterator[LocalGateway]:
    """The sample deployment with streaming on.

    With one environment more than there are clients: who has an answer may be back before its environment is.
    """
    with ObservedGateway(ROOT / "template.yaml", concurrency=3, parameters={"ResponseStreaming": "true"}) as running:
        yield running


@pytest.fixture(params=MODES, ids=[mode for mode, _ in MODES])
async def client(request: pytest.FixtureRequest, gateway: LocalGateway) -> AsyncIterator[Client]:
    mode, revision = request.param
    async with Client(gateway.url, mode=mode, cache=None) as connected:
        assert connected.protocol_version == revision
        yield connected


@pytest.fixture(scope="module")
def streams() -> Iterator[ObservedGateway]:
    """Functions made for these tests."""
    with ObservedGateway(FUNCTION / "template.yaml") as running:
        yield running


def call(
    gateway: LocalGateway, tool: str, *, era: Callable[..., Any] = modern, **arguments: Any
) -> http.client.HTTPResponse:
    """The response to a call with a progress token, as soon as its head is there."""
    return post(gateway, *request_for(tool, era, arguments))


def request_for(tool: str, era: Callable[..., Any], arguments: dict[str, Any]) -> tuple[dict[str, str], Any]:
    meta: dict[str, Any] = {"meta": {"progressToken": 1}} if era is modern else {"_meta": {"progressToken": 1}}
    request: tuple[dict[str, str], Any] = era("tools/call", name=tool, arguments=arguments, **meta)
    return request


def post(gateway: LocalGateway, headers: dict[str, str], body: Any, path: str = "/mcp") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(gateway.url).netloc, timeout=30)
    connection.request("POST", path, json.dumps(body), headers)
    return connection.getresponse()


def recorded(gateway: ObservedGateway, response: http.client.HTTPResponse | HTTPError) -> Call:
    """What the gateway knows of a response, once its environment is done with it."""
    while True:
        with suppress(KeyError):
            return gateway.call(response.headers["x-amzn-RequestId"])
        time.sleep(0.01)


def messages(body: bytes) -> list[Any]:
    """The JSON-RPC messages of an event stream, which must be whole."""
    assert body.endswith((b"\r\n\r\n", b"\n\n")), body[-200:]
    return [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]


@pytest.mark.parametrize("era", [modern, legacy])
def test_progress_arrives_when_it_is_made(streams: ObservedGateway, era: Callable[..., Any]) -> None:
    response = call(streams, "steps", era=era)
    assert response.getheader("Content-Type", "").startswith("text/event-stream")
    arrived, body = [], b""
    while piece := response.read1():
        arrived += [time.monotonic()] * piece.count(b"notifications/progress")
        body += piece
    assert [later - earlier for earlier, later in pairwise(arrived)] == pytest.approx([0.3] * 4, abs=0.1)
    *progress, result = messages(body)
    assert [message["params"]["progress"] for message in progress] == [1, 2, 3, 4, 5]
    assert result["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("mode", [mode for mode, _ in MODES])
async def test_progress_arrives_at_the_sdks_client_when_it_is_made(streams: ObservedGateway, mode: ConnectMode) -> None:
    arrived: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        arrived.append(time.monotonic())

    async with Client(urllib.parse.urljoin(streams.url, "/mcp"), mode=mode) as client:
        await client.call_tool("steps", {}, progress_callback=note)
    assert [later - earlier for earlier, later in pairwise(arrived)] == pytest.approx([0.3] * 4, abs=0.1)


async def test_offers_subscriptions(gateway: LocalGateway) -> None:
    async with Client(gateway.url) as client:
        capabilities = client.server_capabilities
        assert capabilities.tools is not None
        assert capabilities.tools.list_changed
        assert capabilities.resources is not None
        assert capabilities.resources.subscribe


def test_the_first_byte_comes_within_50_ms(streams: ObservedGateway) -> None:
    times = []
    for _ in range(11):
        started = time.perf_counter()
        response = call(streams, "wait", seconds=0.05)
        response.read(1)
        times.append(time.perf_counter() - started)
        response.read()
    print(f"time to first byte: {[round(each * 1000, 1) for each in times]} ms")
    assert sorted(times)[5] < 0.05


def test_20_mb_pass_and_the_memory_stays_flat(streams: ObservedGateway) -> None:
    def ask(what: str) -> tuple[int, int]:
        response = post(streams, {}, {}, f"/asgi/{what}")
        return len(response.read()), recorded(streams, response).memory or 0

    _, before = ask("small")
    size, after = ask("large")
    assert size > 20_000_000
    print(f"peak memory: {before} MiB, then {after} MiB")
    assert after - before <= 3


def test_large_notifications_pass(streams: ObservedGateway) -> None:
    *progress, _ = messages(call(streams, "steps", to=20, delay_ms=0, size=1_000_000).read())
    assert sum(len(message["params"]["message"]) for message in progress) == 20_000_000


def test_headers_cookies_and_the_context(streams: ObservedGateway) -> None:
    response = post(streams, {}, {}, "/asgi/small")
    assert response.status == 201
    assert response.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    assert response.getheader("Vary") == "a, b"
    assert re.fullmatch(rb'begun"[0-9a-f-]{36}"', response.read())


def test_the_trace_id_is_handed_over(streams: ObservedGateway) -> None:
    assert "trace Root=1-" in json.loads(call(streams, "hello").read())["result"]["content"][0]["text"]


def test_an_error_before_the_first_byte_is_a_status(streams: ObservedGateway) -> None:
    response = post(streams, {}, {}, "/asgi/before")
    assert response.status == 500
    assert json.loads(response.read())["error"] == {"code": -32603, "message": "Internal server error"}


@pytest.mark.parametrize("what", ["after", "unfinished", "exit"])
def test_an_error_after_the_first_byte_breaks_the_stream_and_only_that(streams: ObservedGateway, what: str) -> None:
    response = post(streams, {}, {}, f"/asgi/{what}")
    assert response.status == 201
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        response.read()
    assert post(streams, {}, {}, "/asgi/small").read().startswith(b"begun")
    failed = recorded(streams, response)
    assert failed.problem is not None
    assert failed.environment in {environment.number for environment in streams.environments}


def test_a_tool_that_fails_after_the_first_byte_is_a_tool_error(streams: ObservedGateway) -> None:
    progress, result = messages(call(streams, "fail").read())
    assert progress["method"] == "notifications/progress"
    assert result["result"]["isError"]
    assert result["result"]["content"][0]["text"] == "Error executing tool fail"


def test_a_plain_function_is_called_as_ever(streams: ObservedGateway) -> None:
    assert post(streams, {}, {}, "/plain").read() == b"Plain 512"
    assert post(streams, {}, {}, "/plain?fail=1").status == 502
    assert post(streams, {}, {}, "/plain").status == 200
    assert any("ValueError: as asked" in line.text for line in streams.lines)


@pytest.fixture(scope="module")
def hurried() -> Iterator[ObservedGateway]:
    """The same with three seconds for an invocation."""
    with ObservedGateway(FUNCTION / "template.yaml", parameters={"Timeout": "3"}) as running:
        yield running


TOO_LONG = {"code": -32603, "message": "The request took longer than this server may run"}


@pytest.mark.parametrize("era", [modern, legacy])
def test_near_the_deadline_an_open_stream_ends_with_an_error(hurried: ObservedGateway, era: Callable[..., Any]) -> None:
    response = call(hurried, "wait", era=era, seconds=10)
    _, error = messages(response.read())
    assert error == {"jsonrpc": "2.0", "id": 1, "error": TOO_LONG}
    # The tool was ended, and not the environment: it asked for its next invocation in time.
    served = recorded(hurried, response)
    assert 2000 < served.duration_ms - (served.init_ms or 0) < 3000
    assert served.problem is None
    assert served.environment in {environment.number for environment in hurried.environments}
    assert "finally after waiting" in " ".join(hurried.logs(served.environment or 0))


@pytest.mark.parametrize(("era", "status"), [(modern, 504), (legacy, 200)])
def test_near_the_deadline_a_silent_tool_is_answered_with_an_error(
    hurried: ObservedGateway, era: Callable[..., Any], status: int
) -> None:
    response = call(hurried, "wait", era=era, seconds=10, report=False)
    assert response.status == status
    assert json.loads(response.read()) == {"jsonrpc": "2.0", "id": 1, "error": TOO_LONG}


def test_near_the_deadline_a_tool_that_cannot_be_cancelled_is_answered_too(hurried: ObservedGateway) -> None:
    response = call(hurried, "block", seconds=2.7)
    assert json.loads(response.read())["error"] == TOO_LONG


def test_near_the_deadline_a_subscription_ends_with_its_result(hurried: ObservedGateway) -> None:
    request = modern("subscriptions/listen", notifications={"toolsListChanged": True}, id="s")
    acknowledged, result = messages(post(hurried, *request).read())
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert result["id"] == "s"
    assert result["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "s"
    assert json.loads(call(hurried, "hello").read())["result"]


@pytest.mark.parametrize(
    ("handler", "code", "said"),
    [
        ("app.handler", "\nraise ValueError('no start')", r"ValueError: no start \(.*app\.py:2\)"),
        ("app.handler", "import nothing", r"No module named 'nothing' \(.*app\.py:1\)"),
        ("app.handler", "\ndef", r"Runtime\.UserCodeSyntaxError: Syntax error in module 'app': .*app\.py:2\)"),
        ("app.other", "", r"Runtime\.HandlerNotFound: Handler 'other' missing on module 'app'"),
        ("app", "", r"Runtime\.MalformedHandlerName: Bad handler 'app'"),
    ],
)
def test_a_function_that_cannot_start_says_why(tmp_path: Path, handler: str, code: str, said: str) -> None:
    template = (FUNCTION / "template.yaml").read_text().replace("../../../layers", str(ROOT / "layers"))
    (tmp_path / "template.yaml").write_text(template.replace("app.handler", handler))
    (tmp_path / "app.py").write_text(code)
    with pytest.raises(LocalError, match=said), LocalGateway(tmp_path / "template.yaml"):
        pass


# Against the raw Runtime API.


@dataclass
class Posted:
    """What the runtime has sent to one place."""

    path: str
    headers: dict[str, str]
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)


class Api(ThreadingHTTPServer):
    """A Runtime API.

    Attributes:
        events: are handed out, one by one.
        posted: what came back.
        break_off: an answer's connection is closed once this is in it.
        pause: seconds between two reads of an answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Place)
        self.events: queue.Queue[Event] = queue.Queue()
        self.posted: queue.Queue[Posted] = queue.Queue()
        self.break_off: bytes | None = None
        self.pause = 0.0
        self.seconds = 20.0


class Place(BaseHTTPRequestHandler):
    server: Api
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(ConnectionError):  # The runtime leaves without more words.
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/2018-06-01/runtime/restore/next":
            self.server.posted.put(Posted(self.path, {}))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        assert self.path == "/2018-06-01/runtime/invocation/next"
        event = json.dumps(self.server.events.get()).encode()
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", "request-1")
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + self.server.seconds) * 1000)))
        self.send_header("Content-Length", str(len(event)))
        self.end_headers()
        self.wfile.write(event)

    def do_POST(self) -> None:
        posted = Posted(self.path, {name.lower(): value for name, value in self.headers.items()})
        if "content-length" in posted.headers:
            posted.body = self.rfile.read(int(posted.headers["content-length"]))
        else:
            while size := int(self.rfile.readline(), 16):
                posted.body += self.rfile.read(size)
                self.rfile.readline()
                time.sleep(self.server.pause)
                if self.server.break_off is not None and self.server.break_off in posted.body:
                    self.server.posted.put(posted)
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
            while line := self.rfile.readline().strip():
                name, _, value = line.decode().partition(": ")
                posted.trailers[name.lower()] = value
        self.server.posted.put(posted)
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()


@dataclass
class Raw:
    """A runtime and the API that it asks."""

    api: Api
    process: "subprocess.Popen[str]"
    lines: list[tuple[float, str]]

    def ask(self, event: Event) -> Posted:
        self.api.events.put(event)
        return self.api.posted.get(timeout=20)


@contextmanager
def runtime(handler: str = "app.handler", **variables: str) -> Iterator[Raw]:
    api = Api()
    threading.Thread(target=api.serve_forever, daemon=True).start()
    paths = [str(FUNCTION), str(ROOT / "layers" / "sealane")]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{api.server_port}",
        "PYTHONPATH": os.pathsep.join(paths),
        "_HANDLER": handler,
        **variables,
    }
    command = [str(ROOT / "layers/sealane/bin/sealane-stream"), sys.executable, "/var/runtime/bootstrap.py"]
    lines: list[tuple[float, str]] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        output = process.stdout
        assert output is not None

        def read() -> None:
            lines.extend((time.time(), line) for line in output)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield Raw(api, process, lines)
        finally:
            process.kill()
            reader.join()
            api.shutdown()
            api.server_close()


def event(tool: str, era: Callable[..., Any] = modern, **arguments: Any) -> Event:
    headers, body = request_for(tool, era, arguments)
    return make_event("rest", headers=headers, body=body)


def test_the_form_of_a_streamed_answer() -> None:
    with runtime() as raw:
        posted = raw.ask(event("steps", to=1, delay_ms=0))
    assert posted.path == "/2018-06-01/runtime/invocation/request-1/response"
    assert posted.headers["lambda-runtime-function-response-mode"] == "streaming"
    assert posted.headers["content-type"] == "application/vnd.awslambda.http-integration-response"
    assert posted.headers["transfer-encoding"] == "chunked"
    prelude, _, body = posted.body.partition(bytes(8))
    head = json.loads(prelude)
    assert (head["statusCode"], head["cookies"]) == (200, [])
    assert head["headers"]["content-type"] == "text/event-stream"
    assert len(messages(body)) == 2
    assert posted.trailers == {}


def test_the_error_trailers() -> None:
    with runtime("app.asgi") as raw:
        posted = raw.ask(make_event("rest", path="/asgi/after"))
    assert posted.body.endswith(bytes(8) + b"begun")
    assert posted.trailers["lambda-runtime-function-error-type"] == "ValueError"
    report = json.loads(base64.b64decode(posted.trailers["lambda-runtime-function-error-body"]))
    assert report["errorMessage"] == "after the first byte"
    assert "app.py" in report["stackTrace"][-1]


def test_an_init_error_is_reported_and_ends_the_process() -> None:
    with runtime("app.missing") as raw:
        posted = raw.api.posted.get(timeout=10)
        assert raw.process.wait(timeout=5) == 1
    assert posted.path == "/2018-06-01/runtime/init/error"
    assert posted.headers["lambda-runtime-function-error-type"] == "Runtime.HandlerNotFound"
    assert json.loads(posted.body) == {
        "errorMessage": "Handler 'missing' missing on module 'app'",
        "errorType": "Runtime.HandlerNotFound",
        "stackTrace": [],
    }


@pytest.mark.parametrize("era", [modern, legacy])
def test_an_answer_that_nobody_takes_cancels_the_tool_within_a_second(era: Callable[..., Any]) -> None:
    """Without a further write: the tool waits in silence."""
    with runtime() as raw:
        raw.api.break_off = b"notifications/progress"
        raw.ask(event("wait", era, seconds=15))
        broken = time.time()
        raw.api.break_off = None
        # The next invocation waits until the environment asks for it.
        posted = raw.ask(event("hello"))
        assert b"trace None" in posted.body
        assert time.time() - broken < 1.5
        [(_, line)] = [each for each in raw.lines if "finally after waiting" in each[1]]
        after = float(line.split()[-1]) - broken
        print(f"finally ran {after * 1000:.0f} ms after the connection broke")
        assert after < 1
        assert len(messages(raw.ask(event("steps", to=2, delay_ms=0)).body.partition(bytes(8))[2])) == 3


def test_an_answer_that_nobody_takes_while_it_is_written() -> None:
    with runtime() as raw:
        raw.api.break_off = b'"progress":2'
        raw.ask(event("steps", to=1000, delay_ms=5, size=10_000))
        raw.api.break_off = None
        started = time.monotonic()
        assert b"trace None" in raw.ask(event("hello")).body
        assert time.monotonic() - started < 1


def test_a_slow_taker_does_not_fill_the_memory() -> None:
    with runtime("app.asgi") as raw:
        raw.ask(make_event("rest", path="/asgi/small"))
        before = peak_memory(raw.process.pid) or 0
        raw.api.pause = 0.003
        assert len(raw.ask(make_event("rest", path="/asgi/large")).body) > 20_000_000
        after = peak_memory(raw.process.pid) or 0
    print(f"peak memory: {before} MiB, then {after} MiB")
    assert after - before <= 3


@pytest.mark.parametrize("shape", ["http", "http-v1", "alb", "sam-local"])
def test_who_cannot_stream_gets_mangums_answer(shape: Any) -> None:
    headers, body = modern("tools/call", name="hello", arguments={})
    variables = {"AWS_SAM_LOCAL": "true"} if shape == "sam-local" else {}
    with runtime(**variables) as raw:
        posted = raw.ask(make_event(shape, headers=headers, body=body))
    assert posted.headers["content-type"] == "application/json"
    answer = json.loads(posted.body)
    assert answer["statusCode"] == 200
    assert json.loads(answer["body"])["result"]


@pytest.mark.parametrize("shape", ["rest", "url"])
def test_who_can_stream_gets_a_stream(shape: Any) -> None:
    headers, body = modern("tools/call", name="hello", arguments={})
    with runtime() as raw:
        posted = raw.ask(make_event(shape, headers=headers, body=body))
    assert json.loads(posted.body.partition(bytes(8))[2])["result"]


def test_pings_and_what_is_no_http_event() -> None:
    with runtime() as raw:
        assert json.loads(raw.ask({"source": "aws.events"}).body) == {"statusCode": 204}
        assert json.loads(raw.ask({}).body)["statusCode"] == 400
        prelude, _, body = raw.ask({"requestContext": {}}).body.partition(bytes(8))
        assert json.loads(prelude)["statusCode"] == 400
        assert json.loads(body)["error"]["code"] == -32600


def test_every_line_names_its_invocation() -> None:
    with runtime("app.asgi") as raw:
        raw.ask(make_event("rest", path="/asgi/before"))
        raw.ask(make_event("rest", path="/asgi/small"))
    [fields] = [json.loads(line) for _, line in raw.lines if "an invocation failed" in line]
    assert (fields["level"], fields["request_id"]) == ("ERROR", "request-1")
    assert "ValueError" in fields["exception"]


def test_the_hooks_of_snap_start_run_in_their_order() -> None:
    with runtime("snap.handler", AWS_LAMBDA_INITIALIZATION_TYPE="snap-start") as raw:
        assert raw.api.posted.get(timeout=10).path == "/2018-06-01/runtime/restore/next"
        assert json.loads(raw.ask({}).body) == ["last registered", "first registered", "restored"]


@pytest.mark.parametrize(
    ("hook", "paths", "type", "status"),
    [
        ("before", ["init/error"], "Runtime.BeforeSnapshotError", 64),
        ("after", ["restore/next", "restore/error"], "Runtime.AfterRestoreError", 65),
    ],
)
def test_a_hook_that_fails_is_reported_as_awss_own_runtime_does(
    hook: str, paths: list[str], type: str, status: int
) -> None:
    with runtime("snap.handler", AWS_LAMBDA_INITIALIZATION_TYPE="snap-start", FAILING_HOOK=hook) as raw:
        asked = [raw.api.posted.get(timeout=10) for _ in paths]
        assert raw.process.wait(10) == status
    assert [each.path for each in asked] == [f"/2018-06-01/runtime/{path}" for path in paths]
    assert asked[-1].headers["lambda-runtime-function-error-type"] == type
    assert json.loads(asked[-1].body)["errorMessage"] == "a hook has failed"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "{task}:{layers}:/var/runtime"),
        ({"PYTHONPATH": "/var/runtime"}, "{task}:{layers}:/var/runtime"),
        ({"PYTHONPATH": "/var/task/own"}, "{task}:/var/task/own:{layers}:/var/runtime"),
    ],
)
def test_the_wrapper_completes_the_path_as_the_program_that_it_replaces(
    tmp_path: Path, given: dict[str, str], path: str
) -> None:
    python = tmp_path / "python3.13"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"')
    python.chmod(0o755)
    variables = {"LAMBDA_RUNTIME_DIR": "/var/runtime", "LAMBDA_TASK_ROOT": "/var/task", **given}
    command = [str(ROOT / "layers/sealane/bin/sealane-stream"), str(python), "/var/runtime/bootstrap.py"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)  # noqa: S603
    layers = "/opt/python/lib/python3.13/site-packages:/opt/python"
    assert done.stdout == f"{path.format(task='/var/task', layers=layers)} -u -P -m sealane.gateway.streaming\n"
