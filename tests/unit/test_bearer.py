"""Bearer tokens: which are good, which are not, and how the issuer's keys are had."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sealane.policy import issuer_keys
from sealane.policy.bearer import BearerAuth, IssuerUnavailable, NoToken, TokenRefused, bearer_token
from sealane.policy.caller import Caller, MalformedClaims, caller_of
from tests.unit.issuer import (
    AUDIENCE,
    JWKS,
    OAUTH_METADATA,
    OPENID_METADATA,
    Answer,
    Issuer,
    all_that_is_logged,
    private_key,
    public_jwk,
)


def ahead(seconds: int) -> int:
    """Epoch seconds of a time that comes."""
    return int(time.time()) + seconds


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer with one RSA key."""
    with Issuer().running() as issuer:
        issuer.add_key()
        yield issuer


@pytest.fixture
def bearer(issuer: Issuer) -> BearerAuth:
    return BearerAuth(issuer=issuer.url, audience=AUDIENCE)


class Clock:
    """The time as the key cache sees it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(issuer_keys, "time", SimpleNamespace(time=clock.time, monotonic=time.monotonic))
    return clock


@pytest.fixture(autouse=True)
def nothing_is_logged() -> Iterator[None]:
    """No token, no part of one, and no claim of one in any log, whatever the test does."""
    with all_that_is_logged() as written:
        yield
    for secret in ("eyJ", "alice", "a-token-of-alice", "client-1"):
        assert secret not in written.getvalue()


def verify(bearer: BearerAuth, token: str) -> Caller:
    return asyncio.run(bearer.verify(token))


def refusal(bearer: BearerAuth, token: str) -> str:
    """Why a token is refused; the reason must not give it away."""
    with pytest.raises(TokenRefused) as refused:
        verify(bearer, token)
    reason = str(refused.value)
    assert not any(part in reason for part in token.split(".") if len(part) > 3)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return reason


def part(value: object) -> str:
    """A part of a JWT."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# What is good.


def test_a_good_token_names_its_caller(issuer: Issuer, bearer: BearerAuth) -> None:
    exp = ahead(300)
    caller = verify(bearer, issuer.token(exp=exp, tenant="t-1"))
    assert caller.principal == ("client-1", issuer.url, "alice")
    assert caller.scopes == ("notes:read", "notes:write")
    assert caller.expires_at == exp
    assert caller.claims["tenant"] == "t-1"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_algorithms(issuer: Issuer, bearer: BearerAuth, algorithm: str) -> None:
    issuer.keys.clear()
    issuer.add_key(algorithm, algorithm)
    assert verify(bearer, issuer.token(algorithm)).subject == "alice"


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "PS384", "PS512"])
def test_an_rsa_key_that_names_no_algorithm_is_for_all_of_rsa(
    issuer: Issuer, bearer: BearerAuth, algorithm: str
) -> None:
    issuer.add_key("free", alg=None, use=None)
    assert verify(bearer, issuer.token("free", algorithm=algorithm)).subject == "alice"
    assert "fits" in refusal(bearer, issuer.token("first", algorithm=algorithm))


@pytest.mark.parametrize("typ", ["at+jwt", "application/at+jwt", "AT+JWT", "JWT"])
def test_types(issuer: Issuer, bearer: BearerAuth, typ: str) -> None:
    assert verify(bearer, issuer.token(headers={"typ": typ}))


def test_a_token_without_a_type(issuer: Issuer, bearer: BearerAuth) -> None:
    token = jwt.encode(issuer.claims(), private_key("first"), "RS256", {"kid": "first", "typ": None})
    assert "typ" not in jwt.get_unverified_header(token)
    assert verify(bearer, token)


def test_clock_skew(issuer: Issuer, bearer: BearerAuth) -> None:
    assert verify(bearer, issuer.token(exp=ahead(-30), nbf=ahead(30), iat=ahead(30)))


def test_one_of_several_audiences(issuer: Issuer) -> None:
    bearer = BearerAuth(issuer=issuer.url, audience=["api://mcp", AUDIENCE])
    assert verify(bearer, issuer.token(aud=["https://other.example", AUDIENCE]))
    assert verify(bearer, issuer.token(aud="api://mcp"))


def test_the_only_key_needs_no_name(issuer: Issuer, bearer: BearerAuth) -> None:
    assert verify(bearer, issuer.token(None, key=private_key("first")))
    issuer.add_key("second")
    several = BearerAuth(issuer=issuer.url, audience=AUDIENCE)
    assert "several" in refusal(several, issuer.token(None, key=private_key("first")))


def test_required_scopes(issuer: Issuer) -> None:
    bearer = BearerAuth(issuer=issuer.url, audience=AUDIENCE, required_scopes=("notes:read", "notes:admin"))
    assert bearer.missing_scopes(verify(bearer, issuer.token())) == ("notes:admin",)


