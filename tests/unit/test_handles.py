"""`HandleStore`: values come back equal, only to whom they belong, until they expire."""

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import chain
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule, run_state_machine_as_test

from sealane.policy.principal import Principal, principal_context
from sealane.state.errors import (
    HandleNotFound,
    InvalidValue,
    NoPrincipal,
    StaleVersion,
    StateNotConfigured,
    StateUnavailable,
)
from sealane.state.handles import ANYONE, Entry, Handle, HandleStore, JsonValue, Page
from sealane.state.table import TABLE_VARIABLE, Table
from tests.unit import moto_aws
from tests.unit.moto_aws import Door, Fate

ALICE = Principal("client", "https://issuer.example", "alice")
BOB = Principal("client", "https://issuer.example", "bob")
OTHERS = [
    BOB,
    ALICE._replace(issuer="https://other.example"),
    ALICE._replace(client_id="other"),
    ALICE._replace(subject=None),
    Principal("client"),
    Principal("anyone"),
    None,
]
"""Callers who are not Alice, though some have much in common with her."""
NOTES = HandleStore("note")
ITEM_LIMIT = 409_600


@dataclass
class Clock:
    """The time, as all code sees it."""

    now: float

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def table() -> Iterator[None]:
    """An empty table."""
    with moto_aws.moto():
        yield


@pytest.fixture
def nowhere() -> Iterator[None]:
    """No table: a call to AWS is `StateUnavailable`, so that any other error was raised before one."""
    with moto_aws.aws_variables(moto_aws.NOWHERE):
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A time that stands still until it is moved."""
    clock = Clock(float(int(time.time())))
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of moto's server."""
    with moto_aws.moto_server() as url:
        yield url


@pytest.fixture
def door(server: str) -> Iterator[Door]:
    """A table behind a door that loses answers."""
    with Door(server).open() as door:
        yield door


@pytest.fixture
def alice() -> Iterator[None]:
    """Alice is the caller."""
    with principal_context(ALICE):
        yield


def create(
    value: object = "text", ttl: float = 60, caller: Principal | None = ALICE, store: HandleStore = NOTES
) -> str:
    """A caller's handle."""
    with principal_context(caller):
        return asyncio.run(store.create(value, ttl=ttl))


def get(handle: str, caller: Principal | None = ALICE, store: HandleStore = NOTES) -> Entry:
    """What a caller finds."""
    with principal_context(caller):
        return asyncio.run(store.get(handle))


def put(
    handle: str, value: object, version: int = 1, ttl: float | None = None, caller: Principal | None = ALICE
) -> Entry:
    """What a caller's write gives."""
    with principal_context(caller):
        return asyncio.run(NOTES.put(handle, value, version=version, ttl=ttl))


def page(caller: Principal | None = ALICE, store: HandleStore = NOTES, **arguments: Any) -> Page:
    """One page of a caller's list."""
    with principal_context(caller):
        return asyncio.run(store.list(**arguments))


def pages(caller: Principal | None = ALICE, limit: int = 50) -> list[list[Handle]]:
    """All pages of a caller's list."""
    found, cursor = [], None
    while True:
        handles, cursor = page(caller, limit=limit, cursor=cursor)
        found.append(handles)
        if cursor is None:
            return found


USES: dict[str, Callable[[HandleStore, Any], Awaitable[object]]] = {
    "get": lambda store, handle: store.get(handle),
    "put": lambda store, handle: store.put(handle, "other", version=1),
    "touch": lambda store, handle: store.touch(handle, ttl=60),
    "delete": lambda store, handle: store.delete(handle),
}


def refusals(handle: Any, caller: Principal | None = ALICE, store: HandleStore = NOTES) -> set[str]:
    """The texts with which every use of a handle is refused."""

    async def use() -> set[str]:
        texts = set()
        for call in USES.values():
            with pytest.raises(HandleNotFound) as caught:
                await call(store, handle)
            assert type(caught.value) is HandleNotFound
            texts.add(str(caught.value))
        return texts

    with principal_context(caller):
        return asyncio.run(use())


@pytest.mark.usefixtures("nowhere")
def test_where_no_table_is_a_call_fails() -> None:
    with pytest.raises(StateUnavailable):
        create()
    with moto_aws.moto(), moto_aws.aws_variables(moto_aws.NOWHERE), pytest.raises(StateUnavailable):
        create()


