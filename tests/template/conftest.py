"""SAM CLI for the tests of the template and of what is built from it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Sam = Callable[..., subprocess.CompletedProcess[str]]


def runner(tool: str) -> Sam:
    """Runs a tool of SAM CLI's environment with this interpreter on the PATH, without credentials."""
    own = ROOT / ".venv-sam" / "bin" / "sam"
    sam = os.environ.get("SEALANE_SAM") or shutil.which("sam") or (str(own) if own.exists() else None)
    if sam is None:
        if os.environ.get("CI") == "true":
            pytest.fail("SAM CLI is missing: run `make test`, or set SEALANE_SAM")
        pytest.skip("SAM CLI is missing: run `make test`, or set SEALANE_SAM")
    command = Path(sam).with_name(tool)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ |= {
        "AWS_DEFAULT_REGION": "us-east-1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SAM_CLI_TELEMETRY": "0",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            [command, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.fixture(scope="session")
def sam() -> Sam:
    """Runs SAM CLI."""
    return runner("sam")


@pytest.fixture(scope="session")
def cfn_lint() -> Sam:
    """Runs cfn-lint, which SAM CLI brings."""
    return runner("cfn-lint")
