"""An issuer of tokens for tries on this machine: it gives one to everybody, in any name.

    .venv/bin/python examples/notebook/issuer.py

Then http://127.0.0.1:8090/token/ada is an access token of Ada's. It publishes what API Gateway's JWT authorizer reads:
https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-jwt-authorizer.html
"""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

AUDIENCE = "notebook"
LIFETIME = 3600
"""Seconds that a token is good for."""


class Issuer(ThreadingHTTPServer):
    """Serves metadata, keys and tokens on a port of this machine; 0 takes a free one.

    Attributes:
        url: the issuer's name.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.key = rsa.generate_private_key(65537, 2048)

    def token(self, subject: str) -> str:
        """An access token of somebody's."""
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": subject,
            "client_id": "try",
            "exp": int(time.time()) + LIFETIME,
        }
        return jwt.encode(claims, self.key, "RS256", headers={"kid": "1"})


class _Requests(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        match self.path.strip("/").split("/"):
            case [".well-known", "openid-configuration"]:
                text = json.dumps({"issuer": self.server.url, "jwks_uri": f"{self.server.url}/jwks"})
            case ["jwks"]:
                key = RSAAlgorithm.to_jwk(self.server.key.public_key(), as_dict=True)
                text = json.dumps({"keys": [{**key, "kid": "1", "alg": "RS256", "use": "sig"}]})
            case ["token", subject]:
                text = self.server.token(subject)
            case _:
                return self.send_error(404)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


if __name__ == "__main__":
    issuer = Issuer(8090)
    print(f"Tokens at {issuer.url}/token/ada, or any other name (Ctrl-C stops)", flush=True)
    issuer.serve_forever()
