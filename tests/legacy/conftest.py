"""What the tests of the legacy lane share."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sealane.local.environment import Environment
from sealane.local.testing import ObservedGateway
from tests.conformance.legacy_lane import warm

HERE = Path(__file__).parent
ENVIRONMENTS = 4


class Dice:
    """Chooses an environment by chance, and none twice where that is asked for."""

    def __init__(self) -> None:
        self._used: set[int] | None = None

    def __call__(self, idle: Sequence[Environment]) -> Environment:
        fresh = [each for each in idle if each.number not in (self._used or ())]
        chosen = random.choice(fresh or idle)  # noqa: S311 - nothing is secret here
        if self._used is not None:
            self._used.add(chosen.number)
        return chosen

    @contextmanager
    def never_twice(self) -> Iterator[None]:
        """Within the block each request reaches another environment, as long as there are any."""
        self._used = set()
        yield
        self._used = None


class Lane(ObservedGateway):
    """The legacy lane, with all its environments started."""

    def __init__(self, **options: Any) -> None:
        self.dice = Dice()
        self._streams = options.get("parameters", {}).get("Streaming") != "false"
        options = {"code_dirs": {"LegacyFunction": HERE / "integration" / "function"}, **options}
        super().__init__(HERE / "template.yaml", concurrency=ENVIRONMENTS, choose=self.dice, **options)

    @property
    def url(self) -> str:
        """URL of the endpoint: of the API that fits the function."""
        return super().url if self._streams else f"{self.urls['BufferedApi']}/mcp"

    def warm(self) -> None:
        """Start every environment."""
        assert warm(self, ENVIRONMENTS) == []


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    with Lane() as running:
        running.warm()
        yield running


@pytest.fixture(scope="module")
def signed_lane() -> Iterator[Lane]:
    """The same for callers with a token."""
    with Lane(parameters={"Handler": "app.signed"}) as running:
        running.warm()
        yield running


@pytest.fixture(scope="module")
def hasty_lane() -> Iterator[Lane]:
    """The same, for whom a request may take five seconds."""
    with Lane(parameters={"Timeout": "5"}) as running:
        running.warm()
        yield running


@pytest.fixture(scope="module")
def buffered_lane() -> Iterator[Lane]:
    """The same, where answers leave as a whole."""
    with Lane(parameters={"Streaming": "false"}) as running:
        running.warm()
        yield running
