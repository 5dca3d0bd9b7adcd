"""What the referee takes for granted or looks at from one side only: seen to before it starts."""

import asyncio
import base64
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

from mcp import Client
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, ElicitRequestParams, ElicitResult, InputRequiredResult

from sealane.local.testing import ObservedGateway

YES = {"confirm": ElicitResult(action="accept", content={"ok": True})}


def prepare(gateway: ObservedGateway, environments: int, wanted: set[str]) -> list[str]:
    """Start every environment of the conformance server, and look at it.

    Args:
        gateway: serves it.
        environments: how many there are to be.
        wanted: the tools and prompts that the referee uses.

    Returns:
        What is not as it should be, one line each.
    """
    problems = asyncio.run(_prepare(gateway, environments, wanted)) + _admits_strangers(gateway.url)
    if (warm := len(gateway.environments)) != environments:
        problems.append(f"{warm} environments are warm, not {environments}")
    return problems


async def _prepare(gateway: ObservedGateway, environments: int, wanted: set[str]) -> list[str]:
    async with Client(gateway.url, elicitation_callback=_decline) as client:
        tools, prompts = await client.list_tools(), await client.list_prompts()
        for message in ("server/discover", "tools/list", "prompts/list"):
            await served_by(gateway, message, 1)
        # Slower than a request needs to arrive, so that no environment serves two of them.
        await asyncio.gather(*(client.call_tool("test_tool_with_progress") for _ in range(environments)))
        await served_by(gateway, "tools/call test_tool_with_progress", environments)
        # Many of the referee's checks take the tool error with which an unknown tool is answered for an answer.
        offered = {tool.name for tool in tools.tools} | {prompt.name for prompt in prompts.prompts}
        problems = [f"the server does not offer {name}" for name in sorted(wanted - offered)]
        checks = {
            "a state of another environment": _shares_state(client, gateway),
            "a state that is changed": _seals_state(client),
            "a state with unknown answers": _ignores_unknown_answers(client),
        }
        for name, check in checks.items():
            try:
                problems += await check
            except MCPError as error:
                problems.append(f"{name}: {error}")
    return problems


async def served_by(gateway: ObservedGateway, message: str, calls: int) -> list[int | None]:
    """Environments of the calls with a message so far, as soon as there are this many.

    Who has a streamed answer may be ahead of the environment, which is not free until it is done with the call.
    """
    while True:
        served = [call.environment for call in gateway.calls if call.message == message]
        if len(served) >= calls:
            return served
        await asyncio.sleep(0.005)


async def _decline(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Declares the capability; each question here is answered by hand."""
    return ElicitResult(action="decline")


async def _round(
    client: Client, tool: str, answers: dict[str, ElicitResult] | None = None, state: str | None = None
) -> CallToolResult | InputRequiredResult:
    """One round of a call."""
    return await client.session.call_tool(
        tool, input_responses=dict(answers or {}) or None, request_state=state, allow_input_required=True
    )


async def _ask(client: Client, tool: str) -> str:
    """The first round of a call; returns its request state."""
    asked = await _round(client, tool)
    assert isinstance(asked, InputRequiredResult)
    assert asked.request_state is not None
    return asked.request_state


async def _shares_state(client: Client, gateway: ObservedGateway) -> list[str]:
    """Whether environments open what another one has sealed, with a key that they have from KMS.

    The referee's second round may reach the environment that served the first one.
    """
    tool = "test_input_required_result_tampered_state"
    state = await _ask(client, tool)
    [sealed_by] = await served_by(gateway, f"tools/call {tool}", 1)
    opened_by = set()
    for count, _ in enumerate(gateway.environments, start=2):
        result = await _round(client, tool, YES, state)
        assert isinstance(result, CallToolResult)
        served = await served_by(gateway, f"tools/call {tool}", count)
        if not result.is_error:
            opened_by.add(served[-1])
    problems = []
    if opened_by != {environment.number for environment in gateway.environments}:
        problems.append(f"environment {sealed_by} has sealed a state that only {sorted(map(str, opened_by))} open")
    keyed = {call.environment for call in gateway.aws.calls("kms", "Decrypt")}
    if not opened_by <= keyed:
        problems.append(f"environments {sorted(map(str, opened_by))} open a state, {sorted(keyed)} have a key from KMS")
    return problems


async def _seals_state(client: Client) -> list[str]:
    """Whether a state can be neither read nor changed; the referee only appends to it, which breaks most codes."""
    tool = "test_input_required_result_tampered_state"
    state = await _ask(client, tool)
    problems = []
    if b"asked once" in _decoded(state):
        problems.append("a request state can be read")
    for place in range(0, len(state), 5):
        changed = state[:place] + ("b" if state[place] == "a" else "a") + state[place + 1 :]
        try:
            await _round(client, tool, YES, changed)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                continue
        problems.append(f"a request state with another character {place} is taken")
        break
    return problems


def _decoded(state: str) -> bytes:
    """A state, and all that its parts are if they are only encoded."""
    decoded = state.encode()
    for part in state.split("."):
        for decode in (bytes.fromhex, lambda text: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))):
            try:
                decoded += decode(part)
            except ValueError:
                continue
    return decoded


async def _ignores_unknown_answers(client: Client) -> list[str]:
    """Whether answers that nobody asked for do no harm beside the one that was; the referee sends them unasked."""
    tool = "test_input_required_result_elicitation"
    state = await _ask(client, tool)
    alice = ElicitResult(action="accept", content={"name": "Alice"})
    result = await _round(client, tool, {"user_name": alice, "unknown": alice, "another": alice}, state)
    fine = isinstance(result, CallToolResult) and not result.is_error
    return [] if fine else ["answers to questions that were not asked are not ignored"]


def _admits_strangers(url: str) -> list[str]:
    """Whether a foreign Host, or a foreign Origin, is served; the referee sends both at once."""
    endpoint = urlsplit(url)
    problems = []
    for header, value in (("Host", "evil.example.com"), ("Origin", "http://evil.example.com")):
        with closing(HTTPConnection(endpoint.netloc, timeout=10)) as connection:
            connection.request("POST", endpoint.path, "{}", {"Content-Type": "application/json", header: value})
            if (status := connection.getresponse().status) not in (403, 421):
                problems.append(f"{header}: {value} is answered {status}")
    return problems
