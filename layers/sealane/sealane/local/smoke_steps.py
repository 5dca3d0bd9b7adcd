"""The steps of `sealane smoke`: what clients need of a deployment, asked for over HTTP as they would."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import anyio
import httpx2
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolResult,
    ElicitRequest,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    InputRequiredResult,
    InputResponses,
    ServerCapabilities,
    TextContent,
    Tool,
)
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError

from sealane.policy.protected_resource import WELL_KNOWN

__all__ = ["STEPS", "Outcome", "Step", "Target", "run_steps"]

STRANGER: Final = "https://evil.example"
"""A web page that no deployment allows."""
PAGE: Final = "https://app.example"
"""A web page that only a deployment for all pages allows."""
SAMPLE: Final = "sealane-sample"
"""The server of functions/stateless/, whose tools are known."""
RETRIES: Final = 3
"""Calls at once that bring back one request state: as many environments take it."""

_RENAMED: Final = "x-amzn-remapped-www-authenticate"
_RESOURCE_METADATA: Final = re.compile(r'\bresource_metadata="([^"]*)"')
# What browsers ask for on behalf of an MCP client; the last stands for a tool's own (transports, "Custom Headers").
_ASKED_OF_BROWSERS: Final = (
    "authorization",
    "content-type",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-param-region",
)
_LOG: Final = "the server's log has the reason"


class Outcome(StrEnum):
    """How a step ended."""

    OK = "ok"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that has ended.

    Attributes:
        name: its name.
        outcome: how it ended.
        detail: what was found, or what was expected, what came and what to do, or why it was skipped.
    """

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is tested.

    Args:
        url: the MCP endpoint.
        token: a bearer token, where callers sign in.
        timeout: seconds that a step may take, cold starts included.
        tool: a tool to call; by default the sample's, or one that is said to be read-only and needs no arguments.
        arguments: its arguments.
        ask_tool: a tool that asks its caller a question; the answer declines it. By default the sample's.
        ask_arguments: its arguments.
        origin: origin of a web page that is allowed to call; where there is none, a page that may be is tried.
        leave_out: names of steps that are skipped.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    timeout: float = 60
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ask_tool: str | None = None
    ask_arguments: Mapping[str, Any] = field(default_factory=dict)
    origin: str | None = None
    leave_out: frozenset[str] = frozenset()


class StepFailed(Exception):
    """The deployment does not do what clients need."""

    def __init__(self, expected: str, came: str, advice: str) -> None:
        super().__init__(f"expected {expected}; came {came}; {advice}")


class StepSkipped(Exception):
    """The step does not apply; the text says why."""


async def run_steps(target: Target) -> AsyncIterator[Step]:
    """Test a deployment, step by step. No step raises; one that has no answer in time has failed."""
    deployment = _Deployment(target)
    for name, step in _RUN.items():
        try:
            if name in target.leave_out:
                raise StepSkipped("left out, as asked")
            with anyio.fail_after(target.timeout):
                result = Step(name=name, outcome=Outcome.OK, detail=await step(deployment))
        except Exception as error:
            result = _ended(name, _innermost(error), deployment)
        # Servers may repeat what they were sent.
        yield result if target.token is None else replace(result, detail=result.detail.replace(target.token, "[token]"))


