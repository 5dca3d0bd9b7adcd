"""One reading of a document, from its first block to its last, by somebody who does all that it says."""

import fcntl
import json
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from sealane.local.aws_services import AwsServices
from sealane.local.process import Folder, folder_of_run, variables
from sealane.local.template import load_template
from tests.docs.blocks import ROOT, Block, WrongDocument, blocks
from tests.docs.console import Server, Shell, commands, matches
from tests.docs.fragments import load, merged
from tests.docs.project import console_variables, link_environments, make_project, tracked
from tests.docs.wire import agrees, filled, send

__all__ = ["DOCUMENTS", "check", "lambda_variables", "read"]

DOCUMENTS: Final = [str(path) for path in tracked() if path.suffix == ".md"]
"""The repository's documents, by their paths in it."""

LONGEST: Final = 300
"""Seconds that a document may take before everything that it has started is killed."""
PORT_FREE: Final = 60
"""Seconds to wait for a port that another run of these tests, or somebody's `make run`, has at the moment."""
_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": load,
}


@contextmanager
def lambda_variables(function: str) -> Iterator[dict[str, str]]:
    """The environment of a function of the template, with its table and key in moto.

    Args:
        function: its logical id.
    """
    template = load_template(ROOT / "template.yaml", {"LegacyLane": "on", "LegacyTable": "keep"})
    services = AwsServices(template)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(services.serving()):
        [found] = [services.connect(each) for each in template.functions if each.name == function]
        with folder_of_run() as place:
            yield variables(found, 1, "", Folder(found, place))


def read(document: Path, folder: Path, function_variables: Mapping[str, str], sdk: str | None = None) -> None:
    """Does everything that a document says.

    Args:
        document: its path.
        folder: an empty folder, for the project and all else that is written.
        function_variables: the environment of its Python.
        sdk: the generation that its blocks ask for, None for those that ask for none.

    Raises:
        WrongDocument: something else comes of a block than it says.
    """
    wanted = [block for block in blocks(document) if block.words.get("sdk") == sdk]
    if not wanted:
        return
    project = folder / "sealane"
    project.mkdir()
    make_project(project)
    with ExitStack() as stack:
        session = _Session(stack, folder, project, function_variables)
        for block in wanted:
            session.do(block)


def check(document: str, folder: Path, function_variables: Mapping[str, str], sdk: str | None = None) -> None:
    """The same, as a test of one of the repository's documents, named by its path in it."""
    try:
        read(ROOT / document, folder, function_variables, sdk)
    except WrongDocument as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


