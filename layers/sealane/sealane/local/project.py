"""The commands `sealane new` and `sealane update`: projects that carry their own copy of the layer."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Annotated, Final

import typer
from packaging.requirements import Requirement

from sealane.local.errors import LocalError
from sealane.local.terminal import complain

__all__ = ["new", "update"]

COPY: Final = Path("layers", "sealane")
"""Where a project has its copy of the layer."""
SUMS: Final = "SHA256SUMS"
"""File of a copy with its version and its files as they were made, in the format of `sha256sum`."""

_PACKAGE: Final = Path(__file__).parents[1]
_FILES: Final = Path(__file__).with_name("new_project")
"""`project/`, with a name to be replaced, and `layer/`: what lies beside the package in the layer's folder."""
_NAME_IN_FILES: Final = "my-server"
_LEFTOVERS: Final = ("__pycache__", "*.egg-info", ".*")
# https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}")


def new(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder to make; its name is that of stack and server.")],
) -> None:
    """Make a project: a server with one tool, its template and tests, and its own copy of the layer."""
    with _telling_why_not():
        make_project(path)
    print(f"{path} is made, with Sealane {version('sealane')}. Next:\n\n    cd {path}\n    make run")


def update(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of the project.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite what was changed by hand.")] = False,
) -> None:
    """Bring a project's copy of the layer to the version of this command. Nothing else in the project changes."""
    with _telling_why_not():
        before = update_copy(path, force=force)
    now = version("sealane")
    print(f"{path / COPY} is Sealane {now} already" if before is None else f"{path / COPY}: Sealane {before} -> {now}")


@contextmanager
def _telling_why_not() -> Iterator[None]:
    try:
        yield
    except LocalError as error:
        complain(str(error))
    except OSError as error:
        complain(f"cannot write {error.filename2 or error.filename}: {error.strerror}")
    else:
        return
    raise typer.Exit(1)


def make_project(path: Path) -> None:
    """Makes a project, whole or not at all.

    Args:
        path: its folder, which is empty or not there.

    Raises:
        LocalError: the folder's name cannot be that of a stack, or the folder has something in it.
        OSError: it cannot be written.
    """
    name = path.resolve().name
    if not _NAME.fullmatch(name):
        raise LocalError(
            f"{name!r} cannot be the name of a stack: letters, digits and hyphens, a letter first, 128 at the most"
        )
    was_there = path.exists()
    if was_there and any(path.iterdir()):
        raise LocalError(f"{path} is not empty: `sealane new` makes a folder of its own")
    try:
        path.mkdir(parents=True, exist_ok=True)
        _copy_files(_FILES / "project", path)
        for file in path.rglob("*.*"):
            if file.is_file():
                file.write_text(file.read_text("utf-8").replace(_NAME_IN_FILES, name), "utf-8")
        (path / "gitignore").rename(path / ".gitignore")
        _write_copy(path / COPY)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        if was_there:
            path.mkdir(exist_ok=True)
        raise


def update_copy(path: Path, *, force: bool = False) -> str | None:
    """Brings a project's copy of the layer to this package's version, whole or not at all.

    Args:
        path: folder of the project.
        force: whether files that were changed by hand are overwritten.

    Returns:
        The version that the copy had, or None if it has all files of this one already.

    Raises:
        LocalError: the folder has no copy that `sealane new` made, or one that was changed by hand or runs this.
        OSError: it cannot be written.
    """
    copy = path / COPY
    made, previous = copy.with_name(".sealane-new"), copy.with_name(".sealane-old")
    if previous.exists() and not copy.exists():
        # An update was killed between its two renames.
        previous.rename(copy)
    if not (copy / SUMS).is_file():
        raise LocalError(f"{copy} is no copy of the layer that `sealane new` has made: it has no {SUMS}")
    if copy.samefile(_PACKAGE.parent):
        raise LocalError(f"{copy} is the Sealane that you run: update it with the `sealane` of another one")
    before, was_made = _read_sums(copy)
    if not force and (changed := _differences(was_made, _sums(copy))):
        raise LocalError(f"changed by hand in {copy}, and --force would overwrite it: {', '.join(changed)}")
    try:
        for leftover in (made, previous):
            shutil.rmtree(leftover, ignore_errors=True)
        _write_copy(made)
        if not _differences(_sums(made), _sums(copy)):
            return None
        copy.rename(previous)
        made.rename(copy)
    finally:
        if not copy.exists():
            previous.rename(copy)
        for leftover in (made, previous):
            shutil.rmtree(leftover, ignore_errors=True)
    return before


def _write_copy(folder: Path) -> None:
    _copy_files(_FILES / "layer", folder)
    _copy_files(_PACKAGE, folder / "sealane")
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as about:
        about.writelines(f"{name} = {json.dumps(value)}\n" for name, value in _own_metadata().items())
    for file in distribution("sealane").files or ():
        if file.name == "LICENSE":
            shutil.copy(str(file.locate()), folder / "LICENSE")
    sums = [f"{digest}  {name}" for name, digest in _sums(folder).items()]
    (folder / SUMS).write_text("\n".join([f"# Sealane {version('sealane')}", *sums, ""]), "utf-8")


def _own_metadata() -> dict[str, str | list[str]]:
    """Version of the running package and what it requires, as in `[project]`; without the legacy lane's."""
    installed = distribution("sealane")
    required = [Requirement(each) for each in installed.requires or ()]
    extras = {
        extra: [each for each in required if each.marker and each.marker.evaluate({"extra": extra})]
        for extra in ("stateless", "local")
    }
    return {
        "version": installed.version,
        "dependencies": [str(each) for each in required if not each.marker],
        **{
            f"optional-dependencies.{extra}": [str(each).partition(";")[0] for each in found]
            for extra, found in extras.items()
        },
    }


def _copy_files(source: Path, target: Path) -> None:
    """Copies a folder into another, without the legacy lane."""
    for name in _files(source):
        if "legacy" not in name.parts:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, target / name)


def _files(folder: Path) -> Iterator[Path]:
    """Paths of the files in a folder, in order; not of those that Python, pip and editors leave there."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(fnmatch(part, each) for part in name.parts for each in _LEFTOVERS):
            yield name


def _sums(folder: Path) -> dict[str, str]:
    """Checksums of the files in a copy, by path."""
    return {
        name.as_posix(): hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in _files(folder)
        if name.name != SUMS
    }


def _read_sums(copy: Path) -> tuple[str, dict[str, str]]:
    """Version of a copy, and the checksums that its files had when it was made."""
    title, *lines = (copy / SUMS).read_text("utf-8").splitlines()
    return title.rpartition(" ")[2], {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Paths of files that are only in one, or are not the same."""
    return sorted({name for name, _ in one.items() ^ other.items()})
