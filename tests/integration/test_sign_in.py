"""Signing in, by the SDK's own OAuth client: from the first refusal to a tool, and whose is whose afterwards.

The deployment is `template.yaml` with its authorizer; the authorization server is a real one, made with Authlib.
"""

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import jwt
import pytest
import uvicorn
from joserfc.jwk import ECKey
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent
from pydantic import AnyUrl
from tests.events import modern
from tests.integration.authorization_server import AuthorizationServer, running
from tests.integration.sign_in_function.server import create_server

from sealane import create_mcp_handler
from sealane.local.testing import ObservedGateway
from sealane.policy.bearer import BearerAuth

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
RETURN_TO = "http://127.0.0.1:9/callback"
HTTP = httpx2.Client(timeout=20)
INVALID_STATE = {
    "code": -32602,
    "message": "Invalid or expired requestState",
    "data": {"reason": "invalid_request_state"},
}
MODES: list[ConnectMode] = ["2026-07-28", "legacy"]

# What a client sends, with the status of the answer; AS is the authorization server.
DISCOVERY = ["200 GET /.well-known/oauth-protected-resource/mcp", "200 GET AS/.well-known/oauth-authorization-server"]
REGISTRATION = ["201 POST AS/register"]
TOKEN = ["200 POST AS/token"]
DONE = ["200 POST /mcp"]

SDK = ""
"""The `User-Agent` of its OAuth requests."""