# A value and its versions


@pytest.mark.usefixtures("table", "alice", "clock")
def test_a_value_is_kept_replaced_and_deleted(clock: Clock) -> None:
    async def life() -> None:
        handle = await NOTES.create({"text": "one"}, ttl=60)
        first = await NOTES.get(handle)
        assert first == Entry({"text": "one"}, 1, int(clock.now) + 61)
        second = await NOTES.put(handle, {"text": "two"}, version=first.version)
        assert second == await NOTES.get(handle) == Entry({"text": "two"}, 2, first.expires_at)
        third = await NOTES.put(handle, None, version=second.version, ttl=600)
        assert third == await NOTES.get(handle) == Entry(None, 3, int(clock.now) + 601)
        await NOTES.touch(handle, ttl=6)
        assert await NOTES.get(handle) == Entry(None, 3, int(clock.now) + 7)
        await NOTES.delete(handle)

    asyncio.run(life())
    assert moto_aws.items() == []


@pytest.mark.usefixtures("table")
def test_a_write_from_an_old_version_changes_nothing() -> None:
    handle = create("one")
    put(handle, "two", version=1)
    for version in (1, 3, 10**15):
        with pytest.raises(StaleVersion, match=f"since version {version} was read, and nothing was overwritten"):
            put(handle, "three", version=version, ttl=600)
    assert get(handle)[:2] == ("two", 2)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("version", [0, -1, 10**15 + 1, 10**40, 1.0, "1", True, None])
def test_a_version_that_none_has_is_refused_before_a_call(version: Any) -> None:
    with pytest.raises(InvalidValue, match="version is the number"):
        put("a" * 32, "text", version=version)


@pytest.mark.usefixtures("table", "alice")
def test_an_entry_is_the_callers_own_copy() -> None:
    async def change() -> None:
        value: list[JsonValue] = ["one"]
        handle = await NOTES.create(value, ttl=60)
        entry = await NOTES.put(handle, value, version=1)
        value.append("two")
        assert entry.value == (await NOTES.get(handle)).value == ["one"]

    asyncio.run(change())


# Handles


@pytest.mark.usefixtures("table")
def test_a_handle_is_a_text_of_192_random_bits() -> None:
    handles = [create() for _ in range(20)]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", handle) for handle in handles)
    for place in range(32):
        assert len({handle[place] for handle in handles}) > 5
    assert json.loads(json.dumps({"note": handles[0]})) == {"note": handles[0]}


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("other", OTHERS)
def test_a_handle_is_its_principals_alone(other: Principal | None) -> None:
    handle = create("text")
    unknown = refusals("a" * 32)
    assert refusals(handle, other) == unknown
    assert len(unknown) == 1
    assert get(handle)[:2] == ("text", 1)


@pytest.mark.usefixtures("table")
def test_all_that_is_not_found_reads_the_same(clock: Clock) -> None:
    deleted, expired, present = create(), create(ttl=5), create()
    with principal_context(ALICE):
        asyncio.run(NOTES.delete(deleted))
    clock.now += 6
    (text,) = refusals("a" * 32)
    for handle in (deleted, expired, f"any.{present}", present[:-1], f"{present}\n", present.swapcase()):
        assert refusals(handle) == {text}
    assert refusals(present, store=HandleStore("other")) == {text}
    assert "make a new one" in text
    assert present not in text
    assert get(present).value == "text"


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    "handle", ["", "a" * 5120, "any.", "é" * 32, "\ud800" * 32, "a" * 31 + "#", None, 7, b"a" * 32]
)
def test_d3_a_handle_that_none_was_made_like_is_not_found_without_a_call(handle: Any) -> None:
    assert refusals(handle) == {str(error) for error in (refused(lambda: get("a" * 32, None), HandleNotFound),)}


def refused(call: Callable[[], object], error: type[Exception]) -> Exception:
    """The error that a call raises."""
    with pytest.raises(error) as caught:
        call()
    return caught.value


@pytest.mark.usefixtures("table")
def test_kinds_are_apart() -> None:
    handle = create("text")
    other = HandleStore("notes")
    assert refusals(handle, store=other)
    assert page(store=other).handles == []
    assert get(handle, store=HandleStore("note")).value == "text"


