"""Faults of AWS and of environments: what the client gets, what the log says, which metrics and alarms tell of it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp import Client
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from tests.cloudwatch import Point, Watched, as_json
from tests.events import modern
from tests.integration.conftest import ROOT
from tests.integration.test_notebooks import Person, text
from tests.planted import PLANTED

from sealane.local.aws_services import AwsCall
from sealane.local.testing import ObservedGateway, absent, deny, throttle

pytestmark = pytest.mark.anyio

TRY_AGAIN = "The stored data is out of reach at the moment. Try the same call again in a few seconds."
ORDINARY = {"Requests", "Latency", "ColdStart"}
"""Metrics that rise with every request."""


class Deployment(ObservedGateway):
    """The sample deployment with one environment and alarms.

    Args:
        streaming: the parameter `ResponseStreaming`.
    """

    def __init__(self, streaming: str) -> None:
        # A slow machine is no fault here.
        parameters = {"ResponseStreaming": streaming, "Timeout": "5", "AlarmLatency": "60000"}
        super().__init__(ROOT / "template.yaml", concurrency=1, queue=True, parameters=parameters)
        self.streams = streaming == "true"
        self.watched = Watched(parameters)

    def start_anew(self) -> None:
        """Let the next request find an environment that has served nothing."""
        for environment in self.environments:
            self.kill(environment.number)

    @contextmanager
    def without_table(self) -> Iterator[None]:
        """Within the block there is no table."""
        client, name = self.aws.client("dynamodb"), self.watched.table
        table = client.describe_table(TableName=name)["Table"]
        client.delete_table(TableName=name)
        try:
            yield
        finally:
            kept = {each: table[each] for each in ("TableName", "KeySchema", "AttributeDefinitions")}
            client.create_table(**kept, BillingMode="PAY_PER_REQUEST")

    def out_of_memory(self) -> AbstractContextManager[object]:
        """Within the block an environment is killed, as the kernel does, while it waits for DynamoDB."""

        async def kill(call: AwsCall) -> None:
            await anyio.to_thread.run_sync(self.kill, call.environment)

        return self.aws.fault("dynamodb", kill)


@pytest.fixture(scope="module", params=["false", "true"], ids=["buffered", "streamed"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    with Deployment(request.param) as running:
        yield running


@pytest.fixture
async def client(deployment: Deployment) -> AsyncIterator[Client]:
    async with Client(deployment.url, elicitation_callback=Person(confirm=True)) as connected:
        yield connected


@dataclass
class Seen:
    """What is told of some requests, and of one after them that is served.

    Attributes:
        lines: the requests' lines in the log, without that of the last.
        points: metrics, with those of the last.
    """

    watched: Watched
    lines: list[dict[str, Any]] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def raised(self) -> dict[str, float]:
        """Sums of the stack's own metrics that do not rise with every request."""
        sums: dict[str, float] = {}
        for point in self.points:
            if point.namespace == "Sealane" and point.dimensions == {"service": "local"}:
                sums[point.metric] = sums.get(point.metric, 0) + sum(point.values)
        return {name: value for name, value in sums.items() if name not in ORDINARY}

    def alarms(self, times: int = 1) -> set[str]:
        """Alarms that go off when all this happens so often within five minutes."""
        return self.watched.breached(self.points * times)


@asynccontextmanager
async def watching(deployment: Deployment, client: Client, *, throttled: bool = False) -> AsyncIterator[Seen]:
    """What is told of the requests of the block, once it has ended and the next request is served.

    Args:
        throttled: DynamoDB turns all calls of the block away.
    """
    await all_told(deployment, client)
    calls, lines, asked = len(deployment.calls), len(deployment.lines), len(deployment.aws.calls("dynamodb"))
    seen = Seen(deployment.watched)
    yield seen
    turned_away = deployment.aws.calls("dynamodb")[asked:] if throttled else ()
    await all_told(deployment, client)
    texts = [line.text for line in deployment.lines[lines:]]
    *seen.lines, _ = [line for line in map(as_json, texts) if "duration_ms" in line]
    seen.points = seen.watched.of_log(texts) + seen.watched.of_aws(deployment.calls[calls:], turned_away)


