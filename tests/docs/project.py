"""What a reader of the documents has: the repository, as `git clone` makes it, and its environments, as `make` does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.conftest import LEGACY
from tests.docs.blocks import ROOT

__all__ = ["console_variables", "link_environments", "make_project", "tracked"]

_OWN: Final = ".venv-legacy" if LEGACY else ".venv"
_PREFIX: Final = Path(sys.prefix)
_ENVIRONMENTS: Final = (".venv", ".venv-legacy", ".venv-sam")
_MARKS: Final = {".installed", ".run", ".sam", ".test"}
"""Files of an environment by which `make` knows that there is nothing to install."""


def tracked(root: Path = ROOT) -> list[Path]:
    """Every file that git tracks, relative to the repository's folder."""
    # Whoever owns the folder, which is not always who runs the tests in it.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603 - our own
    return [Path(name) for name in listed.stdout.split("\0") if name]


def make_project(folder: Path) -> None:
    """Copies the repository to a folder, with the environments of this test run."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    link_environments(folder)


def link_environments(folder: Path) -> None:
    """Gives a project's folder the environments of this test run, as `make` would have made them there."""
    for name in _ENVIRONMENTS:
        there = _PREFIX if name == _OWN else _PREFIX.parent / name
        if there.is_dir():
            (folder / name).mkdir()
            for each in there.iterdir():
                if each.name not in _MARKS:
                    (folder / name / each.name).symlink_to(each)
            for mark in _MARKS:
                (folder / name / mark).touch()


def console_variables() -> dict[str, str]:
    """The environment of a shell in a project, as of somebody who has never been there.

    No command of the project is on the PATH: a document says where it is. Nothing of AWS's is known. No package comes
    from a registry: whatever asks for one fails.
    """
    foreign = ("AWS_", "MAKE", "MFLAGS", "PYTEST_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = [each for each in own["PATH"].split(os.pathsep) if Path(each) != _PREFIX / "bin"]
    return own | {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "PATH": os.pathsep.join(path),
        "PIP_NO_INDEX": "1",
        "SAM_CLI_TELEMETRY": "0",
    }
