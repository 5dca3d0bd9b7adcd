"""Effects that happen at most once, against moto's server."""

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyPersistenceLayerError
from aws_lambda_powertools.warnings import PowertoolsUserWarning
from mcp import MCPError

from sealane.policy.principal import Principal, current_principal, principal_context
from sealane.state import aws
from sealane.state.errors import (
    InProgress,
    InvalidValue,
    StateError,
    StateNotConfigured,
    StateUnavailable,
    UnstorableResult,
)
from sealane.state.once import MAX_RESULT, CallIdentity, call_identity, once
from sealane.state.table import TABLE_VARIABLE, Table
from tests.unit.moto_aws import TABLE, Door, client, items, moto_server
from tests.unit.test_imports import modules_after

PATIENCE = 10.0
"""Seconds; no test takes as long."""

ALICE = Principal("alice", "https://issuer.example", "a")
BOB = Principal("bob", "https://issuer.example", "b")
PAY = CallIdentity("tools/call", "pay", {"order": 17, "to": "Carol"}, "sealed-1")


@pytest.fixture(scope="module")
def open_door() -> Iterator[Door]:
    with moto_server() as url, Door(url).open() as door:
        yield door


@pytest.fixture
def door(open_door: Door) -> Iterator[Door]:
    yield open_door
    open_door.fates.clear()
    forget()
    open_door.operations.clear()


@pytest.fixture
def events() -> Iterator[Any]:
    """The hooks of the client that `once` uses."""
    aws.forget_clients()
    yield aws._client("dynamodb").meta.events
    aws.forget_clients()


pytestmark = pytest.mark.usefixtures("door")


class Effect:
    """An effect that counts how often it happened; a held one ends when it is released."""

    def __init__(self, result: object = "paid", *, held: bool = False) -> None:
        self.count = 0
        self.started = threading.Event()
        self.release = threading.Event()
        self._result = result
        if not held:
            self.release.set()

    async def __call__(self) -> object:
        self.count += 1
        self.started.set()
        await anyio.to_thread.run_sync(self.release.wait, PATIENCE, abandon_on_cancel=True)
        return self._result() if callable(self._result) else self._result


@contextmanager
def in_progress(effect: Effect, *arguments: Any, **options: Any) -> Iterator[Future[Any]]:
    """Another environment that has begun a held effect, which ends with the block."""
    with ThreadPoolExecutor(1) as other:
        first = other.submit(ask, effect, *arguments, **options)
        try:
            assert effect.started.wait(PATIENCE)
            yield first
        finally:
            effect.release.set()


async def call(
    effect: Callable[[], object],
    identity: CallIdentity | None = PAY,
    principal: Principal | None = ALICE,
    **options: Any,
) -> Any:
    """One call of a tool that has `effect` once."""
    with principal_context(principal):
        if identity is None:
            return await once(effect, **options)
        with call_identity(identity):
            return await once(effect, **options)


def ask(effect: Callable[[], object], identity: CallIdentity | None = PAY, **options: Any) -> Any:
    """The same in an event loop of its own, as in an environment of its own."""
    return asyncio.run(call(effect, identity, **options))


def forget() -> None:
    """Remove all records."""
    table = client()
    for item in table.scan(TableName=TABLE)["Items"]:
        table.delete_item(TableName=TABLE, Key={"pk": item["pk"], "sk": item["sk"]})


def change_record(**attributes: int) -> None:
    """Change numbers of the only record."""
    (item,) = items()
    client().put_item(TableName=TABLE, Item={**item, **{name: {"N": str(value)} for name, value in attributes.items()}})


def test_d1_an_async_tool_called_twice_with_one_key_runs_once_and_both_calls_answer() -> None:
    effect = Effect({"receipt": 1})
    assert [ask(effect, key="order-17"), ask(effect, key="order-17")] == [{"receipt": 1}, {"receipt": 1}]
    assert effect.count == 1


def test_a_synchronous_effect_happens_once_too() -> None:
    done: list[int] = []
    assert [ask(lambda: done.append(1)), ask(lambda: done.append(2))] == [None, None]
    assert done == [1]


