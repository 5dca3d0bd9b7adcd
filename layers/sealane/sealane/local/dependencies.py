"""A function's own packages: a virtual environment where the running one has not what the function requires."""

import asyncio
import hashlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import distributions, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from sealane.local.errors import LocalError
from sealane.local.records import Notice, Record
from sealane.local.template import Function

_RUNTIME = ("awslambdaric", "boto3")
"""What Lambda's runtime brings: its client and an AWS SDK, here in the versions of the running environment.

https://docs.aws.amazon.com/lambda/latest/dg/lambda-python.html
"""


async def interpreter(function: Function, venvs: Path, temporary_dir: Path, tell: Callable[[Record], None]) -> str:
    """Path of a Python that has what the `requirements.txt` of a function and of its layers ask for.

    It is the running one where that has it, or where it lies in the folders themselves. Otherwise it is one with
    nothing but these packages and those of Lambda's runtime, made once (tens of seconds) and kept.

    Lambda looks for a package in the function, then in the layers, then in the runtime, and what is found first counts:
    https://docs.aws.amazon.com/lambda/latest/dg/python-package.html#python-package-searchpath
    So the three are installed one after the other, the function's last. `constraints.txt` is the running environment's,
    which this one differs from.

    Args:
        function: who asks.
        venvs: folder of the virtual environments that are kept.
        temporary_dir: for the files of an installation.
        tell: gets a `Notice` when one is to be made.

    Raises:
        LocalError: it cannot be made; the text does not name the function.
    """
    folders = (*function.layer_dirs, function.code_dir)
    files = [file for folder in folders if (file := folder / "requirements.txt").is_file()]
    lines = [line for file in files for line in _lines(file)]
    path = [*map(str, reversed(folders)), *sys.path]
    if all(_is_there(line, path) for line in lines):
        return sys.executable
    runtime = [f"{name}=={version(name)}" for name in _RUNTIME]
    what = "\n".join([sys.version, sys.base_prefix, *runtime, *lines])
    venv = venvs / hashlib.sha256(what.encode()).hexdigest()[:16]
    if not venv.exists():
        tell(Notice(f"Installing the requirements of {function.name} in {venv}, once: this environment has others"))
        await _make(venv, [runtime, *(["--requirement", str(file)] for file in files)], temporary_dir)
    return str(venv.absolute() / "bin" / "python")


def _lines(file: Path) -> Iterator[str]:
    """Lines of a requirements file and of those that it names, without comments.

    https://pip.pypa.io/en/stable/reference/requirements-file-format/
    """
    for line in file.read_text("utf-8", "replace").splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        named = re.fullmatch(r"(?:-[rc]|--requirement|--constraint)[\s=]*(\S+)", text)
        if named and (file.parent / named[1]).is_file():
            yield from _lines(file.parent / named[1])
        elif text:
            yield text


def _is_there(line: str, path: list[str], extra: str = "") -> bool:
    """Whether a requirement is met by what would be imported; one with more to it than a name and a version is not."""
    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return False
    if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
        return True
    found = next(iter(distributions(name=wanted.name, path=path)), None)
    return (
        found is not None
        and wanted.url is None
        and wanted.specifier.contains(found.version, prereleases=True)
        and all(_is_there(each, path, name) for name in wanted.extras for each in found.requires or [])
    )


async def _make(venv: Path, installs: list[list[str]], temporary_dir: Path) -> None:
    """Makes a virtual environment beside its place and moves it there when it is complete."""
    try:
        venv.parent.mkdir(parents=True, exist_ok=True)
        making = tempfile.TemporaryDirectory(dir=venv.parent, prefix="making-", ignore_cleanup_errors=True)
    except OSError as error:
        raise LocalError(f"cannot write {venv.parent}: {error.strerror}") from None
    with making as folder:
        made = Path(folder) / "venv"
        await _run([sys.executable, "-m", "venv", str(made)], temporary_dir)
        # -I: no packages from PYTHONPATH or the user's own folder are taken for installed ones.
        pip = [str(made / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        for install in installs:
            await _run([*pip, "--quiet", *install], temporary_dir)
        try:
            made.rename(venv)
        except OSError:
            # Another run may have been faster, and has made the same.
            if not venv.exists():  # noqa: ASYNC240 - one look at the disc
                raise


async def _run(command: list[str], temporary_dir: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "TMPDIR": str(temporary_dir)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        lines = output.decode("utf-8", "replace").strip().splitlines() or [f"exit status {process.returncode}"]
        reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
        raise LocalError(f"its requirements cannot be installed: {reason.removeprefix('ERROR:').strip()}")
