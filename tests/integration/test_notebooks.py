"""The sample's notebooks, by the SDK's client: data behind handles, questions by resolver and by hand."""

from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    InputResponses,
    TextContent,
)

from sealane.local.gateway import LocalGateway

pytestmark = pytest.mark.anyio


class Person:
    """Somebody who is asked.

    Args:
        answers: the answer by field; a field that has none is declined.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.questions.append(params.message)
        [field] = params.requested_schema["properties"]  # type: ignore[union-attr]
        if field not in self.answers:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={field: self.answers[field]})


def text(result: CallToolResult | InputRequiredResult) -> str:
    """The text of a finished call."""
    assert isinstance(result, CallToolResult)
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def groceries(client: Client) -> str:
    """A notebook with two notes."""
    made = await client.call_tool("create_notebook", {"title": "Groceries"})
    assert made.structured_content is not None
    notebook: str = made.structured_content["notebook"]
    for note in ("Milk", "Bread"):
        await client.call_tool("add_note", {"notebook": notebook, "text": note})
    return notebook


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_notes_are_kept_between_requests(gateway: LocalGateway, mode: Any) -> None:
    async with Client(gateway.url, mode=mode) as client:
        notebook = await groceries(client)
        read = await client.call_tool("list_notes", {"notebook": notebook})
        assert read.structured_content == {"title": "Groceries", "owner": "", "notes": ["Milk", "Bread"]}
        found = await client.call_tool("search_notes", {"notebook": notebook, "query": "MIL"})
        assert found.structured_content == {"result": ["Milk"]}


async def test_an_unknown_handle_is_said_to_the_model(gateway: LocalGateway) -> None:
    async with Client(gateway.url) as client:
        answers = [
            await client.call_tool("list_notes", {"notebook": notebook})
            for notebook in ("any.qiJDnE6Br-ZFEQmxQ9yNuXGFIDD5GZJq", "nonsense", "")
        ]
    assert all(answer.is_error for answer in answers)
    assert len({text(answer) for answer in answers}) == 1
    assert "Use a handle exactly as it was given out" in text(answers[0])


async def test_a_notebook_that_is_full_is_said_to_the_model(gateway: LocalGateway) -> None:
    async with Client(gateway.url) as client:
        notebook = await groceries(client)
        note = {"notebook": notebook, "text": "🎈" * 10_000}
        answers = [await client.call_tool("add_note", note) for _ in range(11)]
        assert [answer.is_error for answer in answers] == [False] * 10 + [True]
        assert "Shorten it or split it into several" in text(answers[-1])
        kept = await client.call_tool("list_notes", {"notebook": notebook})
        assert kept.structured_content is not None
        assert len(kept.structured_content["notes"]) == 12


async def test_deletes_after_a_question(gateway: LocalGateway) -> None:
    person = Person(confirm=True)
    async with Client(gateway.url, elicitation_callback=person) as client:
        notebook = await groceries(client)
        answer = await client.call_tool("delete_notebook", {"notebook": notebook})
        assert text(answer) == "The notebook is deleted."
        assert person.questions == ["Delete the notebook 'Groceries' with its 2 notes?"]
        assert (await client.call_tool("list_notes", {"notebook": notebook})).is_error


@pytest.mark.parametrize("answers", [{}, {"confirm": False}])
async def test_keeps_what_was_not_confirmed(gateway: LocalGateway, answers: dict[str, Any]) -> None:
    async with Client(gateway.url, elicitation_callback=Person(recipient="Ada", **answers)) as client:
        notebook = await groceries(client)
        for tool in ("delete_notebook", "transfer_notebook"):
            await client.call_tool(tool, {"notebook": notebook})
        assert not (await client.call_tool("list_notes", {"notebook": notebook})).is_error


async def test_transfers_after_two_questions(gateway: LocalGateway) -> None:
    person = Person(recipient="Ada", confirm=True)
    async with Client(gateway.url, elicitation_callback=person) as client:
        notebook = await groceries(client)
        done = text(await client.call_tool("transfer_notebook", {"notebook": notebook}))
        assert person.questions == [
            "Who shall get the notebook 'Groceries'?",
            "Give 'Groceries' to Ada? You cannot open it afterwards.",
        ]
        assert (await client.call_tool("list_notes", {"notebook": notebook})).is_error
        [handle] = done.split()[-1:]
        given = await client.call_tool("list_notes", {"notebook": handle})
        assert given.structured_content == {"title": "Groceries", "owner": "Ada", "notes": ["Milk", "Bread"]}


async def test_asks_only_clients_that_can_be_asked(gateway: LocalGateway) -> None:
    async with Client(gateway.url) as client:
        notebook = await groceries(client)
        for tool in ("delete_notebook", "transfer_notebook"):
            with pytest.raises(MCPError, match="elicitation"):
                await client.call_tool(tool, {"notebook": notebook})


async def test_old_clients_are_told_that_they_cannot_be_asked(gateway: LocalGateway) -> None:
    async with Client(gateway.url, mode="legacy", elicitation_callback=Person(confirm=True)) as client:
        notebook = await groceries(client)
        for tool in ("delete_notebook", "transfer_notebook"):
            answer = await client.call_tool(tool, {"notebook": notebook})
            assert answer.is_error
            assert "To the author" in text(answer)
        assert not (await client.call_tool("list_notes", {"notebook": notebook})).is_error


async def test_a_transfer_that_is_sent_again_has_happened_once(gateway: LocalGateway) -> None:
    async with Client(gateway.url, elicitation_callback=Person()) as client:
        notebook = {"notebook": await groceries(client)}

        async def rounds(state: str | None, field: str | None, value: Any) -> Any:
            """One round by hand, as a client of its own would send it."""
            responses: InputResponses = {}
            if field is not None:
                responses[field] = ElicitResult(action="accept", content={field: value})
            return await client.session.call_tool(
                "transfer_notebook",
                notebook,
                input_responses=responses or None,
                request_state=state,
                allow_input_required=True,
            )

        first = await rounds(None, None, None)
        second = await rounds(first.request_state, "recipient", "Ada")
        done = [text(await rounds(second.request_state, "confirm", True)) for _ in range(3)]
        assert len(set(done)) == 1
        assert done[0].startswith("'Groceries' belongs to Ada now.")
        started_again = await rounds(None, "confirm", True)
        assert isinstance(started_again, CallToolResult)
        assert started_again.is_error
