"""What outlives a request, through the local gateway: several environments, freezing, faults at the emulator."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.events import modern
from tests.integration.test_streaming_runtime import recorded

from sealane.local.testing import ObservedGateway, absent, deny, slow, throttle

TEMPLATE = Path(__file__).parent / "state_function" / "template.yaml"
DEPLOYMENT = Path(__file__).parents[2] / "template.yaml"
INVALID = {"code": -32602, "message": "Invalid or expired requestState", "data": {"reason": "invalid_request_state"}}
YES = {"answer": {"action": "accept", "content": {"confirm": True}}}
RESOLVED_YES = {"app:may_i": YES["answer"]}


@dataclass(frozen=True)
class Reply:
    """An answer and where it came from."""

    environment: int
    body: Any

    @property
    def error(self) -> Any:
        return self.body["error"]

    @property
    def state(self) -> str:
        """The state of an answer that asks."""
        assert self.body["result"]["resultType"] == "input_required", self.body
        state: str = self.body["result"]["requestState"]
        return state

    @property
    def text(self) -> str:
        """The text of a finished call."""
        assert not self.body["result"].get("isError"), self.body
        return "\n".join(item["text"] for item in self.body["result"]["content"])

    @property
    def refusal(self) -> str:
        """The text of a failed call."""
        assert self.body["result"]["isError"], self.body
        text: str = self.body["result"]["content"][0]["text"]
        return text


@dataclass(frozen=True)
class Client:
    """A client of the function."""

    gateway: ObservedGateway

    def call(self, tool: str, *, subject: str | None = None, **params: Any) -> Reply:
        """Call a tool; a call that finds every environment busy (429) is made again."""
        arguments = params.pop("arguments", {})
        headers, body = modern(
            "tools/call",
            client_capabilities={"elicitation": {"form": {}}},
            name=tool,
            arguments=arguments,
            **params,
        )
        if subject is not None:
            headers["x-test-subject"] = subject
        request = urllib.request.Request(self.gateway.url, json.dumps(body).encode(), headers)  # noqa: S310
        while True:
            try:
                response = urllib.request.urlopen(request, timeout=25)  # noqa: S310
            except urllib.error.HTTPError as error:
                response = error
            with response:
                content = json.loads(response.read())
                if response.status != 429:
                    environment = recorded(self.gateway, response).environment
                    assert environment is not None, content
                    return Reply(environment, content)
            time.sleep(0.02)

    def again(self, tool: str, state: str, answers: Any = YES, **params: Any) -> Reply:
        """The second round of a call."""
        return self.call(tool, requestState=state, inputResponses=answers, **params)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two environments of the function, both warm."""
    with ObservedGateway(TEMPLATE, concurrency=2) as gateway:
        client = Client(gateway)
        warm(client)
        yield client


Start = Callable[..., ObservedGateway]


@pytest.fixture
def cold(local_gateway: Start) -> Client:
    """A function of the test's own, of which nobody has asked anything."""
    return Client(local_gateway(TEMPLATE, concurrency=2))


def warm(client: Client) -> None:
    """Have two environments."""
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(client.call, "wait", arguments={"seconds": 1}) for _ in range(2)]
    assert {call.result().environment for call in calls} == {1, 2}


@pytest.mark.parametrize(("tool", "answers"), [("by_hand", YES), ("resolved", RESOLVED_YES)])
def test_p3_any_environment_goes_on_where_any_other_has_asked(client: Client, tool: str, answers: Any) -> None:
    pairs = set()
    for attempt in range(12):
        first = client.call(tool, arguments={"text": "hi"})
        for _ in range(attempt % 2):
            client.call("wait", arguments={"seconds": 0})
        second = client.again(tool, first.state, answers, arguments={"text": "hi"})
        assert second.text == ("hi: hi" if tool == "by_hand" else "hi: True")
        pairs.add((first.environment, second.environment))
    assert pairs == {(1, 1), (1, 2), (2, 1), (2, 2)}


