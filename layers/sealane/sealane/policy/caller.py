"""The caller, as somebody who may say so has verified it: API Gateway, or this package from a bearer token."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sealane.policy.principal import Principal

__all__ = [
    "CLOCK_SKEW",
    "ISSUER_VARIABLE",
    "SCOPES_VARIABLE",
    "Caller",
    "MalformedClaims",
    "caller_of",
    "seconds_of",
]

ISSUER_VARIABLE: Final = "SEALANE_AUTH_ISSUER"
"""Issuer of the tokens, exactly as their claim `iss` has it; clients are led to it. Default: none."""
SCOPES_VARIABLE: Final = "SEALANE_AUTH_SCOPES"
"""Scopes that every caller needs, separated by spaces. Default: none."""

CLOCK_SKEW: Final = 60
"""Seconds that the issuer's clock and ours may differ."""

_CLIENT_ID: Final = ("client_id", "azp", "cid", "appid")
"""RFC 9068 section 2.2 and Cognito; OpenID Connect Core section 2 (Auth0, Keycloak, Entra v2); Okta; Entra v1."""
_SCOPE: Final = re.compile(r"[\x21\x23-\x5B\x5D-\x7E]+")
"""RFC 6749 section 3.3."""
_LAST_SECOND: Final = 253_402_300_799
"""Epoch seconds of the end of the year 9999; beyond is a time in milliseconds, or a token without an end."""


class MalformedClaims(ValueError):
    """Claims that name no caller, or not clearly; the text names the claim, never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A verified caller.

    Attributes:
        client_id: the OAuth client, or the account of an IAM caller.
        issuer: who says so: the issuer of the token.
        subject: who the client acts for.
        scopes: what was granted, in the order of the token.
        expires_at: epoch seconds after which this no longer holds; `None` where nobody says.
        claims: what else was verified, for `get_auth_context()`.
        token: the token, if it was verified here.
    """

    client_id: str
    issuer: str | None = None
    subject: str | None = None
    scopes: tuple[str, ...] = ()
    expires_at: int | None = None
    claims: Mapping[str, object] = field(default_factory=dict, repr=False)
    token: str = field(default="", repr=False)

    @property
    def principal(self) -> Principal:
        """Whom data, request state and once-only records of this caller belong to."""
        return Principal(self.client_id, self.issuer, self.subject)

    @property
    def token_fields(self) -> dict[str, Any]:
        """What either SDK's `AccessToken` is made of."""
        claims = dict(self.claims)
        if self.issuer is not None:
            claims["iss"] = self.issuer
        return {
            "token": self.token,
            "client_id": self.client_id,
            "scopes": list(self.scopes),
            "expires_at": self.expires_at,
            "subject": self.subject,
            "claims": claims,
        }


def caller_of(claims: Mapping[str, object]) -> Caller:
    """The caller that the claims of a verified JWT name.

    | of the caller | claim, the first that is there |
    |---|---|
    | client id | `client_id`, `azp`, `cid`, `appid`, else `sub` |
    | issuer | `iss` |
    | subject | `sub` |
    | scopes | `scope`, `scp`: separated by spaces, or a list |
    | expiry | `exp`, in epoch seconds |

    A claim that is `null` is not there. All others are in `Caller.claims` as they are.

    Raises:
        MalformedClaims: one of these is of a wrong type or form, or there is neither a client nor a subject.
    """
    subject = _name(claims, "sub")
    client_id = next((name for claim in _CLIENT_ID if (name := _name(claims, claim)) is not None), subject)
    if client_id is None:
        raise MalformedClaims("there is neither a client nor a subject")
    return Caller(
        client_id=client_id,
        issuer=_name(claims, "iss"),
        subject=subject,
        scopes=_scopes(claims),
        expires_at=seconds_of(claims, "exp"),
        claims=dict(claims),
    )


def seconds_of(claims: Mapping[str, object], claim: str) -> int | None:
    """A claim that is a NumericDate (RFC 7519 section 2), in whole epoch seconds; `None` where it is not there.

    Raises:
        MalformedClaims: it is no number, or no time between 1970 and 9999.
    """
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_SECOND:
        raise MalformedClaims(f"{claim} is no time in seconds")
    return int(value)


def _name(claims: Mapping[str, object], claim: str) -> str | None:
    value = claims.get(claim)
    # What is not printable fits neither a log nor a key; half a surrogate pair not even UTF-8.
    if value is not None and not (isinstance(value, str) and value and value.isprintable()):
        raise MalformedClaims(f"{claim} is no name")
    return value


def _scopes(claims: Mapping[str, object]) -> tuple[str, ...]:
    value = claims.get("scope")
    if value is None:
        value = claims.get("scp")
    if value is None:
        return ()
    scopes = [each for each in value.split(" ") if each] if isinstance(value, str) else value
    if not isinstance(scopes, list) or not all(isinstance(each, str) and _SCOPE.fullmatch(each) for each in scopes):
        raise MalformedClaims("the scopes are no list of names")
    return tuple(dict.fromkeys(scopes))
