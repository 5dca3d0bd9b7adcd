"""Calls to AWS: bounded, off the event loop, with one error and one line in the log when they fail."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sealane.state import aws, deadline
from sealane.state.aws import AwsRefusal
from sealane.state.errors import StateNotConfigured, StateUnavailable
from sealane.state.table import TABLE_VARIABLE, Table
from tests.template.translation import is_counted_as_kms_failure
from tests.unit import moto_aws
from tests.unit.moto_aws import Door, Fate

KEY = {"pk": {"S": "secret partition"}, "sk": {"S": "secret handle"}}
ITEM = {**KEY, "value": {"S": "secret value"}}
TEXT = "The stored data is out of reach at the moment. Try the same call again in a few seconds."


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of moto's server."""
    with moto_aws.moto_server() as url:
        yield url


@pytest.fixture
def door(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """A table behind a door; what is sent again is sent at once."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0)
    with Door(server).open() as door:
        yield door


@pytest.fixture
def own_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """All that is logged after somebody has set all loggers to DEBUG."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="botocore")
    return caplog


def fails(log: pytest.LogCaptureFixture, reason: str) -> None:
    """A call fails, and says why in the log alone."""
    with pytest.raises(StateUnavailable) as caught:
        asyncio.run(Table().call("put_item", Item=ITEM))
    assert str(caught.value) == TEXT
    assert caught.value.__cause__ is None
    lines = [record.getMessage() for record in log.records if record.name == "sealane.state.aws"]
    assert lines == [f"dynamodb put_item failed: {reason}"]
    assert not is_counted_as_kms_failure(lines[0])
    assert "secret" not in log.text


# Bounds


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        ("throttled", "ProvisionedThroughputExceededException"),
        ("500", "InternalServerError"),
        ("busy", "503"),
        ("cut before", "ConnectionClosedError"),
    ],
)
def test_an_outage_is_tried_three_times(fate: Fate, reason: str, door: Door, own_log: pytest.LogCaptureFixture) -> None:
    door.fates = [fate] * 10
    fails(own_log, reason)
    assert door.operations == ["PutItem"] * 3


@pytest.mark.parametrize("fate", ["throttled", "500", "busy", "cut before", "lost", "cut", "500 after"])
def test_a_disturbance_is_not_noticed(fate: Fate, door: Door) -> None:
    door.fates = [fate, fate]
    asyncio.run(Table().call("put_item", Item=ITEM))
    assert door.operations == ["PutItem"] * 3
    door.fates = [fate, fate]
    assert asyncio.run(Table().call("get_item", Key=KEY))["Item"] == ITEM


def test_a_service_that_does_not_answer_is_given_up(
    door: Door, own_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "_READ_TIMEOUT", 0.1)
    door.fates = ["held"] * 10
    fails(own_log, "ReadTimeoutError")
    assert aws._client("dynamodb").meta.config.read_timeout == 0.1
    assert door.operations == ["PutItem"] * 3


def test_a_call_ends_with_the_time_of_its_invocation(
    door: Door, own_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not tried again when nobody waits any more."""
    monkeypatch.setattr(aws, "_READ_TIMEOUT", 1.5)
    asyncio.run(Table().call("get_item", Key=KEY))
    door.fates = ["held"] * 10
    with deadline.within(1):
        fails(own_log, "the time of the invocation is up")
        while len(failures := [each for each in own_log.messages if "put_item failed" in each]) < 2:
            time.sleep(0.01)
    assert failures[1] == "dynamodb put_item failed: TimeoutError"
    assert door.operations == ["GetItem", "PutItem"]


def test_without_time_nothing_is_sent(door: Door, own_log: pytest.LogCaptureFixture) -> None:
    asyncio.run(Table().call("get_item", Key=KEY))
    with deadline.within(0), pytest.raises(StateUnavailable):
        Table().call_blocking("put_item", Item=ITEM)
    with deadline.within(0), pytest.raises(StateUnavailable):
        asyncio.run(Table().call("put_item", Item=ITEM))
    asyncio.run(Table().call("get_item", Key=KEY))
    assert door.operations == ["GetItem"] * 2


def test_a_service_that_nothing_reaches_is_given_up(
    own_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "_CONNECT_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as waiting:
        # A listener with a full backlog drops what else wants to connect.
        waiting.connect(full.getsockname())
        others = [socket.socket() for _ in range(4)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        with moto_aws.aws_variables(f"http://127.0.0.1:{full.getsockname()[1]}"):
            fails(own_log, "ConnectTimeoutError")
            assert aws._client("dynamodb").meta.config.connect_timeout == 0.1
        for other in others:
            other.close()


def test_a_service_that_is_not_there_is_given_up(own_log: pytest.LogCaptureFixture) -> None:
    with moto_aws.aws_variables(moto_aws.NOWHERE):
        fails(own_log, "EndpointConnectionError")


def test_without_a_region_it_is_out_of_reach_too(own_log: pytest.LogCaptureFixture) -> None:
    with moto_aws.aws_variables() as variables:
        variables.delenv("AWS_DEFAULT_REGION")
        fails(own_log, "NoRegionError")


def test_a_refusal_is_not_tried_again(
    door: Door, own_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TABLE_VARIABLE, "absent")
    fails(own_log, "ResourceNotFoundException")
    assert door.operations == ["PutItem"]


def test_a_condition_that_does_not_hold_is_told_to_the_caller(door: Door, own_log: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AwsRefusal) as caught:
        asyncio.run(Table().call("delete_item", Key=KEY, ConditionExpression="attribute_exists(absent)"))
    assert caught.value.code == "ConditionalCheckFailedException"
    assert caught.value.response["ResponseMetadata"]["RetryAttempts"] == 0
    assert "failed" not in own_log.text


def test_a_call_does_not_block_the_event_loop(door: Door) -> None:
    async def meanwhile() -> dict[str, Any]:
        waiting = asyncio.create_task(Table().call("get_item", Key=KEY))
        # The answer is held until the loop, which therefore goes on, lets it go.
        await asyncio.to_thread(door.holding.wait)
        assert not waiting.done()
        door.release.set()
        return await waiting

    asyncio.run(Table().call("put_item", Item=ITEM))
    door.fates = ["held"]
    assert asyncio.run(meanwhile())["Item"] == ITEM
    assert door.operations == ["PutItem", "GetItem"]


def test_calls_at_once_share_one_client(door: Door) -> None:
    async def at_once() -> None:
        await asyncio.gather(*(Table().call("get_item", Key=KEY) for _ in range(20)))

    asyncio.run(at_once())
    assert aws._client.cache_info().currsize == 1
    aws.forget_clients()
    assert aws._client.cache_info().currsize == 0


def test_a_setting_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TABLE_VARIABLE, "")
    with pytest.raises(StateNotConfigured, match=TABLE_VARIABLE):
        aws.setting(TABLE_VARIABLE)
    monkeypatch.setenv(TABLE_VARIABLE, "data")
    assert aws.setting(TABLE_VARIABLE) == "data"
