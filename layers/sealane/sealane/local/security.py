"""Who may call the routes of an API, as its OpenAPI document has it.

https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-swagger-extensions-authorizer.html
https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-swagger-extensions-authtype.html
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

from sealane.local.errors import TemplateError
from sealane.local.json_values import Json, as_mapping, as_text, as_texts

_REST_TTL: Final = 300
"""Seconds, where the template gives none; an HTTP API caches only where it is told to.

https://docs.aws.amazon.com/apigateway/latest/api/API_Authorizer.html
https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-lambda-authorizer.html#http-api-lambda-authorizer.caching
"""
_NONE: Final = "NONE"
"""What SAM names as the authorizer of a route of an HTTP API that has none."""


class Nobody(Enum):
    """An authorization that this machine has not: it refuses everybody, as AWS refuses who has no credentials."""

    IAM = "IAM authorization"
    USER_POOL = "Cognito authorizers"
    API_KEY = "API keys"
    FUNCTION = "authorizers that are no Python function"


@dataclass(frozen=True)
class LambdaAuthorizer:
    """A function that says who may call.

    Attributes:
        name: name of the security scheme.
        function: logical id of the function.
        token: whether it gets a token only (`TOKEN`), not the request.
        sources: where the identity is in the request, mapping expressions such as `method.request.header.X`.
        required: whether a request that lacks one of them is refused unasked.
        ttl: seconds that its answers are kept.
        pattern: regular expression that a token has to match.
        payload: version of its events and answers, HTTP APIs only.
        simple: whether it answers with a boolean, not with a policy; HTTP APIs only.
    """

    name: str
    function: str
    token: bool
    sources: tuple[str, ...]
    required: bool
    ttl: float
    pattern: str | None = None
    payload: str = "1.0"
    simple: bool = False


@dataclass(frozen=True)
class JwtAuthorizer:
    """An issuer of tokens; HTTP APIs only.

    Attributes:
        source: where the token is in the request, a mapping expression.
        issuer: URL of the issuer.
        audience: who the tokens have to be for, one of them.
    """

    source: str
    issuer: str
    audience: tuple[str, ...]


Authorizer: TypeAlias = LambdaAuthorizer | JwtAuthorizer | Nobody


def authorizers_of(
    body: Mapping[str, Json], kind: Literal["rest", "http"], functions: Mapping[str, str]
) -> dict[str, Authorizer]:
    """The security schemes of an OpenAPI document, by name.

    Args:
        body: the document: OpenAPI 3 (`components.securitySchemes`) or Swagger 2 (`securityDefinitions`).
        kind: of which kind of API.
        functions: logical ids of the functions by ARN.

    Raises:
        TemplateError: one is not as it should be.
    """
    components = as_mapping(body.get("components", {}), "components")
    schemes = {
        **as_mapping(body.get("securityDefinitions", {}), "securityDefinitions"),
        **as_mapping(components.get("securitySchemes", {}), "securitySchemes"),
    }
    return {name: _authorizer(name, as_mapping(scheme, name), kind, functions) for name, scheme in schemes.items()}


def authorization_of(
    operation: Mapping[str, Json], authorizers: Mapping[str, Authorizer]
) -> tuple[Authorizer | None, tuple[str, ...]]:
    """The authorizer of an operation, None for a route that is open, and the scopes that it asks for.

    Of several the one that refuses everybody counts, else the first: what AWS does then, no source found. What a
    document says for all operations at once does not count ("root level security"):
    https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-known-issues.html (REST API); for HTTP APIs
    no source found.

    Raises:
        TemplateError: the document does not have the scheme that the operation names.
    """
    extension = as_mapping(operation.get("x-amazon-apigateway-auth", {}), "x-amazon-apigateway-auth")
    if as_text(extension.get("type", _NONE)).upper() == "AWS_IAM":
        return Nobody.IAM, ()
    security = operation.get("security", [])
    if not isinstance(security, list):
        raise TemplateError(f"security in the template must be a list, not {security!r}")
    named = [pair for requirement in security for pair in as_mapping(requirement, "security").items()]
    wanted: list[tuple[Authorizer, tuple[str, ...]]] = []
    for name, scopes in named:
        if name in authorizers:
            wanted.append((authorizers[name], tuple(as_texts(scopes))))
        elif name != _NONE:
            raise TemplateError(f"a route is secured by {name}, which the template does not define")
    wanted.sort(key=lambda each: not isinstance(each[0], Nobody))
    return wanted[0] if wanted else (None, ())


def _authorizer(
    name: str, scheme: Mapping[str, Json], kind: Literal["rest", "http"], functions: Mapping[str, str]
) -> Authorizer:
    authtype = as_text(scheme.get("x-amazon-apigateway-authtype", ""))
    fields = as_mapping(scheme.get("x-amazon-apigateway-authorizer", {}), name)
    type = as_text(fields.get("type", "")).lower()
    if authtype.lower() == "awssigv4":
        return Nobody.IAM
    if type == "cognito_user_pools":
        return Nobody.USER_POOL
    if type == "jwt":
        return _jwt_authorizer(name, scheme, fields)
    if type in ("token", "request"):
        return _lambda_authorizer(name, scheme, fields, kind, functions)
    if not fields and scheme.get("type") == "apiKey":
        return Nobody.API_KEY
    raise TemplateError(f"{name} in the template is no authorizer that API Gateway has")


def _lambda_authorizer(
    name: str,
    scheme: Mapping[str, Json],
    fields: Mapping[str, Json],
    kind: Literal["rest", "http"],
    functions: Mapping[str, str],
) -> Authorizer:
    """A REST API that keeps no answers does not look at the sources of a REQUEST authorizer; an HTTP API always does.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/configure-api-gateway-lambda-authorization-with-console.html
    https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-lambda-authorizer.html#http-api-lambda-authorizer.identity-sources
    """
    uri = as_text(fields.get("authorizerUri", ""))
    function = next((logical_id for arn, logical_id in functions.items() if f"/{arn}/" in uri), None)
    if function is None:
        return Nobody.FUNCTION
    token = as_text(fields["type"]).lower() == "token"
    sources = _sources(fields.get("identitySource", ""))
    if token and not sources:
        sources = (f"method.request.header.{as_text(scheme['name'])}",)
    ttl = float(as_text(fields.get("authorizerResultTtlInSeconds", _REST_TTL if kind == "rest" else 0)))
    ttl = ttl if sources else 0
    pattern = fields.get("identityValidationExpression")
    return LambdaAuthorizer(
        name,
        function,
        token,
        sources,
        token or kind == "http" or ttl > 0,
        ttl,
        as_text(pattern) if pattern and token else None,
        as_text(fields.get("authorizerPayloadFormatVersion", "1.0")),
        as_text(fields.get("enableSimpleResponses", False)) == "true",
    )


def _jwt_authorizer(name: str, scheme: Mapping[str, Json], fields: Mapping[str, Json]) -> JwtAuthorizer:
    """The issuer may be given by the URL of its discovery document instead."""
    configuration = as_mapping(fields.get("jwtConfiguration", {}), name)
    discovery = as_text(scheme.get("openIdConnectUrl", "")).removesuffix("/.well-known/openid-configuration")
    issuer = as_text(configuration.get("issuer", discovery))
    if not issuer:
        raise TemplateError(f"{name} in the template has no issuer")
    [source] = _sources(fields.get("identitySource", "$request.header.Authorization"))
    return JwtAuthorizer(source, issuer, tuple(as_texts(configuration.get("audience", []))))


def _sources(value: Json) -> tuple[str, ...]:
    texts = as_texts(value) if isinstance(value, list) else as_text(value).split(",")
    return tuple(text.strip() for text in texts if text.strip())
