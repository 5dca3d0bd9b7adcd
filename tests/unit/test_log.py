"""The ordered log, against moto's server and against a table that does between two reads as a test says."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sealane.state import aws
from sealane.state.errors import InvalidValue, StateUnavailable
from sealane.state.log import Log, LogEntry, LogReader
from sealane.state.table import Table
from tests.unit.moto_aws import Door, Fate, aws_variables, create_table, items, moto_server

LONGEST = 100_000
"""Bytes of a text."""


@pytest.fixture(scope="module")
def open_door() -> Iterator[Door]:
    with moto_server() as url, Door(url).open() as door:
        yield door


@pytest.fixture
def door(open_door: Door) -> Iterator[Door]:
    """A door to a table with nothing in it."""
    client = aws._client("dynamodb")
    client.delete_table(TableName="data")
    create_table()
    open_door.operations.clear()
    open_door.requests.clear()
    yield open_door
    open_door.fates.clear()


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is asked twice."""
    monkeypatch.setattr(aws, "_ATTEMPTS", 1)
    aws.forget_clients()
    yield
    aws.forget_clients()


def run(reader: LogReader) -> list[LogEntry]:
    """What the reader reads next."""
    return asyncio.run(reader.read())


def texts(reader: LogReader) -> list[str]:
    return [entry.text for entry in run(reader)]


# Against moto's server


def test_numbers_count_from_1_and_the_end_is_the_newest(door: Door) -> None:
    log = Log("log", kept=60)
    assert asyncio.run(log.end()) == 0
    assert [log.append_blocking(text) for text in ("a", "b")] == [1, 2]
    assert asyncio.run(log.append("c")) == 3
    assert asyncio.run(log.end()) == 3
    assert asyncio.run(log.read(1)) == [(1, "a"), (2, "b"), (3, "c")]
    assert asyncio.run(log.read(2, 2)) == [(2, "b")]
    assert asyncio.run(log.read(4)) == []


def test_logs_do_not_meet(door: Door) -> None:
    one, other = Log("one", kept=60), Log("other", kept=60)
    assert [one.append_blocking("a"), one.append_blocking("b"), other.append_blocking("c")] == [1, 2, 1]
    assert asyncio.run(other.read(1)) == [(1, "c")]


def test_entries_have_a_time_to_live_and_their_count_has_none(door: Door) -> None:
    Log("log", kept=60).append_blocking("a")
    entry, count = sorted(items(), key=lambda item: str(item["sk"]["S"]))
    assert 59 < int(entry["expires_at"]["N"]) - time.time() < 63
    assert "expires_at" not in count


def test_a_reader_begins_after_its_position_and_gets_each_entry_once(door: Door) -> None:
    log = Log("log", kept=60)
    log.append_blocking("before")
    reader = LogReader(log, asyncio.run(log.end()))
    assert texts(reader) == []
    log.append_blocking("a")
    log.append_blocking("b")
    assert texts(reader) == ["a", "b"]
    assert texts(reader) == []
    log.append_blocking("c")
    assert texts(reader) == ["c"]


def test_many_writers_at_once_and_a_reader_meanwhile(door: Door) -> None:
    log = Log("log", kept=60)
    reader = LogReader(log, 0)
    read: list[LogEntry] = []

    def write(writer: int) -> list[int]:
        return [log.append_blocking(f"{writer} {turn}") for turn in range(20)]

    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write, writer) for writer in range(6)]
        while not all(writer.done() for writer in writers):
            read += run(reader)
    read += run(reader)
    numbers = [writer.result() for writer in writers]
    assert all(sorted(each) == each for each in numbers)
    assert sorted(number for each in numbers for number in each) == list(range(1, 121))
    assert len(read) == 120
    for writer in range(6):
        mine = [text for _, text in read if text.startswith(f"{writer} ")]
        assert mine == [f"{writer} {turn}" for turn in range(20)]


def test_a_reader_that_is_behind_gets_a_hundred_at_a_time(door: Door) -> None:
    log = Log("log", kept=60)
    for number in range(250):
        log.append_blocking(str(number))
    reader = LogReader(log, 0)
    pages = [texts(reader) for _ in range(4)]
    assert [len(page) for page in pages] == [100, 100, 50, 0]
    assert [text for page in pages for text in page] == [str(number) for number in range(250)]


