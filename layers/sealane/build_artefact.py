"""Builds what Lambda gets of one function or layer: its own files and its packages, compiled and without ballast.

The Makefile beside it calls it for "sam build". It needs no package, and goes on in the Python of the
template's runtime.
"""

import argparse
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NoReturn

WHOLE_VARIABLE = "SEALANE_WHOLE_PACKAGES"
"""Any value has `sam build` leave packages with their tests, stubs and sources. Default: none."""
RUNNING = f"python{sys.version_info.major}.{sys.version_info.minor}"
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
"""Names of the architectures in wheels."""
ELF_MACHINES = {"arm64": 183, "x86_64": 62}
"""https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html"""
UNCHECKED_HASH = 0b01
"""Flags of bytecode that is taken as it is: https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation"""

# What SAM's own builder for Python leaves out too.
_NOT_COPIED = shutil.ignore_patterns(
    *("__pycache__", "*.py[co]", "*.so", "*.egg-info", "*.egg", "build_artefact.py", "Makefile"),
    *(".aws-sam", ".chalice", ".git", ".gitignore", ".python-version", ".idea", ".vscode", ".DS_Store"),
    *(".env", ".venv", "env", "venv", ".tox", ".nox", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
    *(".coverage", "htmlcov"),
)
_NEVER_IMPORTED = (
    *("bin", "*/tests", "tests", "*/py.typed"),
    *("*.c", "*.cc", "*.cpp", "*.h", "*.hpp", "*.pxd", "*.pyx", "*.rs"),
    # They are for mypy, pytest, a command line, a comparison and other machines, which no function has.
    *("pydantic/mypy.py", "pydantic/v1/mypy.py", "anyio/pytest_plugin.py", "mcp/cli", "jsonschema/benchmarks"),
    *("jsonschema/cli.py", "httpx2/_main.py", "idna/cli.py", "truststore/_macos.py", "truststore/_windows.py"),
    *(f"*.dist-info/{name}" for name in ("RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json", "sboms")),
)
_USED_BY = {"*.pyi": "lazy_loader", "anyio/_backends/_trio.py": "trio"}
"""Files that one package only reads or imports."""
_MENTIONED = (
    # cryptography requires all of cffi and imports only its module with machine code.
    (("cffi", "pycparser"), rb"^\s*(import|from)\s+cffi\b", ("cffi",)),
    # The SDK runs uvicorn where it is no function, and sse_starlette uses it where it is there.
    (("uvicorn", "uvicorn-*"), rb"^\s*((import|from)\s+)?uvicorn\b", ("uvicorn", "mcp", "sse_starlette")),
    (("click", "click-*"), rb"^\s*((import|from)\s+)?click\b", ("click", "uvicorn")),
    (("starlette/testclient.py",), rb"\btestclient\b", ("starlette",)),
    (("pydantic/v1",), rb"pydantic\.(v1|utils)\b|pydantic import .*\b(v1|utils)\b|__get_validators__", ("pydantic",)),
)
"""What stays if the function, its requirements or a package mention it; how; and whose mention does not count."""


@dataclass(frozen=True)
class Target:
    """What is built, and for what.

    Attributes:
        source: folder with the own files and `requirements.txt`.
        runtime: `python3.13` and the like.
        architecture: `arm64` or `x86_64`.
    """

    source: Path
    runtime: str
    architecture: str


def target_of(name: str, artefact: Path) -> Target:
    """What SAM has been asked for, from the record that it writes for itself before it builds everything.

    "sam build NAME" does not write it: the resource is built as the last "sam build" had it.

    Args:
        name: logical id of the function or layer.
        artefact: folder that SAM wants filled.
    """
    if artefact.is_relative_to("/tmp/samcli"):  # noqa: S108 - SAM's build container, which is of the right kind
        machine = platform.machine()
        return Target(Path.cwd(), RUNNING, "arm64" if machine == "aarch64" else machine)
    record = next((file for parent in artefact.parents if (file := parent / "build.toml").is_file()), None)
    definitions = tomllib.loads(record.read_text("utf-8")) if record else {}
    functions = definitions.get("function_build_definitions", {}).values()
    layers = definitions.get("layer_build_definitions", {}).values()
    found = {
        Target(Path(each["codeuri"]), runtime, each["architecture"])
        for paths, runtime, each in [
            *((each["functions"], each["runtime"], each) for each in functions),
            *(([each["layer"]], each["compatible_runtimes"][0], each) for each in layers),
        ]
        # Of a nested stack it is STACK/NAME.
        if name in (path.rpartition("/")[2] for path in paths)
    }
    if len(found) != 1:
        fail(f'SAM has {len(found)} records of {name}: run "sam build" without a name')
    return found.pop()


def python_of(runtime: str) -> str | None:
    """Path of a Python of this version that has pip, from the PATH; a version manager's dead shim is none."""
    question = "import pip, sys; print('python%d.%d' % sys.version_info[:2])"
    for folder in os.get_exec_path():
        for name in (runtime, "python3", "python"):
            if python := shutil.which(name, path=folder):
                answer = subprocess.run(  # noqa: S603
                    [python, "-P", "-c", question], capture_output=True, text=True, check=False
                )
                if answer.returncode == 0 and answer.stdout.strip() == runtime:
                    return python
    return None


def install(requirements: Path, packages: Path, architecture: str) -> None:
    """Installs wheels for Lambda's machines and this Python."""
    # Python 3.11 runs on Amazon Linux 2 with glibc 2.26, later ones on Amazon Linux 2023 with 2.34:
    # https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtimes.html
    newest = 26 if sys.version_info < (3, 12) else 34
    machine = MACHINES[architecture]
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    options = [f"--platform={each}" for each in [*platforms, f"manylinux2014_{machine}", f"linux_{machine}"]]
    # -P: no module of the function is taken for one of pip's. --upgrade: what an earlier build left is replaced.
    command = [
        *(sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-compile", "--upgrade", "--only-binary=:all:", *options),
        *("--target", str(packages), "--requirement", str(requirements)),
    ]
    if subprocess.run(command, check=False).returncode:  # noqa: S603
        fail(f"pip could not install {requirements} for {architecture}")


def prune(packages: Path, source: Path) -> None:
    """Removes what the function with this source, and its packages, neither import nor read."""
    remove(packages, _NEVER_IMPORTED)
    remove(packages, [pattern for pattern, package in _USED_BY.items() if not (packages / package).exists()])
    files = [*source.rglob("*.py"), source / "requirements.txt", *packages.rglob("*.py")]
    for patterns, mention, spared in _MENTIONED:
        own = [packages / each for each in spared]
        others = (file for file in files if file.is_file() and not any(map(file.is_relative_to, own)))
        if not any(re.search(mention, file.read_bytes(), re.MULTILINE) for file in others):
            remove(packages, patterns)
    for metadata in packages.glob("*.dist-info/METADATA"):
        # The description follows an empty line, as in a mail.
        metadata.write_bytes(metadata.read_bytes().partition(b"\n\n")[0] + b"\n")
    for library in libraries(packages):
        strip(library)


def remove(folder: Path, patterns: Iterable[str]) -> None:
    """Removes files and folders by their paths in a folder, where `*` stands for `/` too."""
    patterns = list(patterns)
    for path in sorted(folder.rglob("*"), reverse=True):
        if any(fnmatch(path.relative_to(folder).as_posix(), pattern) for pattern in patterns):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def libraries(folder: Path) -> list[Path]:
    """The files with machine code in a folder: `x.so` and `x.so.1`."""
    return [path for path in folder.rglob("*.so*") if re.search(r"\.so(\.\d+)*$", path.name) and path.is_file()]


def strip(library: Path) -> None:
    """Cuts off what follows the last segment that is loaded: symbols and the table of sections, for debuggers only."""
    content = bytearray(library.read_bytes())
    if content[:6] != b"\x7fELF\x02\x01":
        return

    def number(offset: int, size: int) -> int:
        return int.from_bytes(content[offset : offset + size], "little")

    # https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.pheader.html
    table, size, count = number(32, 8), number(54, 2), number(56, 2)
    headers = range(table, table + size * count, size)
    end = max(table + size * count, *(number(header + 8, 8) + number(header + 32, 8) for header in headers))
    content[40:48] = bytes(8)
    content[60:64] = bytes(4)
    library.write_bytes(content[:end])


def compile_sources(folder: Path, on_lambda: str, *, keep: bool) -> None:
    """Compiles sources to bytecode that is valid whatever times the files get from a zip.

    Args:
        folder: will be in `sys.path`.
        on_lambda: where it is on Lambda, for tracebacks.
        keep: whether the sources stay, with the bytecode in `__pycache__`, and what is wrong with them is told.
            Otherwise the bytecode takes their place; what is no module, or is for another Python, stays.
    """
    remove(folder, ["__pycache__", "*/__pycache__"])
    # Without the source's text a traceback has no use for the columns in it.
    options = ["-I"] if keep else ["-I", "-X", "no_debug_ranges"]
    paths = ["-s", str(folder), "-p", on_lambda, str(folder)]
    command = [sys.executable, *options, "-m", "compileall", "-q" if keep else "-bqq"]
    subprocess.run([*command, "--invalidation-mode", "unchecked-hash", *paths], check=False)  # noqa: S603
    if keep:
        return
    for bytecode in folder.rglob("*.pyc"):
        is_module = all(part.isidentifier() for part in bytecode.relative_to(folder).with_suffix("").parts)
        (bytecode.with_suffix(".py") if is_module else bytecode).unlink(missing_ok=True)


def defects(artefact: Path, architecture: str) -> Iterator[str]:
    """What Lambda could not use: bytecode and machine code for something else, one text each."""
    for bytecode in artefact.rglob("*.pyc"):
        content = bytecode.read_bytes()
        if content[:4] != importlib.util.MAGIC_NUMBER:
            yield f"{bytecode} is for another Python"
        elif int.from_bytes(content[4:8], "little") != UNCHECKED_HASH:
            yield f"{bytecode} is checked against its source"
        elif bytecode.parent.name == "__pycache__":
            source = bytecode.parent.parent / f"{bytecode.name.partition('.')[0]}.py"
            if not source.is_file():
                yield f"{bytecode} has no source"
            elif importlib.util.source_hash(source.read_bytes()) != content[8:16]:
                yield f"{bytecode} is of another source"
    for library in libraries(artefact):
        header = library.read_bytes()[:20]
        tag = f".cpython-{sys.version_info.major}{sys.version_info.minor}-"
        if header[:4] != b"\x7fELF" or int.from_bytes(header[18:20], "little") != ELF_MACHINES[architecture]:
            yield f"{library} is not for {architecture}"
        elif ".cpython-" in library.name and tag not in library.name:
            yield f"{library} is for another Python"


def fail(reason: str) -> NoReturn:
    """Ends the build."""
    raise SystemExit(f"build_artefact.py: {reason}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Builds one function or layer, for sam build.")
    parser.add_argument("name", help="logical id of the function or layer")
    parser.add_argument("artefact", type=Path, help="folder to fill")
    parser.add_argument("--to", default="", help="folder in it for what is imported")
    parser.add_argument("--only", default="", help="the own folder that is taken, in place of all own files")
    parser.add_argument("--without", nargs="*", default=[], metavar="PATTERN", help="what else nobody imports")
    arguments = parser.parse_args()
    artefact: Path = arguments.artefact.absolute()
    target = target_of(arguments.name, artefact)
    if target.runtime != RUNNING or importlib.util.find_spec("pip") is None:
        python = python_of(target.runtime)
        if python is None:
            fail(f"{arguments.name} needs {target.runtime} with pip on the PATH, or another Runtime in the template")
        os.execv(python, [python, "-P", *sys.argv])  # noqa: S606
    print(f"{arguments.name} is built for {target.runtime} on {target.architecture}", flush=True)

    whole = bool(os.environ.get(WHOLE_VARIABLE))
    folder = artefact / arguments.to
    on_lambda = f"/opt/{arguments.to}" if arguments.to else "/var/task"
    requirements = target.source / "requirements.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if requirements.is_file():
        install(requirements, folder, target.architecture)
    if not whole:
        prune(folder, target.source)
    remove(folder, arguments.without)
    # The sources of packages would be half of the artefact, and nobody edits them.
    compile_sources(folder, on_lambda, keep=whole)

    with tempfile.TemporaryDirectory() as temporary:
        own = Path(temporary)
        shutil.copytree(target.source / arguments.only, own / arguments.only, ignore=_NOT_COPIED, dirs_exist_ok=True)
        remove(own, arguments.without)
        compile_sources(own, on_lambda, keep=True)
        shutil.copytree(own, folder, dirs_exist_ok=True)
    if found := list(defects(artefact, target.architecture)):
        fail("\n".join(found))


if __name__ == "__main__":
    main()
