"""Lambda on this machine: real processes with AWS's runtime client, invoked with boto3, as a function would."""

import base64
import gc
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from sealane.local import Call, LocalError, LocalGateway, Record
from sealane.local.invoke_api import ASYNC_EVENT_LIMIT, ASYNC_RETRY_DELAYS, EVENT_LIMIT
from sealane.local.runtime_api import RESPONSE_LIMIT

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function:
    Runtime: python3.11
    Handler: app.handler
    MemorySize: 256
    Timeout: 2
Resources:
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      FunctionName: the-worker
      CodeUri: worker/
      Environment: {Variables: {NOTES: %(notes)s, BROKEN: %(notes)s/broken}}
      Events: {Api: {Type: Api, Properties: {Path: /worker, Method: ANY}}}
  Patient:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: worker/
      Timeout: 10
      Environment: {Variables: {NOTES: %(notes)s, BROKEN: %(notes)s/broken-once}}
  Tools:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: layer/}
  RawInLayer:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: worker/
      Layers: [!Ref Tools]
      Environment: {Variables: {AWS_LAMBDA_EXEC_WRAPPER: /opt/bin/runtime}}
  Raw:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: raw/
      Environment: {Variables: {AWS_LAMBDA_EXEC_WRAPPER: /var/task/runtime}}
"""

FUNCTION = """
import json, os, signal, sys, tempfile, threading, time
from pathlib import Path

broken, notes = Path(os.environ["BROKEN"]), Path(os.environ["NOTES"])
if broken.exists():
    with (notes / "inits").open("a") as file:
        file.write("init ")
    what = broken.read_text()
    if broken.name == "broken-once":
        broken.unlink()
    exec(what)

ticks = 0
kept = []


def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.005)


def handler(event, context):
    do, argument = event.get("do"), event.get("argument")
    with (notes / "calls").open("a") as file:
        file.write(f"{event.get('number', do)} ")
    if do == "raise":
        raise ValueError(argument)
    if do == "exit":
        sys.exit(argument)
    if do == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "spin":
        while True:
            pass
    if do == "sleep":
        time.sleep(argument)
    if do == "tick" and not ticks:
        threading.Thread(target=tick, daemon=True).start()
        time.sleep(0.1)
    if do == "size":
        return "x" * (argument - 2)
    if do == "use":
        kept.append(b"x" * argument)
    if do == "print":
        print(argument, file=sys.stderr)
        print("last words")
    if do == "child":
        import subprocess
        return subprocess.Popen(["sleep", "60"], start_new_session=bool(argument)).pid
    if do == "write":
        with open(argument, "a") as file:
            file.write("more")
        return Path(argument).read_text()
    if do == "files":
        found = {str(each): each.stat().st_mode & 0o777 for each in [Path("."), *Path(".").rglob("*")]}
        return {"found": found, "tmp": os.listdir(tempfile.gettempdir())}
    if do == "invoke":
        import boto3
        answer = boto3.client("lambda").invoke(FunctionName=argument, Payload=b'{"do": "context"}')
        return json.loads(answer["Payload"].read())
    if do == "context":
        return {
            "request_id": context.aws_request_id,
            "arn": context.invoked_function_arn,
            "memory": context.memory_limit_in_mb,
            "name": context.function_name,
            "version": context.function_version,
            "log_stream": context.log_stream_name,
            "log_group": context.log_group_name,
            "remaining": context.get_remaining_time_in_millis(),
            "client": context.client_context and context.client_context.custom,
            "cwd": os.getcwd(),
            "task": os.environ["LAMBDA_TASK_ROOT"],
            "file": __file__,
            "tmp": tempfile.mkstemp()[1],
        }
    return {"pid": os.getpid(), "ticks": ticks, "number": event.get("number")}
