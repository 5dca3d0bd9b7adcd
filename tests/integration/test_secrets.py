"""Secrets go in at every door, with every logger at DEBUG; nothing that a function writes has one in it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cloudwatch import as_json
from tests.events import Message, legacy, modern
from tests.integration.conftest import ROOT
from tests.planted import PLANTED

from sealane.local.testing import ObservedGateway, deny, throttle

FORM: dict[str, Any] = {"elicitation": {"form": {}}}
HEADERS = {
    "Authorization": f"Bearer {PLANTED}",
    "Cookie": f"session={PLANTED}",
    "Mcp-Param-Secret": PLANTED,
    "Mcp-Session-Id": PLANTED,
    "User-Agent": PLANTED,
    "X-Api-Key": PLANTED,
}


@pytest.fixture(scope="module", params=["false", "true"], ids=["buffered", "streamed"])
def gateway(request: pytest.FixtureRequest) -> Iterator[ObservedGateway]:
    parameters = {"ResponseStreaming": request.param, "Timeout": "5"}
    folder = {"StatelessFunction": Path(__file__).parent / "secrets_function"}
    options: dict[str, Any] = {"parameters": parameters, "code_dirs": folder}
    with ObservedGateway(ROOT / "template.yaml", concurrency=1, queue=True, **options) as running:
        yield running


def send(gateway: ObservedGateway, request: tuple[dict[str, str], Any], **headers: str) -> httpx2.Response:
    """A request with secrets in its headers, and in its URL."""
    own, body = request
    content = body if isinstance(body, bytes) else json.dumps(body)
    url = f"{gateway.url}?key={PLANTED}"
    return httpx2.post(url, headers={**HEADERS, **own, **headers}, content=content, timeout=30)


def message_of(response: httpx2.Response) -> Message:
    """The JSON-RPC answer."""
    text = response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        text = [line for line in text.splitlines() if line.startswith("data:")][-1].removeprefix("data:")
    answer: Message = json.loads(text)
    return answer


def tool(name: str, **arguments: Any) -> tuple[dict[str, str], Message]:
    """A call of a tool that knows the secret."""
    arguments = {"secret": PLANTED, **arguments}
    meta = {"progressToken": PLANTED}
    return modern("tools/call", name=name, arguments=arguments, client_capabilities=FORM, meta=meta)


def rounds(state: object) -> tuple[dict[str, str], Message]:
    """The answer to a question."""
    answers = {"more": {"action": "accept", "content": {"secret": PLANTED}}}
    headers, body = tool("ask")
    params: Message = {**body["params"], "requestState": state, "inputResponses": answers}
    return headers, {**body, "params": params}


def assert_hidden(gateway: ObservedGateway, *secrets: str) -> None:
    """Look for secrets in all that was written so far."""
    before = len(gateway.lines)
    send(gateway, modern("tools/list", id="last"))
    deadline = time.monotonic() + 10
    # One environment: what comes before the last line is written before it.
    while not any('"rpc_id":"last"' in line.text for line in gateway.lines[before:]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    written = [line.text for line in gateway.lines]
    assert [text for text in written if any(secret in text for secret in (PLANTED, *secrets))] == []


def test_no_secret_is_in_the_log(gateway: ObservedGateway) -> None:
    state = message_of(send(gateway, tool("ask")))["result"]["requestState"]
    assert PLANTED in message_of(send(gateway, rounds(state)))["result"]["content"][0]["text"]
    headers, body = tool("echo")
    requests: list[tuple[dict[str, str], Any]] = [
        tool("echo"),
        tool("store"),
        rounds(f"{state[:-8]}{PLANTED}"),
        rounds(PLANTED),
        rounds([PLANTED]),
        tool("echo", secret={PLANTED: PLANTED}),
        tool("fail", how=[PLANTED]),
        *(tool("fail", how=how) for how in ("", "tool", "protocol", "task")),
        modern("resources/read", uri=f"box://{PLANTED}?key={PLANTED}"),
        modern("prompts/get", name="remind", arguments={"secret": PLANTED}),
        modern("tools/list", cursor=PLANTED),
        modern("completion/complete", ref={PLANTED: PLANTED}, argument={"name": PLANTED, "value": PLANTED}),
        legacy("tools/call", name="echo", arguments={"secret": PLANTED}),
        legacy("tools/call", name="fail", arguments={"how": "", "secret": PLANTED}),
        legacy("tools/call", name="ask", arguments={"secret": PLANTED}),
        legacy("resources/read", uri=f"box://{PLANTED}"),
        legacy("notifications/cancelled", requestId=1, reason=PLANTED),
        (headers, PLANTED.encode()),
        (headers, f'{{"{PLANTED}'.encode()),
        (headers, {**body, "jsonrpc": PLANTED}),
        (headers, [body, PLANTED]),
        (headers, {**body, "more": PLANTED * 400_000}),
    ]
    answers = [send(gateway, request) for request in requests]
    answers += [send(gateway, (headers, body), **{name: PLANTED}) for name in ("Accept", "Content-Type", "Mcp-Name")]
    assert {answer.status_code for answer in answers} >= {200, 202, 400, 406, 413, 415}
    assert_hidden(gateway, state)
    assert {"a detail", "a library's detail"} <= {as_json(line.text).get("message") for line in gateway.lines}


def test_no_secret_is_in_the_log_of_what_fails(gateway: ObservedGateway) -> None:
    with gateway.aws.fault("dynamodb", throttle):
        assert message_of(send(gateway, tool("store")))["result"]["isError"]
    # The next one has no key yet.
    [environment] = gateway.environments
    gateway.kill(environment.number)
    with gateway.aws.fault("kms", deny):
        assert message_of(send(gateway, tool("ask")))["error"]["code"] == -32603
    assert send(gateway, tool("wait")).json()["error"]["code"] == -32603
    assert_hidden(gateway)
