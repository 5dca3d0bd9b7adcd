"""The endpoint as an OAuth 2.0 protected resource: what it says of itself, and how it asks for a token."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["WELL_KNOWN", "BearerError", "ProtectedResource"]

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
"""RFC 9728 section 3."""

BearerError = Literal["invalid_token", "insufficient_scope"]
"""RFC 6750 section 3.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedResource:
    """An endpoint that takes bearer tokens.

    Args:
        url: the public URL of the endpoint, as clients are given it; tokens are asked for with it.
        route: the path at the end of `url` that belongs to the endpoint; what stands before is the deployment's, such
            as a stage.
        issuer: the authorization server.
        scopes: what a client needs at least.
    """

    url: str
    route: str
    issuer: str
    scopes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.url.startswith(("https://", "http://")) or not self.url.rstrip("/").endswith(self.route):
            raise ValueError(f"the public URL is a whole URL that ends with {self.route}: got {self.url!r}")

    @property
    def metadata_url(self) -> str:
        """Where `metadata` is served: below the same stage as the endpoint, since nothing else of the host is ours.

        Without a stage this is the place that RFC 9728 section 3.1 derives from the endpoint's URL.
        """
        return f"{self.url.rstrip('/').removesuffix(self.route)}{WELL_KNOWN}{self.route}"

    def metadata(self) -> dict[str, object]:
        """The document of RFC 9728 section 2."""
        return {
            "resource": self.url,
            "authorization_servers": [self.issuer],
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": list(self.scopes)} if self.scopes else {}),
        }

    def challenge(self, error: BearerError | None = None, scopes: Iterable[str] = ()) -> str:
        """The value of `WWW-Authenticate` for a refusal.

        Args:
            error: none where the request had no token (RFC 6750 section 3.1).
            scopes: what is missing; by default what every client needs.
        """
        parts = [f'resource_metadata="{self.metadata_url}"']
        if error is not None:
            parts.append(f'error="{error}"')
        if wanted := " ".join(scopes or self.scopes):
            parts.append(f'scope="{wanted}"')
        return f"Bearer {', '.join(parts)}"
