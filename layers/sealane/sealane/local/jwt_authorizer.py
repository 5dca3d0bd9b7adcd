"""JWT authorizers of HTTP APIs.

https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-jwt-authorizer.html
"""

import json
import time
from typing import Any, Final

import httpx2
import jwt

from sealane.local.api_gateway import Failure, Refused
from sealane.local.json_values import Json
from sealane.local.security import JwtAuthorizer

_ALGORITHMS: Final = ("RS256", "RS384", "RS512")
_KEYS_TTL: Final = 2 * 3600
"""Seconds that an issuer's keys are kept: "API Gateway can cache the public key for two hours", says the page above."""
_TIMEOUT: Final = 1.5
"""Seconds that an issuer has for each of its documents.

https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-quotas.html
"""
_REFETCH: Final = 60
"""Seconds before a key that is not known makes the keys be fetched anew: no source found."""


class JwtAuthorizers:
    """Verifies the tokens of an API's callers, with the keys that their issuers publish."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[float, dict[str, jwt.PyJWK]]] = {}

    async def verify(self, authorizer: JwtAuthorizer, value: str | None, scopes: tuple[str, ...]) -> dict[str, Json]:
        """What the function is told of the caller: `claims`, and `scopes` where the route asks for some.

        `scopes` is a list only where the route asks for some: https://github.com/aws/serverless-java-container/issues/407;
        else null, whatever the token has: https://github.com/awsdocs/amazon-api-gateway-developer-guide/issues/113.
        That the list is all of the token's: no source found; https://github.com/localstack/localstack/issues/6864 saw
        "some of the scopes listed in claims". That a 403 has no challenge: no source found.

        Args:
            authorizer: who has to have issued the token, and for whom.
            value: the token, after `Bearer ` or not, as the page above has it; None without one. `Bearer` alone is a
                bad token: no source found.
            scopes: those of the route, of which the token must have one.

        Raises:
            Refused: the token is missing or bad (401), or has none of the scopes (403).
        """
        if not value:
            raise _unauthorized("no token", None)
        claims = await self._claims(authorizer, value.removeprefix("Bearer ").strip())
        granted = claims.get("scope", claims.get("scp", ""))
        granted = granted.split() if isinstance(granted, str) else granted
        granted = [each for each in granted if isinstance(each, str)] if isinstance(granted, list) else []
        if scopes and not set(scopes) & set(granted):
            raise Refused(Failure.DENIED, f"the token has none of the scopes {' '.join(scopes)}")
        texts: dict[str, Json] = {name: _text(claim) for name, claim in claims.items() if claim is not None}
        return {"claims": texts, "scopes": list(granted) if scopes else None}

    async def _claims(self, authorizer: JwtAuthorizer, token: str) -> dict[str, Any]:
        """The claims of a token that is good. `client_id` is for tokens without an `aud`:
        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-troubleshooting-jwt.html

        The page above says that `exp` must be in the future, not that there must be one: no source found.
        """
        try:
            key = await self._key(authorizer.issuer, jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                issuer=authorizer.issuer,
                options={"require": ["exp", "iss"], "verify_aud": False},
            )
        except jwt.ExpiredSignatureError:
            raise _unauthorized("the token has expired", "the token has expired") from None
        except jwt.InvalidTokenError as error:
            raise _unauthorized(str(error), "the token is invalid") from None
        audience = claims.get("aud", claims.get("client_id"))
        if not {*(audience if isinstance(audience, list) else [audience])} & {*authorizer.audience}:
            raise _unauthorized("another audience", "the token does not have a valid audience")
        return claims

    async def _key(self, issuer: str, kid: object) -> jwt.PyJWK:
        fetched, keys = self._keys.get(issuer, (float("-inf"), {}))
        age = time.monotonic() - fetched
        if age > _KEYS_TTL or (kid not in keys and age > _REFETCH):
            keys = await _fetch_keys(issuer)
            self._keys[issuer] = time.monotonic(), keys
        if not isinstance(kid, str) or kid not in keys:
            raise jwt.InvalidTokenError(f"{issuer} has no key {kid}")
        return keys[kid]


async def _fetch_keys(issuer: str) -> dict[str, jwt.PyJWK]:
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT, trust_env=False) as client:
            discovery = await client.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            published = await client.get(discovery.raise_for_status().json()["jwks_uri"])
        keys = jwt.PyJWKSet.from_dict(published.raise_for_status().json()).keys
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError, jwt.PyJWTError) as error:
        raise _unauthorized(f"no keys of {issuer}: {error}", "the keys of the issuer cannot be had") from None
    return {key.key_id: key for key in keys if key.key_id is not None and key.algorithm_name in _ALGORITHMS}


def _unauthorized(problem: str, description: str | None) -> Refused:
    """A 401 with a challenge.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-troubleshooting-jwt.html has it for a wrong
    audience. For which other reasons AWS gives which texts, that `scope` is always empty, and that without a token
    there is only `Bearer`: no source found.
    """
    details = "" if description is None else f' scope="" error="invalid_token" error_description="{description}"'
    return Refused(Failure.UNAUTHORIZED, problem, headers={"www-authenticate": f"Bearer{details}"})


def _text(claim: Json) -> str:
    """A claim as events have it: a list is `[a b]`; null is left out.

    Seen by https://github.com/floci-io/floci/pull/2011.
    """
    if isinstance(claim, str):
        return claim
    if isinstance(claim, list):
        return f"[{' '.join(_text(each) for each in claim)}]"
    return json.dumps(claim, ensure_ascii=False, separators=(",", ":"))