def test_a_repeat_gets_exactly_what_the_first_call_got() -> None:
    values: list[object] = [
        None,
        False,
        True,
        0,
        0.0,
        -0.0,
        1,
        1.0,
        0.1,
        1e300,
        10**30,
        "",
        "0",
        "null",
        [],
        {},
        [[]],
        [None, "", 1.5],
    ]
    for value in [*values, 'é 💥 \ud800 "\\', {"b": 1, "a": {"": ""}}]:
        effect = Effect(value)
        first, repeated = ask(effect, key=repr(value)), ask(effect, key=repr(value))
        assert repr(first) == repr(repeated) == repr(value)
        assert effect.count == 1


def test_the_first_result_is_what_json_makes_of_it_as_the_repeated_one_is() -> None:
    effect = Effect({"z": (1, 2), "a": {3: 4}})
    first, repeated = ask(effect), ask(effect)
    assert json.dumps(first) == json.dumps(repeated) == '{"z": [1, 2], "a": {"3": 4}}'


def test_another_call_is_another_effect() -> None:
    effect = Effect()
    ask(effect)
    others: list[tuple[CallIdentity, Principal | None]] = [
        (PAY, BOB),
        (PAY, ALICE._replace(issuer="https://other.example")),
        (PAY, ALICE._replace(subject=None)),
        (PAY, None),
        (replace(PAY, method="prompts/get"), ALICE),
        (replace(PAY, name="refund"), ALICE),
        (replace(PAY, arguments={"order": 18, "to": "Carol"}), ALICE),
        (replace(PAY, arguments={"order": "17", "to": "Carol"}), ALICE),
        (replace(PAY, arguments=None), ALICE),
        (replace(PAY, state="sealed-2"), ALICE),
        (replace(PAY, state=None), ALICE),
    ]
    for number, (identity, principal) in enumerate(others, 1):
        for _ in range(2):
            ask(effect, identity, principal=principal)
            assert effect.count == 1 + number, (identity, principal)


def test_the_same_call_is_the_same_whatever_the_order_of_its_arguments() -> None:
    effect = Effect()
    ask(effect)
    ask(effect, replace(PAY, arguments={"to": "Carol", "order": 17}, lambda_context=Invocation(9)))
    assert effect.count == 1
    ask(effect, CallIdentity("tools/call", "list", {}))
    ask(effect, CallIdentity("tools/call", "list", None))
    assert effect.count == 2


def test_with_a_key_arguments_and_state_do_not_count_but_tool_and_principal_do() -> None:
    effect = Effect()
    ask(effect, key="k")
    ask(effect, CallIdentity("tools/call", "pay", {}, None), key="k")
    assert effect.count == 1
    ask(effect, key="l")
    ask(effect, CallIdentity("tools/call", "refund"), key="k")
    ask(effect, CallIdentity("prompts/get", "pay"), key="k")
    ask(effect, principal=BOB, key="k")
    ask(effect, principal=None, key="k")
    ask(effect, None, key="k")
    assert effect.count == 7


def test_outside_of_a_call_a_key_is_needed() -> None:
    effect = Effect()
    with pytest.raises(InvalidValue, match="give a key"):
        ask(effect, None)
    ask(effect, None, key="k")
    ask(effect, None, key="k")
    assert effect.count == 1


def test_a_second_effect_of_one_call_needs_a_key() -> None:
    async def two(**options: Any) -> list[Any]:
        with call_identity(PAY):
            return [await once(lambda: "first"), await once(lambda: "second", **options)]

    with pytest.raises(InvalidValue, match="a key of its own"):
        asyncio.run(two())
    assert asyncio.run(two(key="second")) == ["first", "second"]


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": 17},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": time.time() * 1000},
        {"lease": 0},
        {"lease": -1},
        {"lease": float("nan")},
        {"lease": float("inf")},
        {"principal": Principal("x" * 2048)},
    ],
)
def test_d3_what_cannot_be_kept_is_refused_before_any_call(options: dict[str, Any], door: Door) -> None:
    effect = Effect()
    with pytest.raises(InvalidValue):
        ask(effect, **options)
    assert effect.count == 0
    assert not door.operations


def test_without_a_table_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TABLE_VARIABLE)
    effect = Effect()
    with pytest.raises(StateNotConfigured):
        ask(effect)
    assert effect.count == 0