@pytest.mark.parametrize("kind", ["", "a" * 65, "a#b", "é", "a b", "note\n"])
def test_a_kind_is_a_short_plain_name(kind: str) -> None:
    with pytest.raises(ValueError, match="a kind is 1 to 64 letters"):
        HandleStore(kind)


# Anyone's handles


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("maker", [ALICE, None])
@pytest.mark.parametrize("user", [ALICE, BOB, None])
def test_what_is_anyones_is_for_whoever_knows_the_handle(maker: Principal | None, user: Principal | None) -> None:
    async def use(handle: str) -> None:
        assert (await NOTES.get(handle)).value == "text"
        assert (await NOTES.put(handle, "other", version=1)).version == 2
        await NOTES.touch(handle, ttl=600)
        assert (await NOTES.get(handle)).value == "other"
        await NOTES.delete(handle)

    with principal_context(maker):
        handle = asyncio.run(NOTES.create("text", ttl=60, owner=ANYONE))
    assert re.fullmatch(r"any\.[A-Za-z0-9_-]{32}", handle)
    if maker:
        assert page(maker).handles == []
    with principal_context(user):
        asyncio.run(use(handle))
    assert refusals(handle, user) == refusals("a" * 32)


@pytest.mark.usefixtures("nowhere")
def test_without_a_principal_anyone_has_to_be_asked_for() -> None:
    with pytest.raises(NoPrincipal, match=re.escape("write create(..., owner=ANYONE)")):
        create(caller=None)
    with pytest.raises(NoPrincipal, match="no note that could be listed"):
        page(None)


@pytest.mark.usefixtures("table")
def test_a_principal_called_anyone_has_not_what_is_anyones() -> None:
    handle = asyncio.run(NOTES.create("text", ttl=60, owner=ANYONE))
    assert refusals(handle.removeprefix("any."), Principal("anyone"))
    assert page(Principal("anyone")).handles == []


# Time


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("name", USES)
def test_d2_an_expired_item_that_dynamodb_still_has_is_gone(name: str, clock: Clock) -> None:
    handle = create(ttl=60)
    clock.now += 60
    assert get(handle).value == "text"
    clock.now += 1
    before = moto_aws.items()
    assert len(before) == 1
    with principal_context(ALICE), pytest.raises(HandleNotFound):
        asyncio.run(cast("Any", USES[name](NOTES, handle)))
    assert page().handles == []
    assert moto_aws.items() == before


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("ttl", [1_796_000_000, 1_796_000_000_000, 60_000_000_000, 0, -1, math.nan, math.inf, "60"])
def test_d2_a_time_that_is_none_in_seconds_is_refused_before_a_call(ttl: Any) -> None:
    async def extend() -> None:
        with pytest.raises(InvalidValue, match="ttl is a time from now in seconds"):
            await NOTES.put("a" * 32, "text", version=1, ttl=ttl)
        with pytest.raises(InvalidValue, match="ttl is a time from now in seconds"):
            await NOTES.touch("a" * 32, ttl=ttl)

    with pytest.raises(InvalidValue, match="ttl is a time from now in seconds"):
        create(ttl=ttl)
    with principal_context(ALICE):
        asyncio.run(extend())


@pytest.mark.usefixtures("table")
def test_d2_the_ttl_attribute_is_a_number_of_seconds(clock: Clock) -> None:
    create(ttl=0.5)
    (item,) = moto_aws.items()
    assert item["expires_at"] == {"N": str(int(clock.now) + 1)}


# Values


