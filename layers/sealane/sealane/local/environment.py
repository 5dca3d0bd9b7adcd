"""Lambda's execution environments: a process with AWS's runtime client, and the pool of them behind a function."""

import asyncio
import ctypes
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from sealane.local.errors import FunctionError, Throttled
from sealane.local.records import LogLine, Record
from sealane.local.runtime_api import Invocation, RuntimeApi, failing_line
from sealane.local.template import REGION, Function

INIT_LIMIT = 10
"""Seconds that an environment may take to start.

https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html#runtimes-lifecycle-ib
"""
_LINE_LIMIT = 256 * 1024
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Environment:
    """One Lambda execution environment: serves one invocation at a time, in a process of its own.

    The process runs this Python, with the function's folder and then its layers in front of `sys.path`, as on Lambda.

    Args:
        function: what it runs.
        number: its number, counted from 1 for each function.
        observe: gets every line that the function writes.

    Attributes:
        function: what it runs.
        number: its number.
        init_ms: milliseconds that its start took, None before it was ready.
    """

    def __init__(self, function: Function, number: int, observe: Callable[[Record], None]) -> None:
        self.function = function
        self.number = number
        self.init_ms: float | None = None
        self._observe = observe
        self._runtime_api = RuntimeApi(function.code_dir)
        self._variables = _variables(function, self._runtime_api.address)
        self._process: asyncio.subprocess.Process | None = None
        self._exit: asyncio.Task[None] | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        """Process id, None before the start."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """False once the process has ended or was told to."""
        return not self._killed and (self._process is None or self._process.returncode is None)

    async def start(self) -> None:
        """Starts the process and waits until it asks for its first invocation.

        Raises:
            FunctionError: the function cannot be imported, or takes longer than Lambda allows.
        """
        started = time.perf_counter()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "awslambdaric",
            self.function.handler,
            cwd=self.function.code_dir,
            env=self._variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent if _libc else None,
        )
        self._exit = asyncio.create_task(self._wait(self._process))
        if self._killed:
            self._kill()
        try:
            async with asyncio.timeout(INIT_LIMIT):
                await self._runtime_api.ready
            self.init_ms = (time.perf_counter() - started) * 1000
        except TimeoutError:
            raise FunctionError("Sandbox.Timedout", f"not ready after {INIT_LIMIT} s") from None
        except FunctionError as error:
            raise (await self._import_error() if error.type == "Runtime.ImportModuleError" else error) from None
        finally:
            if self.init_ms is None:
                await self.stop()

    async def invoke(self, event: bytes, trace_id: str) -> bytes:
        """Serves one event (JSON) and gives the function's answer (JSON).

        Raises:
            FunctionError: the function raised, its process ended, or its time was up (the environment is then killed).
        """
        timeout = self.function.timeout
        deadline_ms = int((time.time() + timeout) * 1000)
        invocation = Invocation(str(uuid.uuid4()), event, self.function.arn, deadline_ms, trace_id)
        try:
            async with asyncio.timeout(timeout):
                return await self._runtime_api.invoke(invocation)
        except TimeoutError:
            self._kill()
            raise FunctionError("Sandbox.Timedout", f"Task timed out after {timeout:.2f} seconds") from None

    async def stop(self) -> None:
        """Kills the process and everything that it started."""
        self._kill()
        if self._exit:
            await asyncio.shield(self._exit)

    def _kill(self) -> None:
        self._killed = True
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        reading = [asyncio.create_task(self._read(stream)) for stream in (process.stdout, process.stderr) if stream]
        code = await process.wait()
        self._kill()
        await asyncio.wait(reading, timeout=1)
        reason = f"signal: {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self._runtime_api.fail(FunctionError("Runtime.ExitError", f"Runtime exited with error: {reason}"))
        await self._runtime_api.close()

    async def _import_error(self) -> FunctionError:
        """The error behind a failed import. AWS's client reports its text only; importing again tells the rest."""
        module = self.function.handler.rpartition(".")[0].replace("/", ".")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"import {module}",
            cwd=self.function.code_dir,
            env=self._variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, output = await process.communicate()
        lines = output.decode("utf-8", "replace").strip().splitlines() or [
            "ImportError: it fails under Lambda's client only"
        ]
        type, _, message = lines[-1].partition(": ")
        return FunctionError(type, message, failing_line(lines, self.function.code_dir))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        pending = b""
        while chunk := await stream.read(64 * 1024):
            *lines, pending = re.split(rb"[\r\n]+", pending + chunk)
            if len(pending) > _LINE_LIMIT:
                lines, pending = [*lines, pending], b""
            for line in lines:
                self._log(line)
        self._log(pending)

    def _log(self, line: bytes) -> None:
        if line:
            self._observe(LogLine(self.function.name, self.number, line.decode("utf-8", "replace")))