def _innermost(error: Exception) -> Exception:
    """The first error of a task group's, which the SDK's client and its transport raise theirs in."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _ended(name: str, error: Exception, deployment: "_Deployment") -> Step:
    match error:
        case StepSkipped():
            return Step(name=name, outcome=Outcome.SKIPPED, detail=str(error))
        case StepFailed():
            detail = str(error)
        case TimeoutError():
            detail = (
                f"expected an answer within {deployment.target.timeout:g} seconds; none came; something in between "
                "may hold answers back, or --timeout is too short for a cold start"
            )
        case MCPError():
            detail = f"expected a result; came {deployment.described(error)}; {_LOG}"
        case httpx2.HTTPError():
            detail = f"expected an answer; came {type(error).__name__} ({error}); is the URL right, and reachable?"
        case ValidationError():
            detail = f"expected a result of revision {LATEST_MODERN_VERSION}; came another ({error.title}); {_LOG}"
        case SubscriptionLost():
            detail = f"expected an acknowledgment; the stream ended without one; {_LOG}"
        case _:
            raise error
    return Step(name=name, outcome=Outcome.FAILED, detail=detail)


class _Deployment:
    """What is tested, and what earlier steps have found for later ones."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # Once for all connections: it takes longer than a request.
        self._tls = httpx2.create_ssl_context()
        self._status = 0
        self._challenge: str | None = None
        self._wants_caller = False
        self._token_is_good = target.token is not None
        self._server: Implementation | None = None
        self._capabilities = ServerCapabilities()
        self._tools: list[Tool] = []
        self._sessions = False
        self._state: _Asked | None = None

    def described(self, error: MCPError) -> str:
        """An error as the report has it, with the HTTP status that the SDK leaves out."""
        return f"error {error.code} ({error.error.message}) with HTTP {self._status}"

    # Who may call

    async def challenge(self) -> str:
        """Without a token, and with one that is none: 401 that leads to the sign-in (RFC 9728 section 5.1)."""
        answer = await self._post("server/discover", None)
        self._wants_caller = answer.status_code in (401, 403)
        if answer.is_success:
            if self.target.token is not None:
                raise StepFailed(
                    "401 without a token", f"HTTP {answer.status_code}", "set AuthMode: anyone can call every tool"
                )
            raise StepSkipped("anyone may call: there is no sign-in")
        if not self._wants_caller:
            raise StepFailed("an answer or a refusal", f"HTTP {answer.status_code}", "is the URL that of the endpoint?")
        self._check_challenge(answer, "without a token")
        if "bearer" not in (self._challenge or "").lower():
            return f"401 with {self._challenge}"
        self._check_challenge(await self._post("server/discover", "nonsense"), "with a token that is none")
        if not _RESOURCE_METADATA.search(self._challenge or ""):
            raise StepFailed(
                "WWW-Authenticate with resource_metadata",
                repr(self._challenge),
                "deploy again with PublicUrl: clients do not find the sign-in below a stage",
            )
        return "401 with WWW-Authenticate, which names the resource metadata"

    def _check_challenge(self, answer: httpx2.Response, when: str) -> None:
        if answer.status_code != 401:
            raise StepFailed(f"401 {when}", f"HTTP {answer.status_code}", "clients sign in after 401 only")
        if "www-authenticate" not in answer.headers:
            renamed = _RENAMED in answer.headers
            raise StepFailed(
                f"WWW-Authenticate on the 401 {when}",
                f"the header {_RENAMED}" if renamed else "none",
                "API Gateway renames it where a function refuses: let the gateway's authorizer refuse "
                "(AuthMode jwt or cognito)"
                if renamed
                else "set it in the gateway's response UNAUTHORIZED",
            )
        self._challenge = answer.headers["www-authenticate"]

    async def metadata(self) -> str:
        """The document that the challenge names (RFC 9728 section 3)."""
        found = _RESOURCE_METADATA.search(self._challenge or "")
        if found is None:
            raise StepSkipped("no challenge names it")
        async with self._http(None) as http:
            answer = await http.get(found[1])
        document = _json(answer)
        if answer.status_code != 200 or not isinstance(document, dict):
            raise StepFailed(
                f"the document {found[1]}",
                f"HTTP {answer.status_code}",
                f"PublicUrl is the URL before /mcp; {WELL_KNOWN} below it needs no token",
            )
        if document.get("resource") != self.target.url:
            raise StepFailed(
                f"the resource {self.target.url}",
                repr(document.get("resource")),
                "clients refuse it: test that URL, or set PublicUrl (RFC 9728 section 3.3)",
            )
        if not document.get("authorization_servers"):
            raise StepFailed("authorization_servers", "none", "set AuthIssuer")
        return f"sign-in at {', '.join(map(str, document['authorization_servers']))}"

    # The protocol, by the SDK's client

    async def discover(self) -> str:
        """What the server says of itself in the newest revision, and all its tools."""
        if self._wants_caller and self.target.token is None:
            if self._challenge is not None and "bearer" not in self._challenge.lower():
                raise StepSkipped(f"callers are known by {self._challenge}, which this test cannot give")
            raise StepFailed("a token", "none", "give one by --token or SEALANE_TOKEN")
        if self.target.token is not None:
            answer = await self._post("server/discover", self.target.token)
            if answer.status_code in (401, 403):
                self._token_is_good = False
                raise StepFailed("a token that is taken", _came(answer), "has it expired, or is it for another URL?")
        async with self._connect("auto") as client:
            if client.protocol_version != LATEST_MODERN_VERSION:
                raise StepFailed(
                    f"revision {LATEST_MODERN_VERSION}",
                    f"{client.protocol_version}",
                    "server/discover was not answered: is this the endpoint of the stateless function?",
                )
            self._capabilities = client.server_capabilities
            self._tools = await _all_tools(client) if self._capabilities.tools else []
            self._server = client.server_info or Implementation(name="a server without a name", version="")
        named = f"{self._server.name} {self._server.version}".strip()
        return f"{named}, revision {LATEST_MODERN_VERSION}, {len(self._tools)} tools"

    async def legacy(self) -> str:
        """A client of 2025: `initialize`, then the tools."""
        self._need_caller()
        try:
            async with self._connect("legacy") as client:
                tools = await _all_tools(client) if client.server_capabilities.tools else []
                revision = client.protocol_version
        except (MCPError, ExceptionGroup) as raised:
            error = _innermost(raised)
            if isinstance(error, MCPError) and error.code == UNSUPPORTED_PROTOCOL_VERSION:
                raise StepSkipped(f"clients of 2025 are refused: {error.error.message}") from None
            raise
        return f"revision {revision}, {'with' if self._sessions else 'without'} a session, {len(tools)} tools"

    async def call(self) -> str:
        """A tool that answers at once."""
        server = self._discovered()
        tool, arguments = self.target.tool, self.target.arguments
        if tool is None:
            tool = "hello" if server.name == SAMPLE else self._harmless_tool()
        async with self._connect(LATEST_MODERN_VERSION) as client:
            result = await client.call_tool(tool, dict(arguments))
        if result.is_error:
            raise StepFailed(f"a result of {tool}", f"the error {_text(result)!r}", "do --tool and --arguments fit?")
        return f"{tool} answered"

    def _harmless_tool(self) -> str:
        for tool in self._tools:
            if tool.annotations and tool.annotations.read_only_hint and not tool.input_schema.get("required"):
                return tool.name
        raise StepSkipped("no tool is annotated as read-only and needs no arguments: name one by --tool")

    async def unknown_tool(self) -> str:
        """A tool that is not there: a protocol error (tools, "Error Handling"), or the SDK's tool error."""
        if not self._discovered() or not self._capabilities.tools:
            raise StepSkipped("the server has no tools")
        async with self._connect(LATEST_MODERN_VERSION) as client:
            try:
                result = await client.call_tool("sealane-smoke-no-such-tool")
            except MCPError as error:
                if error.code == INVALID_PARAMS:
                    return f"error {error.code}"
                raise StepFailed(f"error {INVALID_PARAMS}", self.described(error), _LOG) from None
        if not result.is_error:
            raise StepFailed("an error", "a result", "the server answers for tools that it does not list")
        return "a tool error"

    async def sealed(self) -> str:
        """A question, whose sealed state comes back to other environments over connections of their own."""
        server = self._discovered()
        async with self._connect(LATEST_MODERN_VERSION) as client:
            tools = await _all_tools(client)
            tool, arguments = self.target.ask_tool, dict(self.target.ask_arguments)
            sample = tool is None and server.name == SAMPLE and "delete_notebook" in {each.name for each in tools}
            if sample:
                made = await client.call_tool("create_notebook", {"title": "sealane smoke"})
                if made.is_error:
                    raise StepFailed("a notebook", repr(_text(made)), _LOG)
                tool, arguments = "delete_notebook", dict(made.structured_content or {})
            if tool is None:
                raise StepSkipped("name a tool that asks its caller by --ask-tool and --ask-arguments")
            asked = await client.session.call_tool(tool, arguments, allow_input_required=True)
        if not isinstance(asked, InputRequiredResult):
            text = _text(asked) if isinstance(asked, CallToolResult) else type(asked).__name__
            raise StepFailed(f"a question of {tool}", repr(text), "do --ask-tool and --ask-arguments fit?")
        if asked.request_state is None:
            raise StepSkipped(f"the question of {tool} carries no state")
        declined: InputResponses = {}
        for name, request in (asked.input_requests or {}).items():
            if not isinstance(request, ElicitRequest):
                raise StepSkipped(f"{tool} asks for {request.method}, which this test does not answer")
            declined[name] = ElicitResult(action="decline")
        self._state = _Asked(tool=tool, arguments=arguments, state=asked.request_state, answers=declined)
        async with anyio.create_task_group() as retries:
            for _ in range(RETRIES):
                retries.start_soon(self._answer, self._state)
        if sample:
            confirmed = ElicitResult(action="accept", content={"confirm": True})
            await self._answer(self._state.answered(confirmed))
        return f"{tool} took its state back, {RETRIES} times at once"

    async def _answer(self, asked: "_Asked") -> None:
        async with self._connect(LATEST_MODERN_VERSION) as client:
            try:
                await client.call_tool(
                    asked.tool, asked.arguments, input_responses=asked.answers, request_state=asked.state
                )
            except MCPError as error:
                if error.code != INVALID_PARAMS:
                    raise
                raise StepFailed(
                    "the state that a call gave to be good for the next, wherever it runs",
                    self.described(error),
                    "environments need shared keys: is the server's request_state_security left to Sealane, and may "
                    "the function use the table and the key?",
                ) from None

    async def tampered(self) -> str:
        """A state of which one character is another: refused."""
        if self._state is None:
            raise StepSkipped("there is no state to change")
        changed = self._state.changed()
        async with self._connect(LATEST_MODERN_VERSION) as client:
            try:
                await client.call_tool(
                    changed.tool, changed.arguments, input_responses=changed.answers, request_state=changed.state
                )
            except MCPError as error:
                if error.code == INVALID_PARAMS:
                    return f"a changed state is error {error.code}"
                raise StepFailed(f"error {INVALID_PARAMS}", self.described(error), _LOG) from None
        raise StepFailed(
            f"error {INVALID_PARAMS} for a changed state", "a result", "the server trusts what callers can write"
        )

    async def listen(self) -> str:
        """`subscriptions/listen`: acknowledged where it is offered, else not there."""
        self._discovered()
        tools, prompts, resources = self._capabilities.tools, self._capabilities.prompts, self._capabilities.resources
        offered = {
            "tools_list_changed": bool(tools and tools.list_changed),
            "prompts_list_changed": bool(prompts and prompts.list_changed),
            "resources_list_changed": bool(resources and resources.list_changed),
        }
        # None needs to be there to be listened to.
        uris = ["smoke://resource"] if resources and resources.subscribe else []
        if any(offered.values()) or uris:
            async with (
                self._connect(LATEST_MODERN_VERSION) as client,
                client.listen(**offered, resource_subscriptions=uris),
            ):
                return "acknowledged"
        answer = await self._post("subscriptions/listen", self.target.token, notifications={"toolsListChanged": True})
        if (answer.status_code, _error_code(answer)) != (404, METHOD_NOT_FOUND):
            raise StepFailed(
                f"404 and error {METHOD_NOT_FOUND}, since it is not offered",
                _came(answer),
                "a client would wait for what never comes",
            )
        return f"not offered: 404 and error {METHOD_NOT_FOUND}"

    # What browsers and strangers may

    async def preflight(self) -> str:
        """A browser's question for a page of another origin, without a token (CORS)."""
        origin = self.target.origin or PAGE
        async with self._http(None) as http:
            answer = await http.options(
                self.target.url,
                headers={
                    "Origin": origin,
                    "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": ",".join(_ASKED_OF_BROWSERS),
                },
            )
        if answer.status_code == 401:
            raise StepFailed("an answer without a token", "HTTP 401", "browsers send none: leave OPTIONS open")
        if answer.headers.get("access-control-allow-origin") not in (origin, "*"):
            if self.target.origin is None:
                raise StepSkipped(f"pages of {origin} may not call: name an origin that may by --origin")
            raise StepFailed(f"pages of {origin} to be allowed", _came(answer), "see the option cors")
        if not answer.is_success:
            raise StepFailed("an answer", _came(answer), "see the option cors")
        allowed = {name.strip().lower() for name in answer.headers.get("access-control-allow-headers", "").split(",")}
        if missing := [name for name in _ASKED_OF_BROWSERS if name not in allowed]:
            raise StepFailed("all headers of MCP to be allowed", f"all but {', '.join(missing)}", "see the option cors")
        return f"pages of {origin} may ask, with all headers of MCP"

    async def origin(self) -> str:
        """A web page that nobody knows: 403 (transports, "Security Warning")."""
        self._need_caller()
        answer = await self._post("server/discover", self.target.token, {"Origin": STRANGER})
        if answer.status_code != 403:
            raise StepFailed(
                f"403 for a page of {STRANGER}",
                _came(answer),
                "any web page could use it: see allowed_origin_hostnames",
            )
        return f"a page of {STRANGER} is refused"

    async def host(self) -> str:
        """A name that is another's, which DNS rebinding brings along: refused by the gateway or by us."""
        self._need_caller()
        answer = await self._post("server/discover", self.target.token, {"Host": "evil.example"})
        if not 400 <= answer.status_code < 500:
            raise StepFailed("a refusal of the Host evil.example", _came(answer), "see allowed_hostnames")
        return f"the Host evil.example is refused with {answer.status_code}"

    async def methods(self) -> str:
        """GET and DELETE, which sessions alone have: 405."""
        self._need_caller()
        if self._sessions:
            raise StepSkipped("the legacy lane has GET and DELETE")
        async with self._http(self.target.token) as http:
            for method in ("GET", "DELETE"):
                async with http.stream(method, self.target.url, headers={"Accept": "text/event-stream"}) as answer:
                    allowed = answer.headers.get("allow")
                    if (answer.status_code, allowed) != (405, "POST"):
                        raise StepFailed(
                            f"405 with Allow: POST for {method}",
                            f"HTTP {answer.status_code} with {f'Allow: {allowed}' if allowed else 'no Allow'}",
                            "clients of 2025 try both, and go on after 405 only",
                        )
        return "GET and DELETE are 405 with Allow: POST"

    async def not_json(self) -> str:
        """A body that is not JSON: 400 and a JSON-RPC error."""
        self._need_caller()
        async with self._http(self.target.token) as http:
            headers = {**_headers("server/discover"), "Content-Type": "application/json"}
            answer = await http.post(self.target.url, content="{", headers=headers)
        if (answer.status_code, _error_code(answer)) != (400, PARSE_ERROR):
            raise StepFailed(f"400 and error {PARSE_ERROR}", _came(answer), _LOG)
        return f"400 and error {PARSE_ERROR}"

    # How requests are made

    def _need_caller(self) -> None:
        if self._wants_caller and not self._token_is_good:
            raise StepSkipped("it takes a caller who has signed in")

    def _discovered(self) -> Implementation:
        if self._server is None:
            raise StepSkipped("discover did not succeed")
        return self._server

    @asynccontextmanager
    async def _connect(self, mode: ConnectMode) -> AsyncIterator[Client]:
        """The SDK's client, over connections of its own."""
        async with (
            self._http(self.target.token) as http,
            Client(
                streamable_http_client(self.target.url, http_client=http),
                mode=mode,
                cache=None,
                client_info=Implementation(name="sealane-smoke", version="1"),
                elicitation_callback=_decline,
            ) as client,
        ):
            yield client

    async def _post(
        self, method: str, token: str | None, headers: Mapping[str, str] | None = None, **params: Any
    ) -> httpx2.Response:
        """The answer to a request that the SDK's client would not make."""
        meta = {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        async with self._http(token) as http:
            return await http.post(self.target.url, json=message, headers={**_headers(method), **(headers or {})})

    def _http(self, token: str | None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=self.target.timeout,
            verify=self._tls,
            event_hooks={"response": [self._note]},
        )

    async def _note(self, response: httpx2.Response) -> None:
        self._status = response.status_code
        self._sessions = self._sessions or "mcp-session-id" in response.headers


_RUN: Final[dict[str, Callable[[_Deployment], Awaitable[str]]]] = {
    "challenge": _Deployment.challenge,
    "metadata": _Deployment.metadata,
    "discover": _Deployment.discover,
    "legacy": _Deployment.legacy,
    "call": _Deployment.call,
    "unknown-tool": _Deployment.unknown_tool,
    "sealed": _Deployment.sealed,
    "tampered": _Deployment.tampered,
    "listen": _Deployment.listen,
    "preflight": _Deployment.preflight,
    "origin": _Deployment.origin,
    "host": _Deployment.host,
    "methods": _Deployment.methods,
    "not-json": _Deployment.not_json,
}
"""The steps, in the order in which they need each other."""
STEPS: Final = tuple(_RUN)
"""Their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A call that was answered with a question."""

    tool: str
    arguments: dict[str, Any]
    state: str = field(repr=False)
    answers: InputResponses

    def answered(self, answer: ElicitResult) -> "_Asked":
        """The same with this answer to every question."""
        return replace(self, answers=dict.fromkeys(self.answers, answer))

    def changed(self) -> "_Asked":
        """The same with another character in the middle of its state."""
        middle = len(self.state) // 2
        other = "A" if self.state[middle] != "A" else "B"
        return replace(self, state=self.state[:middle] + other + self.state[middle + 1 :])


async def _decline(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="decline")


async def _all_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if (cursor := page.next_cursor) is None:
            return tools


def _headers(method: str) -> dict[str, str]:
    return {
        "Accept": "application/json, text/event-stream",
        MCP_PROTOCOL_VERSION_HEADER: LATEST_MODERN_VERSION,
        MCP_METHOD_HEADER: method,
    }


def _json(answer: httpx2.Response) -> object:
    try:
        document: object = answer.json()
    except ValueError:
        return None
    return document


def _error_code(answer: httpx2.Response) -> int | None:
    """The code of an answer that is a JSON-RPC error, else `None`."""
    match _json(answer):
        case {"jsonrpc": "2.0", "error": {"code": int(code)}}:
            return code
    return None


def _came(answer: httpx2.Response) -> str:
    code = _error_code(answer)
    return f"HTTP {answer.status_code}" + (f" and error {code}" if code is not None else "")


def _text(result: CallToolResult) -> str:
    return " ".join(content.text for content in result.content if isinstance(content, TextContent))
