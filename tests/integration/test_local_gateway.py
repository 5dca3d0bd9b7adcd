"""The local gateway itself: real HTTP, a plain template, a real process with a function that misbehaves on demand."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sealane.local import Call, LocalGateway, LogLine, Record
from sealane.local.api_gateway import BODY_LIMIT

ROOT = Path(__file__).parents[2]
TEMPLATE = Path(__file__).with_name("plain.yaml")
ABOVE = "../../"
"""From the template to the repository's folder."""

FUNCTION = """
import json, os, sys, time

print("initialised")


def handler(event, context):
    command, _, argument = (event["body"] or "").partition(" ")
    if command == "raise":
        raise ValueError(argument)
    if command == "exit":
        sys.exit(int(argument))
    if command == "sleep":
        time.sleep(float(argument))
    if command == "spin":
        while True:
            pass
    if command == "answer":
        return json.loads(argument)
    if command == "child":
        import subprocess
        child = subprocess.Popen(["sleep", "60"], start_new_session=argument == "session")
        return {"statusCode": 200, "body": str(child.pid)}
    seen = {
        "event": event,
        "environ": dict(os.environ),
        "path": sys.path,
        "cwd": os.getcwd(),
        "context": [context.aws_request_id, context.invoked_function_arn, context.memory_limit_in_mb,
                    context.function_name, context.get_remaining_time_in_millis()],
    }
    return {"statusCode": 200, "headers": {"Content-Type": "application/json"}, "body": json.dumps(seen)}
"""