"""

RAW_RUNTIME = '''#!%(python)s
"""A runtime that streams, written against the documents of the Runtime API. Its arguments are what it replaces."""
import base64, http.client, json, os, sys, time

connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
prefix = "/2018-06-01/runtime/invocation/"


def chunk(data):
    connection.send(b"%%x\\r\\n%%s\\r\\n" %% (len(data), data))


while True:
    connection.request("GET", prefix + "next")
    response = connection.getresponse()
    event = json.loads(response.read())
    connection.putrequest("POST", prefix + response.headers["Lambda-Runtime-Aws-Request-Id"] + "/response")
    connection.putheader("Lambda-Runtime-Function-Response-Mode", "streaming")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.putheader("Content-Type", "application/vnd.awslambda.http-integration-response")
    connection.putheader("Trailer", "Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body")
    connection.endheaders()
    for piece in event.get("pieces", []):
        chunk(piece.encode())
        time.sleep(event.get("pause", 0))
    trailers = b""
    if event.get("end") == "argv":
        chunk(json.dumps(sys.argv).encode())
    if event.get("end") == "die":
        os._exit(3)
    if event.get("end") == "hang":
        time.sleep(60)
    if event.get("end") == "break":
        connection.close()
        continue
    if event.get("end") == "trailers":
        body = base64.b64encode(json.dumps({"errorType": "Half.Way", "errorMessage": "no more"}).encode())
        trailers = b"Lambda-Runtime-Function-Error-Type: Half.Way\\r\\nLambda-Runtime-Function-Error-Body: "
        trailers += body + b"\\r\\n"
    connection.send(b"0\\r\\n" + trailers + b"\\r\\n")
    connection.getresponse().read()
'''


class Lambda:
    """A local gateway with the functions above, and a client of its Invoke API."""

    def __init__(self, gateway: LocalGateway, notes: Path, records: list[Record]) -> None:
        self.gateway = gateway
        self.notes = notes
        self.records = records
        self.client = boto3.client(
            "lambda",
            endpoint_url=gateway.lambda_url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",  # noqa: S106
            config=Config(retries={"total_max_attempts": 1}, max_pool_connections=200, read_timeout=40),
        )

    def invoke(self, do: str = "", argument: Any = None, function: str = "the-worker", **fields: Any) -> dict[str, Any]:
        """The client's answer, its payload read, the decoded end of the log in "log"."""
        event = json.dumps({"do": do, "argument": argument, **fields}).encode()
        answer: dict[str, Any] = self.client.invoke(FunctionName=function, Payload=event, LogType="Tail")
        answer["result"] = json.loads(answer.pop("Payload").read())
        answer["log"] = base64.b64decode(answer["LogResult"]).decode()
        return answer

    def result(self, *args: Any, **fields: Any) -> Any:
        answer = self.invoke(*args, **fields)
        assert "FunctionError" not in answer, answer
        return answer["result"]

    def pids(self, function: str = "Worker") -> list[int]:
        return [each.pid or 0 for each in self.gateway.environments if each.function.name == function]

    def noted(self, file: str) -> list[str]:
        path = self.notes / file
        return path.read_text().split() if path.exists() else []

    def stream(self, function: str = "Raw", **event: Any) -> Generator[Any, None, None]:
        payload = json.dumps(event).encode()
        answer = self.client.invoke_with_response_stream(FunctionName=function, Payload=payload, LogType="Tail")
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-executed-version"] == "$LATEST"
        yield from answer["EventStream"]


Start = Callable[..., Lambda]


def make_project(folder: Path) -> Path:
    """A template and its functions; gives the template."""
    (folder / "notes").mkdir(parents=True)
    (folder / "worker").mkdir()
    (folder / "worker" / "app.py").write_text(FUNCTION)
    for place in ("raw", "layer/bin"):
        (folder / place).mkdir(parents=True)
        (folder / place / "runtime").write_text(RAW_RUNTIME % {"python": sys.executable})
        (folder / place / "runtime").chmod(0o755)
    template = folder / "template.yaml"
    template.write_text(TEMPLATE % {"notes": folder / "notes"})
    return template


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gateway that ends with the test."""
    gateways: list[LocalGateway] = []

    def begin(**options: Any) -> Lambda:
        records: list[Record] = []
        template = make_project(tmp_path / str(len(gateways)))
        gateways.append(LocalGateway(template, observe=records.append, **options))
        return Lambda(gateways[-1].__enter__(), template.parent / "notes", records)

    yield begin
    for gateway in gateways:
        gateway.__exit__(None, None, None)


@pytest.fixture(scope="module")
def lambda_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lambda]:
    template = make_project(tmp_path_factory.mktemp("project") / "project")
    records: list[Record] = []
    with LocalGateway(template, observe=records.append) as gateway:
        yield Lambda(gateway, template.parent / "notes", records)


def process_state(pid: int) -> str | None:
    """R, S, T (stopped) and so on; None when it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else state


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