# Whose, for whom, for how long.


@pytest.mark.parametrize(
    "iss", ["https://other.example", "", None, ..., 7, ["{}"], "{}/", "HTTP{}"], ids=lambda value: repr(value)
)
def test_other_issuers(issuer: Issuer, bearer: BearerAuth, iss: Any) -> None:
    if isinstance(iss, str):
        iss = iss.format(issuer.url)
    elif iss == ["{}"]:
        iss = [issuer.url]
    claims = issuer.claims(iss=iss)
    token = f"{part({'alg': 'RS256', 'kid': 'first'})}.{part(claims)}"
    signature = jwt.get_algorithm_by_name("RS256").sign(token.encode(), private_key("first"))
    assert refusal(bearer, f"{token}.{part(signature)}")


@pytest.mark.parametrize(
    "aud",
    [
        "https://other.example",
        AUDIENCE + "/",
        AUDIENCE.upper(),
        AUDIENCE[:-1],
        f"{AUDIENCE} https://other.example",
        [],
        "",
        None,
        ...,
        [AUDIENCE, 7],
        {AUDIENCE: True},
        [[AUDIENCE]],
        True,
    ],
    ids=repr,
)
def test_other_audiences(issuer: Issuer, bearer: BearerAuth, aud: Any) -> None:
    assert "aud" in refusal(bearer, issuer.token(aud=aud))


EXPIRIES: dict[str, Callable[[], Any]] = {
    "past": lambda: ahead(-61),
    "text": lambda: str(ahead(300)),
    "list": lambda: [ahead(300)],
    "milliseconds": lambda: ahead(300) * 1000,
    "zero": lambda: 0,
    "negative": lambda: -1,
    "none": lambda: ...,
    "null": lambda: None,
    "word": lambda: "tomorrow",
    "true": lambda: True,
    "object": lambda: {},
    "huge": lambda: 10**400,
    "huge float": lambda: 1e308,
    "infinity": lambda: float("inf"),
    "not a number": lambda: float("nan"),
}


@pytest.mark.parametrize("exp", EXPIRIES.values(), ids=EXPIRIES)
def test_expiries(issuer: Issuer, bearer: BearerAuth, exp: Callable[[], Any]) -> None:
    assert refusal(bearer, issuer.token(exp=exp()))


def test_a_fraction_of_a_second_is_a_time_too(issuer: Issuer, bearer: BearerAuth) -> None:
    exp = ahead(300)
    assert verify(bearer, issuer.token(exp=exp + 0.7)).expires_at == exp


FUTURES: dict[str, Callable[[], Any]] = {
    "future": lambda: ahead(90),
    "text": lambda: str(ahead(0)),
    "word": lambda: "now",
    "huge": lambda: 1e308,
    "infinity": lambda: float("inf"),
    "true": lambda: True,
    "list": lambda: [],
    "negative": lambda: -1,
}


@pytest.mark.parametrize("claim", ["nbf", "iat"])
@pytest.mark.parametrize("value", FUTURES.values(), ids=FUTURES)
def test_tokens_of_the_future(issuer: Issuer, bearer: BearerAuth, claim: str, value: Callable[[], Any]) -> None:
    assert refusal(bearer, issuer.token(**{claim: value()}))


# Algorithms and keys.


def test_unsigned(issuer: Issuer, bearer: BearerAuth) -> None:
    for alg in ("none", "None", "NONE", ""):
        header, claims = part({"alg": alg, "kid": "first", "typ": "at+jwt"}), part(issuer.claims())
        for signature in ("", part(b"x")):
            assert refusal(bearer, f"{header}.{claims}.{signature}")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
def test_the_public_key_as_a_secret(issuer: Issuer, bearer: BearerAuth, algorithm: str, form: str) -> None:
    public = private_key("first").public_key()
    secrets = {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(issuer.keys[0]).encode(),
    }
    signed = f"{part({'alg': algorithm, 'kid': 'first', 'typ': 'at+jwt'})}.{part(issuer.claims())}"
    # PyJWT makes no such token itself.
    signature = jwt.get_algorithm_by_name(algorithm).sign(signed.encode(), secrets[form])
    assert "algorithm" in refusal(bearer, f"{signed}.{part(signature)}")


def test_a_published_secret_is_no_key(issuer: Issuer, bearer: BearerAuth) -> None:
    secret = b"s" * 32
    issuer.keys.append({"kty": "oct", "k": part(secret), "kid": "oct", "alg": "HS256"})
    assert "algorithm" in refusal(bearer, issuer.token("oct", key=secret, algorithm="HS256"))
    assert refusal(bearer, issuer.token("oct", key=private_key("other")))


def test_the_key_of_another(issuer: Issuer, bearer: BearerAuth) -> None:
    assert "InvalidSignature" in refusal(bearer, issuer.token(key=private_key("other")))
    assert refusal(bearer, issuer.token("other", key=private_key("other")))


