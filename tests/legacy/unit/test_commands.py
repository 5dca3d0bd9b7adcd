"""`sealane sessions` and `sealane legacy`, as an operator calls them, against a deployed stack at moto."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest
from typer.testing import CliRunner, Result

from sealane.legacy.cli import legacy, sessions
from sealane.legacy.sessions import DynamoDBSessionStore, Limits, Session
from sealane.policy.principal import Principal
from sealane.state.table import Table
from tests.unit import moto_aws

TABLE = "legacy-sessions"
LIMITS = Limits(idle=1800, age=86400, total=100, each=100)
ADA = Principal("client-id", "https://issuer.example", "ada")

DESCRIPTION = """<DescribeStacksResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult>
<Stacks><member><StackName>name</StackName><StackStatus>CREATE_COMPLETE</StackStatus><CreationTime>2026-11-30T00:00:00Z
</CreationTime><Outputs>{}</Outputs><Parameters>{}</Parameters></member></Stacks></DescribeStacksResult>
</DescribeStacksResponse>"""
OUTPUT = "<member><OutputKey>{}</OutputKey><OutputValue>{}</OutputValue></member>"
PARAMETER = "<member><ParameterKey>{}</ParameterKey><ParameterValue>{}</ParameterValue></member>"
UNKNOWN = """<ErrorResponse><Error><Type>Sender</Type><Code>ValidationError</Code>
<Message>Stack with id none does not exist</Message></Error></ErrorResponse>"""


class CloudFormation(BaseHTTPRequestHandler):
    """What CloudFormation says of the stack `sealane`."""

    outputs: ClassVar[dict[str, str]]
    lane: ClassVar[str]

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        found = form["StackName"] == ["sealane"]
        outputs = "".join(OUTPUT.format(*item) for item in self.outputs.items())
        body = DESCRIPTION.format(outputs, PARAMETER.format("LegacyLane", self.lane))
        if not found:
            body = UNKNOWN
        self.send_response(200 if found else 400)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stack `sealane` with its lane on, nobody's so far."""
    with moto_aws.moto(), ThreadingHTTPServer(("127.0.0.1", 0), CloudFormation) as cloudformation:
        moto_aws.create_table(TABLE)
        CloudFormation.outputs = {
            "StatelessFunctionName": "stateless",
            "LegacyFunctionName": "legacy",
            "LegacyTableName": TABLE,
        }
        CloudFormation.lane = "on"
        monkeypatch.delenv("SEALANE_LEGACY_TABLE", raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", f"http://127.0.0.1:{cloudformation.server_port}")
        thread = threading.Thread(target=cloudformation.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            cloudformation.shutdown()
            thread.join()


def run(command: Any, *arguments: str) -> Result:
    """What the command prints and how it ends."""
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "250"})