# Freezing


def test_an_environment_is_frozen_between_invocations_and_from_its_init_on(start: Start) -> None:
    running = start()
    [pid] = running.pids()
    assert eventually(lambda: process_state(pid) == "T")
    child = running.result("child")
    assert eventually(lambda: process_state(pid) == "T" and process_state(child) == "T")

    before = running.result("tick")["ticks"]
    time.sleep(1)
    after = running.result()["ticks"]
    assert 0 < before <= after <= before + 20, "the thread went on, and 200 ticks were possible"


def test_an_environment_can_be_left_running(start: Start) -> None:
    running = start(freeze=False)
    before = running.result("tick")["ticks"]
    time.sleep(1)
    assert running.result()["ticks"] > before + 20
    assert all(process_state(pid) != "T" for pid in running.pids())


def test_a_frozen_environment_can_be_killed(start: Start) -> None:
    running = start()
    [pid] = running.pids()
    children = [running.result("child", own_session) for own_session in (False, True)]
    assert eventually(lambda: process_state(pid) == "T")
    os.kill(pid, signal.SIGKILL)
    for lost in (pid, *children):
        assert eventually(lambda lost=lost: process_state(lost) is None)  # type: ignore[misc]
    assert eventually(lambda: running.pids() == [])
    assert running.result()["pid"] != pid


# What a function sees


def test_the_context(lambda_: Lambda) -> None:
    answer = lambda_.invoke("context")
    seen = answer["result"]
    assert seen["request_id"] == answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"]
    assert seen["arn"] == "arn:aws:lambda:us-east-1:123456789012:function:the-worker"
    assert (seen["memory"], seen["name"], seen["version"]) == ("256", "the-worker", "$LATEST")
    assert seen["log_group"] == "/aws/lambda/the-worker"
    assert re.fullmatch(r"\d{4}/\d\d/\d\d/\[\$LATEST\][0-9a-f]{32}", seen["log_stream"])
    assert 0 < seen["remaining"] <= 2000
    assert seen["cwd"] == seen["task"]
    assert seen["file"] == str(lambda_.notes.parent / "worker" / "app.py")
    context = base64.b64encode(json.dumps({"custom": {"a": "é"}}).encode()).decode()
    told = lambda_.client.invoke(FunctionName="the-worker", Payload=b'{"do": "context"}', ClientContext=context)
    assert json.loads(told["Payload"].read())["client"] == {"a": "é"}


def test_each_environment_has_a_temporary_directory_that_ends_with_it(start: Start) -> None:
    running = start()
    with ThreadPoolExecutor() as threads:
        busy = threads.submit(running.result, "sleep", 1)
        assert eventually(lambda: running.noted("calls") == ["sleep"])
        assert running.result()
        busy.result()
    one, two = (Path(running.result("context")["tmp"]) for _ in range(2))
    assert one.is_file()
    assert two.is_file()
    assert one.parent != two.parent
    for pid in running.pids():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not one.parent.exists() and not two.parent.exists())