@dataclass(frozen=True)
class Outcome:
    """What became of one invocation.

    Attributes:
        environment: number of the environment that served it, None when none could start.
        init_ms: milliseconds of its cold start, None when it was warm.
        answer: the function's answer as JSON, or its failure.
    """

    environment: int | None
    init_ms: float | None
    answer: bytes | FunctionError


class Pool:
    """The environments of one function: an idle one serves, else a new one starts, up to `concurrency` at a time."""

    def __init__(self, function: Function, concurrency: int, observe: Callable[[Record], None]) -> None:
        self._function = function
        self._concurrency = concurrency
        self._observe = observe
        self._count = 0
        self._busy = 0
        self._environments: list[Environment] = []
        self._idle: list[Environment] = []

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Every environment that can serve."""
        return tuple(env for env in self._environments if env.alive and env.init_ms is not None)

    async def start(self) -> None:
        """Starts one environment ahead of the first invocation.

        Raises:
            FunctionError: it cannot start.
        """
        self._idle.append(await self._new())

    async def invoke(self, event: bytes, trace_id: str) -> Outcome:
        """Serves one event (JSON).

        Raises:
            Throttled: all environments are busy.
        """
        if self._busy == self._concurrency:
            raise Throttled(f"all {self._concurrency} environments of {self._function.name} are busy")
        self._busy += 1
        try:
            return await self._serve(event, trace_id)
        finally:
            self._busy -= 1

    async def stop(self) -> None:
        """Kills every environment."""
        await asyncio.gather(*(environment.stop() for environment in self._environments))

    async def _serve(self, event: bytes, trace_id: str) -> Outcome:
        init_ms = None
        self._idle = [environment for environment in self._idle if environment.alive]
        if self._idle:
            # The one that has waited longest: requests in a row reach different environments, so that nothing is
            # found to work only because the same one served them.
            environment = self._idle.pop(0)
        else:
            try:
                environment = await self._new()
            except FunctionError as error:
                return Outcome(None, None, error)
            init_ms = environment.init_ms
        try:
            return Outcome(environment.number, init_ms, await environment.invoke(event, trace_id))
        except FunctionError as error:
            return Outcome(environment.number, init_ms, error)
        finally:
            self._idle.append(environment)

    async def _new(self) -> Environment:
        self._count += 1
        environment = Environment(self._function, self._count, self._observe)
        self._environments = [*(known for known in self._environments if known.alive), environment]
        await environment.start()
        return environment


def _variables(function: Function, runtime_api: str) -> dict[str, str]:
    """https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html#configuration-envvars-runtime

    Of this machine's own variables a function sees those that Python needs to start, and no AWS configuration.
    """
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("PYTHON")}
    return {
        **own,
        **function.variables,
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
        "LAMBDA_TASK_ROOT": str(function.code_dir),
        "LANG": "en_US.UTF-8",
        "PYTHONPATH": os.pathsep.join(map(str, (function.code_dir, *function.layer_dirs))),
        "TZ": ":UTC",
        "_HANDLER": function.handler,
    }


def _die_with_parent() -> None:
    """In the child, before it becomes Python: the kernel kills it when we die, however that happens (Linux)."""
    if _libc:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
