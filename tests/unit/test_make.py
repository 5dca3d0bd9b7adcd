"""What a newcomer's first `make` says where it cannot go on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what the first `make` reads."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make_run(project: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    make = shutil.which("make")
    assert make is not None
    command = [make, "run"]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603


def test_without_a_python_that_will_do_it_says_what_to_install(project: Path) -> None:
    old = project / "bin" / "python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    ended = make_run(project, PATH=str(old.parent))
    assert ended.returncode != 0
    assert "make: no Python 3.11 or later on the PATH, or none with venv" in ended.stderr
    assert not (project / ".venv").exists()


def test_an_environment_that_was_broken_off_is_made_again_and_packages_that_do_not_come_are_explained(
    project: Path,
) -> None:
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = make_run(project, PATH=path, HOME=str(project), PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    assert ended.stdout == "Making .venv\n"
    assert (project / ".venv" / "bin" / "pip").exists()
    assert "make: the packages of .venv are not installed" in ended.stderr
    assert not (project / ".venv" / ".run").exists()
