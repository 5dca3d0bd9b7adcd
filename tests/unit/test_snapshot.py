"""SnapStart: environments that are made from one snapshot, with the hooks as AWS's library keeps them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sealane.state.keyring import KEY_VARIABLE, STACK_VARIABLE, Keyring
from sealane.state.table import TABLE_VARIABLE
from tests.unit import moto_aws
from tests.unit.moto_aws import Door

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, str]]:
    """URL of moto's server, and the id of a key of its KMS."""
    with moto_aws.moto_server() as url, moto_aws.aws_variables(url):
        yield url, moto_aws.get_session().create_client("kms").create_key()["KeyMetadata"]["KeyId"]


@pytest.fixture
def door(upstream: tuple[str, str]) -> Iterator[Door]:
    with Door(upstream[0]).open() as door:
        yield door


class Snapshot:
    """A snapshot of an environment.

    Attributes:
        told: how many clients for AWS it has, and a state that it has sealed, if it was warm.
    """

    def __init__(self, program: "subprocess.Popen[str]") -> None:
        self._program = program
        self.told = self._line()

    def restore(self, state: str | None = None) -> Any:
        """What a new environment tells, after it has opened `state`, or has made a handle and a state."""
        assert self._program.stdin
        self._program.stdin.write(json.dumps(state) + "\n")
        self._program.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._program.stdout
        line = self._program.stdout.readline()
        assert line, "the environment has ended"
        return json.loads(line)


@contextmanager
def snapshot(door: Door, key: str, *arguments: str) -> Iterator[Snapshot]:
    variables = {
        "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
        "AWS_ENDPOINT_URL": door.url,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": "eu-west-1",
        STACK_VARIABLE: "stack",
        KEY_VARIABLE: key,
        TABLE_VARIABLE: moto_aws.TABLE,
    }
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "tests.unit.snapshot_environment", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield Snapshot(program)
        finally:
            program.kill()


def test_environments_of_one_snapshot_differ_and_open_each_others_state(upstream: tuple[str, str], door: Door) -> None:
    with snapshot(door, upstream[1], "warm") as made:
        one, other = made.restore(), made.restore()
        assert [name for name in one if one[name] == other[name]] == []
        for state in (made.told["state"], one["state"], other["state"]):
            assert made.restore(state)["opened"]["result"]["content"][0]["text"] == "opened sealed"


def test_an_environment_has_connections_of_its_own(upstream: tuple[str, str], door: Door) -> None:
    with snapshot(door, upstream[1], "warm") as made:
        of_the_snapshot = {address for addresses in door.connections.values() for address in addresses}
        assert of_the_snapshot
        before = len(door.operations)
        door.connections.clear()
        made.restore()
        assert len(door.operations) > before
        assert not of_the_snapshot & {address for addresses in door.connections.values() for address in addresses}


def test_an_environment_reads_the_keyring_again(upstream: tuple[str, str], door: Door) -> None:
    """A key that was revoked since is refused at once, not after the next refresh; a new one is found and used."""
    with snapshot(door, upstream[1], "warm") as made:
        keyring = Keyring(stack="stack", key_id=upstream[1], table=None)
        [key] = asyncio.run(keyring.keys("restored"))
        asyncio.run(keyring.revoke("restored", key.id))
        refused = made.restore(made.told["state"])["opened"]["error"]
        assert (refused["code"], refused["data"]) == (-32602, {"reason": "invalid_request_state"})
        state = made.restore()["state"]
        assert made.restore(state)["opened"]["result"]["content"][0]["text"] == "opened sealed"


def test_what_calls_need_is_loaded_before_and_nobody_is_called(upstream: tuple[str, str], door: Door) -> None:
    with snapshot(door, upstream[1]) as made:
        assert made.told == {"state": None, "clients": 2}
        assert door.operations == []
        assert made.restore()["handle"]
