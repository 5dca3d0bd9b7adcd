"""A document's console: one shell for its commands, which are typed one after the other, and servers beside it."""

import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.docs.blocks import Block

__all__ = ["Server", "Shell", "commands", "matches"]

SERVER_STARTS = 60
"""Seconds that a server may take until it has printed what its block shows."""
NOTICES = 10
"""Seconds that a server may take until it notices a changed file."""
_SAM_HELP: dict[str, tuple[int, str]] = {}
"""What `sam` says of its commands, for it takes a second to say it."""


def commands(block: Block) -> Iterator[tuple[int, str, list[str]]]:
    """Line number, command and expected lines of each command of a console block.

    Raises:
        WrongDocument: there is output before the first command.
    """
    found: list[tuple[int, str, list[str]]] = []
    continued = False
    for number, line in enumerate(block.source.splitlines(), block.line):
        if continued:
            at, command, _ = found.pop()
            found.append((at, f"{command}\n{line}", []))
        elif line.startswith("$ "):
            found.append((number, line[2:], []))
        elif found:
            found[-1][2].append(line)
        else:
            raise block.wrong("output of no command: commands begin with `$ `", number)
        continued = (continued or line.startswith("$ ")) and line.endswith("\\")
    yield from found


def matches(expected: list[str], seen: str, *, begins: bool = False) -> bool:
    """Whether an output is as a document shows it, or begins so."""
    lines = ("(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in expected)
    text = "".join(f"{line.rstrip()}\n" for line in seen.splitlines())
    return bool((re.match if begins else re.fullmatch)("".join(lines), text))


class Shell:
    """bash, where a person types commands. What they change in it, such as the folder, is so for the next ones.

    Args:
        folder: where it starts.
        variables: its environment.

    Attributes:
        folder: where it is.
    """

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self._bash = subprocess.Popen(
            ["/bin/bash", "--noprofile", "--norc"],
            cwd=folder,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output of a command; that of one which ends the shell is -1."""
        assert self._bash.stdin
        assert self._bash.stdout
        mark = uuid.uuid4().hex
        ask = rf"""printf '\n%s %d %s\n' {mark} $? "$PWD" """
        self._bash.stdin.write(f"eval {shlex.quote(command)} </dev/null; {ask}\n")
        self._bash.stdin.flush()
        seen: list[str] = []
        for line in self._bash.stdout:
            if line.startswith(mark):
                _, status, folder = line.rstrip("\n").split(" ", 2)
                self.folder = Path(folder)
                return int(status), "".join(seen).removesuffix("\n")
            seen.append(line)
        return -1, "".join(seen)

    def refuses(self, command: str) -> str | None:
        """What is wrong with a command that cannot be run here, or None.

        `cd` is carried out. `make` says what it would do, `sam` what options it has; `sealane` reads its arguments, and
        then only gives help. Of other programs, which may not be here, only the shell's syntax is checked.
        """
        status, output = self.run(shlex.join(["bash", "-n", "-c", command]))
        words = [] if status else shlex.split(command, comments=True)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        match words:
            case ["cd", *_]:
                status, output = self.run(command)
            case ["make", *arguments]:
                status, output = self.run(shlex.join(["make", "--dry-run", *arguments]))
            case [program, *arguments] if Path(program).name == "sam":
                status, output = self.run(shlex.join(["type", program]))
                if not status:
                    status, output = self._sam_refuses(program, arguments)
            case [program, *_] if Path(program).name == "sealane":
                status, output = self.run(shlex.join([*words, "--help"]))
        return output if status else None

    def _sam_refuses(self, program: str, arguments: list[str]) -> tuple[int, str]:
        verbs = shlex.join(arguments[: 2 if "local" in arguments[:1] else 1])
        if verbs not in _SAM_HELP:
            _SAM_HELP[verbs] = self.run(f"{shlex.quote(program)} {verbs} --help")
        status, output = _SAM_HELP[verbs]
        if unknown := {word for word in arguments if word.startswith("--")} - set(re.findall(r"--[\w-]+", output)):
            status, output = 1, f"sam {verbs} has no {', '.join(unknown)}"
        return status, output

    def stop(self) -> None:
        """Ends it, with whatever still runs in it."""
        _kill(self._bash)


class Server:
    """A command that goes on while others are typed into another window.

    Args:
        command: what starts it.
        folder: where.
        variables: its environment.
        log: the file that gets what it prints.
    """

    def __init__(self, command: str, folder: Path, variables: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the document's own
                ["/bin/bash", "-c", command],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    @property
    def url(self) -> str | None:
        """URL of the endpoint that it says it serves, None where it says nothing of that."""
        found = re.search(r"^Serving (\S+)", self.output, re.MULTILINE)
        return found[1] if found else None

    def prints(self, expected: list[str]) -> bool:
        """Waits until it has printed this; False when it prints something else, or ends."""
        deadline = time.monotonic() + SERVER_STARTS
        while not matches(expected, self.output, begins=True):
            if self._process.poll() is not None or time.monotonic() > deadline:
                return matches(expected, self.output, begins=True)
            time.sleep(0.05)
        return True

    @contextmanager
    def taking_over(self, path: Path) -> Iterator[None]:
        """Waits until it has noticed what becomes of a file in the block, if it ever does: what follows will show."""
        notice = f"{path.name} has changed"
        before = self.output.count(notice)
        yield
        deadline = time.monotonic() + NOTICES
        while self.output.count(notice) == before and time.monotonic() < deadline:
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends it as Ctrl-C does, and by force if that does not help."""
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGINT)
            self._process.wait(15)
        _kill(self._process)


def _kill(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