def status(*arguments: str) -> str:
    """What `sealane legacy status` says."""
    result = run(legacy, "status", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.output


def opened(session_id: str, owner: Principal | None = None, name: str = "old-client", **params: Any) -> Session:
    """A session that is alive."""
    now = int(time.time())
    session = Session(
        id=session_id,
        owner=owner,
        initialize_params={
            "protocolVersion": "2025-06-18",
            "clientInfo": {"name": name, "version": "1.2"},
            "capabilities": {},
            **params,
        },
        protocol_version="2025-06-18",
        created_at=now,
        last_used=now,
        expires_at=now + 1800,
    )
    asyncio.run(DynamoDBSessionStore(Table(TABLE)).create(session, LIMITS))
    return session


def used(name: str, count: float, hours_ago: float = 1, namespace: str = "Sealane", **dimensions: str) -> None:
    """What a function has told CloudWatch."""
    if namespace == "Sealane":
        dimensions = {"service": "sealane", **dimensions}
    moto_aws.get_session().create_client("cloudwatch").put_metric_data(
        Namespace=namespace,
        MetricData=[
            {
                "MetricName": name,
                "Value": count,
                "Timestamp": datetime.now(UTC) - timedelta(hours=hours_ago),
                "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            }
        ],
    )


def invoked(stateless: int, legacy: int, hours_ago: float = 1) -> None:
    """What Lambda has told CloudWatch."""
    used("Invocations", stateless, hours_ago, "AWS/Lambda", FunctionName="stateless")
    used("Invocations", legacy, hours_ago, "AWS/Lambda", FunctionName="legacy")


def row(output: str, first: str) -> list[str]:
    """The words of the line that begins with this one."""
    [line] = [line.split() for line in output.splitlines() if line.split()[:1] == [first]]
    return line[1:]


def test_lists_shows_and_ends_sessions() -> None:
    assert run(sessions, "list").output == "There is no session.\n"
    opened("of-ada-0123456789", ADA)
    opened("of-anyone-0123456", name="\x1b[2J[bold]evil\n")
    output = run(sessions, "list").output
    assert row(output, "of-ada-0123456789")[:6] == [
        "old-client",
        "1.2",
        "2025-06-18",
        "client-id",
        "https://issuer.example",
        "ada",
    ]
    assert "\x1b" not in output
    assert "?[2J[bold]evil?" in output

    assert run(sessions, "end", "of-ada-0123456789").output == "of-ada-0123456789 has ended.\n"
    assert "of-ada" not in run(sessions, "list").output
    for command in ("end", "show"):
        result = run(sessions, command, "of-ada-0123456789")
        assert result.exit_code == 1
        assert "there is no such session" in result.stderr


def test_shows_no_more_of_the_handshake_than_who_it_is_and_what_it_can() -> None:
    opened(
        "of-ada-0123456789",
        ADA,
        capabilities={"elicitation": {"form": {}, "url": {"secret": 1}}, "roots": {}, "sampling": None},
        _meta={"token": "secret"},
        clientInfo={"name": "old-client", "version": "1.2", "title": "secret", "websiteUrl": "secret"},
    )
    result = run(sessions, "show", "of-ada-0123456789")
    assert "secret" not in result.output
    assert row(result.output, "client") == ["old-client", "1.2"]
    assert row(result.output, "capabilities") == ["elicitation", "(form,", "url),", "roots,", "sampling"]
    assert row(result.output, "revision") == ["2025-06-18"]
    assert row(result.output, "principal") == ["client-id", "https://issuer.example", "ada"]
    assert row(result.output, "subscriptions") == ["0"]


def test_the_table_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", moto_aws.NOWHERE)
    opened("of-ada-0123456789", ADA)
    assert "of-ada-0123456789" in run(sessions, "list", "--table", TABLE).output
    monkeypatch.setenv("SEALANE_LEGACY_TABLE", TABLE)
    assert "of-ada-0123456789" in run(sessions, "list").output
    result = run(sessions, "list", "--table", "none")
    assert result.exit_code == 1
    assert "out of reach" in result.stderr


@pytest.mark.parametrize(
    ("command", "arguments"), [(sessions, ["list"]), (sessions, ["show", "x"]), (legacy, ["status"])]
)
def test_a_stack_that_there_is_not(command: Any, arguments: list[str]) -> None:
    result = run(command, *arguments, "--stack", "none")
    assert result.exit_code == 1
    assert re.fullmatch(r"sealane: the stack none cannot be read: .*\n", result.stderr)
    CloudFormation.outputs = {}
    result = run(command, *arguments)
    assert result.exit_code == 1
    assert "is it one of template.yaml?" in result.stderr


def test_a_lane_that_is_off() -> None:
    CloudFormation.lane = "off"
    CloudFormation.outputs = {"StatelessFunctionName": "stateless", "LegacyTableName": TABLE}
    assert "LegacyLane is off.\nThe table of its sessions is still there: LegacyTable=delete removes it." in status()
    CloudFormation.outputs = {"StatelessFunctionName": "stateless"}
    assert status() == "There is no legacy lane: LegacyLane is off.\n"
    result = run(sessions, "list")
    assert (result.exit_code, "no legacy lane" in result.stderr) == (1, True)


def test_a_lane_that_nobody_uses() -> None:
    invoked(500, 0)
    # Long ago, and in another stack.
    invoked(0, 9, hours_ago=30)
    used("LegacyRequests", 9, 30, client="old-client/1.2")
    used("LegacyRequests", 9, client="old-client/1.2", service="other")
    output = status()
    assert row(output, "stateless") == ["500"]
    assert row(output, "legacy") == ["0"]
    assert "Safe to drain, and to switch off: nobody used it in the last 24 hours" in output
    assert "Not yet safe" in status("--hours", "48")


def test_a_lane_that_is_used() -> None:
    invoked(500, 120)
    used("LegacyRequests", 100, client="old-client/1.2")
    used("LegacyRequests", 20, 2, client="older/0.1")
    used("LegacySessions", 3, client="old-client/1.2")
    used("LegacySessions", 3)
    opened("of-ada-0123456789", ADA)
    output = status()
    assert "LegacyLane is on. In the last 24 hours:" in output
    # Each old request is one of the stateless function too, which forwards it.
    assert (row(output, "stateless"), row(output, "legacy")) == (["380"], ["120"])
    assert row(output, "old-client/1.2") == ["100", "3", "1"]
    assert row(output, "older/0.1") == ["20", "0", "0"]
    assert "Not yet safe to drain: 2 clients used it in the last 24 hours." in output
    assert "LegacyDrainTo=compatibility may be enough" in output

    used("LegacyReverseRequests", 4, kind="elicitation_create")
    used("LegacyReverseRequests", 1, kind="roots_list")
    output = status()
    assert "4 elicitation_create, 1 roots_list" in output
    assert "compatibility" not in output

    CloudFormation.outputs = {**CloudFormation.outputs, "LegacyInvokeUrl": "https://x.example"}
    assert row(status(), "stateless") == ["500"]


def test_a_lane_that_is_drained() -> None:
    CloudFormation.lane = "drain"
    session = opened("of-ada-0123456789", ADA)
    assert "Not yet safe to switch off: 1 session will be cut off." in status()
    asyncio.run(DynamoDBSessionStore(Table(TABLE)).end(session.id, ADA))
    assert "Safe to switch off: no session is left, and nobody asked in the last 24 hours." in status()
    invoked(3, 3)
    used("LegacyRequests", 3, client="older/0.1")
    output = status("--hours", "2")
    assert "Safe to switch off: no session is left. 1 client still asked in the last 2 hours" in output
    assert "Deploy LegacyLane=off." in output