async def all_told(deployment: Deployment, client: Client) -> None:
    """Read a resource. With one environment, what came before is told of before that."""
    calls, lines = len(deployment.calls), len(deployment.lines)
    await client.read_resource("info://server")

    with anyio.fail_after(10):
        while True:
            texts = [line.text for line in deployment.lines[lines:]]
            # The last line is its metrics.
            has_line = any("duration_ms" in line and "resource" in line for line in map(as_json, texts[:-1]))
            if has_line and any(call.message == "resources/read info://server" for call in deployment.calls[calls:]):
                return
            await anyio.sleep(0.01)


async def notebook(client: Client) -> dict[str, str]:
    """Arguments that name a notebook with a secret in it."""
    made = await client.call_tool("create_notebook", {"title": PLANTED})
    assert made.structured_content is not None
    handle: dict[str, str] = made.structured_content
    await client.call_tool("add_note", {**handle, "text": PLANTED})
    return handle


async def test_nothing_goes_off_while_all_is_well(deployment: Deployment, client: Client) -> None:
    async with watching(deployment, client) as seen:
        handle = await notebook(client)
        assert text(await client.call_tool("delete_notebook", handle)) == "The notebook is deleted."
    assert seen.alarms(times=100) == set()
    assert seen.raised.keys() == {"StateSealed", "KmsCalls"}


@pytest.mark.parametrize(
    ("fault", "reason", "alarms"),
    [
        (throttle, "ProvisionedThroughputExceededException", {"FailuresAlarm", "TableThrottlesAlarm"}),
        (absent, "ServiceUnavailable", {"FailuresAlarm"}),
        (deny, "AccessDeniedException", {"FailuresAlarm"}),
        ("gone", "ResourceNotFoundException", {"FailuresAlarm"}),
    ],
    ids=["throttled", "absent", "denied", "gone"],
)
async def test_a_table_that_fails(
    deployment: Deployment, client: Client, fault: Any, reason: str, alarms: set[str]
) -> None:
    handle = await notebook(client)
    async with watching(deployment, client, throttled=fault is throttle) as seen:
        with deployment.without_table() if fault == "gone" else deployment.aws.fault("dynamodb", fault):
            answer = await client.call_tool("list_notes", handle)
    assert answer.is_error
    assert text(answer) == TRY_AGAIN
    [line] = seen.lines
    assert (line["reason"], line["error_code"]) == (f"dynamodb get_item: {reason}", "tool_error")
    assert "refused_for" not in line
    assert seen.raised == {"Errors": 1}
    assert seen.alarms(times=10) == alarms


async def test_kms_denies(deployment: Deployment, client: Client) -> None:
    handle = await notebook(client)
    await anyio.to_thread.run_sync(deployment.start_anew)
    async with watching(deployment, client) as seen:
        with deployment.aws.fault("kms", deny), pytest.raises(MCPError) as failed:
            await client.call_tool("delete_notebook", handle)
    assert failed.value.error.code == -32603
    assert failed.value.error.message.endswith("at the moment. Send the same request again in a few seconds.")
    [line] = seen.lines
    assert line["reason"] in (
        "kms decrypt: AccessDeniedException",
        "kms generate_data_key_without_plaintext: AccessDeniedException",
    )
    assert line["error_code"] == -32603
    assert seen.raised == {"Errors": 1, "KmsCalls": 1, "KmsFailures": 1}
    assert seen.alarms() == {"KmsFailuresAlarm"}
    assert seen.alarms(times=10) == {"KmsFailuresAlarm", "FailuresAlarm"}
    assert text(await client.call_tool("delete_notebook", handle)) == "The notebook is deleted."


async def test_an_environment_out_of_memory(deployment: Deployment, client: Client) -> None:
    """It can tell nothing: Lambda and the gateway do."""
    handle = await notebook(client)
    async with watching(deployment, client) as seen:
        with deployment.out_of_memory(), pytest.raises(MCPError) as failed:
            await client.call_tool("list_notes", handle)
    assert (failed.value.error.code, failed.value.error.message) == (-32603, "Internal server error")
    assert seen.lines == []
    assert seen.raised == {}
    assert seen.alarms(times=10) == {"CrashesAlarm", "ServerErrorsAlarm"}


