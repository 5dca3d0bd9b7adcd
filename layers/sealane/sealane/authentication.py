"""The verified caller as the SDK has it: an `AccessToken`, which tools can ask for."""

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, principal_components
from starlette.authentication import AuthCredentials
from starlette.requests import Request
from starlette.types import Scope

from sealane.gateway.authentication import Authentication
from sealane.policy.caller import Caller
from sealane.policy.principal import Principal

__all__ = ["authenticated", "principal_of"]


async def authenticated(authentication: Authentication, request: Request) -> Scope:
    """The ASGI scope of `request`, with the verified caller as its user where there is one.

    Raises:
        RequestRejected: see `Authentication.caller`.
    """
    scope = request.scope
    user = scope.get("user")
    given = user.access_token if isinstance(user, AuthenticatedUser) else None
    caller = await authentication.caller(request, _caller(given) if given is not None else None)
    if caller is None:
        return scope
    token = given or AccessToken(**caller.token_fields)
    return {**scope, "user": AuthenticatedUser(token), "auth": AuthCredentials(token.scopes)}


def principal_of(auth_info: AccessToken | None) -> Principal | None:
    """Whom the data of a caller belongs to."""
    return Principal(*principal_components(auth_info)) if auth_info is not None else None


def _caller(given: AccessToken) -> Caller:
    client_id, issuer, subject = principal_components(given)
    return Caller(client_id=client_id, issuer=issuer, subject=subject, scopes=tuple(given.scopes))