def test_a_text_that_is_too_long_makes_no_call(door: Door) -> None:
    log = Log("log", kept=60)
    for text in ("x" * (LONGEST + 1), "ä" * (LONGEST // 2 + 1)):
        with pytest.raises(InvalidValue, match=str(LONGEST)):
            log.append_blocking(text)
        with pytest.raises(InvalidValue):
            asyncio.run(log.append(text))
    assert door.operations == []
    longest = "ä" * (LONGEST // 2)
    log.append_blocking(longest)
    assert texts(LogReader(log, 0)) == [longest]


@pytest.mark.usefixtures("one_attempt")
def test_a_number_that_was_counted_is_never_given_again(door: Door) -> None:
    log = Log("log", kept=60)
    log.append_blocking("a")
    door.fates[:] = ["served", "500"]
    with pytest.raises(StateUnavailable):
        log.append_blocking("not written")
    door.fates[:] = ["lost"]
    with pytest.raises(StateUnavailable):
        log.append_blocking("not written either")
    assert log.append_blocking("b") == 4
    assert texts(LogReader(log, 0)) == ["a", "b"]


@pytest.mark.parametrize("fates", [["lost"], ["500 after"], ["served", "lost"], ["served", "cut"]])
def test_what_is_sent_again_is_in_the_log_once(door: Door, fates: list[Fate]) -> None:
    log = Log("log", kept=60)
    log.append_blocking("a")
    door.fates[:] = fates
    log.append_blocking("b")
    log.append_blocking("c")
    assert texts(LogReader(log, 0)) == ["a", "b", "c"]


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("fate", ["throttled", "busy", "cut before"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_read_that_fails_half_way_loses_nothing(door: Door, fate: Fate, place: int) -> None:
    """The reader has a gap to look for, a page to read, and a gap in that."""
    log = Log("log", kept=60)
    reader = LogReader(log, 0)
    held = [log.append_blocking("a"), Held(Table()).count("b"), log.append_blocking("c")]
    assert texts(reader) == ["a", "c"]
    later = Held(Table()).count("d")
    log.append_blocking("e")
    writing = held[1]
    assert isinstance(writing, Held)
    writing.write()
    door.operations.clear()
    served: list[Fate] = ["served"]
    door.fates[:] = [*served * place, fate]
    with pytest.raises(StateUnavailable):
        run(reader)
    assert door.operations == ["Query"] * (place + 1)
    assert texts(reader) == ["b", "e"]
    later.write()
    assert texts(reader) == ["d"]
    assert texts(reader) == []


# Against a table of this process


class Memory(Table):
    """A table whose queries are no snapshots: before each step that a read takes, `meanwhile` is called.

    Attributes:
        reads: how many reads there were.
    """

    def __init__(self) -> None:
        super().__init__("memory")
        self.meanwhile: Callable[[], None] = lambda: None
        self.reads = 0
        self._items: dict[str, dict[str, Any]] = {}

    async def call(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        return self.call_blocking(operation, **arguments)

    def call_blocking(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        if operation == "put_item":
            self._items[arguments["Item"]["sk"]["S"]] = arguments["Item"]
            return {}
        if operation == "update_item":
            key = arguments["Key"]
            item = self._items.setdefault(key["sk"]["S"], {**key, "last_number": {"N": "0"}})
            item["last_number"] = {"N": str(int(item["last_number"]["N"]) + 1)}
            return {"Attributes": {"last_number": item["last_number"]}}
        assert operation == "query"
        self.reads += 1
        place, last = (arguments["ExpressionAttributeValues"][name]["S"] for name in (":first", ":last"))
        found: list[dict[str, Any]] = []
        while len(found) < arguments["Limit"]:
            self.meanwhile()
            following = [key for key in self._items if place <= key <= last]
            if not following:
                break
            found.append(self._items[min(following)])
            place = min(following) + "0"
        return {"Items": found}


class Held(Table):
    """A writer that is as slow as a test wants: it has counted, and writes when it is told."""

    def __init__(self, table: Table, log: str = "log") -> None:
        super().__init__("held")
        self._table = table
        self._log = log
        self._put: dict[str, Any] = {}

    def count(self, text: str) -> "Held":
        Log(self._log, kept=60, table=self).append_blocking(text)
        return self

    def write(self) -> None:
        self._table.call_blocking("put_item", **self._put)

    def call_blocking(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        if operation == "put_item":
            self._put = arguments
            return {}
        return self._table.call_blocking(operation, **arguments)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def log(memory: Memory) -> Log:
    return Log("log", kept=60, table=memory)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands at `now`."""
    made = SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    made.time = time.time
    monkeypatch.setattr("sealane.state.log.time", made)
    return made


def test_what_is_counted_and_not_yet_written_holds_nothing_back(memory: Memory, log: Log) -> None:
    reader = LogReader(log, 0)
    slow, slower = Held(memory).count("slow"), Held(memory).count("slower")
    log.append_blocking("a")
    assert texts(reader) == ["a"]
    log.append_blocking("b")
    assert texts(reader) == ["b"]
    slower.write()
    assert texts(reader) == ["slower"]
    log.append_blocking("c")
    slow.write()
    assert texts(reader) == ["slow", "c"]
    assert texts(reader) == []


def test_a_count_at_the_end_is_no_gap_yet(memory: Memory, log: Log, clock: SimpleNamespace) -> None:
    """Nothing was read past it: it has all the time of the world."""
    reader = LogReader(log, 0)
    slow = Held(memory).count("slow")
    assert texts(reader) == []
    clock.now += 100
    assert texts(reader) == []
    slow.write()
    assert texts(reader) == ["slow"]


def test_an_entry_that_never_comes_is_given_up_after_15_seconds(
    memory: Memory, log: Log, clock: SimpleNamespace
) -> None:
    reader = LogReader(log, 0)
    late, lost = Held(memory).count("late"), Held(memory).count("lost")
    log.append_blocking("a")
    assert texts(reader) == ["a"]
    clock.now += 14.9
    late.write()
    assert texts(reader) == ["late"]
    clock.now += 0.2
    assert texts(reader) == []
    memory.reads = 0
    lost.write()
    assert texts(reader) == []
    assert memory.reads == 1


def test_an_entry_that_a_query_has_missed_comes_before_what_its_writer_wrote_next(memory: Memory, log: Log) -> None:
    slow = Held(memory).count("first")
    log.append_blocking("of another")

    def write() -> None:
        """After the query has passed the place of the first one."""
        memory.meanwhile = lambda: None

        def both() -> None:
            memory.meanwhile = lambda: None
            slow.write()
            log.append_blocking("second")

        memory.meanwhile = both

    memory.meanwhile = write
    reader = LogReader(log, 0)
    assert texts(reader) == ["first", "of another", "second"]
    assert texts(reader) == []


def test_an_entry_that_is_late_comes_before_what_its_writer_wrote_next(memory: Memory, log: Log) -> None:
    """It is written just after the reader has looked for it once more, and the next one at once."""
    reader = LogReader(log, 0)
    slow = Held(memory).count("first")
    log.append_blocking("of another")
    assert texts(reader) == ["of another"]
    looked = memory.reads

    def write() -> None:
        if memory.reads == looked + 2:
            memory.meanwhile = lambda: None
            slow.write()
            log.append_blocking("second")

    memory.meanwhile = write
    read = texts(reader) + texts(reader)
    assert read == ["first", "second"]


WRITERS = 3
PAUSE, FAIL = "pause", "fail"
DIES = 0.05
"""How many entries are counted and never written."""


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), busy=st.integers(1, 6))
def test_each_entry_once_and_each_writers_in_order(seed: int, busy: int) -> None:
    """Whatever happens between the steps of a reader: writers count or write, or the table is out of reach.

    Args:
        seed: decides who takes the next step; at a pause the reader does.
        busy: how much the writers do between two pauses.
    """
    chance = Random(seed)  # noqa: S311
    memory = Memory()
    counted: dict[int, Held] = {}
    begun: defaultdict[int, int] = defaultdict(int)
    written: list[str] = []
    plan: list[int | str] = [*range(WRITERS)] * busy + [PAUSE] * 3 + [FAIL] * (busy // 3)
    steps = iter(chance.choices(plan, k=200))

    def take(writer: int) -> None:
        if writer in counted:
            if chance.random() > DIES:
                counted[writer].write()
                written.append(f"{writer} {begun[writer]}")
            del counted[writer]
        else:
            begun[writer] += 1
            counted[writer] = Held(memory).count(f"{writer} {begun[writer]}")

    def meanwhile() -> None:
        for step in steps:
            if step == FAIL:
                raise StateUnavailable("as planned")
            if not isinstance(step, int):
                return
            take(step)

    reader = LogReader(Log("log", kept=60, table=memory), 0)

    async def read() -> list[str]:
        got: list[str] = []
        memory.meanwhile = meanwhile
        for step in steps:
            if isinstance(step, int):
                take(step)
            with suppress(StateUnavailable):
                got += [entry.text for entry in await reader.read()]
        for writer in list(counted):
            take(writer)
        return got + [entry.text for entry in await reader.read()]

    got = asyncio.run(read())
    assert sorted(got) == sorted(written)
    for writer in range(WRITERS):
        numbers = [int(text.split()[1]) for text in got if text.startswith(f"{writer} ")]
        assert numbers == sorted(numbers)


def test_without_a_table_every_call_says_so() -> None:
    log = Log("log", kept=60)
    with aws_variables("http://127.0.0.1:1"), pytest.raises(StateUnavailable):
        asyncio.run(log.end())
