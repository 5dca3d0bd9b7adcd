"""The HTTP API example against an index of the test's own, which can be slow, broken, and gone."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult, TextContent

from sealane.local.testing import ObservedGateway
from tests.docs.blocks import blocks
from tests.docs.console import commands, matches
from tests.examples.conftest import EXAMPLES, environments, restart

pytestmark = pytest.mark.anyio

INFORMATION = {
    "name": "mangum",
    "version": "0.17.0",
    "summary": "AWS Lambda support for ASGI applications",
    "license_expression": None,
    "requires_python": ">=3.7,<4.0",
    "requires_dist": ["typing-extensions"],
    "yanked": False,
}
FOUND = {"id": "CVE-1", "summary": "It leaks.", "fixed_in": ["0.18.0"]}
VERSIONS = ["0.9.0", "0.10.0", "0.17.0", "0.11.0b1", "0.11.0", "very old"]
"""As an index may have them: in no order, and one that is none."""
DOCUMENTS = {
    "/pypi/mangum/json": {
        "info": {**INFORMATION, "author": "A", "version": "0.18.0"},
        "vulnerabilities": [],
        "urls": [],
    },
    "/pypi/mangum/0.17.0/json": {"info": INFORMATION, "vulnerabilities": [{**FOUND, "aliases": []}]},
    "/simple/mangum/": {"meta": {"api-version": "1.3"}, "name": "mangum", "versions": VERSIONS, "files": []},
}
NO_ANSWER = "The package index does not answer as it should at the moment. Try again in a minute, or go on without it."
Fault = int | str | bytes
"""A status; a body; `drop` closes the connection without an answer, `hang` keeps it open
without one until the tests end."""


class Index(ThreadingHTTPServer):
    """A package index on loopback.

    Attributes:
        asked: each request: the client's end of the connection, and the path.
        faults: what the next requests get in place of an answer.
        ending: set when the test ends.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[tuple[Any, str]] = []
        self.faults: list[Fault] = []
        self.ending = threading.Event()

    @property
    def paths(self) -> list[str]:
        """What was asked for."""
        return [path for _, path in self.asked]


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append((self.client_address, self.path))
        document = DOCUMENTS.get(self.path)
        status, body = (200, json.dumps(document).encode()) if document else (404, b"")
        match self.server.faults.pop(0) if self.server.faults else None:
            case "drop":
                self.close_connection = True
                return
            case "hang":
                self.server.ending.wait()
                self.close_connection = True
                return
            case int(fault):
                status, body = fault, b"no"
            case bytes(fault):
                body = fault
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@contextmanager
def running() -> Iterator[Index]:
    with Index() as index:
        thread = threading.Thread(target=index.serve_forever)
        thread.start()
        try:
            yield index
        finally:
            index.ending.set()
            index.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def deployed() -> Iterator[tuple[ObservedGateway, Index]]:
    template = EXAMPLES / "http_api" / "template.yaml"
    with running() as index:
        parameters = {"Timeout": "8", "IndexUrl": index.url}
        with ObservedGateway(template, concurrency=2, parameters=parameters) as gateway:
            yield gateway, index


@pytest.fixture
def gateway(deployed: tuple[ObservedGateway, Index]) -> ObservedGateway:
    """The example, with an environment that has asked for nothing."""
    gateway, _ = deployed
    restart(gateway)
    gateway.calls.clear()
    gateway.lines.clear()
    return gateway


@pytest.fixture
def index(deployed: tuple[ObservedGateway, Index]) -> Index:
    """The index that it asks."""
    _, index = deployed
    index.asked.clear()
    index.faults.clear()
    return index


def text(result: CallToolResult) -> str:
    """The text of a call that has failed, without what the SDK puts before it."""
    assert result.is_error
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text.partition(": ")[2]


def problems(gateway: ObservedGateway) -> list[str]:
    """What the log says about the index."""
    return [json.loads(line.text)["problem"] for line in gateway.lines if '"problem"' in line.text]


async def test_results_are_typed(gateway: ObservedGateway, index: Index) -> None:
    async with Client(gateway.url) as client:
        newest = await client.call_tool("describe_package", {"name": "Mangum"})
        older = await client.call_tool("describe_package", {"name": "mangum", "version": "0.17.0"})
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert newest.structured_content == {**INFORMATION, "version": "0.18.0", "vulnerabilities": []}
    assert older.structured_content == {**INFORMATION, "vulnerabilities": [FOUND]}
    schema = tools["describe_package"].output_schema
    assert schema is not None
    assert schema["properties"].keys() == {*INFORMATION, "vulnerabilities"}
    assert index.paths == ["/pypi/mangum/json", "/pypi/mangum/0.17.0/json"]


