"""Packages of a Python package index, for models: a wrapper around PyPI's HTTP API.

https://docs.pypi.org/api/json/ and https://docs.pypi.org/api/index-api/
"""

from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, Field

from index import fetch
from sealane import Catalog

catalog = Catalog()

# https://packaging.python.org/en/latest/specifications/name-normalization/ - nothing in it has a meaning in a path.
PackageName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=100, description="Such as requests.")
]


class Vulnerability(BaseModel):
    """A known vulnerability of a version."""

    id: str
    summary: str | None = None
    fixed_in: list[str] = []


class Information(BaseModel):
    """What we take from the index's `info`."""

    name: str
    version: str
    summary: str | None = None
    license_expression: str | None = None
    requires_python: str | None = None
    requires_dist: list[str] | None = None
    yanked: bool = False


class Document(BaseModel):
    """What we take from `/pypi/NAME/json`."""

    info: Information
    vulnerabilities: list[Vulnerability] = []


class Listing(BaseModel):
    """What we take from `/simple/NAME/`."""

    versions: list[str]


class Package(Information):
    """A version of a package."""

    vulnerabilities: list[Vulnerability]


class Versions(BaseModel):
    """A page of the versions of a package."""

    versions: list[str] = Field(description="Newest first.")
    next: str | None = Field(description="What `after` takes to go on; none after the last page.")


@catalog.tool()
async def describe_package(
    name: PackageName,
    version: Annotated[
        str | None, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.!+_-]{0,63}$", description="By default the newest.")
    ] = None,
) -> Package:
    """What a package is, what it needs, and which known vulnerabilities it has."""
    path = "/".join(["/pypi", canonicalize_name(name), *([version] if version else []), "json"])
    document = await fetch(path, Document)
    return Package(**document.info.model_dump(), vulnerabilities=document.vulnerabilities)


@catalog.tool()
async def list_versions(
    name: PackageName,
    after: Annotated[str | None, Field(description="`next` of the page before; none for the first.")] = None,
    limit: Annotated[int, Field(ge=1, le=100, description="Versions in a page.")] = 20,
) -> Versions:
    """The versions of a package, newest first, a page at a time."""
    path = f"/simple/{canonicalize_name(name)}/"
    listing = await fetch(path, Listing, accept="application/vnd.pypi.simple.v1+json")
    versions = sorted(filter(is_version, listing.versions), key=Version, reverse=True)
    # By its last version, not by a number: a page stays in its place when something is released.
    if after is not None and after not in versions:
        raise ToolError("There is no such version. Use `next` of the page before, or none.")
    start = 0 if after is None else versions.index(after) + 1
    page = versions[start : start + limit]
    return Versions(versions=page, next=page[-1] if start + limit < len(versions) else None)


def is_version(text: str) -> bool:
    """Whether a text is a version; old packages have others, which cannot be put in order."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def create_server() -> MCPServer:
    """A fresh server for one request."""
    return catalog.server("package-index", version="1.0.0")
