"""The keys that an issuer publishes: found, read, and kept for a while."""

import asyncio
import http.client
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from jwt.algorithms import AllowedPublicKeys

__all__ = ["ALGORITHMS", "IssuerKeys", "IssuerUnavailable", "UnknownKey", "is_trustworthy"]

logger = logging.getLogger(__name__)

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: Final = frozenset({*_RSA, "ES256", "ES384", "ES512", "EdDSA"})
"""Asymmetric ones only: with HMAC a published key would be the secret (RFC 8725 sections 2.1 and 3.1)."""

KEYS_LIFETIME: Final = 3_600
"""Seconds after which the keys are read again: a key that the issuer has withdrawn is good for no longer."""
LOOK_INTERVAL: Final = 60
"""Seconds between two readings that tokens with an unknown key have caused, and between two that failed."""
RETRY_INTERVAL: Final = 5
"""Seconds between two readings that failed while there is no key at all."""
KEYS_MAX_AGE: Final = 86_400
"""Seconds for which keys are used while the issuer does not answer."""
_FETCH_TIMEOUT: Final = 2.0
"""Seconds to connect, for each wait for data, and for a whole document once it has begun."""
_MAX_DOCUMENT: Final = 262_144
"""Bytes of a metadata document or key set."""
_MAX_KEYS: Final = 100
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class IssuerUnavailable(Exception):
    """Nobody can say whether a token is good, since the issuer's keys cannot be had; the text says why, for the log."""


class UnknownKey(Exception):
    """The issuer has no key as a token needs it; the text says why, and has nothing of the token in it."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key of the issuer.

    Attributes:
        id: its `kid`.
        algorithms: what it verifies: its own `alg`, or where it names none, all for keys of its kind.
    """

    id: str | None
    algorithms: tuple[str, ...]
    public: AllowedPublicKeys


class IssuerKeys:
    """The keys of one issuer, kept for as long as the environment lives. For any number of threads and event loops."""

    def __init__(self, issuer: str, jwks_url: str | None) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._lock = threading.Lock()
        self._keys: tuple[_Key, ...] = ()
        self._read_at = self._tried_at = self._looked_at = float("-inf")
        self._failure: str | None = None

    async def find(self, key_id: str | None, algorithm: str) -> AllowedPublicKeys:
        """The key that a token names, for its algorithm.

        Raises:
            UnknownKey: the issuer has no such key.
            IssuerUnavailable: there are no keys, or none of this name and the issuer cannot be asked for newer ones.
        """
        if self._is_old():
            await asyncio.to_thread(self._read, False)
        if not self._keys or time.time() - self._read_at > KEYS_MAX_AGE:
            raise IssuerUnavailable(f"no keys of the issuer: {self._failure}")
        if self._is_unknown(key_id) and self._may_look():
            await asyncio.to_thread(self._read, True)
        if self._is_unknown(key_id):
            if self._failure is not None:
                raise IssuerUnavailable(f"an unknown key, and no newer keys of the issuer: {self._failure}")
            raise UnknownKey("the token's key is not the issuer's")
        keys = self._keys
        named = [key for key in keys if key_id is None or key.id == key_id]
        if key_id is None and len(keys) > 1:
            raise UnknownKey("the token names no key, and the issuer has several")
        fitting = [key for key in named if algorithm in key.algorithms]
        if len(fitting) != 1:
            raise UnknownKey("not one key of the issuer fits the token's algorithm")
        return fitting[0].public

    def _is_unknown(self, key_id: str | None) -> bool:
        return key_id is not None and all(key.id != key_id for key in self._keys)

    def _is_old(self) -> bool:
        now = time.time()
        pause = LOOK_INTERVAL if self._keys else RETRY_INTERVAL
        return now - self._read_at > KEYS_LIFETIME and now - self._tried_at > pause

    def _may_look(self) -> bool:
        return time.time() - self._looked_at > LOOK_INTERVAL

    def _read(self, looking: bool) -> None:
        """Read the keys, unless another has done so while this waited. A reading that fails leaves those there are.

        Args:
            looking: for an unknown key, not because the keys are old.
        """
        with self._lock:
            if not (self._may_look() if looking else self._is_old()):
                return
            try:
                self._keys = _published_keys(self._issuer, self._jwks_url)
            except IssuerUnavailable as error:
                self._failure = str(error)
                logger.warning("the issuer's keys cannot be read, %d are kept: %s", len(self._keys), error)
            else:
                self._read_at, self._failure = time.time(), None
                logger.info("read %d keys of the issuer", len(self._keys))
            finally:
                self._tried_at = time.time()
                if looking:
                    self._looked_at = self._tried_at