async def test_what_the_gateway_answers_itself_is_json_rpc(deployment: Deployment, client: Client) -> None:
    headers, body = modern("tools/call", id="seven", name="list_notes", arguments=await notebook(client))
    async with httpx2.AsyncClient() as http:
        with deployment.out_of_memory():
            killed = await http.post(deployment.url, headers=headers, json=body)
        too_long = await http.post(deployment.url, headers=headers, content=b"x" * 10_485_761)
    assert [killed.status_code, too_long.status_code] == [502, 413]
    for answer, code in ((killed, -32603), (too_long, -32600)):
        assert answer.headers["content-type"] == "application/json"
        # It has not read the request: https://www.jsonrpc.org/specification#response_object
        assert answer.json().keys() == {"jsonrpc", "id", "error"}
        assert answer.json()["id"] is None
        assert answer.json()["error"]["code"] == code


async def test_a_stream_that_breaks_off(deployment: Deployment, client: Client) -> None:
    """Its status is sent. No error can follow, JSON-RPC or not; the connection ends before the stream does."""
    if not deployment.streams:
        pytest.skip("a buffered answer is whole or none")

    async def kill(progress: float, total: float | None, message: str | None) -> None:
        await anyio.to_thread.run_sync(deployment.start_anew)

    async with watching(deployment, client) as seen:
        with pytest.raises(MCPError):
            await client.call_tool("count", {"to": 100, "delay_ms": 10}, progress_callback=kill)
    assert seen.lines == []
    assert seen.raised == {}
    assert seen.alarms(times=10) == {"CrashesAlarm"}


async def _ignore(progress: float, total: float | None, message: str | None) -> None:
    """Takes no notice."""


@pytest.mark.parametrize("progress", [None, _ignore], ids=["silent", "telling"])
async def test_a_tool_that_takes_too_long(deployment: Deployment, client: Client, progress: ProgressFnT | None) -> None:
    async with watching(deployment, client) as seen:
        with pytest.raises(MCPError) as failed:
            await client.call_tool("count", {"to": 100, "delay_ms": 500}, progress_callback=progress)
    [line] = seen.lines
    assert failed.value.error.code == -32603
    assert seen.raised == {"Errors": 1}
    alarms = seen.alarms(times=10)
    if not deployment.streams:
        assert failed.value.error.message == "Internal server error"
        assert line["reason"] == "the time of the invocation is up"
        assert alarms == {"FailuresAlarm", "CrashesAlarm", "ServerErrorsAlarm"}
        return
    assert failed.value.error.message == "The request took longer than this server may run"
    assert line["reason"].startswith(f"{failed.value.error.message}: give the tool a time limit")
    assert line["error_code"] == -32603
    assert line["status"] == (504 if progress is None else 200)
    assert alarms == {"FailuresAlarm", "ServerErrorsAlarm"} - (set() if progress is None else {"ServerErrorsAlarm"})


async def test_states_that_are_tampered_with(deployment: Deployment, client: Client) -> None:
    asked = await client.session.call_tool("delete_notebook", await notebook(client), allow_input_required=True)
    state = f"{asked.model_dump()['request_state'][:-8]}{PLANTED}"

    async def tamper() -> None:
        with pytest.raises(MCPError) as refused:
            await client.session.call_tool("delete_notebook", {"notebook": PLANTED}, request_state=state)
        assert refused.value.error.code == -32602

    async with watching(deployment, client) as nine:
        for _ in range(9):
            await tamper()
    async with watching(deployment, client) as tenth:
        await tamper()
    [line] = tenth.lines
    assert (line["refused_for"], line["reason"]) == ("state", "the request state is not accepted")
    assert line["error_code"] == -32602
    assert nine.raised == {"StateRefused": 9, "Refused": 9}
    assert nine.alarms() == set()
    nine.points += tenth.points
    assert nine.alarms() == {"RefusedStatesAlarm"}
