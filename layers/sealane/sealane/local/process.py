"""What an environment's process is given, and what can be seen of it from outside."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sealane.local.template import REGION, Function

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_LINE_LIMIT = 256 * 1024
_READ_SIZE = 64 * 1024
_READS_AT_ONCE = 64
_NOT_COPIED = ("__pycache__", "node_modules")
_CARETAKER = """
read -r _
for environ in $(grep -lsF "TMPDIR=$1" /proc/[0-9]*/environ); do
    process=${environ#/proc/}
    kill -9 "${process%/environ}"
done
chmod -R u+w "$1"
rm -rf "$1"
"""
"""A script that waits for the end of its standard input, and then ends and removes what a run has left.

It stands in a shell's language to be there at once, and to cost nothing while it waits.
"""


@contextmanager
def folder_of_run() -> Iterator[Path]:
    """A temporary folder for all environments of a run.

    It goes with the run, and so do the processes whose `TMPDIR` is in it (Linux, where that can be seen), however the
    run ends: it may be killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="sealane-"))
    with subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", _CARETAKER, "sealane", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield folder


class Folder:
    """The files of an environment: a temporary folder, and a working directory with a copy of the function's.

    The working directory is what /var/task is on Lambda: the environment's own, and read-only (though not for root).
    Unlike there, modules come from elsewhere, from the function's folder itself, so that tracebacks and breakpoints
    name the files that the developer edits; what writes beside its `__file__` writes there. Hidden folders,
    `__pycache__` and `node_modules` are not copied.

    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html
    https://docs.aws.amazon.com/lambda/latest/dg/configuration-ephemeral-storage.html

    Args:
        function: whose files it gets.
        place: where it is made.

    Attributes:
        task: the working directory.
        temporary: the temporary folder; on Lambda that is /tmp.
    """

    def __init__(self, function: Function, place: Path) -> None:
        self._root = Path(tempfile.mkdtemp(dir=place, prefix=f"{function.name}-"))
        self.task = self._root / "task"
        self.temporary = self._root / "tmp"
        self.temporary.mkdir()
        with suppress(OSError):  # Of what is no plain file, or has gone meanwhile; the rest has been copied.
            shutil.copytree(function.code_dir, self.task, ignore=_not_copied, copy_function=_copy_read_only)
        for folder, _, _ in os.walk(self.task):
            os.chmod(folder, 0o555)  # noqa: S103

    def remove(self) -> None:
        """Removes it, as far as that is possible."""
        for folder, _, _ in os.walk(self._root):
            with suppress(OSError):
                os.chmod(folder, 0o700)
        shutil.rmtree(self._root, ignore_errors=True)


def _not_copied(folder: str, names: list[str]) -> set[str]:
    hidden = (name for name in names if name.startswith(".") and Path(folder, name).is_dir())
    return {*_NOT_COPIED, *hidden}


