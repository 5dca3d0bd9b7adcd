"""DynamoDB for tests of `sealane.state`: moto in this process, or moto's server behind a door that loses answers."""

import functools
import http.client
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import pytest
from botocore.session import Session  # type: ignore[import-untyped]
from moto import mock_aws

from sealane.state import aws
from sealane.state.table import TABLE_VARIABLE
from tests.moto_process import TABLE_DEFINITION, moto_process

TABLE = "data"
get_session = functools.cache(Session)
"""One session for all tests: each new one reads botocore's files again, for a tenth of a second."""
NOWHERE = "http://127.0.0.1:1"
"""An endpoint where nothing listens: with it, what does not fail did not call."""

Fate: TypeAlias = Literal[
    "served", "taken", "throttled", "500", "busy", "cut before", "lost", "cut", "500 after", "held"
]
"""What becomes of a request at a `Door`.

The service does not hear of it: `taken` (200, nothing said), `throttled` (400), `500`, `busy` (503, a page of HTML),
`cut before` (no answer). It is carried out: `served`, `lost` (no answer), `cut` (half an answer), `500 after`; `held`
waits for `release`.
"""


@contextmanager
def aws_variables(endpoint: str | None = None) -> Iterator[pytest.MonkeyPatch]:
    """Dummy credentials, the name of the table, an endpoint; no file of the developer's has a part in it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("AWS_ACCESS_KEY_ID", "local")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "local")
        patch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        patch.setenv(TABLE_VARIABLE, TABLE)
        patch.setattr("botocore.session.get_session", get_session)
        if endpoint is not None:
            patch.setenv("AWS_ENDPOINT_URL", endpoint)
        aws.forget_clients()
        try:
            yield patch
        finally:
            aws.forget_clients()


@contextmanager
def moto() -> Iterator[None]:
    """An empty table in this process."""
    with aws_variables(), mock_aws():
        create_table()
        yield


@contextmanager
def moto_server() -> Iterator[str]:
    """The URL of moto in a process of its own, with an empty table."""
    with moto_process() as url:
        with aws_variables(url):
            create_table()
        yield url


def create_table(name: str = TABLE) -> None:
    """Make the table as the template has it."""
    client().create_table(TableName=name, **TABLE_DEFINITION)


def items() -> list[dict[str, Any]]:
    """All items of the table, expired ones too."""
    return cast("list[dict[str, Any]]", client().scan(TableName=TABLE, ConsistentRead=True)["Items"])


def client() -> Any:
    """A client of the test's own."""
    return get_session().create_client("dynamodb")


class Door(ThreadingHTTPServer):
    """What stands between the code under test and DynamoDB, and decides what becomes of each request.

    Args:
        upstream: URL of the service; without one no request may get that far.

    Attributes:
        fates: what becomes of the next requests; after those all are served.
        operations: the operations that were asked for, in order.
        connections: by the name of a service in `x-amz-target`, the addresses at which its clients were.
        requests: what was asked for, with each of them.
        holding: is set once a request is held.
        release: lets the requests go that are held.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: str = NOWHERE) -> None:
        super().__init__(("127.0.0.1", 0), _Passage)
        self.upstream = upstream
        self.fates: list[Fate] = []
        self.operations: list[str] = []
        self.connections: defaultdict[str, set[Any]] = defaultdict(set)
        self.requests: list[dict[str, Any]] = []
        self.holding = threading.Event()
        self.release = threading.Event()

    @property
    def url(self) -> str:
        """The endpoint for the code under test."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def open(self) -> Iterator["Door"]:
        """Serve, with the variables that lead here."""
        thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        thread.start()
        try:
            with aws_variables(self.url):
                yield self
        finally:
            self.release.set()
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has hung up."""


class _Passage(BaseHTTPRequestHandler):
    server: Door
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        door = self.server
        service, _, operation = self.headers["x-amz-target"].partition(".")
        door.operations.append(operation)
        door.connections[service].add(self.client_address)
        door.requests.append(json.loads(body))
        match door.fates.pop(0) if door.fates else "served":
            case "taken":
                self._send(200, b"{}")
            case "throttled":
                self._refuse(400, "ProvisionedThroughputExceededException")
            case "500":
                self._refuse(500, "InternalServerError")
            case "busy":
                self._send(503, b"<html>Service Unavailable</html>")
            case "cut before":
                self.close_connection = True
            case "lost":
                self._carry_out(body)
                self.close_connection = True
            case "cut":
                status, answer, checksum = self._carry_out(body)
                self._send(status, answer, checksum, sent=len(answer) // 2)
                self.close_connection = True
            case "500 after":
                self._carry_out(body)
                self._refuse(500, "InternalServerError")
            case "held":
                door.holding.set()
                door.release.wait()
                self._send(*self._carry_out(body))
            case _:
                self._send(*self._carry_out(body))

    def _carry_out(self, body: bytes) -> tuple[int, bytes, str]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        with closing(http.client.HTTPConnection(urlsplit(self.server.upstream).netloc)) as connection:
            connection.request("POST", "/", body, headers)
            response = connection.getresponse()
            return response.status, response.read(), response.headers["x-amz-crc32"]

    def _refuse(self, status: int, type: str) -> None:
        self._send(status, json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{type}", "message": ""}).encode())

    def _send(self, status: int, body: bytes, checksum: str | None = None, sent: int | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(body)))
        if checksum:
            self.send_header("x-amz-crc32", checksum)
        self.end_headers()
        self.wfile.write(body[:sent])

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
