"""What API Gateway says of the caller, in every shape in which it says it, and what fails closed."""

import json
from typing import Any

import pytest

from sealane.gateway.identity import invoke_url, verified_caller
from sealane.policy.caller import Caller, MalformedClaims
from tests.events import Event, Shape, make_event

ISSUER = "https://issuer.example"
EXP = 1_800_000_000
CLAIMS = {"iss": ISSUER, "sub": "ada", "client_id": "editor", "scope": "notes:read notes:write", "exp": str(EXP)}
ADA = Caller(
    client_id="editor", issuer=ISSUER, subject="ada", scopes=("notes:read", "notes:write"), expires_at=EXP, claims={}
)
USER = "arn:aws:iam::123456789012:user/ada"
ROLE = "arn:aws:sts::123456789012:assumed-role/editor/ada"


def event(shape: Shape, authorizer: Any, identity: dict[str, Any] | None = None) -> Event:
    """An event of a request that this authorizer has let through."""
    made = make_event(shape)
    made["requestContext"]["authorizer"] = authorizer
    if identity is not None:
        made["requestContext"]["identity"] = {**made["requestContext"].get("identity", {}), **identity}
    return made


def without_claims(caller: Caller | None) -> Caller | None:
    """The caller without what depends on the authorizer."""
    if caller is None:
        return None
    return Caller(
        client_id=caller.client_id,
        issuer=caller.issuer,
        subject=caller.subject,
        scopes=caller.scopes,
        expires_at=caller.expires_at,
        claims={},
    )


@pytest.mark.parametrize(
    "made",
    [
        event("http", {"jwt": {"claims": CLAIMS, "scopes": None}}),
        event("http", {"jwt": {"claims": {**CLAIMS, "scope": "x"}, "scopes": ["notes:read", "notes:write"]}}),
        event("http", {"jwt": {"claims": {**CLAIMS, "scope": "", "scp": "[notes:read notes:write]"}, "scopes": None}}),
        event("http", {"jwt": {"claims": {**CLAIMS, "aud": "[a b]"}, "scopes": None}}),
        event("rest", {"claims": {**CLAIMS, "exp": "Fri Jan 15 08:00:00 UTC 2027"}}),
        event("rest", {"claims": CLAIMS}),
        event("rest", {"principalId": "ada", "integrationLatency": 7, **CLAIMS}),
        event("rest", {"principalId": "ada", **CLAIMS, "claims": json.dumps({"email": "ada@example.com"})}),
        event("http", {"lambda": {**CLAIMS, "exp": EXP}}),
        event("http", {"lambda": {**CLAIMS, "claims": {"email": "ada@example.com"}}}),
        event("http-v1", {"principalId": "ada", **CLAIMS}),
        event("url", {"lambda": CLAIMS}),
    ],
)
def test_a_caller_is_read_as_every_authorizer_says_it(made: Event) -> None:
    assert without_claims(verified_caller(made)) == ADA


def test_claims_of_ours_come_through_a_rest_api_as_text() -> None:
    made = event("rest", {"principalId": "ada", **CLAIMS, "claims": json.dumps({"email": "ada@example.com"})})
    caller = verified_caller(made)
    assert caller is not None
    assert caller.claims["email"] == "ada@example.com"


def test_what_an_authorizer_says_of_identity_goes_before_its_claims() -> None:
    made = event("rest", {"principalId": "p", **CLAIMS, "claims": json.dumps({"sub": "eve", "client_id": "evil"})})
    assert without_claims(verified_caller(made)) == ADA


@pytest.mark.parametrize(
    ("made", "arn", "issuer"),
    [
        (event("rest", None, {"userArn": USER, "accountId": "123456789012"}), USER, "aws:iam"),
        (event("http", {"iam": {"userArn": ROLE, "accountId": "123456789012"}}), ROLE, "aws:sts"),
        (event("url", {"iam": {"userArn": USER}}), USER, "aws:iam"),
    ],
)
def test_an_iam_caller_is_its_arn(made: Event, arn: str, issuer: str) -> None:
    caller = verified_caller(made)
    assert caller is not None
    assert (caller.client_id, caller.issuer, caller.subject) == ("123456789012", issuer, arn)
    assert (caller.scopes, caller.expires_at) == ((), None)


