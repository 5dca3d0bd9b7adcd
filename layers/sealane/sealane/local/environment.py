"""Lambda's execution environments: a process with AWS's runtime client, and the pool of them behind a function."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from sealane.local.dependencies import interpreter
from sealane.local.errors import FunctionError, Throttled
from sealane.local.process import Folder, Output, command, kill_strays, peak_memory, variables
from sealane.local.records import LogLine, Record
from sealane.local.runtime_api import RESPONSE_LIMIT, Invocation, RuntimeApi, failing_line, too_large
from sealane.local.template import Function

INIT_LIMIT = 10
"""Seconds that an environment may take to start.

https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html#runtimes-lifecycle-ib
"""
_LAST_STEPS = 1.0
"""Seconds that an environment is given between the end of its answer and its asking for the next event."""
LOG_TAIL = 4096
"""Bytes of an invocation's log that its caller can have.

https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one invocation.

    Attributes:
        environment: number of the environment that served it, None when none could start.
        init_ms: milliseconds of its cold start, None when it was warm.
        answer: the function's answer as JSON (empty where it was read as a stream), or its failure.
        request_id: Lambda's request id.
        duration_ms: milliseconds from the event to the environment's request for the next one.
        memory: most memory in MiB that the environment's process has used so far, None when that is not known.
        log: the last 4 KB of what the function wrote meanwhile, with Lambda's own START, END and REPORT lines.
    """

    environment: int | None
    init_ms: float | None
    answer: bytes | FunctionError
    request_id: str = ""
    duration_ms: float = 0
    memory: int | None = None
    log: str = ""


class Environment:
    """One Lambda execution environment: serves one invocation at a time, in a process of its own.

    The process has the function's folder and then its layers in front of `sys.path`, as on Lambda, and a `Folder`.
    While it waits for an invocation it is frozen (stopped, with all that it has started), as Lambda does:
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html#runtimes-lifecycle

    Args:
        function: what it runs.
        number: its number, counted from 1 for each function.
        observe: gets every line that the function writes.
        place: where its folder is made.
        freeze: freeze it between invocations; a debugger cannot work with a frozen process.
        variables: environment variables that go before all others.

    Attributes:
        function: what it runs.
        number: its number.
        init_ms: milliseconds that its start took, None before it was ready.
        retired: it is to end after the invocation that it serves.
    """

    def __init__(
        self,
        function: Function,
        number: int,
        observe: Callable[[Record], None],
        place: Path,
        *,
        freeze: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.function = function
        self.number = number
        self.init_ms: float | None = None
        self.retired = False
        self._observe = observe
        self._place = place
        self._freezes = freeze
        self._more_variables = variables
        self._runtime_api: RuntimeApi | None = None
        self._output: Output | None = None
        self._variables: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._exit: asyncio.Task[None] | None = None
        self._killed = False
        self._tail = ""

    @property
    def pid(self) -> int | None:
        """Process id, None before the start."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """False once the process has ended or was told to."""
        return not self._killed and (self._process is None or self._process.returncode is None)

    @property
    def ended(self) -> bool:
        """True once nothing of it is left."""
        return self._exit is not None and self._exit.done()

    async def start(self, limit: float = INIT_LIMIT) -> None:
        """Starts the process and waits until it asks for its first invocation.

        Args:
            limit: seconds that this may take.

        Raises:
            FunctionError: the function cannot be imported, or takes longer than that.
        """
        started = time.perf_counter()
        folder = await asyncio.to_thread(Folder, self.function, self._place)
        runtime_api = self._runtime_api = RuntimeApi(self.function.code_dir)
        output = self._output = Output(self._log)
        self._variables = variables(self.function, self.number, runtime_api.address, folder, self._more_variables)
        self._exit = asyncio.create_task(self._run(runtime_api, output, folder))
        error: FunctionError | None = None
        try:
            async with asyncio.timeout(limit):
                await runtime_api.waiting
            self.init_ms = (time.perf_counter() - started) * 1000
            self._freeze()
        except TimeoutError:
            error = FunctionError("Sandbox.Timedout", f"not ready after {limit:g} s")
        except FunctionError as failure:
            error = failure
        finally:
            if self.init_ms is None:
                await self.stop()
        if error:
            # https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html#runtimes-lifecycle-init-errors
            status = "timeout" if error.type == "Sandbox.Timedout" else f"error\tError Type: {error.type}"
            elapsed = (time.perf_counter() - started) * 1000
            self._log(f"INIT_REPORT Init Duration: {elapsed:.2f} ms\tPhase: init\tStatus: {status}")
            raise error

    async def explain(self, error: FunctionError) -> FunctionError:
        """What is behind a failed import. AWS's client reports its text only; importing again tells the rest."""
        if error.type != "Runtime.ImportModuleError":
            return error
        module = self.function.handler.rpartition(".")[0].replace("/", ".")
        folder = await asyncio.to_thread(Folder, self.function, self._place)
        process = await asyncio.create_subprocess_exec(
            self.function.python,
            "-P",
            "-c",
            f"import {module}",
            cwd=folder.task,
            env={**self._variables, "LAMBDA_TASK_ROOT": str(folder.task), "TMPDIR": str(folder.temporary)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(INIT_LIMIT):
                _, output = await process.communicate()
        except TimeoutError:
            return error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            folder.remove()
        lines = output.decode("utf-8", "replace").strip().splitlines() or [
            "ImportError: it fails under Lambda's client only"
        ]
        type, _, message = lines[-1].partition(": ")
        return FunctionError(type, message, failing_line(lines, self.function.code_dir), error.report)

    async def serve(self, invocation: Invocation, seconds: float, init_ms: float | None) -> Outcome:
        """Serves one invocation until the environment asks for the next one, is lost, or its time is up.

        The answer goes to the invocation. When the time is up the environment is killed.

        Args:
            invocation: what it serves.
            seconds: what is left of its time.
            init_ms: milliseconds of the cold start before it, None when there was none.
        """
        if self._runtime_api is None:
            raise RuntimeError("the environment has not been started")
        started = time.perf_counter()
        invocation.deadline_ms = int((time.time() + seconds) * 1000)
        self._tail = f"START RequestId: {invocation.request_id} Version: $LATEST\n"
        self._signal(signal.SIGCONT)
        self._runtime_api.hand(invocation)
        memory = None
        try:
            async with asyncio.timeout(seconds):
                await self._runtime_api.waiting
            memory = self._peak_memory()
            self._freeze()
        except TimeoutError:
            memory = self._peak_memory()
            invocation.end(_timed_out(self.function))
            await self.stop()
        except FunctionError:
            await self.stop()
        return self._outcome(invocation.request_id, (time.perf_counter() - started) * 1000, init_ms, memory)

    async def stop(self) -> None:
        """Kills the process and everything that it started."""
        self._kill()
        if self._exit:
            await asyncio.shield(self._exit)

    async def _run(self, runtime_api: RuntimeApi, output: Output, folder: Folder) -> None:
        """The process from its start to its end, and what has to be cleared away then."""
        try:
            self._process = await self._spawn(output, folder)
            if self._killed:
                self._kill()
            code = await self._process.wait()
            self._kill()  # What it started, and is still there.
            await asyncio.to_thread(kill_strays, runtime_api.address)
            error = _exit_error(code)
        except OSError as failure:
            # https://docs.aws.amazon.com/lambda/latest/dg/runtimes-modify.html
            reason = (failure.strerror or str(failure)).lower()
            error = FunctionError("Runtime.InvalidEntrypoint", f"fork/exec {command(self.function)[0]}: {reason}")
            self._killed = True
        output.close()
        runtime_api.fail(error)
        await asyncio.to_thread(folder.remove)
        await runtime_api.close()

    async def _spawn(self, output: Output, folder: Folder) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *command(self.function),
                cwd=folder.task,
                env=self._variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.end,
                stderr=output.end,
                start_new_session=True,
            )
        finally:
            output.started()

    def _freeze(self) -> None:
        """Stops the process: it has asked for an invocation, and only waits for the answer that we hold."""
        if self._freezes:
            self._signal(signal.SIGSTOP)

    def _kill(self) -> None:
        self._killed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """To the process and all that it started (and that has not left its process group)."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _peak_memory(self) -> int | None:
        return peak_memory(self._process.pid) if self._process else None

    def _log(self, line: str) -> None:
        self._tail = f"{self._tail}{line}\n"[-LOG_TAIL:]
        self._observe(LogLine(self.function.name, self.number, line))

    def _outcome(self, request_id: str, duration: float, init_ms: float | None, memory: int | None) -> Outcome:
        """With the lines that Lambda adds to a log: https://docs.aws.amazon.com/lambda/latest/dg/python-logging.html"""
        if self._output:
            self._output.drain()
        report = [
            f"REPORT RequestId: {request_id}",
            f"Duration: {duration:.2f} ms",
            f"Billed Duration: {-int(-(duration + (init_ms or 0)) // 1)} ms",
            f"Memory Size: {self.function.memory} MB",
            f"Max Memory Used: {'?' if memory is None else memory} MB",
        ]
        if init_ms is not None:
            report.append(f"Init Duration: {init_ms:.2f} ms")
        lines = [f"END RequestId: {request_id}", "\t".join(report), ""]
        log = (self._tail + "\n".join(lines)).encode()[-LOG_TAIL:].decode("utf-8", "ignore")
        return Outcome(self.number, init_ms, b"", request_id, duration, memory, log)


class ResponseStream:
    """An invocation whose answer is read as it comes: `async for chunk in stream`, by one reader, once.

    The function goes on whether or not anybody reads.

    Raises:
        FunctionError: (when read) the function failed, before its answer or in the middle of it.

    Attributes:
        request_id: Lambda's request id.
    """

    def __init__(self, invocation: Invocation, serving: "asyncio.Task[Outcome]") -> None:
        self.request_id = invocation.request_id
        self._invocation = invocation
        self._serving = serving

    @property
    def content_type(self) -> str:
        """Media type of the answer, empty before its first chunk."""
        return self._invocation.content_type

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._invocation.chunks()

    async def outcome(self) -> Outcome:
        """What became of it, once the environment is done with it; without the answer, which is read above."""
        return await asyncio.shield(self._serving)


Choose: TypeAlias = Callable[[Sequence[Environment]], Environment]
"""Chooses the environment that serves, of those that are idle; they are in the order in which they became it."""


def longest_idle(idle: Sequence[Environment]) -> Environment:
    """The one that has waited longest.

    Requests in a row reach different environments, so that nothing is found to work only because the same one served
    them.
    """
    return idle[0]


class Pool:
    """The environments of one function: an idle one serves, else a new one starts, up to `concurrency` at a time.

    Args:
        function: what they run.
        concurrency: how many there may be.
        observe: gets every line that the function writes.
        place: where their folders are made, and removed with them.
        venvs: folder of the virtual environments that are kept.
        freeze: freeze environments between invocations.
        variables: environment variables that go before all others.
        choose: which of the idle environments serves.
        queue: let events wait for their turn while all are busy; Lambda refuses them.
    """

    def __init__(
        self,
        function: Function,
        concurrency: int,
        observe: Callable[[Record], None],
        place: Path,
        venvs: Path,
        *,
        freeze: bool = True,
        variables: Mapping[str, str] | None = None,
        choose: Choose = longest_idle,
        queue: bool = False,
    ) -> None:
        self._function = function
        self._concurrency = concurrency
        self._turns = asyncio.Semaphore(concurrency) if queue else None
        self._observe = observe
        self._place = place
        self._venvs = venvs
        self._freeze = freeze
        self._variables = variables
        self._choose = choose
        self._count = 0
        self._stopped = False
        self._environments: list[Environment] = []
        self._idle: list[Environment] = []
        self._serving: dict[asyncio.Task[Outcome], Invocation] = {}
        self._given_back = asyncio.Event()

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Every environment that can serve."""
        return tuple(env for env in self._environments if env.alive and env.init_ms is not None)

    async def start(self) -> None:
        """Starts one environment ahead of the first invocation. One that is too slow is left to that, as on Lambda.

        Raises:
            LocalError: what the function requires cannot be installed.
            FunctionError: the environment cannot start.
        """
        await self._install()
        await self._start_first()

    async def _install(self) -> None:
        python = await interpreter(self._function, self._venvs, self._place, self._observe)
        self._function = replace(self._function, python=python)

    async def _start_first(self) -> None:
        environment = self._new()
        try:
            await environment.start()
        except FunctionError as error:
            if error.type != "Sandbox.Timedout":
                raise await environment.explain(error) from None
        else:
            self._idle.append(environment)

    async def renew(self) -> None:
        """Replaces all environments by a new one; those that are busy end when they have answered.

        Raises:
            LocalError: what the function requires by now cannot be installed; the old environments stay.
            FunctionError: the new one cannot start.
        """
        await self._install()
        idle, self._idle = self._idle, []
        for environment in self._environments:
            environment.retired = True
        stopping = asyncio.gather(*(environment.stop() for environment in idle))
        try:
            await self._start_first()
        finally:
            await stopping

    async def invoke(self, event: bytes, trace_id: str, client_context: str | None = None) -> Outcome:
        """Serves one event (JSON) and waits for the whole answer.

        Args:
            event: the event.
            trace_id: X-Ray trace header.
            client_context: what the caller says of itself, as JSON.

        Raises:
            Throttled: all environments are busy.
        """
        stream = self.stream(event, trace_id, client_context)
        body = bytearray()
        answer: bytes | FunctionError
        try:
            async for chunk in stream:
                if len(body) <= RESPONSE_LIMIT:
                    body += chunk
            answer = too_large() if len(body) > RESPONSE_LIMIT else bytes(body)
        except FunctionError as error:
            answer = error
        return replace(await stream.outcome(), answer=answer)

    def stream(self, event: bytes, trace_id: str, client_context: str | None = None) -> ResponseStream:
        """Serves one event (JSON), whose answer can be read while it comes. A buffered one comes in one chunk.

        Args:
            event: the event.
            trace_id: X-Ray trace header.
            client_context: what the caller says of itself, as JSON.

        Raises:
            Throttled: all environments are busy.
        """
        busy = sum(not invocation.ended for invocation in self._serving.values())
        if self._turns is None and busy >= self._concurrency:
            raise Throttled(f"all {self._concurrency} environments of {self._function.name} are busy")
        invocation = Invocation(event, self._function.arn, trace_id, client_context)
        serving = asyncio.create_task(self._serve(invocation))
        self._serving[serving] = invocation
        serving.add_done_callback(self._serving.pop)
        return ResponseStream(invocation, serving)

    async def stop(self) -> None:
        """Kills every environment; what they served fails."""
        self._stopped = True
        await asyncio.gather(*(environment.stop() for environment in self._environments))
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, invocation: Invocation) -> Outcome:
        try:
            async with self._turns or nullcontext():
                environment, init_ms, seconds = await self._take()
                try:
                    return await environment.serve(invocation, seconds, init_ms)
                finally:
                    await self._give_back(environment)
        except FunctionError as error:
            invocation.end(error)
            return Outcome(None, None, error, invocation.request_id)
        finally:
            invocation.end(FunctionError("Runtime.ExitError", "the local gateway has ended"))

    async def _take(self) -> tuple[Environment, float | None, float]:
        """An environment that is ready, the milliseconds of its cold start, and the seconds that are left."""
        if self._turns is None:
            await self._await_one_that_has_answered()
        self._idle = [environment for environment in self._idle if environment.alive]
        if self._idle:
            environment = self._choose(self._idle)
            self._idle.remove(environment)
            return environment, None, self._function.timeout
        environment = self._new()
        try:
            await environment.start()
            return environment, environment.init_ms, self._function.timeout
        except FunctionError:
            # Lambda starts it once more, now within the function's time-out ("suppressed init"):
            # https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html#runtimes-lifecycle-ib
            return await self._take_at_second_try(environment.number)

    async def _await_one_that_has_answered(self) -> None:
        """Give an environment time to ask for its next event.

        A client can have the end of a streamed answer, and come back, before that. One that goes on working after its
        answer is not waited for: on AWS, too, another one serves then.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_STEPS):
                while not self._idle and len(self._serving) > self._concurrency:
                    self._given_back.clear()
                    await self._given_back.wait()

    async def _take_at_second_try(self, number: int) -> tuple[Environment, float | None, float]:
        started = time.perf_counter()
        environment = self._new(number)
        try:
            await environment.start(self._function.timeout)
        except FunctionError as error:
            if error.type == "Sandbox.Timedout":
                raise _timed_out(self._function) from None
            raise await environment.explain(error) from None
        left = self._function.timeout - (time.perf_counter() - started)
        return environment, environment.init_ms, max(left, 0.001)

    async def _give_back(self, environment: Environment) -> None:
        if environment.retired:
            await environment.stop()
        elif environment.alive:
            self._idle.append(environment)
        self._given_back.set()

    def _new(self, number: int | None = None) -> Environment:
        if self._stopped:
            raise FunctionError("Runtime.ExitError", "the local gateway has ended")
        if number is None:
            number = self._count = self._count + 1
        environment = Environment(
            self._function, number, self._observe, self._place, freeze=self._freeze, variables=self._variables
        )
        self._environments = [*(known for known in self._environments if not known.ended), environment]
        return environment


def _timed_out(function: Function) -> FunctionError:
    return FunctionError("Sandbox.Timedout", f"Task timed out after {function.timeout:.2f} seconds")


def _exit_error(code: int) -> FunctionError:
    """https://docs.aws.amazon.com/lambda/latest/dg/troubleshooting-invocation.html"""
    if code == 0:
        return FunctionError("Runtime.ExitError", "Runtime exited without providing a reason")
    reason = f"signal: {(signal.strsignal(-code) or str(-code)).lower()}" if code < 0 else f"exit status {code}"
    return FunctionError("Runtime.ExitError", f"Runtime exited with error: {reason}")