def test_each_environment_has_a_working_directory_of_its_own(start: Start) -> None:
    """Lambda's /var/task is read-only; who runs this as root is not kept from writing, but reaches nobody else."""
    running = start()
    worker = running.notes.parent / "worker"
    (worker / "data").mkdir()
    (worker / "data" / "text.txt").write_text("one ")
    (worker / "data" / "text.txt").chmod(0o600)
    (worker / "tool").write_text("#!/bin/sh")
    (worker / "tool").chmod(0o700)
    (worker / ".env").write_text("A=1")
    (worker / "gone").symlink_to("nowhere")
    for unwanted in (".git", ".venv", "node_modules", "__pycache__", "data/__pycache__"):
        (worker / unwanted).mkdir(exist_ok=True)
        (worker / unwanted / "file").touch()
    before = sorted(worker.rglob("*"))
    for pid in running.pids():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: running.pids() == [])

    with ThreadPoolExecutor() as threads:
        busy = threads.submit(running.result, "sleep", 1)
        assert eventually(lambda: running.noted("calls") == ["sleep"])
        assert running.result("files") == {
            "found": {".": 0o555, "app.py": 0o444, ".env": 0o444, "tool": 0o555, "data": 0o555, "data/text.txt": 0o444},
            "tmp": [],
        }
        busy.result()
    answers = [running.result("context") for _ in range(2)]
    one, two = (Path(answer["cwd"]) for answer in answers)
    assert one != two
    if os.geteuid() == 0:
        assert [running.result("write", "data/text.txt") for _ in range(2)] == ["one more"] * 2
        assert [running.result("write", "new.txt") for _ in range(2)] == ["more"] * 2
    else:
        assert running.invoke("write", "data/text.txt")["result"]["errorType"] == "PermissionError"
        assert running.invoke("write", "new.txt")["result"]["errorType"] == "PermissionError"
    assert (worker / "data" / "text.txt").read_text() == "one "
    assert sorted(worker.rglob("*")) == before
    for pid in running.pids():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not one.exists() and not two.exists())


def test_the_log_ends_with_lambdas_report(start: Start) -> None:
    running = start()
    answer = running.invoke("print", "x" * 5000)
    assert len(answer["log"]) == 4096
    assert answer["log"].startswith("x")
    id = answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"]
    lines = answer["log"].splitlines()
    assert lines[-3:-1] == ["last words", f"END RequestId: {id}"]
    fields = dict(field.split(": ") for field in lines[-1].removeprefix("REPORT ").split("\t"))
    assert fields["RequestId"] == id
    assert fields["Memory Size"] == "256 MB"
    assert "Init Duration" not in fields
    used = int(fields["Max Memory Used"].split()[0])
    assert 5 < used < 150
    more = re.search(r"Max Memory Used: (\d+) MB", running.invoke("use", 100_000_000)["log"])
    assert more is not None
    assert int(more[1]) > used + 80
    assert running.invoke("print", "short")["log"].startswith("START RequestId: ")


# Failures, as Lambda answers them


@pytest.mark.parametrize(
    ("do", "argument", "type", "message"),
    [
        ("raise", "too bad", "ValueError", "too bad"),
        ("exit", 3, "Runtime.ExitError", "RequestId: {} Error: Runtime exited with error: exit status 3"),
        ("exit", 0, "Runtime.ExitError", "RequestId: {} Error: Runtime exited without providing a reason"),
        ("die", None, "Runtime.ExitError", "RequestId: {} Error: Runtime exited with error: signal: killed"),
        ("spin", None, "Sandbox.Timedout", "RequestId: {} Error: Task timed out after 2.00 seconds"),
        (
            "size",
            RESPONSE_LIMIT + 1,
            "Function.ResponseSizeTooLarge",
            "Response payload size exceeded maximum allowed payload size (6291556 bytes).",
        ),
    ],
)
def test_a_failure(lambda_: Lambda, do: str, argument: Any, type: str, message: str) -> None:
    pid = lambda_.result()["pid"]
    while pid != (pid := lambda_.result()["pid"]):
        os.kill(pid, signal.SIGKILL)  # One environment only, so that this one gets the call.
        eventually(lambda: process_state(pid) is None)
    answer = lambda_.invoke(do, argument)
    id = answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"]
    assert (answer["StatusCode"], answer["FunctionError"]) == (200, "Unhandled")
    assert (answer["result"]["errorType"], answer["result"]["errorMessage"]) == (type, message.format(id))
    if do == "raise":
        assert answer["result"]["requestId"] == id
        assert "app.py" in answer["result"]["stackTrace"][-1]
        assert lambda_.result()["pid"] == pid
    else:
        assert process_state(pid) is None
        assert lambda_.result()["pid"] != pid