def _copy_read_only(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    os.chmod(target, 0o555 if os.access(source, os.X_OK) else 0o444)


class Output:
    """A pipe for what a process writes, told line by line.

    Standard output and error share it, so that lines keep their order, and `drain` can read what is in it at a given
    moment.

    Args:
        tell: gets every line, without its end.

    Attributes:
        end: file descriptor for the process; `started` closes it here.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._pending = b""
        self._closed = False
        self._read, self.end = os.pipe()
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self.drain)

    def started(self) -> None:
        """The process has its end of the pipe."""
        os.close(self.end)

    def drain(self) -> None:
        """Tells every whole line that has been written."""
        if self._closed:
            return
        for _ in range(_READS_AT_ONCE):  # A process that never stops writing must not stop everything else.
            try:
                chunk = os.read(self._read, _READ_SIZE)
            except BlockingIOError:
                return
            if not chunk:
                self._loop.remove_reader(self._read)
                return
            *lines, self._pending = re.split(rb"[\r\n]+", self._pending + chunk)
            if len(self._pending) > _LINE_LIMIT:
                lines, self._pending = [*lines, self._pending], b""
            for line in lines:
                self._tell_line(line)

    def close(self) -> None:
        """Tells what is left, whole line or not, and closes the pipe."""
        self.drain()
        self._tell_line(self._pending)
        self._closed = True
        self._loop.remove_reader(self._read)
        os.close(self._read)

    def _tell_line(self, line: bytes) -> None:
        if line:
            self._tell(line.decode("utf-8", "replace"))


def command(function: Function) -> list[str]:
    """The command line of an environment.

    A wrapper script gets it as arguments: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-modify.html#runtime-wrapper
    """
    # -P: the script's own folder is not on sys.path.
    runtime = [function.python, "-P", str(_BOOTSTRAP)]
    wrapper = function.variables.get("AWS_LAMBDA_EXEC_WRAPPER")
    return [_local_path(function, wrapper), *runtime] if wrapper else runtime


def variables(
    function: Function, number: int, runtime_api: str, folder: Folder, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of an environment.

    https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html#configuration-envvars-runtime

    Of this machine's own variables a function sees those that Python needs to start, and no AWS configuration.

    Args:
        function: what it runs.
        number: its number.
        runtime_api: `host:port` of its Runtime API.
        folder: its own files.
        more: variables that go before all others.
    """
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("PYTHON")}
    return {
        **own,
        **function.variables,
        **_service_endpoints(function, number),
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{function.runtime}",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory),
        "AWS_LAMBDA_FUNCTION_NAME": function.physical_name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": function.log_group,
        "AWS_LAMBDA_LOG_STREAM_NAME": f"{time.strftime('%Y/%m/%d')}/[$LATEST]{uuid.uuid4().hex}",
        "AWS_LAMBDA_RUNTIME_API": runtime_api,
        "AWS_REGION": REGION,
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_SESSION_TOKEN": "local",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "LAMBDA_TASK_ROOT": str(folder.task),
        "LANG": "en_US.UTF-8",
        "PYTHONPATH": os.pathsep.join(map(str, (function.code_dir, *function.layer_dirs))),
        "TMPDIR": str(folder.temporary),
        "TZ": ":UTC",
        "_HANDLER": function.handler,
        **(more or {}),
    }


def peak_memory(pid: int) -> int | None:
    """Most memory that a process has had resident so far, in MiB; None where the system does not tell (Linux does).

    "When invocations share an execution environment, Lambda reports the maximum memory used across all invocations":
    https://docs.aws.amazon.com/lambda/latest/dg/python-logging.html
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return -(-int(line.split()[1]) // 1024)
    return None


def kill_strays(runtime_api: str) -> None:
    """Kills what an environment has started and what has left its process group (Linux, where that can be seen).

    Args:
        runtime_api: `host:port` of its Runtime API, which no other environment has, and which all of them inherit.
    """
    mark = f"\0AWS_LAMBDA_RUNTIME_API={runtime_api}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in b"\0" + (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _service_endpoints(function: Function, number: int) -> dict[str, str]:
    """https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html"""
    if function.services_url is None:
        return {}
    url = f"{function.services_url}/{number}"
    return {
        "AWS_ENDPOINT_URL_DYNAMODB": url,
        "AWS_ENDPOINT_URL_KMS": url,
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
    }


def _local_path(function: Function, path: str) -> str:
    """Where a path of Lambda's file system is here: /var/task is the function's folder, /opt are its layers.

    https://docs.aws.amazon.com/lambda/latest/dg/packaging-layers.html#packaging-layers-paths
    """
    if path.startswith("/var/task/"):
        return str(function.code_dir / path.removeprefix("/var/task/"))
    if path.startswith("/opt/"):
        roots = [folder.parent if folder.name == "python" else folder for folder in function.layer_dirs]
        places = [
            *(root / path.removeprefix("/opt/") for root in roots),
            *(folder / path.removeprefix("/opt/python/") for folder in function.layer_dirs),
        ]
        return next((str(place) for place in places if place.is_file()), path)
    return path