def test_a_key_is_for_its_own_algorithm(issuer: Issuer, bearer: BearerAuth) -> None:
    issuer.add_key("ec", "ES256")
    issuer.add_key("ec-384", "ES384", alg=None)
    issuer.add_key("pss", "PS256")
    assert verify(bearer, issuer.token("ec"))
    elliptic = private_key("ec", "ES256")
    assert refusal(bearer, issuer.token("first", key=elliptic, algorithm="ES256"))
    assert refusal(bearer, issuer.token("ec", key=private_key("first"), algorithm="RS256"))
    assert refusal(bearer, issuer.token("ec-384", key=elliptic, algorithm="ES256"))
    assert refusal(bearer, issuer.token("pss", key=private_key("pss", "PS256"), algorithm="RS256"))
    assert refusal(bearer, issuer.token("first", algorithm="PS256"))


@pytest.mark.parametrize(
    "members",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"alg": "RSA-OAEP"},
        {"alg": ["RS256"]},
        {"kty": "oct"},
        {"kty": ["RSA"]},
        {"n": 7},
        {"n": "AQAB"},
        {"kid": 7},
        {"d": "AQAB"},
    ],
    ids=repr,
)
def test_keys_for_other_uses_are_none(issuer: Issuer, bearer: BearerAuth, members: dict[str, Any]) -> None:
    issuer.add_key("second", **members)
    assert verify(bearer, issuer.token())
    assert refusal(bearer, issuer.token("second"))


def test_a_short_key_is_none(issuer: Issuer, bearer: BearerAuth) -> None:
    short = private_key("short", "RS256", 1024)
    issuer.keys.append({**public_jwk(short), "kid": "short"})
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = issuer.token("short", key=short)
    assert "InvalidKey" in refusal(bearer, token)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_private_key_that_is_published_verifies_nothing(issuer: Issuer, bearer: BearerAuth, algorithm: str) -> None:
    private = jwt.get_algorithm_by_name(algorithm).to_jwk(private_key("leaked", algorithm), as_dict=True)
    issuer.add_key("leaked", algorithm, **{**private, "key_ops": None})
    assert "key is not the issuer's" in refusal(bearer, issuer.token("leaked"))


def test_two_keys_of_one_name_are_told_apart_by_their_algorithm_or_not_at_all(
    issuer: Issuer, bearer: BearerAuth
) -> None:
    issuer.add_key("twin", "ES256")
    issuer.keys.append({**public_jwk(private_key("other")), "kid": "twin"})
    assert verify(bearer, issuer.token("twin"))
    issuer.keys.append({**public_jwk(private_key("other", "ES256")), "kid": "twin"})
    assert refusal(BearerAuth(issuer=issuer.url, audience=AUDIENCE), issuer.token("twin"))


def test_a_token_does_not_say_where_its_key_is(issuer: Issuer, bearer: BearerAuth) -> None:
    attacker = private_key("attacker")
    jwk = {**public_jwk(attacker), "kid": "evil", "alg": "RS256", "use": "sig"}
    with Issuer(keys=[jwk]).running() as evil:
        where = f"{evil.url}{JWKS}"
        for key_id in ("evil", "first", where):
            for injected in ({"jku": where}, {"jwk": jwk}, {"x5u": where}, {"x5c": [part(b"x")]}, {"iss": evil.url}):
                assert refusal(bearer, issuer.token(key_id, key=attacker, headers=injected))
        assert evil.requests == []
    assert verify(bearer, issuer.token(headers={"jku": where}))


@pytest.mark.parametrize(
    "key_id", ["../../../dev/null", "/etc/passwd", "first' OR '1'='1", "first\x00", "FIRST", "", "x" * 5_000, "%66irst"]
)
def test_key_ids_are_names_and_nothing_else(issuer: Issuer, bearer: BearerAuth, key_id: str) -> None:
    assert "key is not the issuer's" in refusal(bearer, issuer.token(key_id, key=private_key("first")))
    assert set(issuer.requests) == {OAUTH_METADATA, JWKS}


@pytest.mark.parametrize("key_id", [7, None, ["first"], {"first": 1}, True])
def test_key_ids_are_text(issuer: Issuer, bearer: BearerAuth, key_id: Any) -> None:
    signed = f"{part({'alg': 'RS256', 'kid': key_id})}.{part(issuer.claims())}"
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), private_key("first"))
    assert "header" in refusal(bearer, f"{signed}.{part(signature)}")


# Forms of tokens.