def test_sizes_up_to_the_limit_pass(lambda_: Lambda) -> None:
    assert len(lambda_.result("size", RESPONSE_LIMIT)) == RESPONSE_LIMIT - 2
    event = b'{"do": "' + b"x" * (EVENT_LIMIT - 11) + b'"}'
    assert len(event) == EVENT_LIMIT - 1
    assert lambda_.client.invoke(FunctionName="the-worker", Payload=event)["StatusCode"] == 200


def test_an_import_error_is_tried_twice_and_answered_as_on_lambda(start: Start) -> None:
    running = start()
    (running.notes / "broken").write_text("import nosuch")
    for pid in running.pids():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: running.pids() == [])
    answer = running.invoke()
    assert answer["FunctionError"] == "Unhandled"
    assert answer["result"]["errorType"] == "Runtime.ImportModuleError"
    assert answer["result"]["errorMessage"] == "Unable to import module 'app': No module named 'nosuch'"
    # Two inits, and one import to tell the developer where it fails.
    assert running.noted("inits") == ["init"] * 3
    problems = [each.problem for each in running.records if isinstance(each, Call)]
    assert problems[-1] is not None
    assert problems[-1].startswith("ModuleNotFoundError: No module named 'nosuch' (")
    (running.notes / "broken").unlink()
    assert running.result()["pid"]


def test_a_slow_init_is_tried_again_within_the_functions_time(start: Start) -> None:
    running = start()
    for pid in running.pids("Worker") + running.pids("Patient"):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: running.pids("Worker") + running.pids("Patient") == [])
    (running.notes / "broken").write_text("time.sleep(60)")
    (running.notes / "broken-once").write_text("time.sleep(60)")
    with ThreadPoolExecutor() as threads:
        started = time.monotonic()
        always = threads.submit(running.invoke)
        once = threads.submit(running.result, function="Patient")
        assert once.result()["pid"] == running.pids("Patient")[0]
        assert time.monotonic() - started > 9.5
        assert always.result()["result"]["errorType"] == "Sandbox.Timedout"
        assert always.result()["result"]["errorMessage"].endswith("Error: Task timed out after 2.00 seconds")
        assert time.monotonic() - started > 11.5
    assert running.pids("Worker") == []


# The Invoke API


@pytest.mark.parametrize(
    "name",
    [
        "the-worker",
        "the-worker:$LATEST",
        "123456789012:function:the-worker",
        "arn:aws:lambda:us-east-1:123456789012:function:the-worker",
        "arn:aws:lambda:us-east-1:123456789012:function:the-worker:$LATEST",
    ],
)
def test_the_names_of_a_function(lambda_: Lambda, name: str) -> None:
    answer = lambda_.invoke("context", function=name)
    assert answer["result"]["name"] == "the-worker"
    assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
    assert lambda_.client.invoke(FunctionName=name, Qualifier="$LATEST")["StatusCode"] == 200


@pytest.mark.parametrize(
    ("request_", "code", "status", "message"),
    [
        ({"FunctionName": "Worker"}, "ResourceNotFoundException", 404, "function:Worker"),
        ({"FunctionName": "the-worker:live"}, "ResourceNotFoundException", 404, "function:the-worker:live"),
        ({"FunctionName": "the-worker", "Qualifier": "7"}, "ResourceNotFoundException", 404, "the-worker:7"),
        ({"FunctionName": "210987654321:function:the-worker"}, "ResourceNotFoundException", 404, "210987654321"),
        (
            {"FunctionName": "the-worker:a", "Qualifier": "b"},
            "InvalidParameterValueException",
            400,
            "derived qualifier",
        ),
        ({"FunctionName": "the-worker", "Payload": b"{"}, "InvalidRequestContentException", 400, "parse request body"),
        (
            {"FunctionName": "the-worker", "Payload": b"\xff"},
            "InvalidRequestContentException",
            400,
            "parse request body",
        ),
        ({"FunctionName": "the-worker", "ClientContext": "e"}, "InvalidRequestContentException", 400, "Client context"),
        (
            {"FunctionName": "the-worker", "Payload": b" " * EVENT_LIMIT},
            "RequestTooLargeException",
            413,
            "Request must be smaller than 6291456 bytes",
        ),
        (
            {"FunctionName": "the-worker", "Payload": b" " * (ASYNC_EVENT_LIMIT + 1), "InvocationType": "Event"},
            "RequestTooLargeException",
            413,
            "1048577 byte payload is too large for the Event invocation type",
        ),
    ],
)
def test_a_refusal(lambda_: Lambda, request_: dict[str, Any], code: str, status: int, message: str) -> None:
    with pytest.raises(ClientError) as refused:
        lambda_.client.invoke(**request_)
    response = refused.value.response
    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert message in response["Error"]["Message"]
    assert isinstance(refused.value, getattr(lambda_.client.exceptions, code))


