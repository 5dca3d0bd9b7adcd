"""moto in a process of its own, as `sealane run` has it, for tests and benchmarks that need no local gateway."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sealane.local

__all__ = ["TABLE_DEFINITION", "moto_process"]

TABLE_DEFINITION: Final[dict[str, Any]] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
}
"""A table as the template has it, but for its name."""


@contextmanager
def moto_process() -> Iterator[str]:
    """The URL of a server that serves one request at a time, with nothing in it."""
    program = Path(sealane.local.__file__).with_name("moto_server.py")
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()
