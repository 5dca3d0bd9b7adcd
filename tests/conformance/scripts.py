"""Runs the scripts of clients/, each of which prints what it got as one line of JSON."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["said_by"]


def said_by(command: Sequence[Path | str]) -> tuple[dict[str, Any], list[str]]:
    """What a client's script says in its last line, and its problem if it fails."""
    with TemporaryDirectory() as home:
        try:
            ended = subprocess.run(  # noqa: S603 - our own command
                command, env={**os.environ, "HOME": home}, capture_output=True, text=True, timeout=120
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {}, [str(error)]
    if ended.returncode:
        return {}, [f"exit status {ended.returncode}: {' '.join(ended.stderr.split())[-600:]}"]
    try:
        said: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {}, [f"it prints no result: {ended.stdout[-600:]!r}"]
    return said, []
