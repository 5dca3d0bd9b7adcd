"""SnapStart: what is done before Lambda takes a snapshot of an environment, and in each one that is made from it.

All of them begin with the memory of the first: what has to differ must be made anew, what has grown old forgotten.
Random bytes of the operating system (`secrets`, `os.urandom`, `uuid4`) differ by themselves.
https://docs.aws.amazon.com/lambda/latest/dg/snapstart-runtime-hooks-python.html
"""

import os
import random
from collections.abc import Callable

__all__ = ["after_restore", "before_snapshot"]


def before_snapshot(prepare: Callable[[], object]) -> None:
    """Have `prepare` called before a snapshot is taken, where one is; an error of it fails the deployment."""
    if _is_taken():
        # A part of Lambda's runtime.
        from snapshot_restore_py import register_before_snapshot  # type: ignore[import-untyped]

        register_before_snapshot(prepare)


def after_restore(forget: Callable[[], object]) -> None:
    """Have `forget` called in every environment that is made from a snapshot, before its first request."""
    if _is_taken():
        from snapshot_restore_py import register_after_restore

        register_after_restore(forget)


def _is_taken() -> bool:
    return os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start"


# botocore waits by it before it tries again, so that not all do so at once.
after_restore(random.seed)