def test_an_unsigned_request_is_refused(lambda_: Lambda) -> None:
    connection = http.client.HTTPConnection(lambda_.gateway.lambda_url.removeprefix("http://"))
    connection.request("POST", "/2015-03-31/functions/the-worker/invocations", b"{}")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["message"]) == (403, "Missing Authentication Token")
    connection.close()


def test_a_dry_run_runs_nothing(lambda_: Lambda) -> None:
    before = lambda_.noted("calls")
    answer = lambda_.client.invoke(FunctionName="the-worker", InvocationType="DryRun")
    assert answer["StatusCode"] == 204
    assert lambda_.noted("calls") == before


def test_one_function_invokes_another_with_plain_boto3(start: Start) -> None:
    assert start().result("invoke", "the-worker", function="Patient")["name"] == "the-worker"


def test_an_event_is_accepted_at_once_and_tried_three_times(start: Start) -> None:
    running = start()
    fine = running.client.invoke(FunctionName="the-worker", InvocationType="Event", Payload=b'{"do": "fine"}')
    assert (fine["StatusCode"], fine["Payload"].read()) == (202, b"")
    assert eventually(lambda: running.noted("calls") == ["fine"])
    running.client.invoke(FunctionName="the-worker", InvocationType="Event", Payload=b'{"do": "raise"}')
    assert eventually(lambda: len(running.noted("calls")) == 4)
    time.sleep(max(ASYNC_RETRY_DELAYS) + 0.5)
    assert running.noted("calls") == ["fine"] + ["raise"] * 3
    calls = [each for each in running.records if isinstance(each, Call)]
    assert [each.status for each in calls] == [202] * 4
    assert [bool(each.problem) for each in calls] == [False, True, True, True]


def test_a_throttled_event_is_kept_and_a_throttled_request_is_429(start: Start) -> None:
    running = start(concurrency=1)
    with ThreadPoolExecutor() as threads:
        busy = threads.submit(running.result, "sleep", 1.5)
        assert eventually(lambda: running.noted("calls") == ["sleep"])
        running.client.invoke(FunctionName="the-worker", InvocationType="Event", Payload=b'{"do": "later"}')
        with pytest.raises(running.client.exceptions.TooManyRequestsException) as refused:
            running.invoke()
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
        assert refused.value.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
        busy.result()
    assert eventually(lambda: running.noted("calls") == ["sleep", "later"])


def test_a_gateway_that_queues_lets_requests_wait_for_an_environment(start: Start) -> None:
    running = start(concurrency=1, queue=True)
    with ThreadPoolExecutor() as threads:
        busy = threads.submit(running.result, "sleep", 0.5)
        assert eventually(lambda: running.noted("calls") == ["sleep"])
        # One that ends makes place like one that is idle: the next request starts another.
        waiting = [threads.submit(running.invoke, do) for do in ("die", "context", "die", "context")]
        assert busy.result()
        answers = [each.result()["result"] for each in waiting]
    assert [answer.get("errorType") for answer in answers].count("Runtime.ExitError") == 2
    assert sorted(running.noted("calls")) == ["context", "context", "die", "die", "sleep"]


# Streams


