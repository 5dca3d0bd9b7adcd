"""One event loop, and one task that everything runs in, for as long as the environment lives."""

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

__all__ = ["EnvironmentLoop", "environment_loop"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, None]]


class EnvironmentLoop:
    """Runs coroutines one after the other, from synchronous code.

    Each has a task, and so a context, of its own, in the group of one long-lived task. anyio ends its worker threads
    with the task at the root of those that use them: without that one every synchronous tool would cost a new thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._start()

    def _start(self) -> None:
        self._calls: asyncio.Queue[Call | None] = asyncio.Queue()
        self._root = self._loop.create_task(self._serve(self._calls))

    @staticmethod
    async def _serve(calls: "asyncio.Queue[Call | None]") -> None:
        while True:
            try:
                async with anyio.create_task_group() as tasks:
                    while (call := await calls.get()) is not None:
                        tasks.start_soon(call)
                return
            except Exception:
                # A task that leaves a cancel scope open ends the group; its answer was given.
                logger.exception("what an invocation left behind has failed")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of `coroutine`.

        Raises:
            BaseException: whatever the coroutine raises, or whatever interrupts the thread meanwhile; what the
                interrupted coroutine had begun is cancelled.
        """
        with self._lock:
            result: asyncio.Future[T] = self._loop.create_future()

            async def call() -> None:
                try:
                    value = await coroutine
                except BaseException as error:
                    if not result.done():
                        result.set_exception(error)
                else:
                    if not result.done():
                        result.set_result(value)

            try:
                self._calls.put_nowait(call)
                return self._loop.run_until_complete(result)
            finally:
                if not result.done() or self._root.done():
                    result.cancel()
                    self._restart()

    def _restart(self) -> None:
        # The new task first: what interrupts the wait must not leave the loop without one.
        root, calls = self._root, self._calls
        self._start()
        self._end(root, calls)

    def _end(self, root: "asyncio.Task[None]", calls: "asyncio.Queue[Call | None]") -> None:
        root.cancel()
        # Mangum answers 500 to a cancellation and goes on; this ends the task all the same.
        calls.put_nowait(None)
        self._loop.run_until_complete(asyncio.wait([root], timeout=1))

    def close(self) -> None:
        """End the task, what else runs, and the loop.

        A process that was forked from this one (multiprocessing) does so at its end too: not to the kernel's side of
        the loop, which is shared. This one would hear of its threads no more.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._end(self._root, self._calls)
            # What libraries keep on the loop, such as the shutdown watcher of sse-starlette.
            if others := asyncio.all_tasks(self._loop):
                for task in others:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(others, timeout=1))
            self._loop.close()


@functools.cache
def environment_loop() -> EnvironmentLoop:
    """The loop of this environment."""
    loop = EnvironmentLoop()
    # Not atexit: the interpreter joins threads before that, and anyio's end only with the loop's task.
    threading._register_atexit(loop.close)  # type: ignore[attr-defined]
    return loop
