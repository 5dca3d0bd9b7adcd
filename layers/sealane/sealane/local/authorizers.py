"""Lambda authorizers: who they are asked about, what their answers mean, and how long those are kept."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from sealane.local.api_gateway import (
    Failure,
    Invoke,
    MalformedAnswer,
    Refused,
    answer_json,
    kind_of,
    query_parameters,
)
from sealane.local.errors import FunctionError, Throttled
from sealane.local.json_values import Json
from sealane.local.security import LambdaAuthorizer

_ACTION: Final = "execute-api:invoke"
_UNKNOWN_CLAUSES: Final = ("Condition", "NotAction", "NotResource")


@dataclass(frozen=True)
class Verdict:
    """What an authorizer said of a caller.

    Attributes:
        statements: effect, actions and resources of each statement of its policy; of a boolean, one for everything.
        context: what it tells the function.
        principal: the caller's `principalId`, None where it gave none.
    """

    statements: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    context: Mapping[str, Json]
    principal: str | None

    def failure(self, arn: str) -> Failure | None:
        """Why a request to this ARN is refused, None when it is not: it needs an Allow, and no Deny.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-control-access-using-iam-policies-to-invoke-api.html
        https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_resource.html (wildcards)
        """
        effects = {
            effect
            for effect, actions, resources in self.statements
            if any(_matches(action.lower(), _ACTION) for action in actions)
            and any(_matches(resource, arn) for resource in resources)
        }
        if "Deny" in effects:
            return Failure.DENIED_EXPLICITLY
        return None if "Allow" in effects else Failure.DENIED


class LambdaAuthorizers:
    """The Lambda authorizers of an API, with the answers that it keeps.

    Args:
        invoke: calls a function.
        timeout: seconds that the API waits for one.
        rest: whether it is a REST API.
    """

    def __init__(self, invoke: Invoke, timeout: float, *, rest: bool) -> None:
        self._invoke = invoke
        self._timeout = timeout
        self._rest = rest
        self._kept: dict[tuple[str, ...], tuple[float, Verdict]] = {}

    async def ask(
        self, authorizer: LambdaAuthorizer, identity: tuple[str, ...], event: Mapping[str, Json], trace_id: str
    ) -> tuple[Verdict, int]:
        """What the authorizer says, and the milliseconds that this took; 0 for an answer that was kept.

        A whole answer is kept, under its identity, for every route with the same authorizer:
        https://docs.aws.amazon.com/apigateway/latest/developerguide/configure-api-gateway-lambda-authorization-with-console.html
        A failure is not: https://github.com/data-dot-all/dataall/pull/1792 says so of exceptions.

        Raises:
            Refused: the function says "Unauthorized", fails, or its answer is none.
        """
        key, now = (authorizer.name, *identity), time.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now < kept[0]:
            return kept[1], 0
        verdict = await self._fresh(authorizer, json.dumps(event, ensure_ascii=False).encode(), trace_id)
        answered = time.monotonic()
        if authorizer.ttl > 0:
            self._kept = {each: entry for each, entry in self._kept.items() if answered < entry[0]}
            self._kept[key] = answered + authorizer.ttl, verdict
        return verdict, round((answered - now) * 1000)

    async def _fresh(self, authorizer: LambdaAuthorizer, event: bytes, trace_id: str) -> Verdict:
        """Asks the function.

        Of a REST API the exception "Unauthorized" is a 401, every other one a 500, as the comments of the example say:
        https://docs.aws.amazon.com/apigateway/latest/developerguide/apigateway-use-lambda-authorizer.html. An answer
        that is none is a 500 too, and both are an AuthorizerConfigurationException:
        https://github.com/serverless/examples/issues/305, https://github.com/ExpanseLLC/lambda_authorizer/issues/1.

        Of an HTTP API an answer of another form is a 500:
        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-lambda-authorizer.html#http-api-lambda-authorizer.troubleshooting.
        That exceptions are too, "Unauthorized" like the others: no source found. A throttled authorizer: no source
        found.
        """
        name = authorizer.function
        try:
            outcome = await asyncio.wait_for(self._invoke(name, event, trace_id), self._timeout)
        except TimeoutError:
            raise Refused(Failure.AUTHORIZER_TIMEOUT, f"no answer of {name} within {self._timeout:g} s") from None
        except Throttled as error:
            raise Refused(Failure.AUTHORIZER, str(error)) from None
        if isinstance(outcome.answer, FunctionError):
            if outcome.answer.message == "Unauthorized" and self._rest:
                raise Refused(Failure.UNAUTHORIZED, f"{name} says Unauthorized")
            raise Refused(Failure.AUTHORIZER, f"{name}: {outcome.answer}")
        try:
            fields = answer_json(outcome.answer)
            return _simple_verdict(fields) if authorizer.simple else self._verdict(fields)
        except MalformedAnswer as error:
            raise Refused(Failure.AUTHORIZER, f"malformed answer of {name}: {error}") from None

    def _verdict(self, fields: Json) -> Verdict:
        """https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-lambda-authorizer-output.html

        Only the policy is needed, whatever that page says:
        https://dev.to/marcogrcr/api-gateway-lambda-authorizer-lambda-proxy-integration-failure-modes-52bc

        A context that is not flat is an AuthorizerConfigurationException of a REST API; null is flat:
        https://github.com/dherault/serverless-offline/pull/1376,
        https://github.com/DefinitelyTyped/DefinitelyTyped/pull/69823
        """
        context = _context(fields)
        policy = fields.get("policyDocument") if isinstance(fields, dict) else None
        if not isinstance(fields, dict) or not isinstance(policy, dict):
            raise MalformedAnswer("it must be an object with a policyDocument")
        if self._rest and (deep := [key for key, value in context.items() if isinstance(value, list | dict)]):
            raise MalformedAnswer(f"{deep[0]} in its context is {kind_of(context[deep[0]])}")
        principal = fields.get("principalId")
        if not isinstance(principal, str | None):
            raise MalformedAnswer(f"principalId must be text, not {kind_of(principal)}")
        statements = policy.get("Statement")
        statements = statements if isinstance(statements, list) else [statements]
        return Verdict(tuple(_statement(statement) for statement in statements), context, principal)


def identity_of(authorizer: LambdaAuthorizer, request: Request, context: Json) -> tuple[str, ...] | None:
    """Values of the identity sources, None when one is missing, empty or does not match.

    Then the answer is 401, and the function is not called:
    https://docs.aws.amazon.com/apigateway/latest/developerguide/configure-api-gateway-lambda-authorization-with-console.html

    That an expression has to match the whole token is how its example `\\w{5}` is read, in
    https://aws.amazon.com/premiumsupport/knowledge-center/api-gateway-401-error-lambda-authorizer/
    """
    values = [source_value(source, request, context) or "" for source in authorizer.sources]
    if authorizer.required and not all(values):
        return None
    if authorizer.pattern is not None and not re.fullmatch(authorizer.pattern, values[0]):
        return None
    return tuple(values)


def source_value(expression: str, request: Request, context: Json) -> str | None:
    """What a mapping expression means: `method.request.header.X` of a REST API, `$request.header.X` of an HTTP API.

    Header names in any case. A header or parameter that was sent more than once is all its values with commas, so that
    none of them passes for another: so payload 2.0 has them in `headers`; as an identity, no source found.
    """
    place, _, name = expression.removeprefix("$").removeprefix("method.").partition(".")
    if place == "context":
        value: Json = context
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else value if isinstance(value, str) else json.dumps(value)
    place, _, name = name.partition(".")
    if place == "header":
        return ",".join(request.headers.getlist(name)) or None
    if place == "querystring":
        return ",".join(query_parameters(request).get(name, [])) or None
    return None


def flat_context(verdict: Verdict) -> dict[str, Json]:
    """A context as events of a REST API have it, with the principal: numbers and booleans are texts, null is null.

    https://github.com/DefinitelyTyped/DefinitelyTyped/pull/69823 has such an event.
    """
    context = {key: _flat(value) for key, value in verdict.context.items()}
    return context if verdict.principal is None else {**context, "principalId": verdict.principal}


def _flat(value: Json) -> Json:
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _simple_verdict(fields: Json) -> Verdict:
    """https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-lambda-authorizer.html#http-api-lambda-authorizer.v2"""
    context = _context(fields)
    allowed = fields.get("isAuthorized") if isinstance(fields, dict) else None
    if not isinstance(allowed, bool):
        raise MalformedAnswer("isAuthorized must be true or false")
    return Verdict((("Allow" if allowed else "Deny", ("*",), ("*",)),), context, None)