@pytest.mark.parametrize("headers", [{"crit": ["exp"]}, {"crit": ["b64"], "b64": True}, {"crit": []}, {"b64": True}])
def test_no_extension_of_jws(issuer: Issuer, bearer: BearerAuth, headers: dict[str, Any]) -> None:
    signed = f"{part({'alg': 'RS256', 'kid': 'first', **headers})}.{part(issuer.claims())}"
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), private_key("first"))
    assert refusal(bearer, f"{signed}.{part(signature)}")


def test_no_payload_elsewhere(issuer: Issuer, bearer: BearerAuth) -> None:
    claims = json.dumps(issuer.claims()).encode()
    detached = jwt.api_jws.encode(
        claims,
        private_key("first"),
        "RS256",
        {"kid": "first", "crit": ["b64"], "b64": False},
        is_payload_detached=True,
    )
    assert refusal(bearer, detached)
    header, _, signature = detached.split(".")
    assert refusal(bearer, f"{header}.{part(claims)}.{signature}")


def test_nested_and_encrypted_tokens(issuer: Issuer, bearer: BearerAuth) -> None:
    nested = jwt.api_jws.encode(issuer.token().encode(), private_key("first"), "RS256", {"kid": "first", "cty": "JWT"})
    assert refusal(bearer, nested)
    header = part({"alg": "RSA-OAEP", "enc": "A256GCM", "kid": "first"})
    assert "no signed JWT" in refusal(bearer, f"{header}.{part(b'key')}.{part(b'iv')}.{part(b'text')}.{part(b'tag')}")


def test_a_huge_token_is_not_read(issuer: Issuer, bearer: BearerAuth) -> None:
    assert "too long" in refusal(bearer, issuer.token(padding="x" * 16_384))
    assert verify(bearer, issuer.token(padding="x" * 8_000))


def test_a_changed_token(issuer: Issuer, bearer: BearerAuth) -> None:
    header, claims, signature = issuer.token().split(".")
    assert refusal(bearer, f"{header}.{part(issuer.claims(sub='mallory'))}.{signature}")
    assert refusal(bearer, f"{part({'alg': 'RS256', 'kid': 'first'})}.{claims}.{signature}")
    assert refusal(bearer, f"{header}.{claims}.{signature[:-4]}")
    assert refusal(bearer, f"{header}.{claims}.{signature}=")
    assert refusal(bearer, f" {header}.{claims}.{signature}")
    assert refusal(bearer, f"{header}.{claims}.{signature}\n")


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@pytest.fixture(scope="module")
def lasting() -> Iterator[tuple[Issuer, BearerAuth]]:
    with Issuer().running() as issuer:
        issuer.add_key()
        yield issuer, BearerAuth(issuer=issuer.url, audience=AUDIENCE)


_FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_FUZZ
@given(garbage=st.text() | st.from_regex(r"[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{1,40}"))
def test_garbage_is_refused(lasting: tuple[Issuer, BearerAuth], garbage: str) -> None:
    assert refusal(lasting[1], garbage)


@_FUZZ
@given(header=st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "zip", "jku"]), _VALUES))
def test_odd_headers_are_refused(lasting: tuple[Issuer, BearerAuth], header: dict[str, Any]) -> None:
    issuer, bearer = lasting
    assert refusal(bearer, f"{part(header)}.{part(issuer.claims())}.{part(b'signature')}")
    assert refusal(bearer, f"{part({**header, 'alg': 'RS256', 'kid': 'first'})}.{part(issuer.claims())}.{part(b's')}")


@_FUZZ
@given(
    claims=st.dictionaries(
        st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "client_id", "azp", "scope", "scp", "typ", "jti"]),
        _VALUES,
        min_size=1,
    )
)
def test_odd_claims_are_refused_or_name_a_caller(lasting: tuple[Issuer, BearerAuth], claims: dict[str, Any]) -> None:
    issuer, bearer = lasting
    signed = f"{part({'alg': 'RS256', 'kid': 'first'})}.{part(issuer.claims(**claims))}"
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), private_key("first"))
    try:
        caller = verify(bearer, f"{signed}.{part(signature)}")
    except TokenRefused:
        return
    assert caller.issuer == issuer.url
    assert caller.client_id
    assert all(" " not in scope for scope in caller.scopes)


@pytest.mark.parametrize(
    "payload", [b"[]", b'"text"', b"7", b"null", b"{", b"", b"\xff", b"[" * 6_000, b'{"exp":1e999}']
)
def test_payloads_that_are_no_claims(issuer: Issuer, bearer: BearerAuth, payload: bytes) -> None:
    assert refusal(bearer, jwt.api_jws.encode(payload, private_key("first"), "RS256", {"kid": "first"}))


# Access tokens only.


@pytest.mark.parametrize("typ", ["id+jwt", "dpop+jwt", "logout+jwt", "secevent+jwt", "JOSE", "", 7, ["at+jwt"]])
def test_other_types(issuer: Issuer, bearer: BearerAuth, typ: Any) -> None:
    signed = f"{part({'alg': 'RS256', 'kid': 'first', 'typ': typ})}.{part(issuer.claims())}"
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), private_key("first"))
    assert "type" in refusal(bearer, f"{signed}.{part(signature)}")