async def test_versions_come_in_pages_wherever_each_is_served(gateway: ObservedGateway, index: Index) -> None:
    pages: list[list[str]] = []
    after: str | None = None
    async with Client(gateway.url) as client:
        while after is not None or not pages:
            page = await client.call_tool("list_versions", {"name": "mangum", "limit": 2, "after": after})
            assert page.structured_content is not None
            pages.append(page.structured_content["versions"])
            after = page.structured_content["next"]
            restart(gateway)
        unknown = await client.call_tool("list_versions", {"name": "mangum", "after": "9"})
    assert pages == [["0.17.0", "0.11.0"], ["0.11.0b1", "0.10.0"], ["0.9.0"]]
    assert len(set(environments(gateway))) == 4
    assert "There is no such version" in text(unknown)


async def test_an_environment_asks_once_and_another_one_again(gateway: ObservedGateway, index: Index) -> None:
    async with Client(gateway.url) as client:
        for _ in range(3):
            assert not (await client.call_tool("describe_package", {"name": "mangum"})).is_error
        assert len(index.asked) == 1
        restart(gateway)
        assert not (await client.call_tool("describe_package", {"name": "mangum"})).is_error
    assert len(index.asked) == 2


async def test_a_connection_outlives_a_freeze_and_one_that_has_died_is_replaced(
    gateway: ObservedGateway, index: Index
) -> None:
    async with Client(gateway.url) as client:
        await client.call_tool("describe_package", {"name": "mangum"})
        await client.call_tool("describe_package", {"name": "mangum", "version": "0.17.0"})
        # As after a long freeze: the other end knows nothing of the connection any more.
        index.faults.append("drop")
        answer = await client.call_tool("list_versions", {"name": "mangum"})
    assert not answer.is_error
    connections = [connection for connection, _ in index.asked]
    assert index.paths[2:] == ["/simple/mangum/"] * 2
    assert connections[0] == connections[1] == connections[2] != connections[3]


async def test_what_may_pass_is_tried_again_three_times_at_most(gateway: ObservedGateway, index: Index) -> None:
    async with Client(gateway.url) as client:
        index.faults[:] = [503, 502]
        assert not (await client.call_tool("describe_package", {"name": "mangum"})).is_error
        assert len(index.asked) == 3
        index.faults[:] = [503] * 9
        assert text(await client.call_tool("list_versions", {"name": "mangum"})) == NO_ANSWER
        assert len(index.asked) == 6
        # Nothing of that is remembered.
        index.faults.clear()
        assert not (await client.call_tool("list_versions", {"name": "mangum"})).is_error


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (429, "status 429"),
        (301, "status 301"),
        (b"<html>", "an answer that is not as documented"),
        (b'{"info": {"name": 1}}', "an answer that is not as documented"),
    ],
)
async def test_what_does_not_pass_is_not_tried_again(
    gateway: ObservedGateway, index: Index, fault: Fault, problem: str
) -> None:
    index.faults.append(fault)
    async with Client(gateway.url) as client:
        assert text(await client.call_tool("describe_package", {"name": "mangum"})) == NO_ANSWER
        # Whatever the environment writes of this call comes before what it writes of the next one.
        await client.list_tools()
    assert len(index.asked) == 1
    assert problems(gateway) == [problem]
    assert "mangum" not in "\n".join(line.text for line in gateway.lines)


async def test_the_tool_gives_up_before_the_invocation_ends(gateway: ObservedGateway, index: Index) -> None:
    """Three attempts would take longer than this function may run."""
    index.faults[:] = ["hang"] * 3
    async with Client(gateway.url) as client:
        assert text(await client.call_tool("describe_package", {"name": "mangum"})) == NO_ANSWER
        await client.list_tools()
    assert problems(gateway) == ["ReadTimeout"]


async def test_what_is_not_there_is_said(gateway: ObservedGateway, index: Index) -> None:
    async with Client(gateway.url) as client:
        missing = await client.call_tool("describe_package", {"name": "mangun"})
    assert text(missing) == "The index has no such package or version. Check the spelling."


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "../simple"},
        {"name": "a/b"},
        {"name": ".."},
        {"name": "mangum?x=1"},
        {"name": "mangum", "version": ".."},
        {"name": "mangum", "version": "1/../../x"},
    ],
)
async def test_names_lead_nowhere_else(gateway: ObservedGateway, index: Index, arguments: dict[str, str]) -> None:
    async with Client(gateway.url) as client:
        assert (await client.call_tool("describe_package", arguments)).is_error
    assert index.asked == []


def test_the_client_prints_what_the_readme_says(gateway: ObservedGateway) -> None:
    """The tests of documents do not run it: there the index is PyPI."""
    example = EXAMPLES / "http_api"
    [shown] = [each for each in blocks(example / "README.md") if "client.py" in each.source]
    [(_, _, expected)] = commands(shown)
    command = [sys.executable, str(example / "client.py"), gateway.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert matches(expected, done.stdout), done.stdout
