"""Bearer tokens: JWTs, verified against the keys that one issuer publishes.

Shared by both SDK generations and the authorizer function: needs PyJWT with cryptography, and no SDK.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

import jwt

from sealane.policy.caller import (
    CLOCK_SKEW,
    ISSUER_VARIABLE,
    SCOPES_VARIABLE,
    Caller,
    MalformedClaims,
    caller_of,
    seconds_of,
)
from sealane.policy.issuer_keys import ALGORITHMS, IssuerKeys, IssuerUnavailable, UnknownKey, is_trustworthy

__all__ = [
    "AUDIENCE_VARIABLE",
    "BearerAuth",
    "IssuerUnavailable",
    "NoToken",
    "TokenRefused",
    "bearer_token",
]

AUDIENCE_VARIABLE: Final = "SEALANE_AUTH_AUDIENCE"
"""Audiences that tokens may be made for, separated by spaces, for `BearerAuth.from_environment()`. No default."""

MAX_TOKEN: Final = 16_384
"""Characters; API Gateway lets 10,240 bytes of headers through."""

# RFC 7515 section 7.1. Three parts, none empty: neither encrypted (five), nor unsigned, nor with a detached payload.
_JWS: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# RFC 6750 section 2.1.
_CREDENTIALS: Final = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE | re.ASCII)
# https://docs.aws.amazon.com/cognito/latest/developerguide/amazon-cognito-user-pools-using-tokens-verifying-a-jwt.html
_COGNITO: Final = re.compile(r"https://cognito-idp\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/[a-z0-9-]+_[A-Za-z0-9]+")


class TokenRefused(Exception):
    """A token that is not accepted; the text says why, for the log, and has nothing of the token in it."""


class NoToken(TokenRefused):
    """There is no token: the challenge is to name no error (RFC 6750 section 3.1)."""


def bearer_token(authorization: Sequence[object]) -> str:
    """The token of a request, from all values of its `Authorization` header (RFC 6750 section 2.1).

    A token in the query or the body is none: it would be in logs (MCP authorization, "Access Token Usage").

    Raises:
        NoToken: there is no such header.
        TokenRefused: there are several, or it is no bearer token.
    """
    if not authorization:
        raise NoToken("no Authorization header")
    if len(authorization) > 1:
        raise TokenRefused("more than one Authorization header")
    value = authorization[0]
    match = _CREDENTIALS.fullmatch(value.strip(" \t")) if isinstance(value, str) else None
    if match is None:
        raise TokenRefused("the Authorization header is not Bearer and one token")
    return match[1]


class BearerAuth:
    """Verifies access tokens of one issuer: JWTs as RFC 9068 and the issuers that came before it make them.

    Args:
        issuer: exactly the `iss` of its tokens, and of its metadata, which is found by RFC 8414 section 3 or OpenID
            Connect Discovery section 4. https, except on this machine.
        audience: what `aud` has to name: this server, or one of several names of it. For an Amazon Cognito user pool
            also the ids of its app clients: without a resource binding its access tokens have no `aud`, and their
            `client_id` is compared instead.
        required_scopes: what every caller needs. `verify` does not ask for them: see `missing_scopes`.
        jwks_url: where the keys are, for an issuer without metadata.

    Raises:
        ValueError: for an issuer or key URL that is not https, and for no audience.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Iterable[str],
        required_scopes: Iterable[str] = (),
        jwks_url: str | None = None,
    ) -> None:
        self.issuer = issuer
        self.audiences = frozenset({audience} if isinstance(audience, str) else audience)
        self.required_scopes = tuple(required_scopes)
        if not self.audiences or "" in self.audiences:
            raise ValueError("the audience is empty: name what the tokens for this server are issued for")
        if not is_trustworthy(issuer, local=True) or "?" in issuer or "#" in issuer:
            raise ValueError(f"the issuer is an https URL without query and fragment: got {issuer!r}")
        if jwks_url is not None and not is_trustworthy(jwks_url, local=True):
            raise ValueError(f"the issuer's keys are at an https URL: got {jwks_url!r}")
        self._is_cognito = _COGNITO.fullmatch(issuer) is not None
        self._keys = IssuerKeys(issuer, jwks_url)

    @classmethod
    def from_environment(cls) -> Self:
        """What `SEALANE_AUTH_ISSUER`, `SEALANE_AUTH_AUDIENCE` and `SEALANE_AUTH_SCOPES` say.

        The last two may hold several values, separated by spaces.

        Raises:
            ValueError: one of the first two is not set, or see `BearerAuth`.
        """
        for variable in (ISSUER_VARIABLE, AUDIENCE_VARIABLE):
            if not os.environ.get(variable):
                raise ValueError(
                    f"the environment variable {variable} is not set. template.yaml sets it, from what the parameters "
                    f"Auth… say; elsewhere write BearerAuth(issuer=…, audience=…)"
                )
        return cls(
            issuer=os.environ[ISSUER_VARIABLE],
            audience=os.environ[AUDIENCE_VARIABLE].split(),
            required_scopes=os.environ.get(SCOPES_VARIABLE, "").split(),
        )

    async def verify(self, token: str) -> Caller:
        """The caller that `token` names.

        The signature by a key of the issuer that is made for the token's algorithm, `iss`, `aud`, `exp`, `nbf` and
        `iat` hold, and it is an access token.

        Raises:
            TokenRefused: it is not good here.
            IssuerUnavailable: nobody can say, for the moment.
        """
        header = _header(token)
        try:
            key = await self._keys.find(header.get("kid"), header["alg"])
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                issuer=self.issuer,
                leeway=CLOCK_SKEW,
                options={"require": ["iss", "exp"], "verify_aud": False, "enforce_minimum_key_length": True},
            )
            for claim in ("nbf", "iat"):
                seconds_of(claims, claim)
            caller = caller_of(claims)
        except UnknownKey as error:
            raise TokenRefused(str(error)) from None
        except MalformedClaims as error:
            raise TokenRefused(f"malformed claims: {error}") from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            # Its text may quote the token.
            wanted = f"; iss has to be {self.issuer}" if isinstance(error, jwt.InvalidIssuerError) else ""
            raise TokenRefused(f"PyJWT says {type(error).__name__}{wanted}") from None
        _check_purpose(header, claims)
        self._check_audience(claims)
        return caller

    def missing_scopes(self, caller: Caller) -> tuple[str, ...]:
        """What `caller` lacks of `required_scopes`."""
        return tuple(scope for scope in self.required_scopes if scope not in caller.scopes)

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        """RFC 7519 section 4.1.3, RFC 9068 section 4."""
        audience = claims.get("aud")
        if audience is None and self._is_cognito:
            audience = claims.get("client_id")
        named = [audience] if isinstance(audience, str) else audience
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise TokenRefused("aud names no audience")
        if self.audiences.isdisjoint(named):
            raise TokenRefused(
                f"aud names none of {sorted(self.audiences)}; see AuthAudience, or BearerAuth(audience=…)"
            )


