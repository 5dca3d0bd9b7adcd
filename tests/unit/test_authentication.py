"""Who is calling, through the handler: whom tools see, what is refused, and where the refusal leads."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer

from sealane import Catalog, McpHandler, RequestContext, create_mcp_handler, current_principal, get_auth_context
from sealane.policy.bearer import BearerAuth
from sealane.policy.gateway_auth import GatewayAuth
from tests.events import NO_CONTEXT, SHAPES, Answer, Event, Message, Shape, answer, legacy, make_event, modern
from tests.unit.asgi import fetch, starlette_request
from tests.unit.issuer import AUDIENCE, Issuer

METADATA = "/.well-known/oauth-protected-resource"
AWS_NAME = "abc.execute-api.eu-west-1.amazonaws.com"
PUBLIC = "https://mcp.example.com"
ISSUER = "https://issuer.example"
NAMED = {"principalId": "p", "client_id": "editor", "iss": ISSUER, "sub": "ada", "scope": "notes:read"}
AUTH = GatewayAuth(issuer="https://issuer.example", required_scopes=("notes:read",))

catalog = Catalog()
seen: dict[str, Any] = {}


@catalog.tool()
def who() -> str:
    """What a tool knows of its caller."""
    token = get_access_token()
    return f"{current_principal()} {token and token.scopes} {(get_auth_context() or {}).get('sub')}"


@catalog.tool(scopes=["notes:write"])
def write() -> str:
    """Needs a scope."""
    return "written"


@catalog.tool(name="purge", scopes=("notes:write", "notes:purge"))
def purge_all() -> str:
    """Needs two."""
    return "purged"


def create_server(context: RequestContext) -> MCPServer:
    """A server that remembers what its factory was told."""
    seen["auth_info"], seen["token"] = context.auth_info, get_access_token()
    return catalog.server("authenticated")


def event(
    request: tuple[Mapping[str, Any], Message],
    authorizer: Any = None,
    shape: Shape = "rest",
    method: str = "POST",
    path: str = "/mcp",
) -> Event:
    """An event of a request that an authorizer has let through."""
    headers, body = request
    made = make_event(shape, method, path, headers=headers, body=body, domain_name=AWS_NAME)
    if path.startswith("/.well-known/"):
        # As the template routes it.
        made["pathParameters"] = {"document": path.removeprefix("/.well-known/").rstrip("/")}
        made["resource"], made["routeKey"] = "/.well-known/{document+}", "ANY /.well-known/{document+}"
    if authorizer is not None:
        given = authorizer if shape in ("rest", "http-v1", "sam-local") else {"lambda": authorizer}
        made["requestContext"]["authorizer"] = given
    return made


def send(handler: McpHandler, made: Event) -> Answer:
    """The answer to an event."""
    return answer(handler(made, NO_CONTEXT))


def call(tool: str = "who") -> tuple[dict[str, str], Message]:
    """A call of a tool."""
    return modern("tools/call", name=tool, arguments={})


def text(reply: Answer) -> str:
    """The text of a tool's result."""
    assert reply.status == 200, reply.body
    return str(reply.messages[-1]["result"]["content"][0]["text"])


ADA = "Principal(client_id='editor', issuer='https://issuer.example', subject='ada') ['notes:read'] ada"


@pytest.mark.parametrize("shape", ["rest", "http", "http-v1", "url", "sam-local"])
@pytest.mark.parametrize("auth", [None, AUTH])
def test_everything_sees_the_caller_that_the_gateway_has_verified(shape: Shape, auth: GatewayAuth | None) -> None:
    handler = create_mcp_handler(create_server, auth=auth)
    for request in (call(), legacy("tools/call", name="who", arguments={})):
        assert text(send(handler, event(request, NAMED, shape))) == ADA
        assert seen["auth_info"] is seen["token"]
        assert seen["auth_info"].token == ""
    assert get_access_token() is None


def test_the_caller_of_one_request_is_not_that_of_the_next() -> None:
    handler = create_mcp_handler(create_server)
    assert text(send(handler, event(call(), NAMED))) == ADA
    assert text(send(handler, event(call()))) == "None None None"


@pytest.mark.parametrize("shape", SHAPES)
def test_a1_without_a_verified_caller_there_is_a_challenge(shape: Shape) -> None:
    handler = create_mcp_handler(create_server, auth=AUTH, public_url=PUBLIC)
    headers, body = call()
    reply = send(handler, event(({**headers, "Authorization": "Bearer forged"}, body), None, shape))
    assert reply.status == 401
    assert reply.json["error"]["message"] == "Sign in: this needs a bearer token"
    challenge = reply.headers["www-authenticate"]
    assert challenge == f'Bearer resource_metadata="{PUBLIC}{METADATA}/mcp", scope="notes:read"'
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_a1_every_method_needs_the_caller(method: str) -> None:
    handler = create_mcp_handler(create_server, auth=AUTH)
    headers, _ = call()
    assert send(handler, event((headers, {}), method=method)).status == 401