class _Session:
    def __init__(self, stack: ExitStack, folder: Path, project: Path, function_variables: Mapping[str, str]) -> None:
        self._stack = stack
        self._folder = folder
        self._project = project
        self._function_variables = function_variables
        self._variables = console_variables()
        self._shell = Shell(project, self._variables)
        stack.callback(self._shell.stop)
        self._python: subprocess.Popen[str] | None = None
        self._server: Server | None = None
        self._answers: list[Any] = []
        self._waiting: list[Any] = []
        # Whatever hangs is found out by those who wait for it: they read an end.
        watchdog = threading.Timer(LONGEST, self._kill)
        watchdog.start()
        stack.callback(watchdog.cancel)

    def do(self, block: Block) -> None:
        match block.language, *block.words:
            case "console", *words if "needs" in words:
                self._look_up(block)
            case "console", *words if "background" in words:
                self._serve(block)
            case "console", *_:
                self._type(block)
            case language, *words if "file" in words:
                self._write(block)
            case "python", *_:
                self._run(block, file=str(block.document), line=block.line, source=block.source)
            case "yaml", "template":
                self._merge(block)
            case "json", "request":
                self._ask(block)
            case "json", "response":
                self._compare(block)
            case language, *_ if language in _PARSERS:
                self._parse(block)

    def _type(self, block: Block) -> None:
        typed = list(commands(block))
        for line, command, expected in typed:
            status, seen = self._shell.run(command)
            if not matches(expected, seen):
                raise block.wrong(f"$ {command}\n\nexpected:\n{_text(expected)}\n\nseen:\n{seen}", line)
            if (status != 0) != ("fails" in block.words and line == typed[-1][0]):
                raise block.wrong(f"$ {command}\n\nexit status {status}; seen:\n{seen}", line)
            if "sealane new " in command and not status:
                link_environments(self._shell.folder / seen.partition(" is made")[0])

    def _serve(self, block: Block) -> None:
        [(line, command, expected)] = commands(block)
        self._start(command, expected, block, line)

    def _start(self, command: str, expected: list[str], block: Block, line: int) -> None:
        port = re.search(r"127\.0\.0\.1:(\d+)", _text(expected))
        if port:
            self._stack.enter_context(_alone_at(port[1]))
        deadline = time.monotonic() + PORT_FREE
        while True:
            while port and _is_taken(int(port[1])) and time.monotonic() < deadline:
                time.sleep(0.2)
            server = Server(command, self._shell.folder, self._variables, self._folder / f"{line}.log")
            self._stack.callback(server.stop)
            if server.prints(expected):
                break
            # Somebody else may have been faster.
            if "is taken" not in server.output or time.monotonic() > deadline:
                shown = f"expected first:\n{_text(expected)}\n\nseen:\n{server.output}"
                raise block.wrong(f"$ {command}\n\n{shown}", line)
        if server.url:
            self._server = server

    def _look_up(self, block: Block) -> None:
        for line, command, _ in commands(block):
            if reason := self._shell.refuses(command):
                raise block.wrong(f"$ {command}\n\n{reason}", line)

    def _write(self, block: Block) -> None:
        path = self._shell.folder / block.words["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._server.taking_over(path) if self._server and "functions" in path.parts else nullcontext():
            path.write_text(block.source, "utf-8")
        if path.suffix == ".py":
            self._run(block, **{"import": str(path)})
        else:
            self._parse(block)

    def _run(self, block: Block, **request: str | int) -> None:
        python = self._python = self._python or self._start_python()
        assert python.stdin
        assert python.stdout
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=python.stdin, flush=True)
        failure = json.loads(python.stdout.readline() or '"Python has ended"')
        if failure is not None:
            raise block.wrong(f"\n\n{failure}")

    def _start_python(self) -> "subprocess.Popen[str]":
        # The functions and packages of the project that the shell is in, not the repository's.
        here = self._shell.folder
        project = next(each for each in (here, *here.parents) if (each / "template.yaml").exists())
        path = self._function_variables["PYTHONPATH"].replace(str(ROOT), str(project))
        python = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-P", str(Path(__file__).with_name("interpreter.py"))],
            cwd=self._shell.folder,
            env={**self._function_variables, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(python)
        self._stack.callback(python.kill)
        return python

    def _parse(self, block: Block) -> None:
        if parse := _PARSERS.get(block.language):
            try:
                parse(block.source)
            except (ValueError, yaml.MarkedYAMLError) as error:
                raise block.wrong(str(error)) from None

    def _merge(self, block: Block) -> None:
        self._parse(block)
        path = self._project / "merged.json"
        path.write_text(json.dumps(merged(self._project / "template.yaml", block.source)))
        sam = self._project / ".venv-sam" / "bin" / "sam"
        status, seen = self._shell.run(shlex.join([str(sam), "validate", "--lint", "--template", str(path)]))
        if status:
            raise block.wrong(seen)

    def _ask(self, block: Block) -> None:
        if self._server is None:
            self._start(".venv/bin/sealane run --port 0", ["...", "Serving ..."], block, block.line)
        assert self._server
        assert self._server.url
        try:
            came = send(self._server.url, filled(json.loads(block.source), self._answers))
        except (ValueError, KeyError, httpx2.HTTPError) as error:
            raise block.wrong(repr(error)) from None
        self._answers = [*came, *self._answers]
        self._waiting = came

    def _compare(self, block: Block) -> None:
        seen = self._waiting.pop(0) if self._waiting else None
        if not agrees(json.loads(block.source), seen):
            raise block.wrong(f"\n\nexpected:\n{block.source}\nseen:\n{json.dumps(seen, indent=2)}")

    def _kill(self) -> None:
        self._shell.stop()
        if self._python:
            self._python.kill()


@contextmanager
def _alone_at(port: str) -> Iterator[None]:
    """Waits until no other document has this port: those of both SDKs are read side by side."""
    with (Path(tempfile.gettempdir()) / f"documents-at-{port}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_taken(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _text(expected: list[str]) -> str:
    return "\n".join(expected) or "nothing"
