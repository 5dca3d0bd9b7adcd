"""MiniStack, an emulator of AWS that takes SAM templates, on loopback."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "environment", "ministack"]

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 60.0
"""Seconds that the emulator has to start."""


def environment(url: str | None = None) -> dict[str, str]:
    """Variables for AWS's tools: dummy credentials, the emulator at `url`, and no way to a real account."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SEALANE_TOKEN"))}
    return kept | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        **({} if url is None else {"AWS_ENDPOINT_URL": url}),
        "SAM_CLI_TELEMETRY": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


@contextmanager
def ministack(folder: Path) -> Iterator[str]:
    """The emulator's URL until the block ends. What it writes is in `ministack.log`, its other files below `folder`.

    It decides by IAM (AUTH), so that a role that lacks a permission is seen.

    Raises:
        RuntimeError: it has ended, or has not started in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    variables = environment(url) | {
        "AUTH": "true",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "TMPDIR": str(folder),
    }
    command = [ROOT / ".venv-ministack" / "bin" / "ministack"]
    with (
        (folder / "ministack.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT) as process,  # noqa: S603
    ):
        try:
            _wait(process, f"{url}/_ministack/health")
            yield url
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], health: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(health, timeout=1):  # noqa: S310
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"MiniStack has not started: {process.args!r}")
