"""The tools that every contestant serves: one that is called, async or not, and others that make the catalog long.

BENCH_TOOL=hello|hello_sync BENCH_TOOLS=50
"""

import os
from collections.abc import Callable


async def hello(name: str = "World") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


def hello_sync(name: str = "World") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


def _other(number: int) -> Callable[..., str]:
    def search(query: str, limit: int = 10, exact: bool = False) -> str:
        """Search one of many shelves for a text."""
        return f"{query} {limit} {exact}"

    search.__name__ = f"search_{number}"
    return search


def tools() -> list[Callable[..., object]]:
    """The functions that are tools, the one that is called first."""
    called = hello_sync if os.environ["BENCH_TOOL"] == "hello_sync" else hello
    return [called, *(_other(number) for number in range(1, int(os.environ["BENCH_TOOLS"])))]
