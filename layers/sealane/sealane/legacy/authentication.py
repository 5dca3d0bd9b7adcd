"""The verified caller as SDK v1 has it: an `AccessToken`, which tools can ask for."""

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials
from starlette.requests import Request
from starlette.types import Scope

from sealane.gateway.authentication import Authentication
from sealane.policy.caller import Caller

__all__ = ["authenticated"]


async def authenticated(authentication: Authentication, request: Request) -> tuple[Scope, Caller | None]:
    """The ASGI scope of `request`, with the verified caller as its user where there is one; and the caller.

    Raises:
        RequestRejected: see `Authentication.caller`.
    """
    scope = request.scope
    user = scope.get("user")
    known = None
    if isinstance(user, AuthenticatedUser):
        token = user.access_token
        known = Caller(scopes=tuple(token.scopes), claims=token.claims or {}, **authorization_context(user))
    caller = await authentication.caller(request, known)
    if caller is None:
        return scope, None
    if known is None:
        user = AuthenticatedUser(AccessToken(**caller.token_fields))
    return {**scope, "user": user, "auth": AuthCredentials(caller.scopes)}, caller
