"""The principal of a request: who the verified caller is, for all that is kept between requests."""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple

from sealane.bound import Bound

__all__ = ["Principal", "current_principal", "principal_context"]


class Principal(NamedTuple):
    """Whom data, request state and once-only records belong to.

    Its parts are those that the SDK binds request state to (`mcp.server.auth.provider.principal_components`).
    """

    client_id: str
    issuer: str | None = None
    subject: str | None = None


_principal: ContextVar[Principal | None] = ContextVar("sealane_principal", default=None)


def current_principal() -> Principal | None:
    """The verified caller of this request; `None` where there is none, and outside a request."""
    return _principal.get()


def principal_context(principal: Principal | None) -> AbstractContextManager[None]:
    """Make `principal` what `current_principal` returns inside a `with` block, as scripts and tests need it.

    Args:
        principal: whose data is used; `None` for nobody's.
    """
    return Bound(_principal, principal)