@pytest.mark.parametrize(
    "claims",
    [{"nonce": "n"}, {"at_hash": "h"}, {"c_hash": "h"}, {"token_use": "id"}, {"typ": "ID"}, {"typ": "Refresh"}],
    ids=repr,
)
def test_an_id_token_is_no_access_token(issuer: Issuer, bearer: BearerAuth, claims: dict[str, str]) -> None:
    assert refusal(bearer, issuer.token(headers={"typ": "JWT"}, **claims))


def test_old_keycloak_gives_access_tokens_a_nonce(issuer: Issuer, bearer: BearerAuth) -> None:
    assert verify(bearer, issuer.token(headers={"typ": "JWT"}, typ="Bearer", nonce="n"))


# Amazon Cognito.

ACCESS: dict[str, Any] = {"token_use": "access"}
ID: dict[str, Any] = {"token_use": "id"}
POOL = "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_Example12"


@pytest.fixture
def pool(issuer: Issuer) -> BearerAuth:
    """Trusts a user pool whose keys are those of `issuer`."""
    return BearerAuth(issuer=POOL, audience=["client-1", AUDIENCE], jwks_url=f"{issuer.url}{JWKS}")


def test_a_pools_access_token_names_its_client_instead_of_an_audience(issuer: Issuer, pool: BearerAuth) -> None:
    token = issuer.token(headers={"typ": "JWT"}, iss=POOL, aud=..., **ACCESS)
    assert verify(pool, token).client_id == "client-1"
    assert issuer.requests == [JWKS]
    assert "aud" in refusal(pool, issuer.token(iss=POOL, aud=..., client_id="client-2", **ACCESS))
    assert "aud" in refusal(pool, issuer.token(iss=POOL, aud=..., client_id=..., **ACCESS))


def test_a_pools_token_for_another_resource_is_not_for_us(issuer: Issuer, pool: BearerAuth) -> None:
    assert verify(pool, issuer.token(iss=POOL, **ACCESS))
    assert "aud" in refusal(pool, issuer.token(iss=POOL, aud="https://other.example", **ACCESS))


def test_a_pools_id_token_is_refused(issuer: Issuer, pool: BearerAuth) -> None:
    assert refusal(pool, issuer.token(headers={"typ": "JWT"}, iss=POOL, aud="client-1", client_id=..., **ID))


def test_the_client_is_no_audience_elsewhere(issuer: Issuer) -> None:
    bearer = BearerAuth(issuer=issuer.url, audience="client-1")
    assert "aud" in refusal(bearer, issuer.token(aud=..., **ACCESS))


@pytest.mark.parametrize(
    "url",
    [
        "https://cognito-idp.eu-west-1.amazonaws.com.evil.example/eu-west-1_a",
        "https://evil.example/cognito-idp.eu-west-1.amazonaws.com/eu-west-1_a",
        f"{POOL}/more",
        "https://cognito-idp.eu-west-1.amazonaws.com/",
    ],
)
def test_what_only_looks_like_a_pool(issuer: Issuer, url: str) -> None:
    bearer = BearerAuth(issuer=url, audience="client-1", jwks_url=f"{issuer.url}{JWKS}")
    assert "aud" in refusal(bearer, issuer.token(iss=url, aud=..., **ACCESS))


# Whom claims name.


@pytest.mark.parametrize(
    ("claims", "client_id"),
    [
        ({"client_id": "a", "azp": "b", "cid": "c", "appid": "d", "sub": "s"}, "a"),
        ({"azp": "b", "cid": "c", "appid": "d", "sub": "s"}, "b"),
        ({"cid": "c", "appid": "d", "sub": "s"}, "c"),
        ({"appid": "d", "sub": "s"}, "d"),
        ({"sub": "s"}, "s"),
        ({"client_id": None, "azp": "b"}, "b"),
    ],
)
def test_the_client(claims: dict[str, object], client_id: str) -> None:
    caller = caller_of(claims)
    assert caller.client_id == client_id
    assert caller.subject == claims.get("sub")
    assert caller.claims == claims


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "a b  c a"}, ("a", "b", "c")),
        ({"scope": ["a", "b"]}, ("a", "b")),
        ({"scope": ""}, ()),
        ({"scp": "a b"}, ("a", "b")),
        ({"scp": ["a", "https://x.example/b"]}, ("a", "https://x.example/b")),
        ({"scope": "a", "scp": ["b"]}, ("a",)),
        ({}, ()),
    ],
)
def test_scopes(claims: dict[str, object], scopes: tuple[str, ...]) -> None:
    assert caller_of({"sub": "s", **claims}).scopes == scopes


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": None},
        {"sub": 7},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": "\ud800"},
        {"client_id": ["a"]},
        {"client_id": ""},
        {"azp": 7},
        {"iss": {}},
        {"scope": 7},
        {"scope": ["a b"]},
        {"scope": ["a", 7]},
        {"scope": [["a"]]},
        {"scope": {"a": 1}},
        {"scope": "a\tb"},
        {"scope": 'a"b'},
        {"scp": True},
        {"exp": "7"},
        {"exp": True},
        {"exp": 1e12},
        {"exp": -1},
    ],
    ids=repr,
)
def test_malformed_claims_name_nobody(claims: dict[str, object]) -> None:
    with pytest.raises(MalformedClaims) as malformed:
        caller_of({"sub": "s", **claims})
    assert "7" not in str(malformed.value)