def refusals(client: Client) -> list[str]:
    """Why states were refused so far, by the log."""
    lines = [json.loads(line.text) for line in client.gateway.lines if "requestState rejected" in line.text]
    return [line["message"].rpartition(": ")[2] for line in lines]


def test_a_call_is_one_line_of_the_log_which_says_nothing_of_its_arguments(client: Client) -> None:
    before = len(client.gateway.lines)
    client.call("by_hand", id="my-id", subject="grace", arguments={"text": "planted"})
    deadline = time.time() + 10
    while not (lines := [each.text for each in client.gateway.lines[before:] if '"my-id"' in each.text]):
        assert time.time() < deadline
        time.sleep(0.01)
    [line] = [json.loads(each) for each in lines]
    known = {key: line[key] for key in ("message", "method", "tool", "era", "lane", "status", "cold_start")}
    assert known == {
        "message": "served",
        "method": "tools/call",
        "tool": "by_hand",
        "era": "modern",
        "lane": "stateless",
        "status": 200,
        "cold_start": False,
    }
    assert line["request_id"]
    assert len(line["principal"]) == 16
    written = "".join(each.text for each in client.gateway.lines[before:])
    assert "planted" not in written
    assert "grace" not in written


def test_every_altered_byte_is_refused_with_one_text(client: Client) -> None:
    state = client.call("by_hand", arguments={"text": "hi"}).state
    before = len(refusals(client))
    altered = [
        state[:place] + ("B" if letter == "A" else "A") + state[place + 1 :] for place, letter in enumerate(state)
    ]
    cut = [state[:length] for length in range(0, len(state), 10)]
    for wrong in altered + cut:
        assert client.again("by_hand", wrong, arguments={"text": "hi"}).error == INVALID
    assert client.again("by_hand", state, arguments={"text": "hi"}).text
    reasons = refusals(client)[before:]
    assert len(reasons) == len(altered + cut)
    assert set(reasons) == {"unknown key", "malformed", "seal"}


def test_a_state_of_another_call_caller_or_stack_is_refused_with_the_same_text(
    client: Client, local_gateway: Start
) -> None:
    asked: dict[str, Any] = {"arguments": {"text": "hi"}}
    anonymous = client.call("by_hand", **asked).state
    ada = client.call("by_hand", subject="ada", **asked).state
    neighbour = Client(local_gateway(TEMPLATE, parameters={"Stack": "neighbour"}))
    cases = [
        ("request binding", client.again("resolved", anonymous, **asked)),
        ("request binding", client.again("by_hand", anonymous, arguments={"text": "ho"})),
        ("principal drift", client.again("by_hand", anonymous, subject="ada", **asked)),
        ("principal drift", client.again("by_hand", ada, **asked)),
        ("principal", client.again("by_hand", ada, subject="bob", **asked)),
        ("unknown key", client.again("by_hand", neighbour.call("by_hand", **asked).state, **asked)),
        ("unknown key", neighbour.again("by_hand", anonymous, **asked)),
    ]
    reasons = [*refusals(client)[-6:], *refusals(neighbour)]
    for (reason, reply), logged in zip(cases, reasons, strict=True):
        assert (reply.error, logged) == (INVALID, reason)
    assert client.again("by_hand", ada, subject="ada", **asked).text == "hi: hi"


def test_a_state_expires(local_gateway: Start) -> None:
    client = Client(local_gateway(TEMPLATE, parameters={"TokenTtl": "1"}))
    state = client.call("by_hand", arguments={"text": "hi"}).state
    time.sleep(1.1)
    assert client.again("by_hand", state, arguments={"text": "hi"}).error == INVALID
    assert refusals(client) == ["expired"]


