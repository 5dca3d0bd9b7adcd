"""The principal of a request: who the verified caller is, for all that is kept between requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

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


@contextmanager
def principal_context(principal: Principal | None) -> Iterator[None]:
    """Make `principal` what `current_principal` returns inside the block, as scripts and tests need it.

    Args:
        principal: whose data is used; `None` for nobody's.
    """
    token = _principal.set(principal)
    try:
        yield
    finally:
        _principal.reset(token)