@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_of_calls_at_once_one_has_the_effect_and_the_others_are_told(kind: str) -> None:
    number = 8
    effect = Effect(held=True)
    refused: list[InProgress] = []

    async def attempt() -> Any:
        try:
            return await call(effect)
        except InProgress as error:
            refused.append(error)
            if len(refused) == number - 1:
                effect.release.set()

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(attempt() for _ in range(number)))

    if kind == "tasks":
        results = asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(number) as environments:
            results = list(environments.map(lambda _: asyncio.run(attempt()), range(number)))
    assert effect.count == 1
    assert sorted(map(str, results)) == ["None"] * (number - 1) + ["paid"]
    assert ask(effect) == "paid"


def test_an_effect_in_progress_says_what_to_do_and_nothing_of_the_call() -> None:
    effect = Effect(held=True)
    with in_progress(effect) as first, pytest.raises(InProgress, match="same call again in a few seconds") as refused:
        ask(effect)
    assert first.result() == "paid"
    assert not [word for word in ("alice", "pay", "sealed", "#") if word in str(refused.value)]
    assert refused.value.__suppress_context__


class Invocation:
    """The part of Lambda's context that counts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self._seconds * 1000)


def seconds_of_lease(**options: Any) -> float:
    """For how long a started effect blocks others, as its record says."""
    lease: list[float] = []

    def effect() -> None:
        (item,) = items()
        lease.append(int(item["in_progress_until"]["N"]) / 1000 - time.time())

    forget()
    ask(effect, **options)
    return lease[0]


def test_the_lease_is_what_remains_of_the_invocation_else_a_minute() -> None:
    invoked = CallIdentity("tools/call", "a", lambda_context=Invocation(29))
    assert seconds_of_lease(identity=invoked) == pytest.approx(29, abs=1)
    assert seconds_of_lease(identity=invoked, lease=5) == pytest.approx(5, abs=1)
    assert seconds_of_lease() == pytest.approx(60, abs=1)


def test_times_in_the_record() -> None:
    """DynamoDB removes by seconds, Powertools goes by milliseconds for what is in progress."""
    ask(Effect(), ttl=600)
    (item,) = items()
    assert int(item["expires_at"]["N"]) == pytest.approx(time.time() + 600, abs=3)
    assert int(item["in_progress_until"]["N"]) == pytest.approx((time.time() + 60) * 1000, abs=3000)


def test_a_record_is_not_gone_before_its_lease_is() -> None:
    effect = Effect(held=True)
    with in_progress(effect, ttl=1):
        (item,) = items()
    assert int(item["expires_at"]["N"]) * 1000 >= int(item["in_progress_until"]["N"]) - 999


def test_an_effect_whose_environment_vanished_can_run_again_after_its_lease() -> None:
    crash = """
import asyncio, os
from sealane.policy.principal import Principal, principal_context
from sealane.state.once import CallIdentity, call_identity, once
with principal_context(Principal("alice", "https://issuer.example", "a")):
    with call_identity(CallIdentity("tools/call", "pay", {"order": 17, "to": "Carol"}, "sealed-1")):
        asyncio.run(once(lambda: os._exit(7)))
