"""Who the caller is, as API Gateway has verified it and says in the event's request context."""

import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from sealane.policy.caller import Caller, MalformedClaims, caller_of
from sealane.policy.hosts import aws_name

__all__ = ["invoke_url", "verified_caller"]

_OURS: Final = ("client_id", "iss", "sub", "scope", "exp")
"""Context keys of `gateway/authorizer.py`, and of every Lambda authorizer that wants to be understood."""


def verified_caller(event: Mapping[str, Any]) -> Caller | None:
    """The caller of an event, `None` where the gateway verified nobody.

    | authorizer | where it is in the request context | how it is read |
    |---|---|---|
    | HTTP API, JWT | `authorizer.jwt.claims`, `.scopes` | `caller_of` |
    | REST API, Cognito user pool | `authorizer.claims` | `caller_of` |
    | Lambda, REST API | `authorizer` | `client_id`, `iss`, `sub`, `scope`, `exp`, and `claims` as JSON |
    | Lambda, HTTP API | `authorizer.lambda` | the same |
    | IAM, REST API | `identity.userArn` | the ARN is the subject, its account the client |
    | IAM, HTTP API and function URL | `authorizer.iam.userArn` | the same |

    A Lambda authorizer that gives no `client_id` is taken at its `principalId`, the name that it must give.

    Raises:
        MalformedClaims: the gateway says something, and it names nobody.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html
    https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html
    """
    context = event.get("requestContext")
    if not isinstance(context, dict):
        return None
    authorizer = context.get("authorizer")
    if authorizer is None:
        identity = context.get("identity")
        arn = identity.get("userArn") if isinstance(identity, dict) else None
        return None if arn is None else _iam_caller(arn)
    match authorizer:
        case {"jwt": jwt}:
            return _jwt_caller(jwt)
        case {"iam": iam}:
            return _iam_caller(iam.get("userArn") if isinstance(iam, dict) else None)
        case {"lambda": given}:
            return _lambda_caller(given)
        # Claims of a user pool are an object; those of a Lambda authorizer can only be text.
        case {"claims": Mapping() as claims}:
            return caller_of({**claims, "exp": _seconds(claims.get("exp"))})
        case _:
            return _lambda_caller(authorizer)


def invoke_url(event: Mapping[str, Any]) -> str | None:
    """The URL of the deployment that the event came through, without the route; `None` where AWS gave it no name."""
    context = event.get("requestContext")
    domain_name = context.get("domainName") if isinstance(context, dict) else None
    if not isinstance(context, dict) or not isinstance(domain_name, str) or aws_name(domain_name) is None:
        return None
    stage = context.get("stage")
    return f"https://{domain_name}" if stage in (None, "", "$default") else f"https://{domain_name}/{stage}"


def _jwt_caller(jwt: object) -> Caller:
    claims = jwt.get("claims") if isinstance(jwt, dict) else None
    if not isinstance(jwt, dict) or not isinstance(claims, dict):
        raise MalformedClaims("the JWT authorizer's context has no claims")
    # HTTP APIs make text of every claim, a list's in brackets; its scopes are beside the claims, if the route has any.
    claims = {**claims, "exp": _seconds(claims.get("exp"))}
    if isinstance(jwt.get("scopes"), list):
        claims["scope"] = jwt["scopes"]
    for claim in ("scope", "scp"):
        if isinstance(claims.get(claim), str):
            claims[claim] = claims[claim].strip("[]") or None
    return caller_of(claims)


def _lambda_caller(given: object) -> Caller:
    if not isinstance(given, dict):
        raise MalformedClaims("the Lambda authorizer's context is not an object")
    named = {key: given[key] for key in _OURS if given.get(key) not in (None, "")}
    more = given.get("claims", "{}")
    try:
        claims = json.loads(more) if isinstance(more, str) else more
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise MalformedClaims("the Lambda authorizer's context has claims that are no JSON object")
    named.setdefault("client_id", given.get("principalId"))
    return caller_of({**claims, **dict.fromkeys(_OURS), **named, "exp": _seconds(named.get("exp"))})


def _iam_caller(arn: object) -> Caller:
    parts = arn.split(":") if isinstance(arn, str) else []
    if len(parts) < 6 or parts[0] != "arn" or not parts[4]:
        raise MalformedClaims("the IAM caller has no ARN")
    return Caller(client_id=parts[4], issuer=f"{parts[1]}:{parts[2]}", subject=str(arn), claims={"arn": arn})


def _seconds(exp: object) -> object:
    """A claim `exp` as a number: JWT authorizers make text of it, user pool authorizers a date."""
    if not isinstance(exp, str):
        return exp
    try:
        return int(exp) if exp.isascii() and exp.isdigit() else int(parsedate_to_datetime(exp).timestamp())
    except (ValueError, TypeError, OverflowError):
        raise MalformedClaims("the time at which the token expires is none") from None