def test_a_state_that_is_sent_again_gets_the_stored_result(client: Client) -> None:
    history = client.call("begin").text
    asked: dict[str, Any] = {"arguments": {"history": history}}
    state = client.call("act", **asked).state
    with ThreadPoolExecutor(2) as pool:
        replies = [pool.submit(client.again, "act", state, **asked) for _ in range(6)]
    answers = [reply.result().body["result"] for reply in replies]
    assert {answer["content"][0]["text"] for answer in answers if not answer.get("isError")} == {"2"}
    assert client.again("act", state, **asked).text == "2"
    assert client.call("read", arguments={"history": history}).text.split("\n") == ["2", "act"]
    assert client.again("act", client.call("act", **asked).state, **asked).text == "3"


def test_k1_a_hundred_round_trips_ask_kms_nothing(client: Client) -> None:
    client.again("by_hand", client.call("by_hand", arguments={"text": "hi"}).state, arguments={"text": "hi"})
    client.again("by_hand", client.call("by_hand", arguments={"text": "hi"}).state, arguments={"text": "hi"})
    before = len(client.gateway.aws.calls("kms"))
    served = []
    for _ in range(100):
        first = client.call("by_hand", arguments={"text": "hi"})
        served.append(first.environment)
        served.append(client.again("by_hand", first.state, arguments={"text": "hi"}).environment)
    assert set(served) == {1, 2}
    assert len(client.gateway.aws.calls("kms")) == before


def test_the_first_environments_end_with_one_key(cold: Client) -> None:
    warm(cold)
    with ThreadPoolExecutor(2) as pool:
        for reply in pool.map(lambda _: cold.call("by_hand", arguments={"text": "hi"}), range(8)):
            assert cold.again("by_hand", reply.state, arguments={"text": "hi"}).text == "hi: hi"
    for environment in (1, 2):
        assert len(cold.gateway.aws.calls("kms", "Decrypt", environment=environment)) == 1
    assert len(keys(cold)) == 1


def keys(client: Client) -> list[dict[str, Any]]:
    """The data keys in the table."""
    answer = client.gateway.aws.client("dynamodb").query(
        TableName="DataTable",
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"S": "keyring#request-state#one"}},
    )
    found: list[dict[str, Any]] = answer["Items"]
    return found


@pytest.mark.parametrize("fault", [absent, deny, throttle])
def test_without_kms_at_the_start_callers_are_told_to_come_back_and_can(cold: Client, fault: Any) -> None:
    with cold.gateway.aws.fault("kms", fault):
        reply = cold.call("by_hand", arguments={"text": "hi"})
        assert reply.error["code"] == -32603
        assert "Send the same request again" in reply.error["message"]
        assert cold.call("begin").text
    assert any("kms generate_data_key_without_plaintext failed" in line.text for line in cold.gateway.lines)
    state = cold.call("by_hand", arguments={"text": "hi"}).state
    assert cold.again("by_hand", state, arguments={"text": "hi"}).text == "hi: hi"


@pytest.mark.parametrize("fault", [throttle, absent])
def test_while_the_table_is_out_nothing_is_lost_and_loaded_keys_work_on(cold: Client, fault: Any) -> None:
    history = cold.call("begin").text
    assert cold.call("write", arguments={"history": history, "line": "before"}).text == "2"
    state = cold.call("by_hand", arguments={"text": "hi"}).state
    with cold.gateway.aws.fault("dynamodb", fault):
        assert cold.again("by_hand", state, arguments={"text": "hi"}).text == "hi: hi"
        for call in ("read", "write"):
            arguments = {"history": history, **({"line": "during"} if call == "write" else {})}
            assert "Try the same call again" in cold.call(call, arguments=arguments).refusal
    assert cold.call("read", arguments={"history": history}).text.split("\n") == ["2", "before"]
    assert cold.call("write", arguments={"history": history, "line": "after"}).text == "3"


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_table_that_does_not_answer_is_told_before_the_function_is_ended(
    local_gateway: Start, streaming: str
) -> None:
    parameters = {"Timeout": "3", "ResponseStreaming": streaming}
    client = Client(local_gateway(DEPLOYMENT, concurrency=1, parameters=parameters))
    with client.gateway.aws.fault("dynamodb", slow(60)):
        reply = client.call("create_notebook", arguments={"title": "Groceries"})
    assert "Try the same call again" in reply.refusal
    again = client.call("create_notebook", arguments={"title": "Groceries"})
    assert (again.environment, again.text[:1]) == (reply.environment, "{")