def test_another_lambda_authorizer_is_taken_at_its_principal() -> None:
    caller = verified_caller(event("rest", {"principalId": "ada", "integrationLatency": 7, "tenant": "acme"}))
    assert caller is not None
    assert (caller.client_id, caller.issuer, caller.subject) == ("ada", None, None)


@pytest.mark.parametrize("shape", ["rest", "http", "http-v1", "url", "alb", "alb-multi", "sam-local"])
def test_without_an_authorizer_nobody_is_known(shape: Shape) -> None:
    assert verified_caller(make_event(shape)) is None


def test_headers_are_nobodys_word() -> None:
    headers = {"Authorization": "Bearer x", "x-amzn-oidc-identity": "ada", "X-Forwarded-User": "ada"}
    assert verified_caller(make_event("alb", headers=headers)) is None


@pytest.mark.parametrize(
    "made",
    [
        event("http", {"jwt": {"scopes": []}}),
        event("http", {"jwt": None}),
        event("http", {"jwt": {"claims": {}}}),
        event("http", {"jwt": {"claims": {**CLAIMS, "exp": "soon"}}}),
        event("http", {"jwt": {"claims": {**CLAIMS, "sub": 7}}}),
        event("http", {"lambda": None}),
        event("http", {"lambda": "ada"}),
        event("http", {"iam": {}}),
        event("http", {"iam": {"userArn": "ada"}}),
        event("http", {"iam": None}),
        event("rest", {"claims": {}}),
        event("rest", {}),
        event("rest", {"principalId": ""}),
        event("rest", {"principalId": {"a": 1}}),
        event("rest", {"principalId": "ada", "claims": "no json"}),
        event("rest", {"principalId": "ada", "claims": "[]"}),
        event("rest", {"principalId": "ada", "claims": "[" * 100_000}),
        event("rest", {"principalId": "ada", "exp": "9" * 400 + ".5"}),
        event("rest", "ada"),
        event("rest", [1]),
        event("rest", None, {"userArn": ""}),
        event("rest", None, {"userArn": 7}),
    ],
)
def test_what_names_nobody_fails_closed(made: Event) -> None:
    with pytest.raises(MalformedClaims):
        verified_caller(made)


@pytest.mark.parametrize("context", [None, [], "x", 7])
def test_an_event_without_a_context_names_nobody(context: Any) -> None:
    assert verified_caller({"requestContext": context}) is None
    assert invoke_url({"requestContext": context}) is None


@pytest.mark.parametrize(
    ("shape", "stage", "domain_name", "url"),
    [
        (
            "rest",
            "prod",
            "abc.execute-api.eu-west-1.amazonaws.com",
            "https://abc.execute-api.eu-west-1.amazonaws.com/prod",
        ),
        (
            "http",
            "$default",
            "abc.execute-api.eu-west-1.amazonaws.com",
            "https://abc.execute-api.eu-west-1.amazonaws.com",
        ),
        ("url", "$default", "abc.lambda-url.eu-west-1.on.aws", "https://abc.lambda-url.eu-west-1.on.aws"),
        ("rest", "prod", "mcp.example.com", None),
        ("rest", "prod", "evil.example/abc.execute-api.eu-west-1.amazonaws.com", None),
    ],
)
def test_the_own_url_is_known_where_aws_gave_the_name(
    shape: Shape, stage: str, domain_name: str, url: str | None
) -> None:
    made = make_event(shape)
    made["requestContext"]["domainName"], made["requestContext"]["stage"] = domain_name, stage
    assert invoke_url(made) == url