def test_chunks_arrive_as_they_are_written(lambda_: Lambda) -> None:
    arrived: list[tuple[float, bytes]] = []
    events = list[Any]()
    for event in lambda_.stream(pieces=["one", "two", "three"], pause=0.4):
        events.append(event)
        if "PayloadChunk" in event:
            arrived.append((time.monotonic(), event["PayloadChunk"]["Payload"]))
    assert [chunk for _, chunk in arrived] == [b"one", b"two", b"three"]
    assert arrived[2][0] - arrived[0][0] > 0.6
    complete = events[-1]["InvokeComplete"]
    assert complete.keys() == {"LogResult"}
    assert "REPORT RequestId" in base64.b64decode(complete["LogResult"]).decode()


def test_a_buffered_answer_can_be_read_as_a_stream_and_the_other_way_round(lambda_: Lambda) -> None:
    chunk, complete = lambda_.stream("the-worker", number=7)
    assert json.loads(chunk["PayloadChunk"]["Payload"])["number"] == 7
    assert "InvokeComplete" in complete
    answer = lambda_.client.invoke(FunctionName="Raw", Payload=b'{"pieces": ["[1,", "2]"]}')
    assert answer["Payload"].read() == b"[1,2]"


@pytest.mark.parametrize(("function", "place"), [("Raw", "raw/runtime"), ("RawInLayer", "layer/bin/runtime")])
def test_a_wrapper_gets_the_command_line_that_it_replaces(lambda_: Lambda, function: str, place: str) -> None:
    chunk, _ = lambda_.stream(function, end="argv")
    wrapper, *command = json.loads(chunk["PayloadChunk"]["Payload"])
    assert wrapper == str(lambda_.notes.parent / place)
    assert command[0] == sys.executable
    # As on Lambda the last one is the script that starts the runtime client, so that options can go before it.
    assert Path(command[-1]).is_file()


def test_a_wrapper_that_is_not_there(tmp_path: Path) -> None:
    template = make_project(tmp_path / "project")
    (tmp_path / "project" / "raw" / "runtime").unlink()
    with pytest.raises(LocalError, match=r"Raw cannot start: Runtime.InvalidEntrypoint: fork/exec .*: no such file"):
        LocalGateway(template).__enter__()


@pytest.mark.parametrize(
    ("end", "type", "message"),
    [
        ("trailers", "Half.Way", "no more"),
        ("die", "Runtime.ExitError", "RequestId: {} Error: Runtime exited with error: exit status 3"),
        ("hang", "Sandbox.Timedout", "RequestId: {} Error: Task timed out after 2.00 seconds"),
        ("break", "Runtime.TruncatedResponse", "RequestId: {} Error: the answer broke off"),
    ],
)
def test_a_stream_that_fails_half_way(lambda_: Lambda, end: str, type: str, message: str) -> None:
    first, complete = lambda_.stream(pieces=["begun"], pause=0.1, end=end)
    assert first["PayloadChunk"]["Payload"] == b"begun"
    assert complete["InvokeComplete"]["ErrorCode"] == "Unhandled"
    details = json.loads(complete["InvokeComplete"]["ErrorDetails"])
    log = base64.b64decode(complete["InvokeComplete"]["LogResult"]).decode()
    assert details == {"errorType": type, "errorMessage": message.format(log.split()[2])}
    [chunk, _] = lambda_.stream(pieces=["again"])
    assert chunk["PayloadChunk"]["Payload"] == b"again"


def test_a_reader_that_goes_away_leaves_the_function_running(lambda_: Lambda) -> None:
    events = lambda_.stream(pieces=["a", "b", "c"], pause=0.3)
    assert next(events)["PayloadChunk"]["Payload"] == b"a"
    events.close()
    [chunk, _] = lambda_.stream(pieces=["again"])
    assert chunk["PayloadChunk"]["Payload"] == b"again"


# Several environments