def test_a_function_behind_an_alias_runs_as_without(local_gateway: Start) -> None:
    """What needs the alias is not on this machine, and that is said."""
    client = Client(local_gateway(DEPLOYMENT, parameters={"SnapStart": "on", "GradualDeployment": "AllAtOnce"}))
    assert client.call("create_notebook", arguments={"title": "Groceries"}).text[:1] == "{"
    assert "SnapStart of StatelessFunction" in client.gateway.not_emulated


def test_an_altered_wrapped_key_is_refused_and_replaced(cold: Client) -> None:
    state = cold.call("by_hand", arguments={"text": "hi"}).state
    [key] = keys(cold)
    cold.gateway.aws.client("dynamodb").put_item(
        TableName="DataTable", Item={**key, "wrapped": {"B": key["wrapped"]["B"][::-1]}}
    )
    cold.gateway.kill(1)
    assert cold.again("by_hand", state, arguments={"text": "hi"}).error == INVALID
    assert refusals(cold) == ["the wrapped key does not open under this encryption context"]
    state = cold.call("by_hand", arguments={"text": "hi"}).state
    assert cold.again("by_hand", state, arguments={"text": "hi"}).text == "hi: hi"
    assert len(keys(cold)) == 2


def test_a_key_that_is_revoked_while_in_use_is_refused_and_replaced(cold: Client) -> None:
    state = cold.call("by_hand", arguments={"text": "hi"}).state
    [key] = keys(cold)
    revoked = {**key, "revoked_at": {"N": str(int(time.time()))}}
    cold.gateway.aws.client("dynamodb").put_item(TableName="DataTable", Item=revoked)
    time.sleep(1.1)
    assert cold.again("by_hand", state, arguments={"text": "hi"}).error == INVALID
    assert refusals(cold) == ["revoked key"]
    state = cold.call("by_hand", arguments={"text": "hi"}).state
    assert cold.again("by_hand", state, arguments={"text": "hi"}).text == "hi: hi"


def test_fifty_writers_at_once_on_one_handle(client: Client) -> None:
    history = client.call("begin").text
    start = threading.Barrier(50)

    def writer(number: int) -> list[str]:
        """Two attempts; the lines that were accepted."""
        start.wait()
        accepted = []
        for line in (f"{number} first", f"{number} second"):
            version = int(client.call("read", arguments={"history": history}).text.split("\n")[0])
            reply = client.call("write", arguments={"history": history, "line": line, "version": version})
            if not reply.body["result"].get("isError"):
                accepted.append(line)
            else:
                assert "nothing was overwritten" in reply.refusal
        return accepted

    with ThreadPoolExecutor(50) as pool:
        accepted = [line for lines in pool.map(writer, range(50)) for line in lines]
    version, *lines = client.call("read", arguments={"history": history}).text.split("\n")
    assert sorted(lines) == sorted(accepted)
    assert int(version) == 1 + len(lines)
    assert 1 < len(lines) < 100


def test_a_handle_is_its_principals(client: Client) -> None:
    history = client.call("begin", subject="ada", arguments={"shared": False}).text
    mine: dict[str, Any] = {"arguments": {"history": history}}
    assert client.call("read", subject="ada", **mine).text == "1"
    unknown = client.call("read", subject="ada", arguments={"history": history[::-1]}).refusal
    for subject in ("bob", None):
        assert client.call("read", subject=subject, **mine).refusal == unknown
    assert "Author of this server" in client.call("begin", arguments={"shared": False}).refusal