def _published_keys(issuer: str, jwks_url: str | None) -> tuple[_Key, ...]:
    """The keys that an issuer signs with (RFC 7517 section 5). Keys of other kinds and uses are left out.

    Raises:
        IssuerUnavailable: they cannot be had, there are none, or more than anybody needs.
    """
    listed = _document(jwks_url or _jwks_url(issuer)).get("keys")
    if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
        raise IssuerUnavailable(f"the key set is no list of at most {_MAX_KEYS} keys")
    keys = tuple(key for each in listed if (key := _public_key(each)) is not None)
    if not keys:
        raise IssuerUnavailable("the key set has no key that could verify a token")
    return keys


def _public_key(jwk: object) -> _Key | None:
    """The key that a JWK (RFC 7517 section 4) describes; `None` for one that verifies no token."""
    # With a private key published, anybody could sign.
    if not isinstance(jwk, dict) or "d" in jwk:
        return None
    algorithms: tuple[str, ...]
    match jwk.get("kty"), jwk.get("crv"):
        case "RSA", _:
            algorithms = _RSA
        case "EC", "P-256":
            algorithms = ("ES256",)
        case "EC", "P-384":
            algorithms = ("ES384",)
        case "EC", "P-521":
            algorithms = ("ES512",)
        case "OKP", _:
            algorithms = ("EdDSA",)
        case _:
            return None
    key_id, alg, operations = jwk.get("kid"), jwk.get("alg"), jwk.get("key_ops", ["verify"])
    algorithms = tuple(each for each in algorithms if alg in (None, each))
    is_for_signatures = jwk.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations
    if not algorithms or not is_for_signatures or not (key_id is None or isinstance(key_id, str)):
        return None
    try:
        return _Key(key_id, algorithms, jwt.PyJWK(jwk, algorithms[0]).key)
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
        return None


def _jwks_url(issuer: str) -> str:
    """Where the issuer's metadata says that its keys are.

    Raises:
        IssuerUnavailable: it has no metadata, or that of another issuer (RFC 8414 section 3.3).
    """
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    failures = []
    for url in (
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ):
        try:
            metadata = _document(url)
        except IssuerUnavailable as error:
            failures.append(str(error))
            continue
        jwks_url = metadata.get("jwks_uri")
        if metadata.get("issuer") != issuer:
            failures.append(f"{url} is of another issuer")
        # An issuer elsewhere has no business on this machine, where Lambda's own APIs listen.
        elif not isinstance(jwks_url, str) or not is_trustworthy(jwks_url, local=_is_local(issuer)):
            failures.append(f"{url} has no https jwks_uri")
        else:
            return jwks_url
    raise IssuerUnavailable("; ".join(failures))


def _document(url: str) -> dict[str, Any]:
    """The JSON object at `url`.

    Raises:
        IssuerUnavailable: there is none, it is too large, comes too slowly, or is somewhere else.
    """
    request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "sealane"})  # noqa: S310
    try:
        with _opener().open(request, timeout=_FETCH_TIMEOUT) as response:
            document = json.loads(_body(response))
    except urllib.error.HTTPError as error:
        error.close()
        raise IssuerUnavailable(f"{url} answers {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise IssuerUnavailable(f"{url}: {type(reason).__name__}") from None
    if not isinstance(document, dict):
        raise IssuerUnavailable(f"{url} is no JSON object")
    return document


def _body(response: http.client.HTTPResponse) -> bytes:
    end = time.monotonic() + _FETCH_TIMEOUT
    body = b""
    while chunk := response.read1(65_536):
        body += chunk
        if len(body) > _MAX_DOCUMENT:
            raise ValueError("too large")
        if time.monotonic() > end:
            raise TimeoutError
    return body


def _opener() -> urllib.request.OpenerDirector:
    """A client for http and https alone: it follows no redirect, and opens no file."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


def is_trustworthy(url: str, *, local: bool) -> bool:
    """Whether what is at `url` is known to come from there: https, or this machine where `local` allows it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if parts.hostname in _LOOPBACK:
        return local and parts.scheme in ("http", "https")
    return parts.scheme == "https" and bool(parts.hostname)
