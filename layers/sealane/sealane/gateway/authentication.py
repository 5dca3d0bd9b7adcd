"""Who is calling: what API Gateway says, what a bearer token says, what the code in front says; and the refusal."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from sealane import telemetry
from sealane.errors import INTERNAL_ERROR, INVALID_REQUEST, RequestRejected
from sealane.gateway.identity import invoke_url, verified_caller
from sealane.policy.caller import CLOCK_SKEW, Caller, MalformedClaims
from sealane.policy.gateway_auth import GatewayAuth
from sealane.policy.protected_resource import WELL_KNOWN, BearerError, ProtectedResource

if TYPE_CHECKING:
    # Only who verifies tokens pays for PyJWT.
    from sealane.policy.bearer import BearerAuth

__all__ = ["Authentication", "public_url"]

PUBLIC_URL_VARIABLE: Final = "SEALANE_PUBLIC_URL"
"""URL of the deployment without the route, for challenges and the resource metadata; the option `public_url` wins.
Default: the name that AWS gave the API, as the event proves it."""


def public_url(scope: Scope, given: str | None) -> str | None:
    """The URL of the deployment without the route: as it is configured, or as the event proves it.

    Args:
        given: what the option `public_url` says.
    """
    event = scope.get("aws.event")
    configured = given or os.environ.get(PUBLIC_URL_VARIABLE)
    return configured or (invoke_url(event) if isinstance(event, dict) else None)


class Authentication:
    """Finds the caller of each request, and refuses who has to be known and is not.

    Args:
        auth: who has to verify callers; `None` for a server that is open, where whoever is known is known all the same.
        public_url: URL of the deployment without the route; by default the name that AWS gave it, from the event.
        route: path of the endpoint.
    """

    def __init__(self, auth: "BearerAuth | GatewayAuth | None", public_url: str | None, route: str) -> None:
        self._auth = auth
        self._public_url = public_url
        self._route = route

    @property
    def is_open(self) -> bool:
        """Whether nobody has to say who is calling."""
        return self._auth is None

    async def caller(self, request: Request, known: Caller | None = None) -> Caller | None:
        """The verified caller of `request`, `None` where there is none and none is needed.

        The caller that the code in front has set counts first, then a bearer token that we have verified, then what
        the gateway says. None of them is believed while another says something else.

        Args:
            known: the caller that the code in front has set.

        Raises:
            RequestRejected: 500 when gateway and token name different callers; else see `refusal`, and
                `_bearer`.
        """
        scope = request.scope
        if self._auth is not None and _has_two_tokens(request):
            # The gateway may know one of them.
            raise self.refusal(scope, error="invalid_token", reason="more than one Authorization header")
        found = [known] if known is not None else []
        if self._auth is not None and not isinstance(self._auth, GatewayAuth):
            found.append(await self._bearer(self._auth, request))
        if isinstance(event := scope.get("aws.event"), dict):
            found += self._gateway(scope, event)
        if len({each.principal for each in found}) > 1:
            reason = "those who have verified the caller do not agree on who it is"
            raise RequestRejected(500, INTERNAL_ERROR, "Internal server error", reason=reason)
        if not found:
            if self._auth is not None:
                raise self.refusal(scope, reason="no verified caller")
            return None
        caller = found[0]
        telemetry.current().identify(caller.principal)
        needed = self._auth.required_scopes if self._auth is not None else ()
        if not set(needed) <= set(caller.scopes):
            reason = f"the caller lacks one of {' '.join(needed)}"
            raise self.refusal(scope, error="insufficient_scope", scopes=needed, reason=reason)
        return caller

    def refusal(
        self, scope: Scope, *, error: BearerError | None = None, scopes: Iterable[str] = (), reason: str
    ) -> RequestRejected:
        """The refusal of a request, with a challenge that leads to a token (RFC 9728 section 5.1).

        It is 401 for a request without a token, or with one that is not accepted: the log says why. It is 403 for a
        caller who lacks a scope, which the challenge names.

        Args:
            error: what is wrong with the token (RFC 6750 section 3.1).
            scopes: what the call needs.
            reason: for the log.
        """
        resource = self._resource(scope)
        challenge = resource.challenge(error, scopes) if resource else "Bearer"
        headers = {"WWW-Authenticate": challenge}
        if error == "insufficient_scope":
            lacking = f"The token lacks a scope; needed: {' '.join(scopes)}"
            return RequestRejected(403, INVALID_REQUEST, lacking, reason=reason, headers=headers)
        message = (
            "Sign in: this needs a bearer token" if error is None else "Sign in again: the token is not accepted here"
        )
        return RequestRejected(401, INVALID_REQUEST, message, reason=reason, headers=headers)

    def metadata(self, request: Request, path: str) -> Response | None:
        """The document that `path` names, if it is one of ours; it is read without a token (RFC 9728 section 3).

        Raises:
            RequestRejected: 404 for a metadata document where no issuer or no public URL is configured. 405 for
                other methods than GET on a metadata document.
        """
        if path.rstrip("/") not in (WELL_KNOWN, WELL_KNOWN + self._route):
            return None
        if request.method not in ("GET", "HEAD"):
            raise RequestRejected(405, INVALID_REQUEST, "Method not allowed: send GET", headers={"Allow": "GET, HEAD"})
        if (resource := self._resource(request.scope)) is None:
            raise RequestRejected(
                404,
                INVALID_REQUEST,
                "Not found",
                reason="no issuer or no public URL is configured: set AuthIssuer and PublicUrl",
            )
        return JSONResponse(resource.metadata(), headers={"Cache-Control": "public, max-age=3600"})

    async def _bearer(self, auth: "BearerAuth", request: Request) -> Caller:
        """The caller that a token names, verified here.

        Raises:
            RequestRejected: 503 while tokens cannot be verified, since the issuer's keys are out of reach; else see
                `refusal`.
        """
        from sealane.policy.bearer import IssuerUnavailable, NoToken, TokenRefused, bearer_token

        try:
            token = bearer_token(request.headers.getlist("authorization"))
            return replace(await auth.verify(token), token=token)
        except NoToken as refused:
            raise self.refusal(request.scope, reason=str(refused)) from None
        except TokenRefused as refused:
            raise self.refusal(request.scope, error="invalid_token", reason=str(refused)) from None
        except IssuerUnavailable as error:
            message = "Tokens cannot be verified at the moment. Send the same request again in a few seconds"
            raise RequestRejected(503, INTERNAL_ERROR, message, reason=str(error)) from None

    def _gateway(self, scope: Scope, event: Mapping[str, Any]) -> list[Caller]:
        """The caller that the gateway has verified, if any; it keeps what an authorizer said for a while."""
        try:
            caller = verified_caller(event)
        except MalformedClaims as error:
            raise self.refusal(scope, error="invalid_token", reason=f"the gateway's identity: {error}") from None
        if caller is None:
            return []
        if caller.expires_at is not None and caller.expires_at + CLOCK_SKEW < time.time():
            raise self.refusal(scope, error="invalid_token", reason="the token that the gateway knows has expired")
        return [caller]

    def _resource(self, scope: Scope) -> ProtectedResource | None:
        """This endpoint, if it is known where it is and who gives tokens for it."""
        url = public_url(scope, self._public_url)
        if url is None or self._auth is None or self._auth.issuer is None:
            return None
        return ProtectedResource(
            url=url.rstrip("/") + self._route,
            route=self._route,
            issuer=self._auth.issuer,
            scopes=self._auth.required_scopes,
        )


def _has_two_tokens(request: Request) -> bool:
    """Whether there is more than one `Authorization`; gateways join them with a comma, which no bearer token has."""
    given = request.headers.getlist("authorization")
    return len(given) > 1 or any(each.lower().startswith("bearer ") and "," in each for each in given)