def test_c4_a_preflight_needs_none() -> None:
    handler = create_mcp_handler(create_server, auth=AUTH)
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    reply = send(handler, event((headers, {}), method="OPTIONS"))
    assert reply.status == 200
    reply = send(
        handler, event(({**call()[0], "Origin": "https://abc.execute-api.eu-west-1.amazonaws.com"}, call()[1]))
    )
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (401, "*")
    assert "WWW-Authenticate" in reply.headers["access-control-expose-headers"]


def test_a1_a_missing_scope_is_403_and_named() -> None:
    auth = GatewayAuth(issuer="https://issuer.example", required_scopes=("notes:read", "notes:admin"))
    reply = send(create_mcp_handler(create_server, auth=auth), event(call(), NAMED))
    assert reply.status == 403
    assert 'error="insufficient_scope", scope="notes:read notes:admin"' in reply.headers["www-authenticate"]
    assert "notes:admin" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("authorizer", "reason"),
    [
        ({"principalId": ""}, "client_id is no name"),
        ({**NAMED, "claims": "nonsense"}, "no JSON object"),
        ({**NAMED, "exp": "1600000000"}, "has expired"),
        ("ada", "not an object"),
    ],
)
@pytest.mark.parametrize("auth", [None, AUTH])
def test_an_identity_that_is_none_fails_closed(
    authorizer: Any, reason: str, auth: GatewayAuth | None, caplog: pytest.LogCaptureFixture
) -> None:
    reply = send(create_mcp_handler(create_server, auth=auth), event(call(), authorizer))
    assert reply.status == 401
    assert reason in caplog.text
    assert reason not in reply.body


@pytest.mark.parametrize("shape", ["rest", "http-v1"])
def test_two_tokens_are_none_although_the_gateway_knows_one(shape: Shape) -> None:
    handler = create_mcp_handler(create_server, auth=AUTH)
    headers, body = call()
    made = event(({**headers, "Authorization": ["Bearer a", "Bearer b"]}, body), NAMED, shape)
    assert send(handler, made).status == 401


def token(**changes: Any) -> AccessToken:
    """A caller that the code in front has verified."""
    ada = {"token": "t", "client_id": "editor", "scopes": [], "subject": "ada", "claims": {"iss": ISSUER}}
    return AccessToken.model_validate({**ada, **changes})


def test_the_caller_that_is_handed_over_counts_and_must_not_contradict() -> None:
    handler = create_mcp_handler(create_server)
    made = event(call(), NAMED)
    same = fetch(handler, starlette_request(call(), state={"aws.event": made}), auth_info=token(scopes=["mine"]))
    assert "['mine']" in text(same)
    for other in (token(subject="eve"), token(client_id="other"), token(claims=None)):
        reply = fetch(handler, starlette_request(call(), state={"aws.event": made}), auth_info=other)
        assert (reply.status, reply.json["error"]["message"]) == (500, "Internal server error")


def test_a_server_that_checks_tokens_itself_is_not_left_open(caplog: pytest.LogCaptureFixture) -> None:
    class Verifier:
        async def verify_token(self, token: str) -> None: ...

    settings = AuthSettings.model_validate(
        {"issuer_url": ISSUER, "resource_server_url": f"{PUBLIC}/mcp", "validate_token_resource": True}
    )

    def create() -> MCPServer:
        return catalog.server("guarded", auth=settings, token_verifier=Verifier())

    handler = create_mcp_handler(create)
    for request in (call(), legacy("tools/call", name="who", arguments={})):
        reply = send(handler, event(request))
        assert (reply.status, reply.json["error"]["message"]) == (500, "Internal server error")
        assert "open to anyone" in caplog.text
        assert text(send(handler, event(request, NAMED))) == ADA


# --- metadata (RFC 9728) ---


