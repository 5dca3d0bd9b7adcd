"""One event loop, and one task that it is run for, as long as the environment lives."""

import asyncio
import functools
import os
import threading
from asyncio.base_events import _run_until_complete_cb  # type: ignore[attr-defined]
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["EnvironmentLoop", "environment_loop"]

T = TypeVar("T")


class EnvironmentLoop:
    """Runs coroutines one after the other, from synchronous code.

    Each has a task, and so a context, of its own. anyio ends its worker threads with the task that the loop is run for,
    which it knows by the callback that `run_until_complete` adds: without one that lives as long as the environment,
    every synchronous tool would cost a new thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._root = self._make_root()

    def _make_root(self) -> "asyncio.Task[None]":
        async def wait() -> None:
            await self._loop.create_future()

        root = self._loop.create_task(wait())
        root.add_done_callback(_run_until_complete_cb)
        return root

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of `coroutine`.

        Raises:
            BaseException: whatever the coroutine raises, or whatever interrupts the thread meanwhile; what the
                interrupted coroutine had begun is cancelled.
        """
        with self._lock:
            if self._root.done():
                self._root = self._make_root()
            task = self._loop.create_task(coroutine)
            try:
                self._drive(task)
            finally:
                if not task.done():
                    self._end({task})
            return task.result()

    def _drive(self, task: "asyncio.Task[Any]") -> None:
        """Run the loop until a task is done: not once, since a call that was interrupted leaves its stop behind."""
        task.add_done_callback(lambda _: self._loop.stop())
        while not task.done():
            self._loop.run_forever()

    def _end(self, tasks: "set[asyncio.Task[Any]]") -> None:
        """Cancel tasks, and give them a second to end."""
        for task in tasks:
            task.cancel()
        self._drive(self._loop.create_task(asyncio.wait(tasks, timeout=1)))

    def close(self) -> None:
        """End what runs, and the loop.

        A process that was forked from this one (multiprocessing) does so at its end too: not to the kernel's side of
        the loop, which is shared. This one would hear of its threads no more.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            # What libraries keep on the loop too, such as the shutdown watcher of sse-starlette.
            if tasks := asyncio.all_tasks(self._loop):
                self._end(tasks)
            self._loop.close()


@functools.cache
def environment_loop() -> EnvironmentLoop:
    """The loop of this environment."""
    loop = EnvironmentLoop()
    # Not atexit: the interpreter joins threads before that, and anyio's end only with the loop's task.
    threading._register_atexit(loop.close)  # type: ignore[attr-defined]
    return loop