@pytest.fixture(scope="module")
def server() -> Iterator[AuthorizationServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def deployment(server: AuthorizationServer) -> Iterator[ObservedGateway]:
    """The template with `AuthMode` jwt, the test's function, and two environments of each at most."""
    port = free_port()
    public_url = f"http://127.0.0.1:{port}"
    with ObservedGateway(
        ROOT / "template.yaml",
        port=port,
        concurrency=2,
        code_dirs={"StatelessFunction": Path(__file__).parent / "sign_in_function"},
        parameters={
            "AuthMode": "jwt",
            "AuthIssuer": server.url,
            "AuthAudience": f"{public_url}/mcp",
            "AuthScopes": "notes:read",
            "PublicUrl": public_url,
        },
    ) as gateway:
        yield gateway
        assert_no_token_was_logged(gateway)


def free_port() -> int:
    """A port that was free a moment ago: the template has to know it before anybody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def assert_no_token_was_logged(gateway: ObservedGateway) -> None:
    """The header of every JWT begins like this."""
    assert [line for line in gateway.lines if "eyJ" in line.text] == []


@pytest.fixture
def own_address(server: AuthorizationServer) -> Iterator[str]:
    """The same function as an ASGI application, which verifies tokens itself: no gateway renames its challenge."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        public_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        auth = BearerAuth(issuer=server.url, audience=f"{public_url}/mcp", required_scopes=["notes:read"])
        app = create_mcp_handler(create_server, auth=auth, public_url=public_url).app
        serving = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        thread = threading.Thread(target=serving.run, args=([listener],), daemon=True)
        thread.start()
        while not serving.started:
            time.sleep(0.01)
        yield f"{public_url}/mcp"
        serving.should_exit = True
        thread.join()


# People with the SDK's client


@dataclass
class Storage:
    """The SDK's `TokenStorage`."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    @property
    def token(self) -> OAuthToken:
        """The newest tokens."""
        assert self.tokens is not None
        return self.tokens

    @property
    def token_id(self) -> str:
        """`jti` of the access token."""
        token_id: str = jwt.decode(self.token.access_token, options={"verify_signature": False})["jti"]
        return token_id


@dataclass
class Visit:
    """Somebody's client, while it is connected.

    Attributes:
        responses: the answers to what the client has sent.
    """

    client: Client
    server: AuthorizationServer
    storage: Storage
    responses: list[httpx2.Response]

    def steps(self, since: int = 0) -> list[str]:
        """What the client has sent."""
        return [
            f"{answer.status_code} {answer.request.method} "
            + ("AS" if str(answer.url).startswith(self.server.url) else "")
            + answer.url.path
            for answer in self.responses[since:]
        ]

    async def whoami(self) -> dict[str, Any]:
        """What the function knows of the caller."""
        result = await self.client.call_tool("whoami")
        assert result.structured_content is not None, result
        return dict(result.structured_content)

    async def write_note(self) -> str:
        """The answer of the tool that needs another scope."""
        [content] = (await self.client.call_tool("write_note", {"text": "hi"})).content
        assert isinstance(content, TextContent)
        return content.text


@asynccontextmanager
async def visit(
    url: str,
    server: AuthorizationServer,
    user: str = "ada",
    *,
    storage: Storage | None = None,
    mode: ConnectMode = "2026-07-28",
) -> AsyncIterator[Visit]:
    """Connect the client of a user, who has it open the authorization server's page in a browser and says yes."""
    storage = storage or Storage()
    arrived: list[AuthorizationCodeResult] = []
    responses: list[httpx2.Response] = []

    async def open_page(page: str) -> None:
        async with httpx2.AsyncClient(headers={"User-Agent": "browser"}) as browser:
            answer = await browser.get(f"{page}&login_hint={user}")
        back = answer.headers["Location"]
        assert back.startswith(RETURN_TO)
        values = {name: value for name, [value] in parse_qs(urlsplit(back).query).items()}
        arrived.append(AuthorizationCodeResult.model_validate(values))

    async def come_back() -> AuthorizationCodeResult:
        return arrived.pop()

    async def note(response: httpx2.Response) -> None:
        # A legacy client also asks for a stream, at its leisure; there is none.
        if (response.request.method, str(response.url)) != ("GET", url):
            responses.append(response)

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(RETURN_TO)], token_endpoint_auth_method="none")  # noqa: S106
    provider = OAuthClientProvider(url, metadata, storage, open_page, come_back)
    async with (
        httpx2.AsyncClient(auth=provider, timeout=20, event_hooks={"response": [note]}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        yield Visit(client, server, storage, responses)


def challenge(deployment: ObservedGateway, error: str = "") -> str:
    """What the gateway says to whoever has no token, or one that lacks a scope."""
    metadata = f"{deployment.base_url}/.well-known/oauth-protected-resource/mcp"
    return f'Bearer {error}resource_metadata="{metadata}", scope="notes:read"'


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_is_led_from_the_refusal_to_the_tool(
    deployment: ObservedGateway, server: AuthorizationServer, mode: ConnectMode
) -> None:
    before = len(server.requests)
    async with visit(deployment.url, server, mode=mode) as ada:
        known = await ada.whoami()
        tools = [tool.name for tool in (await ada.client.list_tools()).tools]
        again = await ada.whoami()

    # The refusal is the gateway's own: no environment has seen the request.
    refused = ada.responses[0]
    assert refused.headers["WWW-Authenticate"] == challenge(deployment)
    assert deployment.call(refused.headers["x-amzn-RequestId"]).environment is None
    assert deployment.call(ada.responses[5].headers["x-amzn-RequestId"]).environment in (1, 2)
    assert ada.steps()[:6] == ["401 POST /mcp", *DISCOVERY, *REGISTRATION, *TOKEN, *DONE]
    assert not [answer for answer in ada.responses[6:] if answer.status_code in (401, 403)]

    assert [(each.by, each.what) for each in server.requests[before:] if each.by != "sealane"] == [
        (SDK, "GET /.well-known/oauth-authorization-server"),
        (SDK, "POST /register"),
        ("browser", "GET /authorize"),
        (SDK, "POST /token"),
    ]
    [asked], [exchanged] = server.asked("GET /authorize", before), server.asked("POST /token", before)
    assert (asked["scope"], asked["code_challenge_method"]) == ("notes:read", "S256")
    assert exchanged["grant_type"] == "authorization_code"
    assert asked["resource"] == exchanged["resource"] == deployment.url

    # The authorizer has its keys from the same server, was asked about this token, and then no more.
    assert server.seen(by="sealane")[:2] == ["GET /.well-known/oauth-authorization-server", "GET /jwks"]
    assert (known.pop("authorizer_ms") > 0) == (mode == "2026-07-28")  # legacy: at its handshake
    assert again["authorizer_ms"] == 0
    assert known == {
        "client_id": asked["client_id"],
        "subject": "ada",
        "issuer": server.url,
        "scopes": ["notes:read"],
        "token_id": ada.storage.token_id,
    }
    assert tools == ["whoami", "keep", "read", "ask", "draw", "wait"]


async def test_an_expired_token_is_refreshed_and_after_a_refusal_asked_for_anew(
    deployment: ObservedGateway, server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "lifetime", 1)
    async with visit(deployment.url, server) as ada:
        first, spent = await ada.whoami(), ada.storage.token.refresh_token

        await anyio.sleep(1.1)
        sent, seen = len(ada.responses), len(server.requests)
        second = await ada.whoami()
        assert ada.steps(sent) == [*TOKEN, *DONE]
        [refresh] = server.asked("POST /token", seen)
        assert refresh["grant_type"] == "refresh_token"
        assert (refresh["refresh_token"], refresh["resource"]) == (spent, deployment.url)
        assert server.asked("GET /authorize", seen) == []
        assert second["token_id"] == ada.storage.token_id != first["token_id"]
        assert second["authorizer_ms"] > 0
        assert {**second, "token_id": "", "authorizer_ms": 0} == {**first, "token_id": "", "authorizer_ms": 0}
        # The server gives a new refresh token each time.
        again = HTTP.post(f"{server.url}/token", data=dict(refresh))
        assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")

        server.refresh_tokens.clear()
        await anyio.sleep(1.1)
        sent = len(ada.responses)
        assert (await ada.whoami())["subject"] == "ada"
        assert ada.steps(sent) == ["400 POST AS/token", "401 POST /mcp", *DISCOVERY, *TOKEN, *DONE]


async def test_after_a_restart_an_expired_token_is_asked_for_anew(
    deployment: ObservedGateway, server: AuthorizationServer
) -> None:
    storage = Storage()
    async with visit(deployment.url, server, storage=storage) as ada:
        await ada.whoami()
    expired = server.token(aud=deployment.url, exp=int(time.time()) - 61)
    storage.tokens = storage.token.model_copy(update={"access_token": expired})
    seen = len(server.requests)
    async with visit(deployment.url, server, storage=storage) as ada:
        assert (await ada.whoami())["subject"] == "ada"
        # The SDK does not know when a stored token expires, and answers a 401 with a new sign-in, not with a refresh.
        assert ada.steps()[:5] == ["401 POST /mcp", *DISCOVERY, *TOKEN, *DONE]
    assert [sent["grant_type"] for sent in server.asked("POST /token", seen)] == ["authorization_code"]


async def test_a_token_that_expires_while_the_gateway_keeps_its_answer_is_refused(
    deployment: ObservedGateway, server: AuthorizationServer
) -> None:
    expires = int(time.time()) - 57  # the server allows for 60 seconds
    dying = server.token(aud=deployment.url, exp=expires)
    async with visit(deployment.url, server, storage=Storage(OAuthToken(access_token=dying))) as ada:
        assert (await ada.whoami())["authorizer_ms"] > 0
        await anyio.sleep(expires + 60.1 - time.time())
        sent = len(ada.responses)
        assert (await ada.whoami())["subject"] == "ada"
        # This refusal is the function's: its challenge arrives under another name, and the client has to guess.
        refused = ada.responses[sent]
        assert deployment.call(refused.headers["x-amzn-RequestId"]).environment in (1, 2)
        assert "WWW-Authenticate" not in refused.headers
        assert ada.steps(sent) == ["401 POST /mcp", *DISCOVERY, *REGISTRATION, *TOKEN, *DONE]


# Scopes


@pytest.mark.parametrize("mode", MODES)
async def test_behind_the_gateway_a_tool_that_needs_another_scope_says_so(
    deployment: ObservedGateway, server: AuthorizationServer, mode: ConnectMode
) -> None:
    async with visit(deployment.url, server, mode=mode) as ada:
        await ada.whoami()
        sent, seen = len(ada.responses), len(server.requests)
        with pytest.raises(MCPError, match=r"^The token lacks a scope; needed: notes:write$") as caught:
            await ada.write_note()
        assert caught.value.error.code == -32600
        # The SDK asks for more scopes when it reads WWW-Authenticate; API Gateway has given that another name.
        assert ada.steps(sent) == ["403 POST /mcp"]
        assert server.asked("GET /authorize", seen) == []
        headers = ada.responses[sent].headers
        assert "WWW-Authenticate" not in headers
        metadata = f'resource_metadata="{deployment.base_url}/.well-known/oauth-protected-resource/mcp"'
        assert headers["x-amzn-remapped-WWW-Authenticate"] == (
            f'Bearer {metadata}, error="insufficient_scope", scope="notes:write"'
        )
        assert (await ada.whoami())["subject"] == "ada"


async def test_behind_the_gateway_a_token_with_the_scope_is_good(
    deployment: ObservedGateway, server: AuthorizationServer
) -> None:
    token = server.token(aud=deployment.url, scope="notes:read notes:write")
    async with visit(deployment.url, server, storage=Storage(OAuthToken(access_token=token))) as ada:
        assert "write_note" in [tool.name for tool in (await ada.client.list_tools()).tools]
        assert await ada.write_note() == "written: hi"
    assert ada.steps() == DONE * len(ada.responses)


@pytest.mark.parametrize("mode", MODES)
async def test_where_the_challenge_arrives_the_client_steps_up(
    own_address: str, server: AuthorizationServer, mode: ConnectMode
) -> None:
    async with visit(own_address, server, mode=mode) as ada:
        first = await ada.whoami()
        assert ada.steps()[:6] == ["401 POST /mcp", *DISCOVERY, *REGISTRATION, *TOKEN, *DONE]
        assert "write_note" not in [tool.name for tool in (await ada.client.list_tools()).tools]
        sent, seen = len(ada.responses), len(server.requests)
        assert await ada.write_note() == "written: hi"
        assert ada.steps(sent)[:3] == ["403 POST /mcp", *TOKEN, *DONE]
        [asked] = server.asked("GET /authorize", seen)
        assert (asked["scope"], asked["resource"]) == ("notes:read notes:write", own_address)
        second = await ada.whoami()
        assert (first["scopes"], second["scopes"]) == (["notes:read"], ["notes:read", "notes:write"])
        assert second["client_id"] == first["client_id"]
        assert second["authorizer_ms"] is None


async def test_the_authorizers_own_403_makes_the_client_step_up(
    deployment: ObservedGateway, server: AuthorizationServer
) -> None:
    poor = server.token(aud=deployment.url, scope="notes:write")
    seen = len(server.requests)
    storage = Storage(OAuthToken(access_token=poor, scope="notes:write"))
    async with visit(deployment.url, server, storage=storage) as ada:
        known = await ada.whoami()
    refused = ada.responses[0]
    assert refused.headers["WWW-Authenticate"] == challenge(deployment, 'error="insufficient_scope", ')
    assert deployment.call(refused.headers["x-amzn-RequestId"]).environment is None
    assert ada.steps()[:6] == ["403 POST /mcp", *DISCOVERY, *REGISTRATION, *TOKEN, *DONE]
    assert [asked["scope"] for asked in server.asked("GET /authorize", seen)] == ["notes:write notes:read"]
    assert known["scopes"] == ["notes:write", "notes:read"]


# Clients that send what they are told to


@dataclass(frozen=True)
class Reply:
    """An answer and where it came from."""

    status: int
    headers: httpx2.Headers
    body: Any
    environment: int | None

    @property
    def text(self) -> str:
        """The text of a finished call, and whether it failed."""
        result = self.body["result"]
        return ("failed: " if result.get("isError") else "") + str(result["content"][0]["text"])


Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Caller:
    """The bearer of a token."""

    gateway: ObservedGateway
    token: str = field(repr=False)

    @property
    def bearer(self) -> Headers:
        return [("Authorization", f"Bearer {self.token}")]

    def call(self, tool: str, *, rest: dict[str, Any] | None = None, **arguments: Any) -> Reply:
        """Call a tool, with the rest of a request's parameters."""
        return self.send(self.bearer, tool, rest=rest, **arguments)

    def send(
        self,
        headers: Headers,
        tool: str = "whoami",
        query: str = "",
        rest: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Reply:
        """Call a tool with these headers; a call that finds every environment busy (429) is made again."""
        capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
        usual, body = modern(
            "tools/call", client_capabilities=capabilities, name=tool, arguments=arguments, **(rest or {})
        )
        while True:
            answer = HTTP.post(self.gateway.url + query, headers=[*usual.items(), *headers], content=json.dumps(body))
            if answer.status_code != 429:
                environment = self.gateway.call(answer.headers["x-amzn-RequestId"]).environment
                return Reply(answer.status_code, answer.headers, answer.json(), environment)
            time.sleep(0.02)


PATHS = ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer nonsense"}])
def test_a2_clients_that_probe_find_the_metadata_without_a_token(
    deployment: ObservedGateway, server: AuthorizationServer, path: str, headers: dict[str, str]
) -> None:
    answer = HTTP.get(deployment.base_url + path, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {
        "resource": deployment.url,
        "authorization_servers": [server.url],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["notes:read"],
    }


@pytest.mark.parametrize("path", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"])
def test_clients_that_take_us_for_the_authorization_server_are_told_no(deployment: ObservedGateway, path: str) -> None:
    assert HTTP.get(deployment.base_url + path).status_code == 404


# Two people with one client


async def signed_in(deployment: ObservedGateway, server: AuthorizationServer) -> tuple[Caller, Caller]:
    """Ada and Bob, by the same registration."""
    ada, bob = Storage(), Storage()
    async with visit(deployment.url, server, "ada", storage=ada) as session:
        await session.whoami()
    bob.client = ada.client
    async with visit(deployment.url, server, "bob", storage=bob) as session:
        await session.whoami()
    return Caller(deployment, ada.token.access_token), Caller(deployment, bob.token.access_token)


@pytest.fixture(scope="module")
def people(deployment: ObservedGateway, server: AuthorizationServer) -> tuple[Caller, Caller]:
    """Both are known to the gateway, and two environments are warm."""
    ada, bob = anyio.run(signed_in, deployment, server)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(caller.call, "wait", seconds=1) for caller in (ada, bob)]
    assert {each.result().environment for each in waiting} == {1, 2}
    known = [caller.call("whoami").body["result"]["structuredContent"] for caller in (ada, bob)]
    assert [each["subject"] for each in known] == ["ada", "bob"]
    assert known[0]["client_id"] == known[1]["client_id"]
    return ada, bob


People = tuple[Caller, Caller]
ALL_WAYS = {(1, 1), (1, 2), (2, 1), (2, 2)}


def in_all_environments(first: Callable[[], Reply], then: Callable[[Reply], list[Reply]], skip: Caller) -> None:
    """Have every environment go on where every environment has begun: which one serves goes round."""
    pairs: set[tuple[int | None, int | None]] = set()
    for attempt in range(8):
        begun = first()
        for _ in range(attempt % 2):
            skip.call("wait", seconds=0)
        pairs |= {(begun.environment, reply.environment) for reply in then(begun)}
    assert pairs == ALL_WAYS


def test_a_handle_is_its_principals(people: People) -> None:
    ada, bob = people
    unknown = bob.call("read", handle=ada.call("keep", text="x").text[::-1]).text
    assert unknown.startswith("failed: ")

    def read(kept: Reply) -> list[Reply]:
        hers, his = ada.call("read", handle=kept.text), bob.call("read", handle=kept.text)
        assert (hers.text, his.text) == ("secret", unknown)
        return [hers, his]

    in_all_environments(lambda: ada.call("keep", text="secret"), read, bob)


def test_a_state_is_its_principals(people: People) -> None:
    ada, bob = people
    answers = {"answer": {"action": "accept", "content": {"confirm": True}}}

    def go_on(asked: Reply) -> list[Reply]:
        rest = {"requestState": asked.body["result"]["requestState"], "inputResponses": answers}
        his, hers = bob.call("ask", rest=rest, text="x"), ada.call("ask", rest=rest, text="x")
        assert (his.body["error"], hers.text) == (INVALID_STATE, "x: asked x")
        return [his, hers]

    in_all_environments(lambda: ada.call("ask", text="x"), go_on, bob)


def test_what_happened_once_happened_for_its_principal(people: People) -> None:
    ada, bob = people
    hers, his = ada.call("draw"), bob.call("draw")
    assert hers.text != his.text

    def draw(_: Reply) -> list[Reply]:
        again = [ada.call("draw"), bob.call("draw")]
        assert [each.text for each in again] == [hers.text, his.text]
        return again

    in_all_environments(lambda: ada.call("wait", seconds=0), draw, bob)


def test_what_the_gateway_keeps_of_one_token_serves_no_other(people: People, server: AuthorizationServer) -> None:
    ada, bob = people
    url = ada.gateway.url
    callers = [ada, bob, *(replace(ada, token=server.token(aud=url, sub=user)) for user in ("ada", "eve"))]

    def known(caller: Caller) -> dict[str, Any]:
        content: dict[str, Any] = caller.call("whoami").body["result"]["structuredContent"]
        claims = jwt.decode(caller.token, options={"verify_signature": False})
        assert (content["subject"], content["token_id"]) == (claims["sub"], claims["jti"])
        return content

    assert [known(caller)["authorizer_ms"] > 0 for caller in callers] == [False, False, True, True]
    with ThreadPoolExecutor(2) as pool:
        assert {each["authorizer_ms"] for each in pool.map(known, callers * 5)} == {0}

    (header, claims, signature), (_, others_claims, others_signature) = (each.token.split(".") for each in (ada, bob))
    changed = ("A" if signature[0] != "A" else "B") + signature[1:]
    for token in (
        f"{header}.{claims}.{others_signature}",
        f"{header}.{others_claims}.{signature}",
        f"{header}.{claims}.{changed}",
        ada.token[:-1],
    ):
        assert replace(ada, token=token).call("whoami").status == 401
    assert known(ada)["authorizer_ms"] == 0


# Tokens that are not good, beside one that the gateway knows already


def bearer(token: str) -> Headers:
    return [("Authorization", f"Bearer {token}")]


STRANGER = ECKey.generate_key("P-256", {"kid": "first"})
UNSIGNED = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}
Refused = Callable[[Caller, Caller, Callable[..., str]], Headers]
REFUSED: dict[str, Refused] = {
    "no token": lambda ada, bob, make: [],
    "twice": lambda ada, bob, make: [*ada.bearer, *ada.bearer],
    "two people": lambda ada, bob, make: [*ada.bearer, *bob.bearer],
    "two people, other order": lambda ada, bob, make: [*bob.bearer, *ada.bearer],
    "good, then bad": lambda ada, bob, make: [*ada.bearer, *bearer("x")],
    "good and empty": lambda ada, bob, make: [*ada.bearer, ("Authorization", "")],
    "two in one": lambda ada, bob, make: [("Authorization", f"Bearer {ada.token}, Bearer {bob.token}")],
    "another scheme": lambda ada, bob, make: [("Authorization", f"DPoP {ada.token}")],
    "no scheme": lambda ada, bob, make: [("Authorization", ada.token)],
    "expired": lambda ada, bob, make: bearer(make(exp=int(time.time()) - 61)),
    "not yet valid": lambda ada, bob, make: bearer(make(nbf=int(time.time()) + 90)),
    "another audience": lambda ada, bob, make: bearer(make(aud="https://other.example/mcp")),
    "the host as audience": lambda ada, bob, make: bearer(make(aud=ada.gateway.base_url)),
    "another issuer": lambda ada, bob, make: bearer(make(iss="https://other.example")),
    "forged": lambda ada, bob, make: bearer(make(key=STRANGER)),
    "forged, with its key": lambda ada, bob, make: bearer(make(key=STRANGER, headers={"jwk": STRANGER.as_dict()})),
    "unknown key": lambda ada, bob, make: bearer(make(headers={"kid": "second"})),
    "another type": lambda ada, bob, make: bearer(make(headers={"typ": "logout+jwt"})),
    "unsigned": lambda ada, bob, make: bearer(f"{UNSIGNED}.{ada.token.split('.')[1]}."),
    "unsigned, signed": lambda ada, bob, make: bearer(".".join([UNSIGNED, *ada.token.split(".")[1:]])),
    "no JWT": lambda ada, bob, make: bearer("nonsense"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a1_a_token_that_is_not_good_is_401(people: People, server: AuthorizationServer, case: str) -> None:
    ada, bob = people

    def make(**changed: Any) -> str:
        return server.token(**{"aud": ada.gateway.url, **changed})

    assert_refused(ada, ada.send(REFUSED[case](ada, bob, make)))
    assert ada.call("whoami").status == 200


@pytest.mark.parametrize("name", ["access_token", "Authorization", "authorization", "token"])
def test_a_token_in_the_query_is_none(people: People, name: str) -> None:
    ada, _ = people
    assert_refused(ada, ada.send([], query=f"?{name}={ada.token}"))
    assert_refused(ada, ada.send([], query=f"?{name}=Bearer%20{ada.token}"))


def assert_refused(ada: Caller, reply: Reply) -> None:
    """A 401 of the gateway itself, that leads to a token; nothing of any token was logged."""
    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"] == challenge(ada.gateway)
    assert reply.body["error"]["code"] == -32600
    assert reply.environment is None
    assert_no_token_was_logged(ada.gateway)


def test_refusals_are_logged_without_their_token(people: People) -> None:
    ada, _ = people
    forged = ada.token[:-4] + "AAAA"
    assert_refused(ada, replace(ada, token=forged).call("whoami"))
    lines = [line.text for line in ada.gateway.lines if line.function == "AuthorizerFunction"]
    assert any("refused: PyJWT says InvalidSignatureError" in line for line in lines)
    for part in forged.split("."):
        assert not [line.text for line in ada.gateway.lines if part in line.text]