# The header of a request.


@pytest.mark.parametrize(
    "value", ["Bearer abc.def", "bearer abc.def", "BEARER  abc.def", "Bearer abc.def ", "\tBeaReR abc.def"]
)
def test_the_token_of_a_request(value: str) -> None:
    assert bearer_token([value]) == "abc.def"


@pytest.mark.parametrize(
    "values",
    [
        ["Bearer abc", "Bearer abc"],
        ["Bearer abc, Bearer def"],
        ["Bearer abc def"],
        ["Bearer"],
        ["Bearer "],
        [""],
        ["abc"],
        ["Basic abc"],
        ["DPoP abc"],
        ["Bearer\tabc"],
        ["Bearer: abc"],
        ["Bearer \uff41bc"],
        [None],
        [["Bearer abc"]],
    ],
    ids=repr,
)
def test_what_is_no_token(values: list[object]) -> None:
    with pytest.raises(TokenRefused) as refused:
        bearer_token(values)
    assert not isinstance(refused.value, NoToken)
    assert "abc" not in str(refused.value)


def test_no_token() -> None:
    with pytest.raises(NoToken):
        bearer_token([])


# Where the keys are.


@pytest.mark.parametrize(
    ("path", "well_known"),
    [
        ("", OAUTH_METADATA),
        ("/", OAUTH_METADATA),
        ("/tenant/v2", f"{OAUTH_METADATA}/tenant/v2"),
        ("/tenant/", f"{OAUTH_METADATA}/tenant"),
        ("", OPENID_METADATA),
        ("/tenant/v2", f"/tenant/v2{OPENID_METADATA}"),
        ("/tenant/", f"/tenant{OPENID_METADATA}"),
    ],
)
def test_discovery(path: str, well_known: str) -> None:
    with Issuer(path, metadata_at=(well_known,)).running() as issuer:
        issuer.add_key()
        assert verify(BearerAuth(issuer=issuer.url, audience=AUDIENCE), issuer.token())
        assert issuer.requests[-2:] == [well_known, JWKS]


HTML = Answer(200, b"<html>Sign in</html>", {"Content-Type": "text/html"})


@pytest.mark.parametrize(
    "answer",
    [
        HTML,
        Answer(500),
        Answer(204),
        Answer(200, b"[]"),
        Answer(200, b"[" * 100_000),
        Answer(200, b"{}", {"Content-Length": "-1"}),
    ],
    ids=lambda answer: f"{answer.status}-{answer.body[:8]!r}",
)
@pytest.mark.parametrize("where", [OAUTH_METADATA, JWKS])
def test_an_issuer_that_answers_something_else(issuer: Issuer, bearer: BearerAuth, answer: Answer, where: str) -> None:
    issuer.answers[where] = answer
    with pytest.raises(IssuerUnavailable):
        verify(bearer, issuer.token())


@pytest.mark.parametrize("where", [OAUTH_METADATA, JWKS])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(issuer: Issuer, bearer: BearerAuth, where: str, status: int) -> None:
    issuer.answers["/elsewhere"] = issuer.answer(where)
    issuer.answers[where] = Answer(status, headers={"Location": "/elsewhere"})
    with pytest.raises(IssuerUnavailable, match=str(status)):
        verify(bearer, issuer.token())
    assert "/elsewhere" not in issuer.requests


@pytest.mark.parametrize("where", [OAUTH_METADATA, JWKS])
def test_documents_are_bounded(issuer: Issuer, where: str) -> None:
    right = issuer.answer(where).body
    issuer.answers[where] = Answer(body=right + b" " * 200_000)
    assert verify(BearerAuth(issuer=issuer.url, audience=AUDIENCE), issuer.token())
    issuer.answers[where] = Answer(body=right + b" " * 10_000_000)
    with pytest.raises(IssuerUnavailable):
        verify(BearerAuth(issuer=issuer.url, audience=AUDIENCE), issuer.token())


