"""An OAuth authorization server on loopback, put together from Authlib's parts. All whom it asks say yes."""

# Authlib has no types.
# mypy: disable-error-code="import-untyped", allow-subclassing-any

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from authlib.integrations.flask_oauth2 import AuthorizationServer as Protocol
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import AuthorizationCodeMixin, ClientMixin, TokenMixin, grants
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from authlib.oauth2.rfc9207 import IssuerParameter
from flask import Flask, Response, jsonify, request
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from werkzeug.serving import make_server

__all__ = ["AuthorizationServer", "Seen", "running"]


class Seen(NamedTuple):
    """A request that the server got.

    Attributes:
        by: the `User-Agent`, up to its version; empty where there is none.
        what: method and path.
        values: query and form, or the members of a JSON body.
    """

    by: str
    what: str
    values: Mapping[str, Any]


@dataclass
class SignIn:
    """Somebody's consent: what Authlib hands through as the user."""

    user: str
    resource: str

    def get_user_id(self) -> str:
        """The subject of tokens."""
        return self.user


@dataclass
class Client(ClientMixin):
    """A client that has registered. It gets the scopes that it asks for."""

    client_id: str
    metadata: Mapping[str, Any]

    def get_client_id(self) -> str:
        return self.client_id

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.metadata["redirect_uris"]

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return bool(self.metadata["token_endpoint_auth_method"] == method)

    def check_response_type(self, response_type: str) -> bool:
        return response_type in self.metadata["response_types"]

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.metadata["grant_types"]


@dataclass
class Credential(AuthorizationCodeMixin, TokenMixin):
    """What is good for an access token, once: an authorization code or a refresh token."""

    client_id: str
    scope: str
    sign_in: SignIn
    redirect_uri: str = ""
    code_challenge: str | None = None
    code_challenge_method: str | None = None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def check_client(self, client: Client) -> bool:
        return self.client_id == client.client_id