def _context(fields: Json) -> dict[str, Json]:
    context = (fields.get("context") if isinstance(fields, dict) else None) or {}
    if not isinstance(context, dict):
        raise MalformedAnswer(f"context must be an object, not {kind_of(context)}")
    return context


def _statement(statement: Json) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A statement with a clause that is not known here is an error, lest it allows more than on AWS."""
    if not isinstance(statement, dict):
        raise MalformedAnswer("a statement of its policy must be an object")
    if clauses := [clause for clause in _UNKNOWN_CLAUSES if clause in statement]:
        raise MalformedAnswer(f"{clauses[0]} in a policy is not known on this machine")
    effect = statement.get("Effect")
    if effect not in ("Allow", "Deny"):
        raise MalformedAnswer("the Effect of a statement must be Allow or Deny")
    return str(effect), _one_or_more(statement.get("Action")), _one_or_more(statement.get("Resource"))


def _one_or_more(value: Json) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    texts = tuple(each for each in values if isinstance(each, str))
    if not texts or len(texts) != len(values):
        raise MalformedAnswer("a statement of its policy must have an Action and a Resource")
    return texts


def _matches(pattern: str, text: str) -> bool:
    """IAM's wildcards: `*` for any characters, `?` for one.

    AWS's page, see `Verdict.failure`, has them within the parts between colons; that `*` goes beyond one, as here: no
    source found.
    """
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), text, re.DOTALL) is not None