def json_values() -> st.SearchStrategy[Any]:
    """All of JSON, surrogates too, but no character in two halves."""
    texts = st.text(st.characters(exclude_categories=[])).filter(
        lambda text: not re.search("[\ud800-\udbff][\udc00-\udfff]", text)
    )
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.integers(-(10**400), 10**400)
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts
    )
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types, in the same order, and zeros of the same sign."""
    return repr(one) == repr(other)


@pytest.mark.usefixtures("table")
def test_values_come_back_as_they_were() -> None:
    @settings(max_examples=150, deadline=None, database=None)
    @given(json_values())
    def check(value: Any) -> None:
        handle = create(value)
        assert same(get(handle).value, value)
        assert same(put(handle, [value]).value, [value])

    check()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "value",
    [
        10**4299,
        -(2**63) - 1,
        [1, 1.0, True, 0, -0.0, False, None, ""],
        [5e-324, 1.7976931348623157e308, 0.1, 1e22, 1e23],
        {"": {"": ""}, "a": [], "b": {}},
        "\ud800 lone \udfff \x00 \u2028",
        {"\udc00": "\ud800"},
        "héllo 😀",
    ],
)
def test_edges_of_json_come_back_as_they_were(value: Any) -> None:
    assert same(get(create(value)).value, value)


class Size(IntEnum):
    """Numbers with names."""

    SMALL = 1


class Colour(StrEnum):
    """Texts with names."""

    RED = "red"


@pytest.mark.usefixtures("table")
def test_members_of_enumerations_come_back_as_their_values() -> None:
    assert same(get(create([Size.SMALL, Colour.RED])).value, [1, "red"])


def nested(depth: int) -> Any:
    """Arrays and objects inside each other."""
    value: Any = []
    for level in range(depth - 1):
        value = [value] if level % 2 else {"a": value}
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "infinite or NaN"),
        ({"a": [math.inf]}, "infinite or NaN"),
        ([-math.inf], "infinite or NaN"),
        ({"a": {1: "secret"}}, "a key in it is of type int"),
        ({None: "secret"}, "a key in it is of type NoneType"),
        ({True: "secret"}, "a key in it is of type bool"),
        (("secret",), "of type tuple"),
        ([{"a": {"secret"}}], "of type set"),
        (b"secret", "of type bytes"),
        (ALICE, "of type Principal"),
        (lambda: "secret", "of type function"),
        pytest.param(10**4300, "4300 digits fit", id="long integer"),
        (nested(101), "100 levels fit"),
        (LOOP, "100 levels fit"),
        ("secret \ud83d\ude00", "in two halves"),
        ({"\ud83d\ude00": 1, "😀": 2}, "in two halves"),
    ],
)
def test_what_json_does_not_say_is_refused_before_a_call(value: object, text: str) -> None:
    for call in (lambda: create(value), lambda: put("a" * 32, value)):
        error = refused(call, InvalidValue)
        assert text in str(error)
        assert "secret" not in str(error)


@pytest.mark.usefixtures("table")
def test_deep_values_come_back() -> None:
    assert get(create(nested(100))).value == nested(100)


def item_size(item: dict[str, Any]) -> int:
    """Bytes as DynamoDB counts, with the most that a number can have.

    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html
    """
    return sum(
        len(name) + (21 if type == "N" else len(value.encode()))
        for name, typed in item.items()
        for type, value in typed.items()
    )


@pytest.mark.parametrize("filler", ["a", "é", "😀", "\ud800"])
@pytest.mark.parametrize("caller", [ALICE, Principal("c" * 900, "i" * 500, "s" * 500)])
def test_d3_the_longest_value_fits_and_one_byte_more_is_refused_before_a_call(caller: Principal, filler: str) -> None:
    with Door().open() as door:
        door.fates = ["taken"]
        found = re.search(
            r"too long: (\d+) bytes as JSON, (\d+) fit. Shorten it or split it into several.",
            str(refused(lambda: create(filler * ITEM_LIMIT, caller=caller), InvalidValue)),
        )
        assert found
        used, allowed = map(int, found.groups())
        width = (used - 2) // ITEM_LIMIT
        longest = filler * ((allowed - 2) // width)
        longest += "a" * (allowed - 2 - len(longest) * width)
        for call in (lambda: create(longest + "a", caller=caller), lambda: put("a" * 32, longest + "a", caller=caller)):
            assert f"{allowed + 1} bytes as JSON, {allowed} fit" in str(refused(call, InvalidValue))
        assert door.requests == []

        create(longest, caller=caller)
        (request,) = door.requests
    assert json.loads(request["Item"]["value"]["S"]) == longest
    assert item_size(request["Item"] | {"write_id": {"S": "a" * 16}}) == ITEM_LIMIT


@pytest.mark.usefixtures("table")
def test_a_value_of_400_000_bytes_comes_back() -> None:
    handle = create("")
    assert put(handle, "a" * 400_000).value == get(handle).value == "a" * 400_000


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("name", [*USES, "create", "list"])
def test_d3_a_2_kb_client_id_is_refused_before_a_call(name: str) -> None:
    uses: dict[str, Any] = {
        **USES,
        "create": lambda store, handle: store.create("text", ttl=60),
        "list": lambda store, handle: store.list(),
    }
    with principal_context(Principal("c" * 2048)), pytest.raises(InvalidValue, match="too long to keep data under"):
        asyncio.run(uses[name](NOTES, "a" * 32))


# Lists


@pytest.mark.usefixtures("table")
def test_a_list_has_the_callers_live_handles_of_the_kind(clock: Clock) -> None:
    mine = {create() for _ in range(7)}
    create(caller=BOB)
    create(store=HandleStore("other"))
    create(ttl=5)
    asyncio.run(NOTES.create("text", ttl=60, owner=ANYONE))
    clock.now += 6
    for limit in (1, 2, 3, 7, 8, 100):
        found = pages(limit=limit)
        assert all(len(handles) <= limit for handles in found)
        assert sorted(chain(*found)) == sorted(mine)


@pytest.mark.usefixtures("table")
def test_a_page_may_be_empty_before_the_last(clock: Clock) -> None:
    for _ in range(5):
        create(ttl=5)
    clock.now += 6
    assert pages(limit=1) == [[]] * 5


@pytest.mark.usefixtures("door")
def test_a_page_ends_at_1_mb_of_values() -> None:
    caller = Principal("long values")
    mine = [create("a" * 400_000, caller=caller) for _ in range(4)]
    first = page(caller)
    assert 1 < len(first.handles) < 4
    assert first.cursor
    assert sorted(chain(*pages(caller))) == sorted(mine)


@pytest.mark.usefixtures("table")
def test_a_cursor_leads_on_for_this_caller_and_kind_alone() -> None:
    for _ in range(3):
        create()
    cursor = page(limit=1).cursor
    assert cursor
    garbled = [
        "", "a", cursor[:-1], cursor + "a", cursor[1:], "a" + cursor[1:], cursor[:-1] + "~", cursor.swapcase(),
        "\ud800" * 56, "any." + cursor, 7, b"a" * 56, "a" * 5000,
    ]  # fmt: skip
    with moto_aws.aws_variables(moto_aws.NOWHERE):
        for wrong in garbled:
            with pytest.raises(InvalidValue, match="cursor does not belong to this list"):
                page(cursor=wrong)
        for other in OTHERS[:-1]:
            with pytest.raises(InvalidValue, match="cursor does not belong to this list"):
                page(other, cursor=cursor)
        with pytest.raises(InvalidValue, match="cursor does not belong to this list"):
            page(store=HandleStore("other"), cursor=cursor)
    assert len(page(cursor=cursor).handles) == 2


@pytest.mark.usefixtures("table")
def test_a_cursor_outlives_the_handle_it_came_after() -> None:
    for _ in range(3):
        create()
    first = page(limit=1)
    with principal_context(ALICE):
        asyncio.run(NOTES.delete(first.handles[0]))
    assert len(page(cursor=first.cursor).handles) == 2


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("limit", [0, -1, 101, 1.0, "10", True, None])
def test_a_limit_out_of_range_is_refused_before_a_call(limit: Any) -> None:
    with pytest.raises(InvalidValue, match="limit is a whole number from 1 to 100"):
        page(limit=limit)


# Lost answers: the write was carried out, and botocore sends it again


CARRIED_OUT: list[Fate] = ["lost", "cut", "500 after"]
NOT_CARRIED_OUT: list[Fate] = ["cut before", "500", "busy"]


@pytest.mark.parametrize("fate", CARRIED_OUT + NOT_CARRIED_OUT)
def test_a_write_whose_answer_was_lost_is_one_write(fate: Fate, door: Door) -> None:
    handle = create("one")
    door.fates = [fate]
    entry = put(handle, "two", version=1, ttl=600)
    assert door.operations[-2:] == ["UpdateItem", "UpdateItem"]
    assert entry == get(handle)
    assert entry[:2] == ("two", 2)
    with pytest.raises(StaleVersion):
        put(handle, "three", version=1)
    assert put(handle, "three", version=2)[:2] == ("three", 3)


@pytest.mark.parametrize("fate", CARRIED_OUT)
def test_a_lost_race_stays_lost_when_it_is_sent_again(fate: Fate, door: Door) -> None:
    handle = create("one")
    put(handle, "two", version=1)
    door.fates = [fate]
    with pytest.raises(StaleVersion):
        put(handle, "three", version=1)
    assert get(handle)[:2] == ("two", 2)


@pytest.mark.parametrize("fate", CARRIED_OUT + NOT_CARRIED_OUT)
def test_a_value_whose_answer_was_lost_is_kept_once(fate: Fate, door: Door) -> None:
    caller = Principal(f"kept once, {fate}")
    door.fates = [fate]
    handle = create("text", caller=caller)
    assert door.operations == ["PutItem", "PutItem"]
    assert get(handle, caller)[:2] == ("text", 1)
    assert page(caller).handles == [handle]


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("fate", CARRIED_OUT + NOT_CARRIED_OUT)
def test_a_deletion_and_a_touch_whose_answers_were_lost_are_done(fate: Fate, door: Door) -> None:
    handle = create()
    door.fates = [fate]
    asyncio.run(NOTES.touch(handle, ttl=600))
    assert get(handle).expires_at > time.time() + 500
    door.fates = [fate]
    asyncio.run(NOTES.delete(handle))
    assert door.operations[-2:] == ["DeleteItem", "DeleteItem"]
    with pytest.raises(HandleNotFound):
        asyncio.run(NOTES.delete(handle))


# Writers at once


def test_writers_at_once_make_one_history_without_gaps(door: Door) -> None:
    accepted: list[tuple[int, str]] = []
    stale = 0

    async def write(handle: str, name: str) -> None:
        nonlocal stale
        for attempt in range(3):
            entry = await NOTES.get(handle)
            note = f"{name}/{attempt}"
            try:
                written = await NOTES.put(handle, [*cast("list[str]", entry.value), note], version=entry.version)
            except StaleVersion:
                stale += 1
            else:
                assert written.version == entry.version + 1
                accepted.append((written.version, note))

    async def at_once(handle: str) -> None:
        await asyncio.gather(*(write(handle, str(number)) for number in range(20)))

    handle = create([])
    with principal_context(ALICE):
        asyncio.run(at_once(handle))
    accepted.sort()
    assert stale
    assert len(accepted) + stale == 60
    assert [version for version, _ in accepted] == list(range(2, len(accepted) + 2))
    assert get(handle)[:2] == ([note for _, note in accepted], len(accepted) + 1)


# What is told, and to whom


@pytest.mark.parametrize("name", [*USES, "create", "list"])
def test_nothing_of_values_handles_and_principals_is_logged(
    name: str, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    uses: dict[str, Any] = {
        **USES,
        "put": lambda store, handle: store.put(handle, "secret value", version=1),
        "create": lambda store, handle: store.create("secret value", ttl=60),
        "list": lambda store, handle: store.list(),
    }
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="botocore")
    handle = create("secret value", caller=Principal("secret caller"))
    with principal_context(Principal("secret caller")):
        asyncio.run(uses[name](NOTES, handle))
        with pytest.raises(HandleNotFound):
            asyncio.run(NOTES.get("a" * 32))
        door.fates = ["500", "500", "500"]
        with pytest.raises(StateUnavailable) as caught:
            asyncio.run(uses[name](NOTES, handle))
    text = caplog.text + str(caught.value)
    assert "failed: InternalServerError" in text
    assert "secret" not in text
    assert handle not in text
    assert "a" * 32 not in text


def test_without_a_table_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TABLE_VARIABLE, raising=False)
    with pytest.raises(StateNotConfigured, match=TABLE_VARIABLE):
        create()


@pytest.mark.usefixtures("table")
def test_a_store_can_have_a_table_of_its_own() -> None:
    moto_aws.create_table("other")
    store = HandleStore("note", table=Table("other"))
    handle = create("text", store=store)
    assert moto_aws.items() == []
    assert get(handle, store=store).value == "text"


# The store against a model


@dataclass
class Kept:
    """What the model knows of a handle."""

    owner: Principal | None
    value: Any
    version: int
    gone_at: float


CALLERS = st.sampled_from([ALICE, BOB, ALICE._replace(subject=None), None])
TTLS = st.sampled_from([0.5, 1, 2, 5, 30])
VALUES = st.integers(0, 9) | st.lists(st.text(max_size=3), max_size=2)


class StoreAgainstModel(RuleBasedStateMachine):
    """Any calls of any callers at any time; a table of its own for each run."""

    handles: Bundle[str] = Bundle("handles")

    @initialize()
    def start(self) -> None:
        self.stack = ExitStack()
        self.stack.enter_context(moto_aws.moto())
        self.clock = Clock(float(int(time.time())))
        self.stack.enter_context(pytest.MonkeyPatch.context()).setattr(time, "time", self.clock)
        self.model: dict[str, Kept] = {}

    def teardown(self) -> None:
        self.stack.close()

    def usable(self, handle: str, caller: Principal | None) -> Kept | None:
        """What this caller has behind a handle now."""
        kept = self.model.get(handle)
        if kept is None or kept.gone_at <= self.clock.now or kept.owner not in (None, caller):
            return None
        return kept

    def until(self, ttl: float) -> float:
        """When something kept for `ttl` is gone: at the end of the second in which it may go."""
        return math.floor(self.clock.now + ttl) + 1

    def run(self, caller: Principal | None, call: Any) -> Any:
        """What the store answers, or the error."""
        with principal_context(caller):
            try:
                return asyncio.run(call)
            except (HandleNotFound, StaleVersion, NoPrincipal) as error:
                return type(error)

    @rule(target=handles, caller=CALLERS, value=VALUES, ttl=TTLS, anyone=st.booleans())
    def create(self, caller: Principal | None, value: Any, ttl: float, anyone: bool) -> Any:
        handle = self.run(caller, NOTES.create(value, ttl=ttl, owner=ANYONE if anyone else None))
        if caller is None and not anyone:
            assert handle is NoPrincipal
            return multiple()
        assert handle not in self.model
        self.model[handle] = Kept(None if anyone else caller, value, 1, self.until(ttl))
        return handle

    @rule(caller=CALLERS, handle=handles)
    def get(self, caller: Principal | None, handle: str) -> None:
        kept = self.usable(handle, caller)
        found = self.run(caller, NOTES.get(handle))
        assert found == ((kept.value, kept.version, kept.gone_at) if kept else HandleNotFound)

    @rule(
        caller=CALLERS,
        handle=handles,
        value=VALUES,
        behind=st.sampled_from([0, 0, 0, 1, -1]),
        ttl=st.none() | TTLS,
    )
    def put(self, caller: Principal | None, handle: str, value: Any, behind: int, ttl: float | None) -> None:
        kept = self.usable(handle, caller)
        version = max(1, self.model[handle].version - behind) if handle in self.model else 1
        found = self.run(caller, NOTES.put(handle, value, version=version, ttl=ttl))
        if kept is None:
            assert found is HandleNotFound
        elif version != kept.version:
            assert found is StaleVersion
        else:
            kept.value, kept.version = value, version + 1
            kept.gone_at = kept.gone_at if ttl is None else self.until(ttl)
            assert found == (kept.value, kept.version, kept.gone_at)

    @rule(caller=CALLERS, handle=handles, ttl=TTLS)
    def touch(self, caller: Principal | None, handle: str, ttl: float) -> None:
        kept = self.usable(handle, caller)
        found = self.run(caller, NOTES.touch(handle, ttl=ttl))
        assert found is (None if kept else HandleNotFound)
        if kept:
            kept.gone_at = self.until(ttl)

    @rule(caller=CALLERS, handle=handles)
    def delete(self, caller: Principal | None, handle: str) -> None:
        kept = self.usable(handle, caller)
        found = self.run(caller, NOTES.delete(handle))
        assert found is (None if kept else HandleNotFound)
        if kept:
            del self.model[handle]

    @rule(caller=CALLERS, limit=st.integers(1, 4))
    def list(self, caller: Principal | None, limit: int) -> None:
        if caller is None:
            assert self.run(caller, NOTES.list(limit=limit)) is NoPrincipal
            return
        assert sorted(chain(*pages(caller, limit))) == sorted(
            handle for handle, kept in self.model.items() if kept.owner == caller and self.usable(handle, caller)
        )

    @rule(seconds=st.sampled_from([0.25, 0.5, 1, 3, 30]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


def test_any_calls_of_any_callers_are_answered_as_by_a_model() -> None:
    run_state_machine_as_test(
        StoreAgainstModel, settings=settings(max_examples=40, stateful_step_count=30, deadline=None, database=None)
    )
