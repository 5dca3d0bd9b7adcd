"""What a server's calls to AWS cost its callers: no new connection, no call that is not needed, no wait without end."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from sealane import ANYONE, Catalog, HandleStore, Keyring, McpHandler, create_mcp_handler, once
from sealane.state.table import Table
from tests.events import Answer, answer, make_event, modern
from tests.unit import moto_aws
from tests.unit.moto_aws import Door, Fate

catalog = Catalog()
notes = HandleStore("note")


@catalog.tool()
async def keep() -> str:
    """Write, and read again."""
    return str((await notes.get(await notes.create("kept", ttl=60, owner=ANYONE))).value)


@catalog.tool()
async def act(order: str) -> str:
    """Do something once."""
    return str(await once(lambda: "done", key=order))


@catalog.tool()
async def asked(ctx: Context) -> str | InputRequiredResult:
    """Ask first."""
    if ctx.input_responses:
        return f"{ctx.request_state}"
    question = ElicitRequest(
        params=ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": {}})
    )
    return InputRequiredResult(input_requests={"answer": question}, request_state="sealed")


def create_server() -> MCPServer:
    return catalog.server("caller")


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, str]]:
    """URL of moto's server, and the id of a key of its KMS."""
    with moto_aws.moto_server() as url, moto_aws.aws_variables(url):
        kms = moto_aws.get_session().create_client("kms")
        yield url, kms.create_key()["KeyMetadata"]["KeyId"]


@pytest.fixture
def door(upstream: tuple[str, str]) -> Iterator[Door]:
    with Door(upstream[0]).open() as door:
        yield door


@pytest.fixture
def handler(upstream: tuple[str, str], door: Door) -> McpHandler:
    """A server as a new environment has it."""
    keyring = Keyring(stack="stack", key_id=upstream[1], table=Table(moto_aws.TABLE))
    return create_mcp_handler(create_server, keyring=keyring)


class Invocation:
    """Lambda's context of an invocation that may take so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.client_context = None

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds_left * 1000)


def call(handler: McpHandler, tool: str, context: Any, **params: Any) -> Answer:
    capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
    params = {"arguments": {}, **params}
    headers, body = modern("tools/call", client_capabilities=capabilities, name=tool, **params)
    return answer(handler(make_event("rest", headers=headers, body=body), context))


def test_warm_calls_use_one_connection_for_each_service_and_describe_nothing(handler: McpHandler, door: Door) -> None:
    """Over 20 invocations with state of every kind."""
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000, client_context=None)
    for number in range(20):
        assert "kept" in call(handler, "keep", context).body
        assert "done" in call(handler, "act", context, arguments={"order": str(number)}).body
        state = call(handler, "asked", context).json["result"]["requestState"]
        given = {"answer": {"action": "accept", "content": {}}}
        assert "sealed" in call(handler, "asked", context, requestState=state, inputResponses=given).body
    assert {service: len(addresses) for service, addresses in door.connections.items()} == {
        "DynamoDB_20120810": 1,
        "TrentService": 1,
    }
    assert len(door.operations) > 80
    assert set(door.operations) == {
        "Decrypt",
        "GenerateDataKeyWithoutPlaintext",
        "GetItem",
        "PutItem",
        "Query",
        "UpdateItem",
    }


@pytest.mark.parametrize("fate", ["held", "500", "busy", "throttled", "cut before"])
@pytest.mark.parametrize("tool", ["keep", "act"])
def test_an_outage_is_told_while_there_is_time(handler: McpHandler, door: Door, tool: str, fate: Fate) -> None:
    door.fates = [fate] * 20
    context = Invocation(2)
    told = call(handler, tool, context, arguments={"order": fate} if tool == "act" else {})
    assert context.seconds_left > 0
    assert told.json["result"]["isError"]
    assert "the stored data is out of reach at the moment" in told.json["result"]["content"][0]["text"].lower()


@pytest.mark.parametrize("fate", ["held", "500", "throttled"])
def test_so_is_one_of_the_keys(handler: McpHandler, door: Door, fate: Fate) -> None:
    """They are needed before and after the tool: what fails is the request."""
    door.fates = [fate] * 20
    context = Invocation(2)
    told = call(handler, "asked", context)
    assert context.seconds_left > 0
    assert told.json["error"]["message"].startswith("Request state cannot be sealed at the moment.")
