"""The sample deployment, running on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sealane.local.gateway import LocalGateway

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def gateway() -> Iterator[LocalGateway]:
    """`template.yaml` with its own functions, two environments at most."""
    with LocalGateway(ROOT / "template.yaml", concurrency=2) as running:
        yield running
