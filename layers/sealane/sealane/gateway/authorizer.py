"""The Lambda authorizer of a REST API: API Gateway asks it whose token a request has, and keeps the answer."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from sealane import telemetry
from sealane.gateway.loop import environment_loop
from sealane.policy.bearer import BearerAuth, TokenRefused, bearer_token
from sealane.policy.caller import Caller

__all__ = ["MAX_ANSWER", "create_authorizer"]

logger = logging.getLogger(__name__)

MAX_ANSWER: Final = 8_192
"""Bytes of an answer.

The quota that AWS names for WebSocket APIs ("AWS Lambda authorizer result size"); it names none for REST APIs:
https://docs.aws.amazon.com/apigateway/latest/developerguide/limits.html
"""

Authorizer = Callable[[Mapping[str, Any], object], dict[str, Any]]

_INVALID_REQUEST: Final = -32600
"""What the API's gateway responses say to a refusal; `sealane.errors` has it together with what is not needed here."""
_MAPPED: Final = frozenset({"client_id", "sub", "iss", "scope", "exp"})


def create_authorizer(bearer: BearerAuth) -> Authorizer:
    """Make a Lambda handler for `REQUEST` and `TOKEN` authorizers of a REST API.

        handler = create_authorizer(BearerAuth.from_environment())

    | the request has | the client gets | gateway response |
    |---|---|---|
    | no token, several, or one that is not good | 401 | `UNAUTHORIZED` |
    | a good token that lacks a required scope | 403 | `ACCESS_DENIED` |
    | a token, while the issuer's keys cannot be had | 500 | `AUTHORIZER_FAILURE` |
    | a good token | what the function answers | |

    The function finds in `requestContext.authorizer`, all as text: `client_id`, `sub`, `iss`, `scope` (separated by
    spaces), `exp` (epoch seconds; the answer is cached, so the token may have expired since), and `claims`, a JSON
    object of the other claims. When not all of them fit, the largest are left out.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/apigateway-use-lambda-authorizer.html
    https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-lambda-authorizer-output.html
    """

    telemetry.start()

    def authorize(event: Mapping[str, Any], context: object) -> dict[str, Any]:
        with telemetry.exchange(getattr(context, "aws_request_id", None)) as exchange:
            exchange.keys["lane"] = "authorizer"
            exchange.forwarded = True
            status = 500
            try:
                stage = _stage(event)
                caller = environment_loop().run(bearer.verify(bearer_token(_authorization(event))))
                exchange.identify(caller.principal)
                if missing := bearer.missing_scopes(caller):
                    status = 403
                    exchange.refuse(status, _INVALID_REQUEST, f"the token lacks {' '.join(missing)}")
                    return _answer("Deny", stage, caller, {})
                status = 200
                return _allow(stage, caller)
            except TokenRefused as refused:
                status = 401
                exchange.refuse(status, _INVALID_REQUEST, str(refused))
                # API Gateway makes a 401 of exactly this text, and a 500 of every other.
                raise Exception("Unauthorized") from None
            except Exception as error:
                exchange.explain(type(error).__name__)
                raise
            finally:
                exchange.end(status)

    return authorize


def _authorization(event: Mapping[str, Any]) -> list[object]:
    """All values of the header `Authorization`."""
    if event.get("type") == "TOKEN":
        return [event.get("authorizationToken")]
    values: list[object] = []
    for name, given in (event.get("multiValueHeaders") or {}).items():
        if name.lower() == "authorization":
            values += given if isinstance(given, list) else [given]
    return values or [value for name, value in (event.get("headers") or {}).items() if name.lower() == "authorization"]


def _stage(event: Mapping[str, Any]) -> str:
    """The ARN of everything in the stage.

    Raises:
        ValueError: the event is not one for an authorizer of a REST API.
    """
    arn = event.get("methodArn")
    parts = arn.split("/") if isinstance(arn, str) else []
    if len(parts) < 3:
        raise ValueError("not an event for an authorizer of a REST API: it has no methodArn")
    # Not the method alone: API Gateway keeps the answer for the token, and reads it for all other methods too.
    return f"{parts[0]}/{parts[1]}/*"


def _allow(stage: str, caller: Caller) -> dict[str, Any]:
    named = {
        "client_id": caller.client_id,
        "sub": caller.subject,
        "iss": caller.issuer,
        "scope": " ".join(caller.scopes),
        "exp": None if caller.expires_at is None else str(caller.expires_at),
    }
    context = {key: value for key, value in named.items() if value}
    claims: dict[str, object] = {}
    left_out = 0
    others = {claim: value for claim, value in caller.claims.items() if claim not in _MAPPED}
    for claim, value in sorted(others.items(), key=lambda item: len(json.dumps(item))):
        answer = _answer("Allow", stage, caller, {**context, "claims": json.dumps({**claims, claim: value})})
        if len(json.dumps(answer)) > MAX_ANSWER:
            left_out += 1
        else:
            claims[claim] = value
    if left_out:
        logger.warning("%d claims are too large for the authorizer's answer and left out", left_out)
    return _answer("Allow", stage, caller, {**context, "claims": json.dumps(claims)})


def _answer(effect: str, stage: str, caller: Caller, context: dict[str, str]) -> dict[str, Any]:
    statement = {"Action": "execute-api:Invoke", "Effect": effect, "Resource": stage}
    return {
        "principalId": caller.subject or caller.client_id,
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": context,
    }