@dataclass
class AuthorizationServer:
    """A server that registers clients and gives JWT access tokens (RFC 9068) with refresh tokens that change.

    Attributes:
        lifetime: seconds that new access tokens are good for.
        requests: every request so far.
    """

    lifetime: int = 3600
    requests: list[Seen] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.codes: dict[str, Credential] = {}
        self.refresh_tokens: dict[str, Credential] = {}
        self.keys = KeySet([ECKey.generate_key("P-256", {"kid": "first", "use": "sig", "alg": "ES256"})])

    @property
    def metadata(self) -> dict[str, Any]:
        """The document of RFC 8414."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "jwks_uri": f"{self.url}/jwks",
            "scopes_supported": ["notes:read", "notes:write"],
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": ["none"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }

    def seen(self, since: int = 0, by: str | None = None) -> list[str]:
        """The requests from a number on, of one sender or of all."""
        return [each.what for each in self.requests[since:] if by in (None, each.by)]

    def asked(self, what: str, since: int = 0) -> list[Mapping[str, Any]]:
        """What the requests for this method and path said."""
        return [each.values for each in self.requests[since:] if each.what == what]

    def token(self, *, key: ECKey | None = None, headers: Mapping[str, str] | None = None, **claims: Any) -> str:
        """An access token that nobody has asked for: a good one of Ada, but for `aud` and what the arguments change."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "sub": "ada",
            "client_id": "some-client",
            "scope": "notes:read",
            "iat": now,
            "exp": now + self.lifetime,
            "jti": secrets.token_hex(8),
        }
        header = {"alg": "ES256", "typ": "at+jwt", "kid": "first", **(headers or {})}
        return jwt.encode(header, {**good, **claims}, key or self.keys.keys[0])

    def app(self) -> Flask:
        """The endpoints."""
        app = Flask("authorization-server")
        protocol = self._protocol(app)
        AuthorizationServerMetadata(self.metadata).validate()

        @app.before_request
        def note() -> None:
            values = request.get_json() if request.is_json else request.values.to_dict()
            by = request.user_agent.string.partition("/")[0]
            self.requests.append(Seen(by, f"{request.method} {request.path}", values))

        @app.get("/.well-known/oauth-authorization-server")
        def metadata() -> Response:
            return jsonify(self.metadata)

        @app.get("/jwks")
        def jwks() -> Response:
            return jsonify(self.keys.as_dict(private=False))

        @app.post("/register")
        def register() -> Response:
            response: Response = protocol.create_endpoint_response("client_registration")
            return response

        @app.get("/authorize")
        def authorize() -> Response:
            user = SignIn(request.args["login_hint"], request.args.get("resource", ""))
            try:
                grant = protocol.get_consent_grant(end_user=user)
            except OAuth2Error as error:
                refused: Response = protocol.handle_error_response(None, error)
                return refused
            response: Response = protocol.create_authorization_response(grant_user=user, grant=grant)
            return response

        @app.post("/token")
        def token() -> Response:
            response: Response = protocol.create_token_response()
            return response

        return app

    def _protocol(self, app: Flask) -> Any:
        """Authlib's server, with what this one remembers."""
        server = self

        class Code(grants.AuthorizationCodeGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = ("none",)

            def save_authorization_code(self, code: str, request: Any) -> None:
                sent = request.payload.data
                server.codes[code] = Credential(
                    request.client.client_id,
                    request.scope,
                    request.user,
                    request.payload.redirect_uri,
                    sent.get("code_challenge"),
                    sent.get("code_challenge_method"),
                )

            def query_authorization_code(self, code: str, client: Client) -> Credential | None:
                found = server.codes.get(code)
                return found if found is not None and found.check_client(client) else None

            def delete_authorization_code(self, authorization_code: Credential) -> None:
                _forget(server.codes, authorization_code)

            def authenticate_user(self, authorization_code: Credential) -> SignIn:
                return authorization_code.sign_in

        class Refresh(grants.RefreshTokenGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = ("none",)
            INCLUDE_NEW_REFRESH_TOKEN = True

            def authenticate_refresh_token(self, refresh_token: str) -> Credential | None:
                return server.refresh_tokens.get(refresh_token)

            def authenticate_user(self, refresh_token: Credential) -> SignIn:
                return refresh_token.sign_in

            def revoke_old_credential(self, refresh_token: Credential) -> None:
                _forget(server.refresh_tokens, refresh_token)

        class Tokens(JWTBearerTokenGenerator):
            def get_jwks(self) -> KeySet:
                return server.keys

            def get_audiences(self, client: Client, user: SignIn, scope: str) -> str:
                return user.resource

        class Registration(ClientRegistrationEndpoint):
            def authenticate_token(self, request: Any) -> bool:
                return True

            def get_server_metadata(self) -> dict[str, Any]:
                return server.metadata

            def generate_client_info(self, request: Any) -> dict[str, Any]:
                return {"client_id": secrets.token_urlsafe(16), "client_id_issued_at": int(time.time())}

            def save_client(self, client_info: Mapping[str, Any], client_metadata: Any, request: Any) -> Client:
                client = Client(client_info["client_id"], client_metadata)
                server.clients[client.client_id] = client
                return client

        class Issuer(IssuerParameter):
            def get_issuer(self) -> str:
                return server.url

        def save_token(token: Mapping[str, Any], request: Any) -> None:
            if "refresh_token" in token:
                credential = Credential(request.client.client_id, token.get("scope", ""), request.user)
                server.refresh_tokens[token["refresh_token"]] = credential

        protocol = Protocol(app, server.clients.get, save_token)
        protocol.register_token_generator(
            "default",
            Tokens(self.url, "ES256", lambda **_: secrets.token_urlsafe(24), lambda *_: server.lifetime),
        )
        protocol.register_grant(Code, [OnlyS256(required=True), resource_indicator])
        protocol.register_grant(Refresh, [resource_indicator])
        protocol.register_endpoint(Registration)
        protocol.register_extension(Issuer())
        return protocol


class OnlyS256(CodeChallenge):
    """PKCE as MCP asks for it."""

    DEFAULT_CODE_CHALLENGE_METHOD = "S256"
    SUPPORTED_CODE_CHALLENGE_METHOD = ("S256",)


class InvalidTarget(OAuth2Error):
    """RFC 8707 section 2."""

    error = "invalid_target"


def resource_indicator(grant: Any) -> None:
    """RFC 8707, which Authlib does not have: every request names the resource, and always the same."""

    def at_authorization(grant: Any, redirect_uri: str) -> None:
        if len(grant.request.payload.datalist["resource"]) != 1:
            raise InvalidTarget("one resource is needed")

    def at_token(grant: Any) -> None:
        credential = grant.request.authorization_code or grant.request.refresh_token
        if grant.request.form.getlist("resource") != [credential.sign_in.resource]:
            raise InvalidTarget("not the resource that was consented to")

    grant.register_hook("after_validate_authorization_request_payload", at_authorization)
    grant.register_hook("before_create_token_response", at_token)


@contextmanager
def running() -> Iterator[AuthorizationServer]:
    """Serve until the block ends."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = AuthorizationServer()
    listening = make_server("127.0.0.1", 0, lambda *call: app(*call), threaded=True)
    server.url = f"http://127.0.0.1:{listening.server_port}"
    app = server.app()
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def _forget(credentials: dict[str, Credential], spent: Credential) -> None:
    for name, credential in list(credentials.items()):
        if credential is spent:
            del credentials[name]