def _header(token: str) -> dict[str, Any]:
    """The header of a token that could be one of ours.

    What it says of keys itself (`jku`, `jwk`, `x5u`, `x5c`) is not read (RFC 8725 section 3.10).
    """
    if not isinstance(token, str) or len(token) > MAX_TOKEN:
        raise TokenRefused("the token is too long")
    if _JWS.fullmatch(token) is None:
        raise TokenRefused("the token is no signed JWT")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        raise TokenRefused("the token has no header that can be read") from None
    alg = header.get("alg")
    if not isinstance(alg, str) or alg not in ALGORITHMS:
        raise TokenRefused("the token's algorithm is not allowed")
    # There is no extension that is understood here (RFC 7515 section 4.1.11).
    if "crit" in header or "b64" in header:
        raise TokenRefused("the token needs an extension of JWS")
    return header


def _check_purpose(header: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """Refuse what the issuer has signed for something else than access (RFC 8725 sections 2.8 and 3.12).

    A token typed `at+jwt` is an access token (RFC 9068 section 2.1). Older issuers type theirs `JWT` or not at all;
    among those an ID token is told by what only an ID token has: `at_hash` and `c_hash`, or a `nonce` (OpenID Connect
    Core section 2); Keycloak before 24 gave access tokens a nonce too, and says `Bearer` in its own claim `typ`.
    Cognito says it in `token_use`.
    """
    typ = header.get("typ", "JWT")
    kind = typ.lower().removeprefix("application/") if isinstance(typ, str) else None
    if kind not in ("jwt", "at+jwt"):
        raise TokenRefused("the token's type is not that of an access token")
    if claims.get("token_use", "access") != "access" or claims.get("typ") in ("ID", "Refresh", "Offline", "Logout"):
        raise TokenRefused("the token says that it is no access token")
    if kind == "jwt" and (
        "at_hash" in claims or "c_hash" in claims or ("nonce" in claims and claims.get("typ") != "Bearer")
    ):
        raise TokenRefused("the token is an ID token")
