"""The choice to let API Gateway verify callers."""

import os
from dataclasses import dataclass
from typing import Final, Self

from sealane.policy.caller import ISSUER_VARIABLE, SCOPES_VARIABLE

__all__ = ["GatewayAuth"]

MODE_VARIABLE: Final = "SEALANE_AUTH_MODE"
"""Who may call: `none` is everybody; with anything else API Gateway has to have verified them. Default: `none`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAuth:
    """Callers are verified by API Gateway: a request without a verified caller is refused.

    Args:
        issuer: the authorization server that clients are led to; `None` where callers have no tokens (IAM).
        required_scopes: what every caller needs.
    """

    issuer: str | None = None
    required_scopes: tuple[str, ...] = ()

    @classmethod
    def configured(cls) -> Self | None:
        """What `SEALANE_AUTH_MODE`, `SEALANE_AUTH_ISSUER` and `SEALANE_AUTH_SCOPES` say; `None` for an open server."""
        if os.environ.get(MODE_VARIABLE, "none") == "none":
            return None
        scopes = tuple(os.environ.get(SCOPES_VARIABLE, "").split())
        return cls(issuer=os.environ.get(ISSUER_VARIABLE) or None, required_scopes=scopes)
