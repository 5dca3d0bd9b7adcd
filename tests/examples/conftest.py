"""What the tests of the examples share."""

from pathlib import Path

import pytest

from sealane.local.testing import ObservedGateway

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def restart(gateway: ObservedGateway) -> None:
    """End every environment, so that the next request finds one that has served nothing."""
    for environment in gateway.environments:
        gateway.kill(environment.number)


def environments(gateway: ObservedGateway) -> list[int]:
    """Which environment has served each call of a tool."""
    return [
        each.environment for each in gateway.calls if each.message and each.environment and "tools/call" in each.message
    ]