"""
    assert subprocess.run([sys.executable, "-c", crash], check=False).returncode == 7  # noqa: S603
    effect = Effect()
    with pytest.raises(InProgress):
        ask(effect)
    assert effect.count == 0
    change_record(in_progress_until=int(time.time() * 1000) - 1)
    assert [ask(effect), ask(effect)] == ["paid", "paid"]
    assert effect.count == 1


@pytest.mark.parametrize("end", ["result", "exception"])
def test_an_effect_that_outlived_its_lease_changes_nothing_of_the_attempt_after_it(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    def late() -> str:
        if end == "exception":
            raise ValueError("late")
        return "late"

    slow = Effect(late, held=True)
    effect = Effect("second")
    with in_progress(slow, lease=0.01) as first:
        time.sleep(0.02)
        assert ask(effect) == "second"
    if end == "result":
        assert first.result() == "late"
    else:
        with pytest.raises(ValueError, match="late"):
            first.result()
    assert ask(effect) == "second"
    assert effect.count == 1
    assert "took longer than its lease" in caplog.text


def test_d2_an_expired_record_that_is_still_there_is_gone() -> None:
    effect = Effect()
    ask(effect)
    change_record(expires_at=int(time.time()) + 60)
    ask(effect)
    assert effect.count == 1
    change_record(expires_at=int(time.time()) - 1)
    ask(effect)
    assert effect.count == 2
    ask(effect)
    assert effect.count == 2


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "not a JSON value"),
        ({"a": [float("inf")]}, "not a JSON value"),
        (object(), "object is not JSON serializable"),
        ({(1, 2): 3}, "not a JSON value"),
        (b"x", "bytes is not JSON serializable"),
        (10**5000, "not a JSON value"),
        ("x" * MAX_RESULT, f"{MAX_RESULT} fit"),
        ("é" * (MAX_RESULT // 6), f"{MAX_RESULT} fit"),
    ],
    ids=["nan", "infinity", "object", "key", "bytes", "digits", "large", "large in the table"],
)
def test_a_result_that_cannot_be_stored_is_an_error_each_time_but_the_effect_happens_once(
    value: object, problem: str
) -> None:
    effect = Effect(value)
    texts = []
    for _ in range(2):
        with pytest.raises(UnstorableResult, match=problem) as refused:
            ask(effect)
        assert isinstance(refused.value, StateError)
        assert isinstance(refused.value, TypeError)
        texts.append(str(refused.value))
    assert texts[0] == texts[1]
    assert "will not be done again" in texts[0]
    assert effect.count == 1


def test_the_largest_result_fits() -> None:
    effect = Effect("x" * (MAX_RESULT - 20))
    long = Principal("x" * 2000)
    assert ask(effect, principal=long) == ask(effect, principal=long) == "x" * (MAX_RESULT - 20)
    assert effect.count == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no funds"),
        MCPError(-32602, "no such order"),
        asyncio.CancelledError("from within"),
        IdempotencyPersistenceLayerError("of the effect's own"),
        InProgress("of the effect's own"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_an_exception_comes_out_as_it_is_and_the_call_can_be_made_again(error: BaseException, kind: str) -> None:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise error

    if kind == "async" and isinstance(error, SystemExit):
        pytest.skip("ends the event loop itself")

    async def attempt() -> BaseException:
        try:
            await call(fail if kind == "sync" else fail_later)
        except BaseException as raised:
            return raised
        raise AssertionError("nothing was raised")

    assert asyncio.run(attempt()) is error
    assert error.__context__ is None
    assert not items()
    effect = Effect()
    assert ask(effect) == "paid"
    assert effect.count == 1


def test_a_cancelled_call_finishes_its_effect_and_the_repeat_gets_the_result() -> None:
    async def leave() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, effect)
            await asyncio.to_thread(effect.started.wait, PATIENCE)
            tasks.cancel_scope.cancel()
            asyncio.get_running_loop().call_later(0.1, effect.release.set)

    effect = Effect(held=True)
    asyncio.run(leave())
    assert ask(effect) == "paid"
    assert effect.count == 1


def test_a_call_that_asyncio_cancels_leaves_its_effect_running_to_its_end() -> None:
    async def leave_and_come_back() -> Any:
        first = asyncio.create_task(call(effect))
        await asyncio.to_thread(effect.started.wait, PATIENCE)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(InProgress):
            await call(effect)
        effect.release.set()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await call(effect)
                except InProgress:
                    await asyncio.sleep(0.02)

    effect = Effect(held=True)
    assert asyncio.run(leave_and_come_back()) == "paid"
    assert effect.count == 1


def test_an_effect_that_ends_with_its_event_loop_can_be_had_again() -> None:
    async def stop() -> None:
        task = asyncio.create_task(call(effect))
        await asyncio.to_thread(effect.started.wait, PATIENCE)
        task.cancel()

    effect = Effect(held=True)
    asyncio.run(stop())
    limit = time.monotonic() + PATIENCE
    while items() and time.monotonic() < limit:
        time.sleep(0.02)
    effect.release.set()
    assert ask(lambda: "paid again") == "paid again"


def test_a_call_that_is_cancelled_before_starts_nothing(door: Door) -> None:
    async def leave() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call(effect)

    effect = Effect()
    asyncio.run(leave())
    assert effect.count == 0
    assert not door.operations


VARIABLE: ContextVar[str] = ContextVar("VARIABLE")


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_an_effect_runs_in_the_context_of_the_request(kind: str) -> None:
    where: list[object] = []

    def effect() -> None:
        where.extend([VARIABLE.get(), current_principal(), threading.get_ident()])

    async def async_effect() -> None:
        where.append(asyncio.get_running_loop())
        effect()

    async def request() -> None:
        VARIABLE.set("of the request")
        await call(effect if kind == "sync" else async_effect)
        if kind == "async":
            assert where == [asyncio.get_running_loop(), "of the request", ALICE, threading.get_ident()]
        else:
            assert where[:2] == ["of the request", ALICE]
            assert where[2] != threading.get_ident()

    asyncio.run(request())


def test_many_effects_that_need_threads_do_not_wait_for_each_other() -> None:
    number = 45  # anyio's own limit is 40
    all_started = threading.Event()
    started: list[int] = []

    async def effect() -> None:
        started.append(1)
        if len(started) == number:
            all_started.set()
        with anyio.fail_after(8):
            await anyio.to_thread.run_sync(all_started.wait, 4)
        assert all_started.is_set()

    async def all_at_once() -> None:
        await asyncio.gather(*(call(effect, key=f"{turn}") for turn in range(number)))

    asyncio.run(all_at_once())


@pytest.mark.parametrize("fate", ["throttled", "500", "cut before"])
def test_when_the_table_does_not_answer_the_effect_is_not_carried_out(fate: Any, door: Door) -> None:
    effect = Effect()
    door.fates = [fate] * 3
    with pytest.raises(StateUnavailable, match="Nothing was done"):
        ask(effect)
    assert door.operations == ["PutItem"] * 3
    assert effect.count == 0
    assert ask(effect) == "paid"


def test_without_its_table_the_effect_is_not_carried_out(caplog: pytest.LogCaptureFixture) -> None:
    effect = Effect()
    with pytest.raises(StateUnavailable, match="Nothing was done"):
        ask(effect, table=Table("gone"))
    assert effect.count == 0
    assert "put_item failed: ResourceNotFoundException" in caplog.text


@pytest.mark.parametrize("fate", ["lost", "500 after"])
def test_a_record_whose_answer_was_lost_is_recognised_as_this_calls_own(fate: Any, door: Door) -> None:
    effect = Effect()
    door.fates = [fate]
    assert [ask(effect), ask(effect)] == ["paid", "paid"]
    assert effect.count == 1
    assert door.operations[:3] == ["PutItem", "PutItem", "UpdateItem"]


def test_a_result_whose_answer_was_lost_is_stored_all_the_same(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    effect = Effect()
    door.fates = ["served", "lost"]
    assert [ask(effect), ask(effect)] == ["paid", "paid"]
    assert effect.count == 1
    assert not [record for record in caplog.records if record.name == "sealane.state.once"]


def test_a_removal_whose_answer_was_lost_is_one_all_the_same(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("no funds")

    door.fates = ["served", "lost"]
    with pytest.raises(ValueError, match="no funds"):
        ask(fail)
    assert not items()
    assert not [record for record in caplog.records if record.name == "sealane.state.once"]


def deny(events: Any, operation: str) -> None:
    """Have `operation` denied, as by a role that lacks it."""
    answer = SimpleNamespace(status_code=400), {"Error": {"Code": "AccessDeniedException", "Message": ""}}
    events.register(f"before-call.dynamodb.{operation}", lambda **_: answer)


def test_a_result_that_could_not_be_stored_is_answered_and_logged(
    events: Any, caplog: pytest.LogCaptureFixture
) -> None:
    effect = Effect()
    deny(events, "UpdateItem")
    assert ask(effect) == "paid"
    assert "record stays in progress" in caplog.text
    assert "update_item failed: AccessDeniedException" in caplog.text
    with pytest.raises(InProgress):
        ask(effect)
    assert effect.count == 1


def test_an_exception_comes_out_as_it_is_when_its_record_could_not_be_removed(
    events: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("no funds")

    deny(events, "DeleteItem")
    with pytest.raises(ValueError, match="no funds"):
        ask(fail)
    assert "record stays in progress" in caplog.text
    with pytest.raises(InProgress):
        ask(fail)


def test_a_result_is_stored_though_its_record_was_removed() -> None:
    def effect() -> str:
        (item,) = items()
        client().delete_item(TableName=TABLE, Key={"pk": item["pk"], "sk": item["sk"]})
        return "paid"

    assert [ask(effect), ask(lambda: "again")] == ["paid", "paid"]


def test_an_emulator_that_tells_nothing_of_the_item_is_asked_for_it(door: Door, events: Any) -> None:
    def leave_out(parsed: dict[str, Any], **_: object) -> None:
        parsed.pop("Item", None)

    events.register("after-call.dynamodb.PutItem", leave_out)
    effect = Effect()
    assert [ask(effect), ask(effect)] == ["paid", "paid"]
    assert effect.count == 1
    assert door.operations[-1] == "GetItem"


def test_a_record_that_keeps_changing_is_one_in_progress(events: Any) -> None:
    """Expired for the reader, not for DynamoDB: what Powertools calls inconsistent, and gives up after three times."""

    def expire(parsed: dict[str, Any], **_: object) -> None:
        if "Item" in parsed:
            parsed["Item"]["expires_at"] = {"N": "1"}

    effect = Effect()
    ask(effect)
    events.register("after-call.dynamodb.PutItem", expire)
    with pytest.raises(InProgress):
        ask(effect)
    assert effect.count == 1


def test_nothing_of_a_call_is_in_the_table_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    powertools = logging.getLogger("aws_lambda_powertools")
    powertools.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger=powertools.name)
    identity = CallIdentity("tools/call", "SECRET-tool", {"SECRET-name": "SECRET-value"}, "SECRET-state")

    async def fail() -> None:
        raise ValueError("SECRET-error")

    try:
        for options in ({}, {"key": "SECRET-key"}):
            effect = Effect("RESULT", held=True)
            with pytest.raises(ValueError, match="SECRET-error"):
                ask(fail, identity, **options)
            with in_progress(effect, identity, **options) as first, pytest.raises(InProgress):
                ask(effect, identity, **options)
            assert first.result() == ask(effect, identity, **options) == "RESULT"
            with pytest.raises(StateUnavailable):
                ask(effect, identity, table=Table("gone"), **options)
    finally:
        powertools.removeHandler(caplog.handler)
    assert {"aws_lambda_powertools.utilities.idempotency.persistence.dynamodb", "sealane.state.aws"} <= {
        record.name for record in caplog.records
    }
    assert "SECRET" not in caplog.text
    # botocore's log at DEBUG is every request and answer.
    assert not [
        record.name
        for record in caplog.records
        if "RESULT" in record.getMessage() and not record.name.startswith(("botocore.", "urllib3."))
    ]
    assert "SECRET" not in repr(identity).replace("SECRET-tool", "")
    kept = items()
    assert len(kept) == 2
    for item in kept:
        assert set(item) == {"pk", "sk", "status", "expires_at", "in_progress_until", "attempt", "result"}
        assert "RESULT" in item.pop("result")["S"]
        assert re.fullmatch("call#[0-9a-f]{64}", item["sk"]["S"])
        assert not [secret for secret in ("SECRET", "RESULT", "tools") if secret in json.dumps(item)]


def test_the_user_agent_does_not_grow_from_call_to_call(events: Any) -> None:
    agents: list[object] = []

    def note(request: Any, **_: object) -> None:
        agents.append(request.headers["User-Agent"])

    events.register("before-send.dynamodb", note)
    for turn in range(3):
        ask(Effect(), key=f"{turn}")
    assert len(agents) == 6
    assert len({len(str(agent)) for agent in agents}) == 1


def test_powertools_switch_for_development_lets_every_call_through(monkeypatch: pytest.MonkeyPatch, door: Door) -> None:
    monkeypatch.setenv("POWERTOOLS_IDEMPOTENCY_DISABLED", "true")
    effect = Effect()
    for _ in range(2):
        with pytest.warns(PowertoolsUserWarning, match="development"):
            assert ask(effect) == "paid"
    assert effect.count == 2
    assert not door.operations


def test_a_server_without_such_effects_pays_nothing() -> None:
    loaded = modules_after("import sealane.state.once")
    assert not {"aws_lambda_powertools", "boto3", "botocore", "mcp", "mcp_types"} & loaded
