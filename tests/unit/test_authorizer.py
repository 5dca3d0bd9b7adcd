"""The authorizer function, through its events: what API Gateway gets to hear of a token."""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sealane.gateway.authorizer import MAX_ANSWER, create_authorizer
from sealane.gateway.identity import verified_caller
from sealane.policy.bearer import BearerAuth, IssuerUnavailable
from tests.unit.issuer import AUDIENCE, JWKS, Answer, Issuer, all_that_is_logged, private_key

ARN = "arn:aws:execute-api:eu-west-1:123456789012:abcdef1234/prod"
ROOT = Path(__file__).parents[2]

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer().running() as issuer:
        issuer.add_key()
        yield issuer


@pytest.fixture
def ask(issuer: Issuer) -> Ask:
    """Asks an authorizer that wants the scope `notes:read`."""
    handler = create_authorizer(BearerAuth(issuer=issuer.url, audience=AUDIENCE, required_scopes=["notes:read"]))
    return lambda event: handler(event, None)


@pytest.fixture(autouse=True)
def nothing_is_logged(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No token, no part of one, and no claim of one in any log, whatever the test does."""
    with all_that_is_logged() as log:
        yield
    written = log.getvalue() + "".join(capfd.readouterr())
    for secret in ("eyJ", "alice", "a-token-of-alice", "client-1"):
        assert secret not in written


def request(*authorization: str, name: str = "Authorization", **fields: Any) -> dict[str, Any]:
    """A `REQUEST` event of a REST API."""
    headers: dict[str, list[str]] = {"Host": ["abcdef1234.execute-api.eu-west-1.amazonaws.com"]}
    if authorization:
        headers[name] = list(authorization)
    return {
        "type": "REQUEST",
        "methodArn": f"{ARN}/POST/mcp",
        "resource": "/mcp",
        "path": "/mcp",
        "httpMethod": "POST",
        "headers": {key: values[-1] for key, values in headers.items()},
        "multiValueHeaders": headers,
        "queryStringParameters": {},
        "multiValueQueryStringParameters": {},
        "pathParameters": {},
        "stageVariables": {},
        "requestContext": {"stage": "prod", "apiId": "abcdef1234"},
        **fields,
    }


def refused(ask: Ask, event: dict[str, Any]) -> None:
    """The event is answered with what API Gateway makes a 401 of."""
    with pytest.raises(Exception, match=r"\AUnauthorized\Z") as error:
        ask(event)
    assert type(error.value) is Exception
    assert error.value.__suppress_context__


def effect(answer: dict[str, Any]) -> tuple[str, str]:
    """What a policy says of what."""
    (statement,) = answer["policyDocument"]["Statement"]
    assert answer["policyDocument"]["Version"] == "2012-10-17"
    assert statement["Action"] == "execute-api:Invoke"
    return statement["Effect"], statement["Resource"]


def test_a_good_token_opens_the_stage(issuer: Issuer, ask: Ask) -> None:
    claims = issuer.claims(tenant="t-1", groups=["a", "b"], azp="client-1")
    answer = ask(request(f"Bearer {issuer.token(**claims)}"))
    assert effect(answer) == ("Allow", f"{ARN}/*")
    assert answer["principalId"] == "alice"
    context = answer["context"]
    assert json.loads(context.pop("claims")) == {
        "aud": AUDIENCE,
        "azp": "client-1",
        "groups": ["a", "b"],
        "iat": claims["iat"],
        "jti": "a-token-of-alice",
        "tenant": "t-1",
    }
    assert context == {
        "client_id": "client-1",
        "exp": str(claims["exp"]),
        "iss": issuer.url,
        "scope": "notes:read notes:write",
        "sub": "alice",
    }


def test_the_function_knows_the_same_caller(issuer: Issuer, ask: Ask) -> None:
    exp = int(time.time()) + 300
    token = issuer.token(exp=exp, tenant="t-1", client_id=..., azp="client-1", scope=..., scp=["notes:read"])
    answer = ask(request(f"Bearer {token}"))
    # What API Gateway hands on: the context, its own two values, all as text.
    authorizer = {**answer["context"], "principalId": answer["principalId"], "integrationLatency": 7}
    caller = verified_caller({"requestContext": {"authorizer": authorizer}})
    assert caller is not None
    assert caller.principal == ("client-1", issuer.url, "alice")
    assert caller.scopes == ("notes:read",)
    assert caller.expires_at == exp
    assert caller.claims["tenant"] == "t-1"


def test_a_client_on_its_own_behalf(issuer: Issuer, ask: Ask) -> None:
    answer = ask(request(f"Bearer {issuer.token(sub=...)}"))
    assert answer["principalId"] == "client-1"
    assert "sub" not in answer["context"]


@pytest.mark.parametrize(
    ("arn", "resource"),
    [
        (f"{ARN}/POST/mcp", f"{ARN}/*"),
        (f"{ARN}/GET/", f"{ARN}/*"),
        (f"{ARN}/OPTIONS/a/b/c", f"{ARN}/*"),
        ("arn:aws-cn:execute-api:cn-north-1:1:x/$default/GET/", "arn:aws-cn:execute-api:cn-north-1:1:x/$default/*"),
    ],
)
def test_the_policy_is_for_every_method(issuer: Issuer, ask: Ask, arn: str, resource: str) -> None:
    assert effect(ask(request(f"Bearer {issuer.token()}", methodArn=arn)))[1] == resource


def test_a_missing_scope_is_denied(issuer: Issuer, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    answer = ask(request(f"Bearer {issuer.token(scope='notes:write')}"))
    assert effect(answer) == ("Deny", f"{ARN}/*")
    assert ("WARNING", "refused: the token lacks notes:read") in [
        (record.levelname, record.getMessage()) for record in caplog.records
    ]


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_names_and_schemes_have_no_case(issuer: Issuer, ask: Ask, name: str, scheme: str) -> None:
    assert effect(ask(request(f"{scheme} {issuer.token()}", name=name)))[0] == "Allow"


def test_a_token_event(issuer: Issuer, ask: Ask) -> None:
    event = {"type": "TOKEN", "methodArn": f"{ARN}/POST/mcp", "authorizationToken": f"Bearer {issuer.token()}"}
    assert effect(ask(event)) == ("Allow", f"{ARN}/*")
    refused(ask, {**event, "authorizationToken": issuer.token()})
    refused(ask, {**event, "authorizationToken": None})
    refused(ask, {key: value for key, value in event.items() if key != "authorizationToken"})


def test_the_consoles_test_has_single_headers_only(issuer: Issuer, ask: Ask) -> None:
    event = request(f"Bearer {issuer.token()}", multiValueHeaders=None)
    assert effect(ask(event))[0] == "Allow"


def test_no_token(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    refused(ask, request())
    refused(ask, request(headers=None, multiValueHeaders=None))
    refused(ask, request(""))
    assert ("WARNING", "refused: no Authorization header") in [
        (record.levelname, record.getMessage()) for record in caplog.records
    ]


def test_two_headers(issuer: Issuer, ask: Ask) -> None:
    good = f"Bearer {issuer.token()}"
    refused(ask, request(good, good))
    refused(ask, request(good, "Bearer other"))
    refused(ask, request(f"{good}, {good}"))
    refused(ask, request(good, multiValueHeaders={"Authorization": [good], "authorization": [good]}))
    refused(ask, request(headers={"Authorization": good, "authorization": good}, multiValueHeaders={}))


def test_a_token_elsewhere_is_none(issuer: Issuer, ask: Ask) -> None:
    token = issuer.token()
    refused(
        ask,
        request(
            queryStringParameters={"access_token": token, "authorization": f"Bearer {token}"},
            multiValueQueryStringParameters={"access_token": [token]},
            stageVariables={"Authorization": f"Bearer {token}"},
            body=f"access_token={token}",
        ),
    )
    refused(ask, request(f"Bearer {token}", name="X-Authorization"))
    refused(ask, request(f"access_token={token}", name="Cookie"))


@pytest.mark.parametrize("scheme", ["", "Basic ", "DPoP ", "Bearer: ", "Token ", "BearerBearer "])
def test_other_schemes(issuer: Issuer, ask: Ask, scheme: str) -> None:
    refused(ask, request(f"{scheme}{issuer.token()}"))


def test_bad_tokens(issuer: Issuer, ask: Ask) -> None:
    for token in (
        issuer.token(iss="https://other.example"),
        issuer.token(aud="https://other.example"),
        issuer.token(exp=1),
        issuer.token(exp=...),
        issuer.token(nbf=4_000_000_000),
        issuer.token(key=private_key("other")),
        issuer.token("unknown", key=private_key("other")),
        issuer.token(sub=..., client_id=...),
        issuer.token(scope={"notes:read": True}),
        issuer.token(padding="x" * 16_384),
        issuer.token(headers={"typ": "JWT"}, nonce="n"),
        "garbage",
        "a.b.c",
    ):
        refused(ask, request(f"Bearer {token}"))


def test_a_good_token_is_not_called_bad_while_the_issuer_is_away(issuer: Issuer, ask: Ask) -> None:
    event = request(f"Bearer {issuer.token()}")
    issuer.answers[JWKS] = Answer(503)
    with pytest.raises(IssuerUnavailable, match="503"):
        ask(event)


def test_keys_outlive_an_invocation(issuer: Issuer, ask: Ask) -> None:
    for _ in range(3):
        ask(request(f"Bearer {issuer.token()}"))
    assert issuer.requests.count(JWKS) == 1


@pytest.mark.parametrize("arn", [None, "", 7, "arn:aws:execute-api:eu-west-1:123456789012:abcdef1234"])
def test_events_that_are_none_of_an_authorizer(issuer: Issuer, ask: Ask, arn: object) -> None:
    with pytest.raises(ValueError, match="methodArn"):
        ask(request(f"Bearer {issuer.token()}", methodArn=arn))


def test_every_value_of_the_context_is_text(issuer: Issuer, ask: Ask) -> None:
    answer = ask(request(f"Bearer {issuer.token(scope='notes:read', nested={'a': [1, None]}, name='Zoë')}"))
    assert all(isinstance(value, str) for value in answer["context"].values())
    assert json.loads(answer["context"]["claims"])["nested"] == {"a": [1, None]}


def test_an_answer_that_would_be_too_large_leaves_the_largest_claims_out(
    issuer: Issuer, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [f"group-{number}" for number in range(400)]
    quotes = '"' * 900
    token = issuer.token(groups=groups, photo="x" * 5_000, tenant="t-1", quotes=quotes)
    answer = ask(request(f"Bearer {token}"))
    assert len(json.dumps(answer)) <= MAX_ANSWER
    claims = json.loads(answer["context"]["claims"])
    assert claims["tenant"] == "t-1"
    assert claims["quotes"] == quotes
    assert not claims.keys() & {"groups", "photo"}
    assert answer["context"]["sub"] == "alice"
    assert "2 claims are too large" in caplog.text


def run_without(modules: tuple[str, ...], statement: str, **environment: str) -> None:
    """Run a statement where `modules` cannot be imported."""
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
{statement}
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)  # noqa: S603


def test_the_function_needs_pyjwt_and_nothing_else() -> None:
    run_without(
        ("mcp", "mcp_types", "starlette", "anyio", "mangum", "pydantic", "httpx2", "boto3", "aws_lambda_powertools"),
        f"sys.path[:0] = [{str(ROOT / 'layers/sealane')!r}, {str(ROOT / 'functions/authorizer')!r}]\n"
        "from app import handler\n"
        f"try:\n    handler({{'type': 'TOKEN', 'methodArn': {ARN + '/GET/'!r}}}, None)\n"
        "except Exception as error:\n    assert str(error) == 'Unauthorized', error\n"
        "else:\n    raise SystemExit(1)",
        SEALANE_AUTH_ISSUER="https://issuer.example",
        SEALANE_AUTH_AUDIENCE=AUDIENCE,
    )


def test_its_requirements_are_those_of_the_tests() -> None:
    def pins(path: str) -> set[str]:
        return set((ROOT / path).read_text().replace("[crypto]", "").lower().split())

    assert pins("functions/authorizer/requirements.txt") <= pins("constraints.txt")


def test_the_whole_token_is_one_secret(issuer: Issuer, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    token = issuer.token(aud="https://secret-audience.example", email="secret@example.com")
    refused(ask, request(f"Bearer {token}"))
    for secret in (*token.split("."), "secret", base64.b64encode(b"secret").decode()):
        assert secret not in caplog.text
