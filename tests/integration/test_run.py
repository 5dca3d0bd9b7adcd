"""`sealane run` for a person: what it shows, what it keeps in a file, and what a change of a file does."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTION = """
def handler(event, context):
    print("called")
    return {"statusCode": 200, "body": "one"}
"""


class Run:
    """A `sealane run` in a project of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.output = folder / "output.txt"
        command = [str(Path(sys.executable).parent / "sealane"), "run", "--port", "0", *options]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)  # noqa: S603
        self.wait_for(lambda: "Serving " in self.shown)
        self.url = self.shown.split("Serving ")[1].split()[0]

    @property
    def shown(self) -> str:
        return self.output.read_text()

    def write(self, code: str) -> None:
        (self.folder / "functions" / "stateless" / "app.py").write_text(code)

    def post(self, body: str = "{}") -> str:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url, body.encode()), timeout=15) as response:  # noqa: S310
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.code)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 15
        while not condition():
            assert time.monotonic() < deadline, self.shown
            assert self.process.poll() is None, self.shown
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(10) == 0


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "functions" / "stateless").mkdir(parents=True)
    (tmp_path / "functions" / "stateless" / "app.py").write_text(FUNCTION)
    (tmp_path / "layers" / "sealane").mkdir(parents=True)
    shutil.copy(ROOT / "template.yaml", tmp_path)
    runs: list[Run] = []

    def start_one(*options: str) -> Run:
        runs.append(Run(tmp_path, *options))
        return runs[-1]

    yield start_one
    for run in runs:
        if run.process.poll() is None:
            run.stop()


def test_shows_each_request_and_what_functions_write(start: Start) -> None:
    run = start()
    request = (
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "hello", "arguments": {"a": "secret"}}}'
    )
    assert run.post(request) == "one"
    run.wait_for(lambda: " 200 " in run.shown)
    assert "StatelessFunction 1 | called\n" in run.shown
    line = next(line for line in run.shown.splitlines() if " 200 " in line)
    assert line.startswith("POST /mcp tools/call hello legacy 200 ")
    assert "environment 1" in line
    assert " MiB" in line
    # Arguments are the caller's own.
    assert "secret" not in run.shown


def test_quiet_shows_nothing_of_it_and_the_file_has_it_all(start: Start) -> None:
    run = start("--quiet", "--log-file", "run.log")
    assert run.post() == "one"
    log = run.folder / "run.log"
    run.wait_for(lambda: " 200 " in log.read_text())
    assert "called" not in run.shown
    assert " 200 " not in run.shown
    assert "StatelessFunction 1 | called\n" in log.read_text()
    assert run.url in log.read_text()


def test_a_changed_file_is_served_and_a_broken_one_is_named(start: Start) -> None:
    run = start()
    assert run.post() == "one"

    run.write(FUNCTION.replace("one", "two"))
    run.wait_for(lambda: run.post() == "two")
    assert "app.py has changed: new environments for StatelessFunction" in run.shown

    run.write("import nothing_of_this_name\n")
    run.wait_for(lambda: "StatelessFunction cannot start: ModuleNotFoundError" in run.shown)
    run.wait_for(lambda: run.post() == "502")

    run.write(FUNCTION.replace("one", "three"))
    run.wait_for(lambda: run.post() == "three")


def test_a_running_call_finishes_in_the_old_environment(start: Start) -> None:
    run = start()
    run.write(FUNCTION.replace('print("called")', "import time; print('called'); time.sleep(2)"))
    run.wait_for(lambda: "has changed" in run.shown)
    time.sleep(1)
    slow = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", f"import urllib.request as u; print(u.urlopen({run.url!r}, b'').read().decode())"],
        stdout=subprocess.PIPE,
        text=True,
    )
    run.wait_for(lambda: "| called" in run.shown)
    run.write(FUNCTION.replace("one", "new"))
    run.wait_for(lambda: run.post() == "new")
    assert slow.communicate(timeout=10)[0] == "one\n"


def test_an_unwritable_log_file_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "sealane"), "run", "--log-file", os.devnull + "/log"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 1
    assert done.stderr == "sealane: cannot write /dev/null/log: Not a directory\n"