def test_key_sets_are_bounded(issuer: Issuer) -> None:
    issuer.keys += [{**issuer.keys[0], "kid": f"key-{number}"} for number in range(99)]
    assert verify(BearerAuth(issuer=issuer.url, audience=AUDIENCE), issuer.token())
    issuer.add_key("one more")
    with pytest.raises(IssuerUnavailable):
        verify(BearerAuth(issuer=issuer.url, audience=AUDIENCE), issuer.token())


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://other.example"},
        {"issuer": None},
        {"issuer": "{}/"},
        {"jwks_uri": None},
        {"jwks_uri": ["{}/jwks"]},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://keys.example/jwks"},
        {"jwks_uri": "ftp://127.0.0.1/jwks"},
        {"jwks_uri": "//127.0.0.1/jwks"},
        {"jwks_uri": "http://[::1"},
        {"jwks_uri": ""},
    ],
    ids=repr,
)
def test_metadata_that_is_not_used(issuer: Issuer, bearer: BearerAuth, metadata: dict[str, Any]) -> None:
    issuer.metadata = {
        name: value.format(issuer.url) if isinstance(value, str) else value for name, value in metadata.items()
    }
    with pytest.raises(IssuerUnavailable):
        verify(bearer, issuer.token())
    assert JWKS not in issuer.requests


def test_an_issuer_elsewhere_has_no_keys_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def document(url: str) -> dict[str, Any]:
        read.append(url)
        return {"issuer": "https://issuer.example", "jwks_uri": "http://127.0.0.1:9001/2018-06-01/runtime/"}

    monkeypatch.setattr(issuer_keys, "_document", document)
    bearer = BearerAuth(issuer="https://issuer.example", audience=AUDIENCE)
    with pytest.raises(IssuerUnavailable):
        verify(bearer, Issuer().token(key=private_key("first")))
    assert len(read) == 2
    assert all(url.startswith("https://issuer.example/") for url in read)


@pytest.mark.parametrize(
    "keys",
    [None, {}, [], [{"kty": "oct", "k": "AAAA"}], ["text", None, 7, []]],
    ids=lambda keys: repr(keys)[:20],
)
def test_key_sets_without_keys(issuer: Issuer, bearer: BearerAuth, keys: Any) -> None:
    issuer.keys = keys
    with pytest.raises(IssuerUnavailable):
        verify(bearer, issuer.token())


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example",
        "http://127.0.0.1.evil.example",
        "http://localhost@evil.example",
        "https://issuer.example?tenant=1",
        "https://issuer.example#x",
        "issuer.example",
        "ftp://localhost",
        "https://",
        "https://[::1",
        "",
    ],
)
def test_issuers_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        BearerAuth(issuer=url, audience=AUDIENCE)


def test_more_that_is_refused() -> None:
    with pytest.raises(ValueError, match="https"):
        BearerAuth(issuer="https://issuer.example", audience=AUDIENCE, jwks_url="http://issuer.example/jwks")
    for audience in ("", [], ["a", ""]):
        with pytest.raises(ValueError, match="audience"):
            BearerAuth(issuer="https://issuer.example", audience=audience)


def test_the_environments_variables(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="SEALANE_AUTH_ISSUER"):
        BearerAuth.from_environment()
    monkeypatch.setenv("SEALANE_AUTH_ISSUER", issuer.url)
    with pytest.raises(ValueError, match="SEALANE_AUTH_AUDIENCE"):
        BearerAuth.from_environment()
    monkeypatch.setenv("SEALANE_AUTH_AUDIENCE", f"{AUDIENCE} api://mcp")
    assert BearerAuth.from_environment().required_scopes == ()
    monkeypatch.setenv("SEALANE_AUTH_SCOPES", "notes:read notes:write")
    bearer = BearerAuth.from_environment()
    assert bearer.required_scopes == ("notes:read", "notes:write")
    assert verify(bearer, issuer.token(aud="api://mcp"))


# How long keys are kept.


def readings(issuer: Issuer) -> int:
    return issuer.requests.count(JWKS)


def test_keys_are_read_once_an_hour(issuer: Issuer, bearer: BearerAuth, clock: Clock) -> None:
    for _ in range(3):
        verify(bearer, issuer.token())
    clock.ahead = 3_500
    verify(bearer, issuer.token())
    assert readings(issuer) == 1
    clock.ahead = 3_700
    verify(bearer, issuer.token())
    assert readings(issuer) == 2


def test_a_withdrawn_key_is_good_for_an_hour_at_most(issuer: Issuer, bearer: BearerAuth, clock: Clock) -> None:
    issuer.add_key("second")
    verify(bearer, issuer.token("first"))
    issuer.withdraw("first")
    clock.ahead = 3_700
    assert refusal(bearer, issuer.token("first"))
    assert verify(bearer, issuer.token("second"))


