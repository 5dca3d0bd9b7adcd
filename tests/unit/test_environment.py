"""One environment serves very many requests: nothing that belongs to a request is kept, nothing is started for each."""

import asyncio
import gc
import logging
import multiprocessing
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.abc import MetaPathFinder

import anyio
import pytest
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context

from sealane import Catalog, create_mcp_handler
from sealane.gateway.loop import environment_loop
from sealane.options import ResponseMode
from tests.events import Answer, Headers, Message, ask, legacy, modern

catalog = Catalog()
setting = ContextVar("setting", default="as it was")


@catalog.tool()
async def hello() -> str:
    return "Hello!"


@catalog.tool()
def thread() -> str:
    return str(threading.get_ident())


@catalog.tool()
async def count(ctx: Context, to: int = 3, delay_ms: int = 0) -> str:
    for step in range(1, to + 1):
        await asyncio.sleep(delay_ms / 1000)
        await ctx.report_progress(step, to)
    return f"Counted to {to}."


@catalog.tool()
async def fails() -> str:
    raise ValueError("a tool failed")


@catalog.tool()
async def sets() -> str:
    found = setting.get()
    setting.set("changed")
    return found


@catalog.tool()
async def leaves_a_scope_open() -> str:
    anyio.CancelScope().__enter__()
    return "left open"


handler = create_mcp_handler(lambda: catalog.server("environment"))


def counted(headers: Headers, body: Message) -> tuple[Headers, Message]:
    """The request for a tool's call, with a progress token."""
    body["params"].setdefault("_meta", {})["progressToken"] = 1
    return headers, body


REQUESTS: list[tuple[tuple[Headers, Message], int]] = [
    (modern("tools/call", name="hello", arguments={}), 200),
    (legacy("tools/call", name="hello", arguments={}), 200),
    (modern("tools/call", name="thread", arguments={}), 200),
    (legacy("tools/call", name="thread", arguments={}), 200),
    (counted(*modern("tools/call", name="count", arguments={"delay_ms": 0})), 200),
    (counted(*legacy("tools/call", name="count", arguments={"delay_ms": 0})), 200),
    (modern("tools/call", name="fails", arguments={}), 200),
    (legacy("notifications/initialized"), 202),
    (({**modern("tools/list")[0], "Host": "attacker.example"}, modern("tools/list")[1]), 421),
    ((modern("tools/list")[0], legacy("tools/list")[1]), 400),
]
"""Requests that alternate, and how each is answered."""


@dataclass(frozen=True)
class Held:
    """What the process holds at a moment."""

    threads: int
    tasks: int
    files: int
    servers: int


def held() -> Held:
    gc.collect()
    return Held(
        threads=threading.active_count(),
        tasks=len(asyncio.all_tasks(environment_loop()._loop)),
        files=len(os.listdir("/dev/fd")),
        servers=sum(issubclass(type(each), Server) for each in gc.get_objects()),
    )


def send(requests: int) -> None:
    for number in range(requests):
        request, status = REQUESTS[number % len(REQUESTS)]
        assert ask(handler, request).status == status


@pytest.fixture
def traced() -> Iterator[None]:
    """Allocations are traced, and nothing is logged: pytest keeps every record."""
    logging.disable(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    logging.disable(logging.NOTSET)


def test_the_progress_of_a_counting_request_is_streamed() -> None:
    for request, _ in REQUESTS[4:6]:
        answered: Answer = ask(handler, request)

        assert answered.headers["content-type"] == "text/event-stream"
        assert [message.get("method") for message in answered.messages] == ["notifications/progress"] * 3 + [None]


@pytest.mark.usefixtures("traced")
def test_a_thousand_alternating_requests_leave_nothing_behind() -> None:
    send(100)
    warm = held()
    start = tracemalloc.get_traced_memory()[0]
    send(500)
    half, middle = held(), tracemalloc.get_traced_memory()[0]
    send(500)
    full, end = held(), tracemalloc.get_traced_memory()[0]

    assert (half, full) == (warm, warm)
    # A kept server or task would be tens of kilobytes for each request; other threads of the process take a little too.
    assert end - middle <= max(middle - start, 0) + 500_000


def test_a_synchronous_tool_runs_in_the_same_thread_each_time() -> None:
    for request in (
        modern("tools/call", name="thread", arguments={}),
        legacy("tools/call", name="thread", arguments={}),
    ):
        threads = {ask(handler, request).json["result"]["content"][0]["text"] for _ in range(50)}

        assert len(threads) == 1
        assert threads != {str(threading.get_ident())}


@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
def test_what_a_tool_sets_in_its_context_is_gone_with_its_request(mode: ResponseMode) -> None:
    own = create_mcp_handler(lambda: catalog.server("environment"), response_mode=mode)
    for request in (
        modern("tools/call", name="sets", arguments={}),
        legacy("tools/call", name="sets", arguments={}),
    ) * 2:
        assert ask(own, request).messages[-1]["result"]["content"][0]["text"] == "as it was"


@pytest.mark.parametrize("build", [modern, legacy])
def test_a_scope_that_a_tool_leaves_open_harms_no_other_request(build: Callable[..., tuple[Headers, Message]]) -> None:
    for _ in range(3):
        answered = ask(handler, build("tools/call", name="leaves_a_scope_open", arguments={}))
        after = ask(handler, build("tools/call", name="hello", arguments={}))

        assert answered.json["id"] == 1
        assert (after.status, after.json["result"]["content"][0]["text"]) == (200, "Hello!")


def test_no_request_looks_for_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that fails is tried again each time, in every folder of the path."""
    looked_for: list[str] = []

    class Watching(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            looked_for.append(name)
            if name.partition(".")[0] == "rich":
                raise ModuleNotFoundError(name)  # as in an artefact

    send(len(REQUESTS))
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Watching(), *sys.meta_path])
    send(len(REQUESTS))
    assert looked_for == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_was_forked_takes_nothing_from_the_environment() -> None:
    assert ask(handler, modern("tools/call", name="thread", arguments={})).status == 200
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    # A loop that threads cannot wake goes on when a timer is due, half a second later.
    started = time.monotonic()
    for _ in range(20):
        environment_loop().run(asyncio.wait_for(asyncio.to_thread(int), 1))
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ValueError])
def test_the_loop_goes_on_after_what_ends_a_call(error: type[BaseException]) -> None:
    async def fail() -> None:
        raise error

    for _ in range(3):
        with pytest.raises(error):
            environment_loop().run(fail())
        assert environment_loop().run(asyncio.sleep(0.01, "goes on")) == "goes on"


def test_the_loop_goes_on_after_a_call_that_cancels_all_else() -> None:
    async def cancel_all_else() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)

    environment_loop().run(cancel_all_else())
    threads = {
        ask(handler, modern("tools/call", name="thread", arguments={})).json["result"]["content"][0]["text"]
        for _ in range(20)
    }

    assert len(threads) == 1
