"""Revisions that the referee does not speak and no current client asks for, on the wire, through the local gateway."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp_types.methods import validate_server_result

from sealane.local.testing import ObservedGateway

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gateway() -> Iterator[ObservedGateway]:
    with ObservedGateway(ROOT / "template.yaml", concurrency=2) as running, ThreadPoolExecutor() as threads:
        # Two environments: each is busy while the other one starts.
        list(threads.map(lambda _: count_slowly(Wire(running, "2025-06-18")), range(2)))
        yield running


def count_slowly(wire: "Wire") -> None:
    """A call of half a second or longer."""
    wire.request("tools/call", name="count", arguments={"to": 1, "delay_ms": 500})


class Wire:
    """A client of an old revision, as its specification has it.

    Args:
        gateway: whom it talks to.
        version: the revision; those from 2025-06-18 on name it in a header, after the handshake.
    """

    def __init__(self, gateway: ObservedGateway, version: str) -> None:
        self._endpoint = urlsplit(gateway.url)
        self._version = version
        self._headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        self._id = 0

    def post(self, message: Any) -> tuple[int, str, str]:
        """Status, content type and body of the answer."""
        with closing(HTTPConnection(self._endpoint.netloc, timeout=30)) as connection:
            connection.request("POST", self._endpoint.path, json.dumps(message), self._headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("content-type", ""), answer.read().decode()

    def request(self, method: str, **params: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The result, valid as the SDK has these revisions (one schema for all of them), and the notifications."""
        self._id += 1
        status, kind, body = self.post({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert status == 200, body
        if kind.startswith("text/event-stream"):
            lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
            *before, answer = [json.loads(line) for line in lines if line.strip()]
        else:
            before, answer = [], json.loads(body)
        assert answer["id"] == self._id
        validate_server_result(method, self._version, answer["result"])
        result: dict[str, Any] = answer["result"]
        return result, before

    def connect(self) -> dict[str, Any]:
        """The handshake."""
        client = {"name": "old", "version": "1.0.0"}
        result, _ = self.request(
            "initialize", protocolVersion=self._version, capabilities={"elicitation": {}}, clientInfo=client
        )
        if self._version >= "2025-06-18":
            self._headers["MCP-Protocol-Version"] = self._version
        status, _, body = self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (status, body) == (202, "")
        return result


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_an_old_client_is_served_by_any_environment(gateway: ObservedGateway, version: str) -> None:
    first = len(gateway.calls)
    wire = Wire(gateway, version)
    assert wire.connect()["protocolVersion"] == version

    tools, _ = wire.request("tools/list")
    assert {"hello", "create_notebook", "delete_notebook"} <= {tool["name"] for tool in tools["tools"]}
    hello, _ = wire.request("tools/call", name="hello", arguments={"name": "Ada"})
    assert (hello["content"][0]["text"], hello["isError"]) == ("Hello, Ada!", False)

    made, _ = wire.request("tools/call", name="create_notebook", arguments={"title": "Groceries"})
    notebook = json.loads(made["content"][0]["text"])
    wire.request("tools/call", name="add_note", arguments={**notebook, "text": "Milk"})
    read, _ = wire.request("tools/call", name="list_notes", arguments=notebook)
    assert json.loads(read["content"][0]["text"])["notes"] == ["Milk"]

    asked, _ = wire.request("tools/call", name="delete_notebook", arguments=notebook)
    assert asked["isError"]
    assert "To the author" in asked["content"][0]["text"]

    counted, before = wire.request(
        "tools/call", name="count", arguments={"to": 2, "delay_ms": 1}, _meta={"progressToken": "p"}
    )
    assert counted["content"][0]["text"] == "Counted to 2."
    assert [(each["method"], each["params"]["progress"]) for each in before] == [
        ("notifications/progress", 1),
        ("notifications/progress", 2),
    ]

    resource, _ = wire.request("resources/read", uri="greeting://fr")
    assert resource["contents"][0]["text"] == "Bonjour"
    prompt, _ = wire.request("prompts/get", name="introduce", arguments={"name": "Ada"})
    assert "Introduce Ada" in prompt["messages"][0]["content"]["text"]

    calls = gateway.calls[first:]
    assert {call.era for call in calls} == {"legacy"}
    assert len({call.environment for call in calls}) == 2


def test_a_batch_is_refused_with_one_answer(gateway: ObservedGateway) -> None:
    # 2025-03-26 alone has batches; no SDK sends them, and ours does not serve them.
    wire = Wire(gateway, "2025-03-26")
    wire.connect()
    status, _, body = wire.post([{"jsonrpc": "2.0", "id": id, "method": "ping"} for id in (1, 2)])
    assert (status, json.loads(body)["error"]["code"]) == (400, -32600)