def test_a_new_key_is_found_at_once(issuer: Issuer, bearer: BearerAuth) -> None:
    verify(bearer, issuer.token("first"))
    issuer.add_key("second")
    assert verify(bearer, issuer.token("second"))
    assert readings(issuer) == 2


def test_tokens_with_invented_keys_cost_one_reading_a_minute(issuer: Issuer, bearer: BearerAuth, clock: Clock) -> None:
    verify(bearer, issuer.token())
    for round_number in (1, 2, 3):
        for number in range(20):
            assert refusal(bearer, issuer.token(f"invented-{number}", key=private_key("other")))
        assert readings(issuer) == 1 + round_number
        assert verify(bearer, issuer.token())
        clock.ahead += 61


def test_other_faults_cost_no_reading(issuer: Issuer, bearer: BearerAuth) -> None:
    verify(bearer, issuer.token())
    for token in (
        issuer.token(key=private_key("other")),
        issuer.token(algorithm="PS256"),
        issuer.token(exp=1),
        "x.y.z",
    ):
        assert refusal(bearer, token)
    assert readings(issuer) == 1


def test_a_token_that_cannot_be_good_costs_no_reading_at_all(issuer: Issuer, bearer: BearerAuth) -> None:
    for token in ("garbage", issuer.token(algorithm="HS256", key="s" * 32), issuer.token(padding="x" * 16_384)):
        assert refusal(bearer, token)
    assert issuer.requests == []


def test_an_issuer_that_is_down_at_the_start(issuer: Issuer, bearer: BearerAuth, clock: Clock) -> None:
    token = issuer.token()
    issuer.stop()
    for _ in range(3):
        with pytest.raises(IssuerUnavailable, match="ConnectionRefusedError"):
            verify(bearer, token)
    issuer.start()
    with pytest.raises(IssuerUnavailable):
        verify(bearer, token)
    assert issuer.requests == []  # not with every token
    clock.ahead = 6
    assert verify(bearer, token)


def test_an_issuer_that_is_down_later(issuer: Issuer, bearer: BearerAuth, clock: Clock) -> None:
    token = issuer.token()
    verify(bearer, token)
    issuer.answers[JWKS] = HTML
    clock.ahead = 3_700
    for _ in range(5):
        assert verify(bearer, token)
    assert readings(issuer) == 2
    # Nobody can say whether the issuer has made that key.
    with pytest.raises(IssuerUnavailable):
        verify(bearer, issuer.token("unknown", key=private_key("other")))
    clock.ahead = 86_500
    with pytest.raises(IssuerUnavailable):
        verify(bearer, token)
    del issuer.answers[JWKS]
    clock.ahead += 61
    assert verify(bearer, token)


@pytest.mark.parametrize("answer", [Answer(seconds=1.0), Answer(body=b" " * 50, drip=0.02)], ids=["late", "slow"])
def test_an_issuer_that_does_not_answer_in_time(
    issuer: Issuer, bearer: BearerAuth, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(issuer_keys, "_FETCH_TIMEOUT", 0.1)
    issuer.answers[JWKS] = answer
    begin = time.monotonic()
    with pytest.raises(IssuerUnavailable, match="TimeoutError"):
        verify(bearer, issuer.token())
    assert time.monotonic() - begin < 0.9


def test_the_event_loop_goes_on_while_keys_are_read(issuer: Issuer, bearer: BearerAuth) -> None:
    issuer.answers[JWKS] = Answer(body=json.dumps({"keys": issuer.keys}).encode(), seconds=0.3)

    async def run() -> int:
        ticks = 0
        verification = asyncio.create_task(bearer.verify(issuer.token()))
        while not verification.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert verification.result().subject == "alice"
        return ticks

    assert asyncio.run(run()) > 5


def test_who_comes_together_shares_one_reading(issuer: Issuer, bearer: BearerAuth) -> None:
    issuer.answers[JWKS] = Answer(body=json.dumps({"keys": issuer.keys}).encode(), seconds=0.2)

    async def run(key_id: str) -> list[Caller]:
        return await asyncio.gather(*(bearer.verify(issuer.token(key_id)) for _ in range(10)))

    assert len(asyncio.run(run("first"))) == 10
    assert readings(issuer) == 1
    issuer.add_key("second")
    issuer.answers[JWKS] = Answer(body=json.dumps({"keys": issuer.keys}).encode(), seconds=0.2)
    assert len(asyncio.run(run("second"))) == 10
    assert readings(issuer) == 2


def test_threads_with_loops_of_their_own_share_one_reading(issuer: Issuer, bearer: BearerAuth) -> None:
    barrier = threading.Barrier(8)

    def run(_: int) -> Caller:
        barrier.wait()
        return verify(bearer, issuer.token())

    with ThreadPoolExecutor(8) as pool:
        assert all(caller.subject == "alice" for caller in pool.map(run, range(8)))
    assert readings(issuer) == 1
