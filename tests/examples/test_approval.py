"""The approval example: two questions that meet different environments, one order, and what the log has of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
    TextContent,
)

from sealane.local.testing import ObservedGateway
from tests.examples.conftest import EXAMPLES, environments, restart
from tests.planted import PLANTED

pytestmark = pytest.mark.anyio

TEMPLATE = EXAMPLES / "approval" / "template.yaml"
CHAIRS = {"payee": "Ada", "purpose": "Chairs"}
ORDERED, NOT_APPROVED = '"message":"a payment was ordered"', '"message":"a payment was not approved"'
Answer = tuple[str, int | bool | None]
"""Name of the question and what is answered; `None` declines."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[ObservedGateway]:
    with ObservedGateway(TEMPLATE, concurrency=2) as running:
        yield running


async def ask(client: Client, request: dict[str, str], state: str | None = None, *answers: Answer) -> Any:
    """One round, as a client sends it that leads the call itself."""
    given: InputResponses = {}
    for question, value in answers:
        field = {"ask_amount": "euros", "ask_approval": "approve"}[question]
        accepted = None if value is None else ElicitResult(action="accept", content={field: value})
        given[f"server:{question}"] = accepted or ElicitResult(action="decline")
    return await client.session.call_tool(
        "request_payment", request, input_responses=given or None, request_state=state, allow_input_required=True
    )


def receipt(result: CallToolResult | InputRequiredResult) -> dict[str, Any]:
    assert isinstance(result, CallToolResult)
    assert result.structured_content is not None, result
    content: dict[str, Any] = result.structured_content
    return content


async def no_question(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """A client that says that it can be asked, and is asked by hand."""
    raise AssertionError


async def test_rounds_meet_different_environments_and_a_repeat_gets_the_receipt() -> None:
    request = {"payee": f"{PLANTED} Ltd", "purpose": f"Chairs {PLANTED}"}
    with ObservedGateway(TEMPLATE, concurrency=2) as gateway:
        async with Client(gateway.url, elicitation_callback=no_question) as client:
            first = await ask(client, request)
            restart(gateway)
            second = await ask(client, request, first.request_state, ("ask_amount", 4321))
            restart(gateway)
            last = (request, second.request_state, ("ask_approval", True))
            done = receipt(await ask(client, *last))
            restart(gateway)
            again = [receipt(await ask(client, *last)) for _ in range(2)]
            shown = await client.call_tool("show_order", {"receipt": done["receipt"]})
    assert again == [done, done]
    assert done["approved"]
    assert receipt(shown) == done["order"]
    assert done["order"] == {
        **request,
        "euros": 4321,
        "number": done["order"]["number"],
        "placed_at": done["order"]["placed_at"],
    }
    assert len(set(environments(gateway))) == 4
    # The log has that it was done, by its number, and nothing of what was asked, answered and given out.
    log = "\n".join(line.text for line in gateway.lines)
    assert log.count(ORDERED) == 1
    assert log.count(done["order"]["number"]) == 1
    for secret in (PLANTED, "4321", done["receipt"], second.request_state):
        assert secret not in log


@pytest.mark.parametrize("answers", [[None], [120, None], [120, False]])
async def test_what_was_not_approved_is_not_ordered(answers: list[int | None]) -> None:
    with ObservedGateway(TEMPLATE) as gateway:
        async with Client(gateway.url, elicitation_callback=no_question) as client:
            result = await ask(client, CHAIRS)
            for answer in zip(("ask_amount", "ask_approval"), answers, strict=False):
                result = await ask(client, CHAIRS, result.request_state, answer)
    assert receipt(result) == {"approved": False, "receipt": None, "order": None}
    log = "\n".join(line.text for line in gateway.lines)
    assert (log.count(ORDERED), log.count(NOT_APPROVED)) == (0, 1)


async def test_an_amount_that_is_not_allowed_is_refused(gateway: ObservedGateway) -> None:
    async with Client(gateway.url, elicitation_callback=no_question) as client:
        first = await ask(client, CHAIRS)
        refused = await ask(client, CHAIRS, first.request_state, ("ask_amount", 10_001))
    assert isinstance(refused, CallToolResult)
    assert refused.is_error


async def test_an_answer_is_for_the_question_that_was_asked(gateway: ObservedGateway) -> None:
    """Neither the payee nor the amount can be another one once the person has been asked to approve."""
    async with Client(gateway.url, elicitation_callback=no_question) as client:
        first = await ask(client, CHAIRS)
        second = await ask(client, CHAIRS, first.request_state, ("ask_amount", 120))
        with pytest.raises(MCPError, match="requestState"):
            await ask(client, {**CHAIRS, "payee": "Eve"}, second.request_state, ("ask_approval", True))
        done = await ask(client, CHAIRS, second.request_state, ("ask_amount", 9_999), ("ask_approval", True))
    assert receipt(done)["order"]["euros"] == 120


async def test_who_asks_twice_orders_twice(gateway: ObservedGateway) -> None:
    async with Client(gateway.url, elicitation_callback=no_question) as client:
        numbers = set()
        for _ in range(2):
            first = await ask(client, CHAIRS)
            second = await ask(client, CHAIRS, first.request_state, ("ask_amount", 120))
            done = await ask(client, CHAIRS, second.request_state, ("ask_approval", True))
            numbers.add(receipt(done)["order"]["number"])
    assert len(numbers) == 2


async def test_an_unknown_receipt_is_said_to_the_model(gateway: ObservedGateway) -> None:
    async with Client(gateway.url) as client:
        answer = await client.call_tool("show_order", {"receipt": "any.qiJDnE6Br-ZFEQmxQ9yNuXGFIDD5GZJq"})
    assert answer.is_error
    [content] = answer.content
    assert isinstance(content, TextContent)
    assert "Use a handle exactly as it was given out" in content.text