@pytest.mark.parametrize("path", [METADATA, METADATA + "/mcp", METADATA + "/mcp/"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a2_the_metadata_is_read_without_a_token(path: str, shape: Shape) -> None:
    handler = create_mcp_handler(create_server, auth=AUTH, public_url=PUBLIC)
    reply = send(handler, event(({}, {}), None, shape, method="GET", path=path))
    assert reply.status == 200
    assert reply.json == {
        "resource": f"{PUBLIC}/mcp",
        "authorization_servers": ["https://issuer.example"],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["notes:read"],
    }


def test_a3_with_a_stage_the_challenge_names_what_is_served() -> None:
    handler = create_mcp_handler(create_server, auth=AUTH)
    refused = send(handler, event(call()))
    base = f"https://{AWS_NAME}/prod"
    assert f'resource_metadata="{base}{METADATA}/mcp"' in refused.headers["www-authenticate"]
    reply = send(handler, event(({}, {}), method="GET", path=f"{METADATA}/mcp"))
    assert reply.json["resource"] == f"{base}/mcp"


def test_e7_urls_are_never_made_from_the_host_header() -> None:
    handler = create_mcp_handler(create_server, auth=AUTH)
    made = make_event("rest", headers=call()[0], body=call()[1], domain_name="mcp.example.com")
    reply = send(handler, made)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    reply = send(handler, make_event("rest", "GET", METADATA, headers={}, domain_name="mcp.example.com"))
    assert reply.status == 404


@pytest.mark.parametrize(
    ("handler", "method", "path", "status"),
    [
        (create_mcp_handler(create_server), "GET", METADATA, 404),
        (create_mcp_handler(create_server, auth=GatewayAuth()), "GET", METADATA, 404),
        (create_mcp_handler(create_server, auth=AUTH), "POST", METADATA, 405),
        (create_mcp_handler(create_server, auth=AUTH), "GET", METADATA + "/other", 404),
        (create_mcp_handler(create_server, auth=AUTH, route="/tools"), "GET", METADATA + "/tools", 200),
        (create_mcp_handler(create_server, auth=AUTH), "HEAD", METADATA, 200),
    ],
)
def test_what_is_no_document(handler: McpHandler, method: str, path: str, status: int) -> None:
    assert send(handler, event(({}, {}), method=method, path=path)).status == status


def test_a2_metadata_of_another_host_or_origin_is_not_given() -> None:
    handler = create_mcp_handler(create_server, auth=AUTH)
    made = make_event("rest", "GET", METADATA, headers={"Host": "evil.example"}, domain_name=AWS_NAME)
    assert send(handler, made).status == 421
    made = make_event("rest", "GET", METADATA, headers={"Origin": "https://evil.example"}, domain_name=AWS_NAME)
    assert send(handler, made).status == 403


def test_the_template_turns_authentication_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {
        "SEALANE_AUTH_MODE": "jwt",
        "SEALANE_AUTH_ISSUER": "https://issuer.example",
        "SEALANE_AUTH_SCOPES": "notes:read notes:write",
        "SEALANE_PUBLIC_URL": PUBLIC,
    }.items():
        monkeypatch.setenv(variable, value)
    handler = create_mcp_handler(create_server)
    assert send(handler, event(call())).headers["www-authenticate"].startswith(f'Bearer resource_metadata="{PUBLIC}')
    assert send(handler, event(call(), NAMED)).status == 403
    assert text(send(handler, event(call(), {**NAMED, "scope": "notes:read notes:write"})))
    monkeypatch.setenv("SEALANE_AUTH_MODE", "iam")
    monkeypatch.setenv("SEALANE_AUTH_ISSUER", "")
    monkeypatch.setenv("SEALANE_AUTH_SCOPES", "")
    handler = create_mcp_handler(create_server)
    assert send(handler, event(call())).headers["www-authenticate"] == "Bearer"
    made = event(call())
    made["requestContext"]["identity"]["userArn"] = "arn:aws:iam::123456789012:user/ada"
    assert "user/ada" in text(send(handler, made))
    monkeypatch.setenv("SEALANE_AUTH_MODE", "none")
    assert text(send(create_mcp_handler(create_server), event(call())))


# --- tokens that the function verifies ---


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    with issuer.running():
        issuer.add_key()
        yield issuer


def bearing(authorization: Any, path: str = "/mcp") -> Event:
    """A call with this `Authorization`."""
    headers, body = call()
    return event(({**headers, "Authorization": authorization}, body), path=path)


def test_a1_a_bearer_token_is_verified(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    auth = BearerAuth(issuer=issuer.url, audience=AUDIENCE, required_scopes=["notes:read"])
    handler = create_mcp_handler(create_server, auth=auth, public_url=PUBLIC)
    good = issuer.token()
    with caplog.at_level(logging.DEBUG):
        assert "subject='alice'" in text(send(handler, bearing(f"Bearer {good}")))
        assert seen["auth_info"].token == good
        without = send(handler, event(call()))
        assert (without.status, "error=" in without.headers["www-authenticate"]) == (401, False)
        expired = issuer.token(exp=1_600_000_000)
        refused = {
            "expired": bearing(f"Bearer {expired}"),
            "another audience": bearing(f"Bearer {issuer.token(aud='other')}"),
            "forged": bearing(f"Bearer {good[:-6]}AAAAAA"),
            "doubled": bearing([f"Bearer {good}", f"Bearer {good}"]),
            "basic": bearing("Basic YTpi"),
        }
        for name, made in refused.items():
            reply = send(handler, made)
            assert reply.status == 401, name
            assert 'error="invalid_token"' in reply.headers["www-authenticate"], name
            assert f'resource_metadata="{PUBLIC}{METADATA}/mcp"' in reply.headers["www-authenticate"], name
        in_query = event(call())
        in_query["queryStringParameters"] = {"access_token": good}
        in_query["multiValueQueryStringParameters"] = {"access_token": [good]}
        assert send(handler, in_query).status == 401
        lacking = send(handler, bearing(f"Bearer {issuer.token(scope='other')}"))
        assert (lacking.status, 'error="insufficient_scope"' in lacking.headers["www-authenticate"]) == (403, True)
    for secret in (good, expired):
        assert secret not in caplog.text
        assert secret.rpartition(".")[2] not in caplog.text


def test_while_the_issuer_is_out_a_token_is_not_called_invalid() -> None:
    auth = BearerAuth(issuer="http://127.0.0.1:1", audience=AUDIENCE)
    handler = create_mcp_handler(create_server, auth=auth, public_url=PUBLIC)
    issuer = Issuer(port=1)
    issuer.add_key()
    reply = send(handler, bearing(f"Bearer {issuer.token()}"))
    assert reply.status == 503
    assert "Send the same request again" in reply.json["error"]["message"]


def test_a_token_and_the_gateway_must_agree(issuer: Issuer) -> None:
    handler = create_mcp_handler(create_server, auth=BearerAuth(issuer=issuer.url, audience=AUDIENCE))
    made = bearing(f"Bearer {issuer.token()}")
    made["requestContext"]["authorizer"] = NAMED
    assert send(handler, made).status == 500
    made["requestContext"]["authorizer"] = {**NAMED, "client_id": "client-1", "sub": "alice", "iss": issuer.url}
    assert send(handler, made).status == 200


# --- scopes of tools ---


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(
    ("granted", "tools"),
    [
        (None, ["who"]),
        ("notes:read", ["who"]),
        ("notes:write", ["who", "write"]),
        ("notes:purge notes:write", ["who", "write", "purge"]),
    ],
)
def test_a_tool_is_there_for_those_who_have_its_scopes(era: str, granted: str | None, tools: list[str]) -> None:
    handler = create_mcp_handler(create_server, public_url=PUBLIC)
    make = modern if era == "modern" else legacy
    authorizer = None if granted is None else {**NAMED, "scope": granted}
    listed = send(handler, event(make("tools/list"), authorizer)).json["result"]["tools"]
    assert [tool["name"] for tool in listed] == tools
    for name, needed in (("write", "notes:write"), ("purge", "notes:write notes:purge")):
        reply = send(handler, event(make("tools/call", name=name, arguments={}), authorizer))
        if name in tools:
            assert text(reply)
        else:
            assert reply.status == (401 if granted is None else 403)
            assert reply.json["id"] == 1
            if granted is not None:
                assert needed in reply.json["error"]["message"]


def test_a_call_without_the_scopes_of_the_tool_leads_to_more() -> None:
    handler = create_mcp_handler(create_server, auth=AUTH, public_url=PUBLIC)
    reply = send(handler, event(call("purge"), NAMED))
    metadata = f'resource_metadata="{PUBLIC}{METADATA}/mcp"'
    expected = f'Bearer {metadata}, error="insufficient_scope", scope="notes:write notes:purge"'
    assert (reply.status, reply.headers["www-authenticate"]) == (403, expected)


def test_scopes_are_no_text() -> None:
    with pytest.raises(TypeError, match=r"write \['notes:write'\]"):
        Catalog().tool(scopes="notes:write")


@pytest.mark.parametrize("option", [{"auth": "jwt"}, {"auth": object()}, {"public_url": "mcp.example.com"}])
def test_options_are_checked(option: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        create_mcp_handler(create_server, **option)


def test_many_callers_at_once_stay_apart() -> None:
    handler = create_mcp_handler(create_server)

    async def one(subject: str) -> str:
        response = await handler.fetch(starlette_request(call()), auth_info=token(subject=subject))
        return bytes(response.body).decode()

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*(one(f"user-{number}") for number in range(30)))

    for number, body in enumerate(asyncio.run(all_at_once())):
        assert f"subject='user-{number}'" in body
