"""What is told of changes: by code outside a request, without an SDK."""

import asyncio
from collections.abc import Iterator
from typing import Any, get_args

import anyio
import anyio.to_thread
import pytest
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from sealane import DynamoDBSubscriptionBus, publish_change
from sealane.state.changes import Change, ChangeKind, change_log
from sealane.state.errors import InvalidValue, StateNotConfigured, StateUnavailable
from sealane.state.table import TABLE_VARIABLE, Table
from tests.unit.moto_aws import NOWHERE, aws_variables, create_table, moto
from tests.unit.test_imports import modules_after

EVENTS: list[tuple[ChangeKind, str | None, ServerEvent]] = [
    ("tools_changed", None, ToolsListChanged()),
    ("prompts_changed", None, PromptsListChanged()),
    ("resources_changed", None, ResourcesListChanged()),
    ("resource_updated", "note://1", ResourceUpdated(uri="note://1")),
]
WRONG: list[tuple[Any, Any]] = [
    ("tools_change", None),
    ("", None),
    (None, None),
    (["tools_changed"], None),
    ("tools_changed", "note://1"),
    ("resources_changed", ""),
    ("resource_updated", None),
    ("resource_updated", 1),
]


@pytest.fixture
def table() -> Iterator[None]:
    with moto():
        yield


@pytest.mark.usefixtures("table")
def test_every_kind_of_change_reaches_who_listens() -> None:
    assert {kind for kind, _, _ in EVENTS} == set(get_args(ChangeKind))

    async def heard() -> list[ServerEvent]:
        bus = DynamoDBSubscriptionBus()
        events: list[ServerEvent] = []
        complete = asyncio.Event()

        def listen(event: ServerEvent) -> None:
            events.append(event)
            if len(events) == len(EVENTS):
                complete.set()

        async with bus.open_stream(limit=1, seconds=10):
            unsubscribe = bus.subscribe(listen)
            for kind, uri, _ in EVENTS:
                await anyio.to_thread.run_sync(publish_change, kind, uri)
            with anyio.fail_after(5):
                await complete.wait()
            unsubscribe()
        return events

    assert asyncio.run(heard()) == [event for _, _, event in EVENTS]


@pytest.mark.usefixtures("table")
def test_a_change_can_be_told_in_another_table() -> None:
    create_table("other")
    publish_change("tools_changed", table=Table("other"))
    assert asyncio.run(change_log().end()) == 0
    assert asyncio.run(change_log(Table("other")).read(1)) == [(1, '["tools_changed",null]')]


@pytest.mark.parametrize(("kind", "uri"), WRONG)
def test_what_is_no_change_is_refused_without_a_call(kind: Any, uri: Any) -> None:
    with aws_variables(NOWHERE), pytest.raises(InvalidValue, match=r"change is one of|uri belongs to resource_updated"):
        publish_change(kind, uri)


def test_a_table_out_of_reach_is_told() -> None:
    with aws_variables(NOWHERE), pytest.raises(StateUnavailable):
        publish_change("tools_changed")


def test_an_environment_without_a_table_is_told() -> None:
    with aws_variables(NOWHERE) as patch:
        patch.delenv(TABLE_VARIABLE)
        with pytest.raises(StateNotConfigured, match=TABLE_VARIABLE):
            publish_change("tools_changed")


def test_code_outside_a_request_needs_no_sdk() -> None:
    loaded = modules_after("from sealane import publish_change")
    assert "sealane.state.changes" in loaded
    assert not {name for name in loaded if name.startswith(("mcp", "pydantic", "starlette", "botocore"))}


@pytest.mark.parametrize("uri", ["note://1", "", 'a"b\\', "наука://☃\n", "\ud800"])
def test_a_change_is_the_same_after_it_was_kept(uri: str) -> None:
    for change in [Change("tools_changed"), Change("resource_updated", uri)]:
        text = change.to_text()
        assert text.isascii()
        assert Change.from_text(text) == change


@pytest.mark.parametrize("text", ['["tasks_changed",null]', "no JSON", "{}", "[1]", '["resource_updated",null]', "7"])
def test_what_is_no_change_of_this_version_is_told(text: str) -> None:
    with pytest.raises(InvalidValue):
        Change.from_text(text)
