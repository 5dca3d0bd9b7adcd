"""For tests of servers: the fixture `local_gateway`, which pytest finds where this package is installed.

```python
def test_hello(local_gateway):
    gateway = local_gateway("template.yaml", parameters={"Timeout": "5"})
    ...  # HTTP to gateway.url
    assert gateway.calls[-1].environment == 1
```
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sealane.local.testing import ObservedGateway


@pytest.fixture
def local_gateway() -> "Iterator[Callable[..., ObservedGateway]]":
    """Starts local gateways on free ports; takes the arguments of `ObservedGateway`. All stop with the test."""
    # Imported here: pytest loads this module in every project that has the package.
    from sealane.local.testing import ObservedGateway

    with ExitStack() as gateways:
        yield lambda *args, **options: gateways.enter_context(ObservedGateway(*args, **options))
