"""A test authorization server on loopback, as far as a resource server sees it: metadata, keys, and signed tokens."""

import functools
import io
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import AllowedPrivateKeys, ECAlgorithm, OKPAlgorithm, RSAAlgorithm

__all__ = [
    "AUDIENCE",
    "JWKS",
    "OAUTH_METADATA",
    "OPENID_METADATA",
    "Answer",
    "Issuer",
    "all_that_is_logged",
    "private_key",
    "public_jwk",
]

AUDIENCE = "https://mcp.example.com/mcp"
OAUTH_METADATA = "/.well-known/oauth-authorization-server"
OPENID_METADATA = "/.well-known/openid-configuration"
JWKS = "/jwks"


class Answer(NamedTuple):
    """What the server answers on a path instead of what it would say.

    Attributes:
        seconds: before it answers.
        drip: seconds after each byte of the body.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    seconds: float = 0.0
    drip: float = 0.0


def private_key(name: str, algorithm: str = "RS256", size: int = 2048) -> AllowedPrivateKeys:
    """The private key of this name, made once in each process."""
    return _private_key(name, algorithm, size)


@functools.cache
def _private_key(name: str, algorithm: str, size: int) -> AllowedPrivateKeys:
    match algorithm:
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case "ES512":
            return ec.generate_private_key(ec.SECP521R1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case _:
            return rsa.generate_private_key(65537, size)


def public_jwk(key: AllowedPrivateKeys) -> dict[str, Any]:
    """The public half of a key as a JWK, without `kid`, `alg` and `use`."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        return RSAAlgorithm.to_jwk(public, as_dict=True)
    if isinstance(public, ec.EllipticCurvePublicKey):
        return ECAlgorithm.to_jwk(public, as_dict=True)
    return OKPAlgorithm.to_jwk(public, as_dict=True)


@dataclass
class Issuer:
    """An issuer; `running()` serves it.

    Attributes:
        path: of the issuer's identifier, such as a tenant.
        keys: the key set, as it is published.
        answers: by path, what is answered instead.
        metadata: what the metadata says instead or besides.
        metadata_at: the paths that have metadata.
        requests: the paths that were asked for.
    """

    path: str = ""
    keys: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    metadata_at: tuple[str, ...] = ()
    requests: list[str] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self.metadata_at = self.metadata_at or (OAUTH_METADATA + self.path.rstrip("/"),)
        self._signing: dict[str | None, tuple[AllowedPrivateKeys, str]] = {}
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The issuer's identifier."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    def add_key(self, key_id: str | None = "first", algorithm: str = "RS256", **members: Any) -> None:
        """Publish a key and be able to sign with it. Members that are `None` are left out of its JWK."""
        key = private_key(key_id or "nameless", algorithm)
        jwk = {**public_jwk(key), "kid": key_id, "alg": algorithm, "use": "sig", **members}
        self.keys.append({name: value for name, value in jwk.items() if value is not None})
        self._signing[key_id] = key, algorithm

    def withdraw(self, key_id: str) -> None:
        """Publish a key no longer."""
        self.keys = [key for key in self.keys if key.get("kid") != key_id]

    def claims(self, **claims: Any) -> dict[str, Any]:
        """The claims of a good access token, changed; one that is `...` is left out."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "alice",
            "client_id": "client-1",
            "scope": "notes:read notes:write",
            "iat": now,
            "exp": now + 300,
            "jti": "a-token-of-alice",
        }
        return {claim: value for claim, value in {**good, **claims}.items() if value is not ...}

    def token(
        self,
        key_id: str | None = "first",
        /,
        *,
        headers: Mapping[str, Any] | None = None,
        key: Any = None,
        algorithm: str | None = None,
        **claims: Any,
    ) -> str:
        """A signed token: a good one, but for what the arguments change."""
        own_key, own_algorithm = self._signing.get(key_id, ("", "RS256"))
        return jwt.encode(
            self.claims(**claims),
            key if key is not None else own_key,
            algorithm or own_algorithm,
            {"typ": "at+jwt", **({} if key_id is None else {"kid": key_id}), **(headers or {})},
        )

    @contextmanager
    def running(self) -> Iterator["Issuer"]:
        """Serve until the block ends."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        """Serve, on the same port as before."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                answer = issuer.answer(self.path)
                time.sleep(answer.seconds)
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if answer.drip:
                    for byte in answer.body:
                        self.wfile.write(bytes([byte]))
                        time.sleep(answer.drip)
                else:
                    self.wfile.write(answer.body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # who asked went away

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, path: str) -> Answer:
        """What a path is answered with."""
        if path in self.answers:
            return self.answers[path]
        if path in self.metadata_at:
            jwks_uri = f"http://127.0.0.1:{self.port}{JWKS}"
            return Answer(body=json.dumps({"issuer": self.url, "jwks_uri": jwks_uri, **self.metadata}).encode())
        if path == JWKS:
            return Answer(body=json.dumps({"keys": self.keys}).encode())
        return Answer(404, b"<html>Not found</html>")


@contextmanager
def all_that_is_logged() -> Iterator[io.StringIO]:
    """What any logger writes in the block, at every level, with tracebacks."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    try:
        yield written
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
