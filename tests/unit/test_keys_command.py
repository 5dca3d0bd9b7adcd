"""`sealane keys`, as an operator calls it, against a deployed stack at moto."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs

import pytest
from botocore.session import get_session  # type: ignore[import-untyped]
from typer.testing import CliRunner, Result

from sealane.local.cli import app
from sealane.state.keyring import Keyring, Ring
from sealane.state.table import Table
from tests.unit import moto_aws
from tests.unit.test_keyring import opening, refusal, sealing

DESCRIPTION = """<DescribeStacksResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult>
<Stacks><member><StackName>name</StackName><StackStatus>CREATE_COMPLETE</StackStatus><CreationTime>2026-11-30T00:00:00Z
</CreationTime><Outputs>{}</Outputs></member></Stacks></DescribeStacksResult></DescribeStacksResponse>"""
OUTPUT = "<member><OutputKey>{}</OutputKey><OutputValue>{}</OutputValue></member>"
UNKNOWN = """<ErrorResponse><Error><Type>Sender</Type><Code>ValidationError</Code>
<Message>Stack with id none does not exist</Message></Error></ErrorResponse>"""


class CloudFormation(BaseHTTPRequestHandler):
    """What CloudFormation says of the stacks `sealane` and `other`."""

    key_id: ClassVar[str]

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        outputs = OUTPUT.format("KeyArn", self.key_id) + OUTPUT.format("DataTableName", moto_aws.TABLE)
        match form["StackName"]:
            case ["sealane"]:
                status, body = 200, DESCRIPTION.format(outputs)
            case ["other"]:
                status, body = 200, DESCRIPTION.format("")
            case _:
                status, body = 400, UNKNOWN
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def sealane(*arguments: str) -> Result:
    """What the command prints and how it ends."""
    return CliRunner().invoke(app, ["keys", *arguments], env={"COLUMNS": "150"})


def rows() -> list[list[str]]:
    """The words of each line of `sealane keys list`, under its head."""
    return [line.split() for line in sealane("list").output.splitlines()[1:]]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    """The ring of an environment of the stack `sealane`."""
    with moto_aws.moto(), ThreadingHTTPServer(("127.0.0.1", 0), CloudFormation) as cloudformation:
        CloudFormation.key_id = get_session().create_client("kms").create_key()["KeyMetadata"]["Arn"]
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", f"http://127.0.0.1:{cloudformation.server_port}")
        thread = threading.Thread(target=cloudformation.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Keyring(stack="sealane", key_id=CloudFormation.key_id, table=Table(moto_aws.TABLE)).ring("notes")
        finally:
            cloudformation.shutdown()
            thread.join()


def test_lists_rotates_and_revokes(ring: Ring) -> None:
    assert "There is no data key yet" in sealane("list").output
    first = sealing(ring).id
    [[server, key_id, *_, state]] = rows()
    assert (server, key_id, state) == ("notes", first, "seals")

    rotated = sealane("rotate", "notes")
    second = rotated.output.split()[0]
    assert f"{second} seals for notes" in rotated.output
    ring.forget()
    assert sealing(ring).id == second
    assert opening(ring, first).id == first
    assert [row[-1] for row in rows()] == ["sealed", "seals"]

    assert f"{first} is revoked" in sealane("revoke", "notes", first).output
    ring.forget()
    assert refusal(ring, first) == "revoked key"
    assert "revoked" in rows()[0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("list", "--stack", "none"), "the stack none cannot be read"),
        (("list", "--stack", "other"), "the stack other has no output 'KeyArn': is it one of template.yaml?"),
        (("revoke", "notes", "20787-0"), "there is no such key"),
        (("revoke", "notes", "nonsense"), "there is no such key"),
    ],
)
@pytest.mark.usefixtures("ring")
def test_says_in_one_line_what_it_cannot_do(arguments: tuple[str, ...], complaint: str) -> None:
    result = sealane(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"sealane: {complaint}")
    assert result.stderr.count("\n") == 1
    assert moto_aws.items() == []


@pytest.mark.usefixtures("ring")
def test_says_when_aws_does_not_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", moto_aws.NOWHERE)
    result = sealane("list")
    assert result.exit_code == 1
    assert "out of reach" in result.stderr