def test_200_calls_at_once_are_answered_or_refused_and_never_mixed_up(start: Start) -> None:
    running = start(concurrency=4)
    gate = threading.Barrier(200)

    def call(number: int) -> str:
        gate.wait()
        try:
            return "mine" if running.result(number=number)["number"] == number else "another's"
        except running.client.exceptions.TooManyRequestsException:
            return "refused"

    with ThreadPoolExecutor(200) as threads:
        answers = list(threads.map(call, range(200)))
    answered = [number for number, answer in enumerate(answers) if answer == "mine"]
    assert len(answered) >= 4
    assert answers.count("refused") == 200 - len(answered)
    assert sorted(map(int, running.noted("calls"))) == answered
    assert len(running.pids()) <= 4
    assert running.result(number=1)["number"] == 1


def test_a_long_call_delays_nobody(start: Start) -> None:
    running = start()
    with ThreadPoolExecutor() as threads:
        long = threads.submit(running.invoke, "sleep", 3, function="Patient")
        assert eventually(lambda: running.noted("calls") == ["sleep"])
        other = running.invoke(function="Patient")
        assert not long.done()
        assert "Init Duration" in other["log"]
        assert other["result"]["pid"] != long.result()["result"]["pid"]
        assert "Init Duration" not in long.result()["log"]
    calls = [each for each in running.records if isinstance(each, Call)]
    assert [each.environment for each in calls] == [2, 1]
    assert [each.init_ms is not None for each in calls] == [True, False]


def test_kill_9_in_mid_call_fails_that_call_alone(start: Start) -> None:
    running = start()
    [first] = running.pids()
    with ThreadPoolExecutor() as threads:
        doomed = threads.submit(running.invoke, "sleep", 1.5)
        assert eventually(lambda: running.noted("calls") == ["sleep"])
        other = threads.submit(running.result, "sleep", 0.8)
        assert eventually(lambda: running.noted("calls") == ["sleep"] * 2)
        os.kill(first, signal.SIGKILL)
        assert doomed.result()["result"]["errorMessage"].endswith("Runtime exited with error: signal: killed")
        assert other.result()["pid"] != first
    assert running.result()["pid"] != first


# Ends


def marked(marker: str) -> list[str]:
    """Command lines of the running processes that have this text in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes() and process_state(int(process.name)):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except (OSError, UnicodeDecodeError):
            continue
    return found


@pytest.mark.parametrize("moment", [0.05, 0.3, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.5, "busy", "again and again"])
def test_sigint_at_any_moment_leaves_no_process(tmp_path: Path, moment: float | str) -> None:
    make_project(tmp_path / "project")
    (tmp_path / "tmp").mkdir()
    marker = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", "from sealane.local.cli import app; app()", "run", "--port", "0"],
        cwd=tmp_path / "project",
        env={**os.environ, "PYTHONMARKER": marker, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    if isinstance(moment, float):
        time.sleep(moment)
    else:
        url = next(line for line in iter(process.stdout.readline, "") if line.startswith("Serving ")).split()[1]
        port = int(url.split(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /worker HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.recv(100)
            assert len(marked(marker)) >= 4
            connection.sendall(b"GET /worker HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
    process.send_signal(signal.SIGINT)
    while moment == "again and again" and process.poll() is None:
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert eventually(lambda: marked(marker) == [])
    assert list((tmp_path / "tmp").iterdir()) == []


def test_many_starts_and_stops_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = make_project(tmp_path / "project")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    marker = uuid.uuid4().hex
    monkeypatch.setenv("PYTHONMARKER", marker)

    def held() -> tuple[int, int, int, int]:
        gc.collect()  # What tests before this one have left to be closed.
        files = len(os.listdir("/proc/self/fd"))
        return files, threading.active_count(), len(marked(marker)), len(list((tmp_path / "tmp").iterdir()))

    def once() -> None:
        with LocalGateway(template) as gateway:
            running = Lambda(gateway, tmp_path, [])
            assert running.result("child")
            assert running.result("child", True)
            assert held()[2] >= 5
            running.client.close()
            os.kill(gateway.environments[0].pid or 0, signal.SIGKILL)  # What it leaves is cleared away in any case.

    once()
    before = held()
    assert before[2:] == (0, 0)
    for _ in range(int(os.environ.get("SEALANE_STARTS", "10"))):
        once()
    assert eventually(lambda: all(now <= then for now, then in zip(held(), before, strict=True))), (before, held())
