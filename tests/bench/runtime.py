"""Contestants behind Lambda's Runtime API, each in the runtime that Lambda would start."""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sealane.local
from sealane.local.errors import FunctionError
from sealane.local.runtime_api import Invocation, RuntimeApi
from tests.bench.field import HERE, OBVIOUS, OURS, Contestant
from tests.bench.processes import PYTHON, Failed, Sample
from tests.bench.worker import Context, WrongAnswer, check

_STREAM: Final = "application/vnd.awslambda.http-integration-response"
_AWS: Final = (str(Path(sealane.local.__file__).with_name("bootstrap.py")),)
_OURS: Final = ("-u", "-m", "sealane.gateway.streaming")
_FEWEST: Final = 5


@dataclass(frozen=True)
class Runtime:
    """A contestant and its runtime.

    Attributes:
        name: names it in results.
        title: what tables call it.
        contestant: whose handler it serves.
        program: the runtime, as Python's arguments.
    """

    name: str
    title: str
    contestant: Contestant
    program: Sequence[str]


RUNTIMES: Final = (
    Runtime("obvious", "obvious, AWS's runtime", OBVIOUS, _AWS),
    Runtime("ours", "Sealane buffered, AWS's runtime", OURS, _AWS),
    Runtime("streaming", "Sealane streaming, its own runtime", OURS, _OURS),
)


async def answers(
    runtime: Runtime, event: str, text: str, variables: Mapping[str, str], *, seconds: float, calls: int
) -> Sample:
    """Start a runtime, and take answers from it for some seconds, or so many.

    Raises:
        Failed: it ended, or an answer was wrong.
    """
    api = RuntimeApi(HERE)
    environment = {
        **variables,
        "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/bench",
        "AWS_LAMBDA_LOG_STREAM_NAME": "bench",
        "AWS_LAMBDA_RUNTIME_API": api.address,
        "_HANDLER": runtime.contestant.handler,
    }
    with tempfile.TemporaryFile("w+") as log:
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *PYTHON, *runtime.program, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        ended = asyncio.create_task(_wait(process, api))
        try:
            await _answer(api, event, text)
            cold, memory = time.monotonic() - started, _peak_memory(process.pid)
            for share in (seconds / 4, seconds):
                times: list[float] = []
                end = time.monotonic() + share
                while len(times) < calls and (len(times) < _FEWEST or time.monotonic() < end):
                    times.append(await _answer(api, event, text) * 1000)
        except (FunctionError, WrongAnswer) as error:
            log.seek(0)
            raise Failed(f"{runtime.title}: {error}: {log.read()[-2000:]}") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await ended
            await api.close()
    return Sample(cold=cold * 1000, cpu=0, memory=memory, times=times)


async def _wait(process: asyncio.subprocess.Process, api: RuntimeApi) -> None:
    await process.wait()
    api.fail(FunctionError("Runtime.ExitError", f"exit status {process.returncode}"))


async def _answer(api: RuntimeApi, event: str, text: str) -> float:
    """Seconds from the event to the end of its answer; the wait for a runtime that is not there yet not included."""
    await api.waiting
    invocation = Invocation(event.encode(), Context.invoked_function_arn, "Root=1-0-0;Sampled=0")
    invocation.deadline_ms = int(time.time() * 1000) + 30_000
    started = time.perf_counter()
    api.hand(invocation)
    answer = b"".join([chunk async for chunk in invocation.chunks()])
    taken = time.perf_counter() - started
    check(_read(answer, invocation.content_type), text)
    return taken


def _read(answer: bytes, content_type: str) -> dict[str, Any]:
    """An answer, streamed or not, as a handler returns it."""
    if content_type != _STREAM:
        whole: dict[str, Any] = json.loads(answer)
        return whole
    prelude, _, body = answer.partition(bytes(8))
    return {**json.loads(prelude), "body": body.decode()}


def _peak_memory(pid: int) -> float:
    """MB; 0 where the system does not tell."""
    with suppress(OSError), open(f"{os.sep}proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmHWM:"))
    return 0