class Stub:
    """A gateway in front of the function above, and what it told."""

    def __init__(self, gateway: LocalGateway, records: list[Record]) -> None:
        self.gateway = gateway
        self.records = records
        self.port = int(gateway.base_url.rpartition(":")[2])

    def request(
        self,
        body: bytes | str | None = None,
        path: str = "/mcp",
        method: str = "POST",
        headers: list[tuple[str, str]] | None = None,
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        data = body.encode() if isinstance(body, str) else body
        own_host = any(name == "Host" for name, _ in headers or [])
        connection.putrequest(method, path, skip_host=own_host, skip_accept_encoding=True)
        for name, value in headers or []:
            connection.putheader(name, value)
        if data is not None:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        response = connection.getresponse()
        response.text = response.read().decode()  # type: ignore[attr-defined]
        connection.close()
        return response

    def seen(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        response = self.request(*args, **kwargs)
        assert response.status == 200
        seen: dict[str, Any] = json.loads(text(response))
        return seen

    def status(self, body: str) -> int:
        return self.request(body).status

    def call(self, response: http.client.HTTPResponse) -> Call:
        """The gateway's own account of a response."""
        wanted = response.getheader("x-amzn-RequestId")
        return next(each for each in self.records if isinstance(each, Call) and each.request_id == wanted)


def text(response: http.client.HTTPResponse) -> str:
    body: str = response.text  # type: ignore[attr-defined]
    return body


def exists(pid: int) -> bool:
    """Whether a process runs; one that has ended and only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.fixture(scope="module")
def code_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("function")
    (folder / "app.py").write_text(FUNCTION)
    return folder


@pytest.fixture(scope="module")
def stub(code_dir: Path) -> Iterator[Stub]:
    records: list[Record] = []
    with LocalGateway(
        TEMPLATE,
        parameters={"Timeout": "2", "StageName": "dev"},
        concurrency=3,
        code_dirs={"StatelessFunction": code_dir},
        observe=records.append,
    ) as gateway:
        yield Stub(gateway, records)


def test_the_event_has_what_a_rest_api_sends(stub: Stub) -> None:
    headers = [
        ("Host", "Example.com:8443"),
        ("X-CaSe", "one"),
        ("X-CaSe", "two"),
        ("User-Agent", "me"),
        ("X-Forwarded-For", "203.0.113.9"),
        ("Connection", "keep-alive"),
    ]
    event = stub.seen("é", path="/mcp/?a=1&a=2&b=&c=%C3%A9", method="PUT", headers=headers)["event"]

    assert (event["resource"], event["path"], event["httpMethod"]) == ("/mcp", "/mcp/", "PUT")
    assert event["headers"]["Host"] == "Example.com:8443"
    assert event["headers"]["X-CaSe"] == "two"
    assert event["multiValueHeaders"]["X-CaSe"] == ["one", "two"]
    assert event["headers"]["X-Forwarded-For"] == "203.0.113.9, 127.0.0.1"
    assert event["headers"]["X-Forwarded-Proto"] == "http"
    assert event["headers"]["X-Forwarded-Port"] == str(stub.port)
    assert not {"connection", "content-length"} & {name.lower() for name in event["headers"]}
    assert event["queryStringParameters"] == {"a": "2", "b": "", "c": "é"}
    assert event["multiValueQueryStringParameters"] == {"a": ["1", "2"], "b": [""], "c": ["é"]}
    assert event["pathParameters"] is None
    assert event["stageVariables"] is None
    assert (event["body"], event["isBase64Encoded"]) == ("é", False)

    context = event["requestContext"]
    assert (context["stage"], context["path"], context["resourcePath"]) == ("dev", "/dev/mcp/", "/mcp")
    assert (context["httpMethod"], context["protocol"]) == ("PUT", "HTTP/1.1")
    assert context["domainName"] == "localhost"
    assert (context["identity"]["sourceIp"], context["identity"]["userAgent"]) == ("127.0.0.1", "me")
    assert abs(context["requestTimeEpoch"] / 1000 - time.time()) < 60
    assert all(context[key] for key in ("resourceId", "requestId", "extendedRequestId", "requestTime", "apiId"))


def test_empty_and_binary_bodies(stub: Stub) -> None:
    empty = stub.seen(method="GET")["event"]
    assert (empty["body"], empty["isBase64Encoded"], empty["queryStringParameters"]) == (None, False, None)
    binary = stub.seen(b"\xff\xfe")["event"]
    assert (binary["body"], binary["isBase64Encoded"]) == ("//4=", True)


def test_the_function_runs_as_on_lambda(stub: Stub, code_dir: Path) -> None:
    seen = stub.seen()
    environ = seen["environ"]
    assert seen["cwd"] == environ["LAMBDA_TASK_ROOT"]
    places = [seen["path"].index(str(place)) for place in (code_dir, ROOT / "layers" / "sealane")]
    packages = next(place for place, path in enumerate(seen["path"]) if path.endswith("site-packages"))
    assert places == sorted(places)
    assert places[-1] < packages
    assert environ["AWS_LAMBDA_FUNCTION_NAME"] == "StatelessFunction"
    assert environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "1024"
    assert environ["AWS_LAMBDA_LOG_GROUP_NAME"] == "/aws/lambda/local-stateless"
    assert environ["AWS_EXECUTION_ENV"] == "AWS_Lambda_python3.13"
    assert environ["_HANDLER"] == "app.handler"
    assert environ["_X_AMZN_TRACE_ID"] == seen["event"]["headers"]["X-Amzn-Trace-Id"]
    request_id, arn, memory, name, remaining = seen["context"]
    assert arn == "arn:aws:lambda:us-east-1:123456789012:function:StatelessFunction"
    assert (memory, name) == ("1024", "StatelessFunction")
    assert 0 < remaining <= 2000
    assert request_id != seen["event"]["requestContext"]["requestId"]


def test_the_developers_own_variables_do_not_reach_a_function(code_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "real")
    monkeypatch.setenv("MY_TOKEN", "secret")
    with LocalGateway(TEMPLATE, code_dirs={"StatelessFunction": code_dir}) as gateway:
        environ = Stub(gateway, []).seen()["environ"]
    assert "AWS_PROFILE" not in environ
    assert "MY_TOKEN" not in environ
    assert environ["AWS_ACCESS_KEY_ID"] == "local"


def test_the_answer_becomes_http(stub: Stub) -> None:
    answer = {
        "statusCode": "201",
        "headers": {"WWW-Authenticate": "Bearer", "X-One": "1", "X-Two": "c", "Content-Length": "99"},
        "multiValueHeaders": {"X-Two": ["a", "b"], "X-One": ["1"]},
        "body": "é",
    }
    response = stub.request(f"answer {json.dumps(answer)}")
    assert response.status == 201
    assert text(response) == "é"
    assert response.headers.get_all("X-Two") == ["a", "b", "c"]
    assert response.headers.get_all("X-One") == ["1"]
    assert response.getheader("WWW-Authenticate") is None
    assert response.getheader("x-amzn-remapped-www-authenticate") == "Bearer"
    assert response.getheader("Content-Length") == "2"
    assert response.getheader("Content-Type") == "application/json"


def test_base64_is_not_decoded_without_a_binary_media_type(stub: Stub) -> None:
    answer = {"statusCode": 200, "body": "aGk=", "isBase64Encoded": True}
    assert text(stub.request(f"answer {json.dumps(answer)}")) == "aGk="


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("[1]", "it must be an object, not a list"),
        ("null", "it must be an object, not null"),
        ('{"statusCode": "ok"}', "statusCode must be an HTTP status, not 'ok'"),
        ('{"statusCode": 200, "body": {}}', "body must be text, not an object"),
        ('{"statusCode": 200, "headers": ["a"]}', "headers must be an object, not a list"),
        ('{"statusCode": 200, "headers": {"a": {}}}', "header a must be text, not an object"),
        ('{"statusCode": 200, "headers": {"a": "b\\r\\nc: d"}}', "header a has a line break"),
        ('{"statusCode": 200, "multiValueHeaders": {"a": "b"}}', "multiValueHeaders must be an object of lists"),
        ('{"statusCode": 200, "status": 1}', "it cannot have status"),
    ],
)
def test_a_malformed_answer_is_502_with_the_reason_for_the_developer(stub: Stub, answer: str, reason: str) -> None:
    response = stub.request(f"answer {answer}")
    assert (response.status, json.loads(text(response))) == (502, {"message": "Internal server error"})
    assert stub.call(response).problem == f"malformed answer: {reason}"


def test_other_paths_are_403(stub: Stub) -> None:
    for path in ("/", "/nope", "/mcp/more", "/prod/mcp"):
        response = stub.request("", path=path)
        assert (response.status, json.loads(text(response))) == (403, {"message": "Missing Authentication Token"})


def test_a_body_over_the_limit_is_413(stub: Stub) -> None:
    response = stub.request(b"x" * (BODY_LIMIT + 1))
    assert (response.status, text(response)) == (413, f"HTTP content length exceeded {BODY_LIMIT} bytes.")


def test_an_exception_is_502_and_the_environment_stays(stub: Stub) -> None:
    before = stub.call(stub.request("warm"))
    response = stub.request("raise too bad")
    call = stub.call(response)
    assert (response.status, json.loads(text(response))) == (502, {"message": "Internal server error"})
    assert call.problem is not None
    assert call.problem.startswith("ValueError: too bad (")
    assert call.problem.endswith("app.py:10)")
    assert stub.call(stub.request("again")).environment == call.environment == before.environment
    assert any(isinstance(each, LogLine) and "ValueError: too bad" in each.text for each in stub.records)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("exit 3", "Runtime.ExitError: Runtime exited with error: exit status 3"),
        ("spin", "Sandbox.Timedout: Task timed out after 2.00 seconds"),
    ],
)
def test_a_lost_environment_is_502_and_replaced(stub: Stub, body: str, problem: str) -> None:
    stub.request("warm")
    pids = {environment.number: environment.pid for environment in stub.gateway.environments}
    response = stub.request(body)
    call = stub.call(response)
    assert response.status == 502
    assert call.problem == problem
    assert call.environment is not None
    pid = pids[call.environment]
    assert pid is not None
    assert eventually(lambda: not exists(pid))
    after = stub.call(stub.request("again"))
    assert after.status == 200
    assert after.environment != call.environment


def test_kill_9_in_mid_call_costs_that_call_only(code_dir: Path) -> None:
    with LocalGateway(TEMPLATE, code_dirs={"StatelessFunction": code_dir}) as gateway, ThreadPoolExecutor() as threads:
        stub = Stub(gateway, [])
        [first] = gateway.environments
        assert first.pid is not None
        doomed = threads.submit(stub.status, "sleep 5")
        time.sleep(0.3)
        other = threads.submit(stub.status, "sleep 0.6")
        time.sleep(0.3)
        os.kill(first.pid, signal.SIGKILL)
        assert doomed.result() == 502
        assert other.result() == 200
        assert stub.status("again") == 200
        assert first not in gateway.environments


def test_busy_environments_get_company_and_then_429(stub: Stub) -> None:
    with ThreadPoolExecutor(8) as threads:
        responses = list(threads.map(stub.request, ["sleep 1"] * 6))
    calls = [stub.call(response) for response in responses]
    assert sorted(call.status for call in calls) == [200] * 3 + [429] * 3
    assert len({call.environment for call in calls if call.status == 200}) == 3
    refused = next(response for response in responses if response.status == 429)
    assert json.loads(text(refused)) == {"message": "Too Many Requests"}


def test_concurrent_calls_are_not_mixed_up(stub: Stub) -> None:
    gate = threading.Semaphore(3)

    def call(number: int) -> bool:
        with gate:
            return bool(stub.seen(f"n {number}")["event"]["body"] == f"n {number}")

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(call, range(100)))


def test_a_gateway_gives_up_before_the_function(tmp_path: Path, code_dir: Path) -> None:
    """A tool that spins: 504 for the client, the end of the environment at the function's time-out, a new one after it.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/supported-gateway-response-types.html
    """
    template = tmp_path / "template.yaml"
    template.write_text(
        TEMPLATE.read_text()
        .replace(ABOVE, f"{ROOT}/")
        .replace("Method: ANY", "Method: ANY\n            TimeoutInMillis: 300")
    )
    records: list[Record] = []
    code_dirs = {"StatelessFunction": code_dir}
    with LocalGateway(template, parameters={"Timeout": "1"}, code_dirs=code_dirs, observe=records.append) as gateway:
        stub = Stub(gateway, records)
        [first] = gateway.environments
        assert first.pid is not None
        started = time.monotonic()
        response = stub.request("spin")
        assert 0.3 <= time.monotonic() - started < 0.9
        assert (response.status, json.loads(text(response))) == (504, {"message": "Endpoint request timed out"})
        call = stub.call(response)
        assert (call.environment, call.problem) == (None, "no answer within 0.3 s")
        assert exists(first.pid)
        assert list(gateway.environments) == [first]

        assert eventually(lambda: not exists(first.pid or 0))
        assert 1 <= time.monotonic() - started < 2
        assert not gateway.environments
        after = stub.request()
        assert (after.status, stub.call(after).environment) == (200, 2)
        assert stub.call(after).init_ms is not None
        [second] = gateway.environments
        assert second.pid != first.pid


def test_starts_fast_and_leaves_nothing(code_dir: Path) -> None:
    for _ in range(5):
        started = time.monotonic()
        with LocalGateway(TEMPLATE, code_dirs={"StatelessFunction": code_dir}) as gateway:
            assert time.monotonic() - started < 3
            pids = [environment.pid for environment in gateway.environments]
            grandchild = int(text(Stub(gateway, []).request("child")))
            port = int(gateway.base_url.rpartition(":")[2])
        assert len(pids) == 1
        assert all(eventually(lambda pid=pid: not exists(pid)) for pid in [*pids, grandchild])  # type: ignore[misc]
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


# The command


def project(tmp_path: Path, code: str = FUNCTION) -> Path:
    """A folder with the template, the layer and this function."""
    (tmp_path / "layers").mkdir(parents=True)
    (tmp_path / "template.yaml").write_text(TEMPLATE.read_text().replace(ABOVE, ""))
    (tmp_path / "layers" / "sealane").symlink_to(ROOT / "layers" / "sealane")
    (tmp_path / "functions" / "stateless").mkdir(parents=True)
    (tmp_path / "functions" / "stateless" / "app.py").write_text(code)
    return tmp_path


def sealane(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from sealane.local.cli import app; app()", *arguments]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_serves_until_told_to_stop(tmp_path: Path, ending: signal.Signals) -> None:
    process = subprocess.Popen(  # noqa: S603
        sealane("run", "--port", "0", "--parameter", "Timeout=20"),
        cwd=project(tmp_path / "project"),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    lines = iter(process.stdout.readline, "")
    assert "StatelessFunction 1 | initialised\n" in lines
    url = next(line for line in lines if line.startswith("Serving ")).split()[1]
    assert next(lines) == "Configuration for MCP clients:\n"
    assert json.loads(next(lines)) == {"mcpServers": {"sealane": {"type": "http", "url": url}}}
    port = int(url.split(":")[2].partition("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port)
    grandchildren = []
    for command in (b"child", b"child session"):
        connection.request("POST", "/mcp", command)
        grandchildren.append(int(connection.getresponse().read()))
    children = Path(f"/proc/{process.pid}/task")
    pids = [int(pid) for task in children.iterdir() for pid in (task / "children").read_text().split()]
    connection.request("POST", "/mcp", b"sleep 15")
    time.sleep(0.2)

    process.send_signal(ending)
    started = time.monotonic()
    assert process.wait(5) == (0 if ending != signal.SIGKILL else -signal.SIGKILL)
    assert time.monotonic() - started < 10
    assert len(pids) >= 2
    try:
        for pid in (*pids, *grandchildren):
            assert eventually(lambda pid=pid: not exists(pid))  # type: ignore[misc]
    finally:
        for pid in filter(exists, grandchildren):
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: [each.name for each in tmp_path.iterdir()] == ["project"])
    assert process.stderr.read() == ""
    rest = process.stdout.read()
    if ending != signal.SIGKILL:
        assert "POST /mcp 200 " in rest
        assert "environment 1" in rest


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--template", "no.yaml"], "cannot read no.yaml: No such file or directory"),
        (["--template", "."], "cannot read .: Is a directory"),
        (["--parameter", "Nope=1"], "the template has no parameter Nope; it has StageName, "),
        (["--parameter", "Timeout"], "--parameter takes NAME=VALUE, not 'Timeout'"),
        (["--parameter", "Timeout=901"], "parameter Timeout cannot be above 900"),
        (["--parameter", "Architecture=mips"], "parameter Architecture cannot be 'mips'; it can be arm64, x86_64"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1, port 0: "),
    ],
)
def test_run_refuses_in_one_line(tmp_path: Path, arguments: list[str], error: str) -> None:
    assert_refused(sealane("run", "--port", "0", *arguments), project(tmp_path), error)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import nosuch", "ModuleNotFoundError: No module named 'nosuch' (functions/stateless/app.py:1)"),
        ("\ndef x(:", "Runtime.UserCodeSyntaxError: Syntax error in module 'app': "),
        ("print(1)\nraise RuntimeError('no\\nkey')", "RuntimeError: no key (functions/stateless/app.py:2)"),
        ("", "Runtime.HandlerNotFound: Handler 'handler' missing on module 'app'"),
        ("import sys; sys.exit(4)", "Runtime.ExitError: Runtime exited with error: exit status 4"),
    ],
)
def test_run_says_why_a_function_cannot_start(tmp_path: Path, code: str, error: str) -> None:
    folder = project(tmp_path, code)
    assert_refused(sealane("run", "--port", "0"), folder, f"StatelessFunction cannot start: {error}")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("Resources:", "Resources: [", "b.yaml is not valid YAML: "),
        ("Resources:", "Things:", "b.yaml is not a template: it has no Resources"),
        ("Handler:", "Handlr:", "b.yaml: Resource with id [StatelessFunction] is invalid. property Handlr "),
        ("functions/stateless/", "functions/gone/", "the code of StatelessFunction is not at functions/gone"),
        ("ContentUri: layers/sealane/", "ContentUri: gone/", "the content of a layer is not at gone"),
        ("Path: /mcp", "Path: [", "b.yaml is not valid YAML: "),
    ],
)
def test_run_says_what_is_wrong_with_a_template(tmp_path: Path, old: str, new: str, error: str) -> None:
    folder = project(tmp_path)
    (folder / "b.yaml").write_text((folder / "template.yaml").read_text().replace(old, new))
    assert_refused(sealane("run", "--port", "0", "--template", "b.yaml"), folder, error)


def test_run_says_that_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(sealane("run", "--port", port), project(tmp_path), f"port {port} is taken: choose another one")


def test_run_names_what_it_does_not_emulate(tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    queue = "  Queue:\n    Type: AWS::SQS::Queue\n\nOutputs:"
    template.write_text(TEMPLATE.read_text().replace("Outputs:", queue).replace(ABOVE, f"{ROOT}/"))
    code_dirs = {"StatelessFunction": tmp_path}
    assert "Queue (AWS::SQS::Queue)" in LocalGateway(template, code_dirs=code_dirs).not_emulated


def assert_refused(command: list[str], folder: Path, error: str) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"sealane: {error}")
    assert ended.stderr.count("\n") == 1
