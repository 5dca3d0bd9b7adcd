"""The notebook example: two people, an issuer of tokens, and a message from outside."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import httpx2
import pytest
from examples.notebook.issuer import AUDIENCE, Issuer
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, EmbeddedResource, PromptReference, TextContent, TextResourceContents

from sealane.local.aws_services import AwsCall
from sealane.local.testing import ObservedGateway, throttle
from tests.examples.conftest import EXAMPLES, environments, restart
from tests.planted import PLANTED

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Deployment:
    """The example, and who issues its tokens."""

    gateway: ObservedGateway
    issuer: Issuer

    @asynccontextmanager
    async def client(self, subject: str) -> AsyncIterator[Client]:
        """Somebody who has signed in."""
        headers = {"authorization": f"Bearer {self.issuer.token(subject)}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            Client(streamable_http_client(self.gateway.url, http_client=http), cache=None) as client,
        ):
            yield client

    def inbox_url(self, inbox: str) -> str:
        """Where messages for an inbox are sent."""
        return f"{self.gateway.base_url}/inbox/{inbox}"


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with Issuer() as issuer:
        thread = threading.Thread(target=issuer.serve_forever)
        thread.start()
        parameters = {"AuthIssuer": issuer.url, "AuthAudience": AUDIENCE, "PublicUrl": "https://notes.example.com"}
        try:
            with ObservedGateway(
                EXAMPLES / "notebook" / "template.yaml", concurrency=2, parameters=parameters
            ) as gateway:
                yield Deployment(gateway, issuer)
        finally:
            issuer.shutdown()
            thread.join()


def text(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def started(client: Client, title: str, *notes: str) -> str:
    """A notebook with notes."""
    made = await client.call_tool("start_notebook", {"title": title})
    assert made.structured_content is not None
    notebook: str = made.structured_content["notebook"]
    for note in notes:
        assert not (await client.call_tool("write_note", {"notebook": notebook, "text": note})).is_error
    return notebook


async def have_two_environments(deployment: Deployment, client: Client) -> None:
    """Let two environments be ready, whose first call would take long."""
    before = len(environments(deployment.gateway))
    while len(set(environments(deployment.gateway)[before:])) < 2:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(client.call_tool, "my_notebooks")


async def test_a_notebook_is_its_owners_alone(deployment: Deployment) -> None:
    async with deployment.client("ada") as ada, deployment.client("ben") as ben:
        notebook = await started(ada, f"Move {PLANTED}", "Order boxes")
        restart(deployment.gateway)
        seen = await ada.read_resource(f"notebook://{notebook}")
        assert isinstance(seen.contents[0], TextResourceContents)
        assert seen.contents[0].text == f"# Move {PLANTED}\n\n- Order boxes"
        unknown = "qiJDnE6Br-ZFEQmxQ9yNuXGFIDD5GZJq"
        answers = [
            await ben.call_tool("write_note", {"notebook": each, "text": "Hello"}) for each in (notebook, unknown)
        ]
        assert all(each.is_error for each in answers)
        assert text(answers[0]) == text(answers[1])
        with pytest.raises(MCPError, match="There is no such handle for this caller"):
            await ben.read_resource(f"notebook://{notebook}")
        with pytest.raises(MCPError, match="You have no notebook of this title"):
            await ben.get_prompt("review", {"title": f"Move {PLANTED}"})
        assert (await ben.call_tool("my_notebooks")).structured_content == {"notebooks": [], "cursor": None}


async def test_lists_come_in_pages_wherever_each_is_served(deployment: Deployment) -> None:
    async with deployment.client("cy") as cy, deployment.client("ben") as ben:
        written = {await started(cy, f"Notebook {number}", *["Note"] * number) for number in range(3)}
        before = len(environments(deployment.gateway))
        found: list[dict[str, object]] = []
        cursor: str | None = None
        cursors: list[str] = []
        while cursor is not None or not found:
            restart(deployment.gateway)
            page = (await cy.call_tool("my_notebooks", {"limit": 2, "cursor": cursor})).structured_content
            assert page is not None
            assert len(page["notebooks"]) <= 2
            found += page["notebooks"]
            if (cursor := page["cursor"]) is not None:
                cursors.append(cursor)
        assert {each["notebook"] for each in found} == written
        assert sorted((each["title"], each["notes"]) for each in found) == [(f"Notebook {n}", n) for n in range(3)]
        assert len(set(environments(deployment.gateway)[before:])) > 1
        assert "does not belong to this list" in text(await ben.call_tool("my_notebooks", {"cursor": cursors[0]}))


async def test_a_prompt_has_the_notebook_and_completes_ones_own_titles(deployment: Deployment) -> None:
    async with deployment.client("dan") as dan, deployment.client("ben") as ben:
        for title in ("Garden", "Garage", "Move"):
            await started(dan, title, "Seeds")
        reference = PromptReference(type="ref/prompt", name="review")
        completed = [
            (await client.complete(reference, {"name": "title", "value": "Ga"})).completion.values
            for client in (dan, ben)
        ]
        assert completed == [["Garage", "Garden"], []]
        [_, message] = (await dan.get_prompt("review", {"title": "Garden"})).messages
    assert isinstance(message.content, EmbeddedResource)
    assert isinstance(message.content.resource, TextResourceContents)
    assert message.content.resource.text == "# Garden\n\n- Seeds"


async def test_of_two_notes_at_once_none_is_lost(deployment: Deployment) -> None:
    async with deployment.client("eve") as eve:
        notebook = await started(eve, "Race")
        await have_two_environments(deployment, eve)
        answers: list[CallToolResult] = []

        async def write(note: str) -> None:
            answers.append(await eve.call_tool("write_note", {"notebook": notebook, "text": note}))

        arrived: list[AwsCall] = []
        both = asyncio.Event()

        async def together(call: AwsCall) -> None:
            """Neither writes before both have read."""
            arrived.append(call)
            if len(arrived) == 2:
                both.set()
            await both.wait()

        with deployment.gateway.aws.fault("dynamodb", together, "UpdateItem"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, "One")
                tasks.start_soon(write, "Two")
        assert sorted(each.is_error for each in answers) == [False, True]
        assert "nothing was overwritten" in next(text(each) for each in answers if each.is_error)
        [listed] = ((await eve.call_tool("my_notebooks")).structured_content or {})["notebooks"]
        assert listed["notes"] == 1


async def test_a_message_from_outside_wakes_who_listens(deployment: Deployment) -> None:
    """The webhook is another function, which has no SDK; the listener is in an environment of its own."""
    heard: list[object] = []
    async with deployment.client("ada") as ada, httpx2.AsyncClient() as http:
        inbox = text(await ada.call_tool("open_inbox"))

        async def listen() -> None:
            while not heard:
                async with ada.listen(resource_subscriptions=[f"inbox://{inbox}"]) as changes:
                    heard.extend([change async for change in changes])

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                while not heard:
                    sent = await http.post(deployment.inbox_url(inbox), content=f"Boxes {PLANTED} ü")
                    assert sent.status_code == 202, sent.text
                    await anyio.sleep(0.5)
        read = await ada.read_resource(f"inbox://{inbox}")
    assert heard[0] == ResourceUpdated(uri=f"inbox://{inbox}")
    assert isinstance(read.contents[0], TextResourceContents)
    assert set(read.contents[0].text.splitlines()) == {f"Boxes {PLANTED} ü"}
    assert inbox not in "\n".join(line.text for line in deployment.gateway.lines)


async def test_what_no_inbox_takes_is_refused(deployment: Deployment) -> None:
    async with deployment.client("ada") as ada, httpx2.AsyncClient() as http:
        inbox = text(await ada.call_tool("open_inbox"))
        notebook = await started(ada, "Not an inbox")
        answers = [
            (await http.post(deployment.inbox_url(each), content=content)).status_code
            for each, content in [(inbox, ""), (inbox, "x" * 1001), (notebook, "x"), ("nonsense", "x")]
        ]
        with deployment.gateway.aws.fault("dynamodb", throttle):
            away = await http.post(deployment.inbox_url(inbox), content="x", timeout=40)
    assert answers == [400, 400, 404, 404]
    assert away.status_code == 503


async def test_who_has_no_token_is_led_to_one(deployment: Deployment) -> None:
    async with httpx2.AsyncClient() as http:
        refused = await http.post(deployment.gateway.url, json={})
        assert refused.status_code == 401
        url = f"{deployment.gateway.base_url}/.well-known/oauth-protected-resource/mcp"
        metadata = (await http.get(url)).json()
        assert metadata["resource"] == "https://notes.example.com/mcp"
        assert metadata["authorization_servers"] == [deployment.issuer.url]
        origin = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
        assert (await http.options(deployment.gateway.url, headers=origin)).status_code in (200, 204)
