"""Data keys: who makes them, how long they are used, and what an environment asks AWS for."""

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import snapshot_restore_py  # type: ignore[import-untyped]
from botocore.session import get_session  # type: ignore[import-untyped]

from sealane.state import aws, keyring
from sealane.state.errors import StateNotConfigured, StateUnavailable
from sealane.state.keyring import KEY_VARIABLE, REFRESH, STACK_VARIABLE, DataKey, KeyRefused, Keyring, Ring
from sealane.state.table import TABLE_VARIABLE
from tests.template.translation import is_counted_as_kms_failure
from tests.unit import moto_aws

DAY = 86_400
NOON = 20_787 * DAY + DAY // 2
TTL = 600


@dataclass
class World:
    """What the tests see of AWS, and the time.

    Attributes:
        key_id: the KMS key.
        calls: the operations that the code under test asked for.
        failing: error codes that operations answer with; without a code, an answer that was cut off.
        now: epoch seconds.
    """

    key_id: str
    calls: list[str] = field(default_factory=list)
    failing: dict[str, str] = field(default_factory=dict)
    now: float = NOON

    def keyring(self, stack: str = "stack", token_ttl: float = TTL) -> Keyring:
        return Keyring(stack=stack, key_id=self.key_id, token_ttl=token_ttl)

    def ring(self, server: str = "server", **options: Any) -> Ring:
        """The ring of a new environment."""
        ring: Ring = self.keyring(**options).ring(server)
        return ring

    def asked(self) -> list[str]:
        """The calls since this was asked for last."""
        calls, self.calls = self.calls, []
        return calls

    def answer(self, model: Any, **_: Any) -> Any:
        """Botocore's hook: what it returns is taken for the service's answer."""
        self.calls.append(model.name)
        code = self.failing.get(model.name)
        if code == "":
            return SimpleNamespace(status_code=200), {"message": '{"Cipher', "ResponseMetadata": {}}
        if code:
            return SimpleNamespace(status_code=400), {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {}}
        return None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with moto_aws.moto():
        key_id = get_session().create_client("kms").create_key()["KeyMetadata"]["Arn"]
        world = World(key_id)
        monkeypatch.setattr(keyring, "time", SimpleNamespace(time=lambda: world.now))
        for service in ("dynamodb", "kms"):
            aws._client(service).meta.events.register("before-call", world.answer)
        yield world


def sealing(ring: Ring) -> DataKey:
    anyio.run(ring.load_sealing_key)
    return ring.sealing_key()


def opening(ring: Ring, key_id: str) -> DataKey:
    anyio.run(ring.load, key_id)
    return ring.opening_key(key_id)


def refusal(ring: Ring, key_id: str) -> str:
    with pytest.raises(KeyRefused) as refused:
        opening(ring, key_id)
    return str(refused.value)


def run(function: Callable[..., Any], *args: Any) -> Any:
    return anyio.run(function, *args)


def test_the_first_environment_makes_the_key_and_the_others_read_it(world: World) -> None:
    key = sealing(world.ring())
    assert key.id == "20787-0"
    assert len(key.secret) == 32
    assert world.asked() == ["Query", "GenerateDataKeyWithoutPlaintext", "PutItem", "Query", "Decrypt"]
    other = world.ring()
    assert sealing(other) == opening(other, key.id) == key
    assert world.asked() == ["Query", "Decrypt"]


def test_k1_what_is_loaded_costs_no_call(world: World) -> None:
    ring = world.ring()
    key = sealing(ring)
    world.asked()
    for _ in range(100):
        assert sealing(ring) == opening(ring, key.id) == key
    assert world.asked() == []


def test_environments_that_make_the_first_key_at_once_end_with_one(world: World) -> None:
    rings = [world.ring() for _ in range(5)]

    async def at_once() -> None:
        async with anyio.create_task_group() as tasks:
            for ring in rings:
                tasks.start_soon(ring.load_sealing_key)

    run(at_once)
    assert world.calls.count("GenerateDataKeyWithoutPlaintext") > 1
    assert len({ring.sealing_key() for ring in rings}) == 1
    assert len(moto_aws.items()) == 1


def test_an_environment_that_is_late_overwrites_nothing(world: World) -> None:
    key = sealing(world.ring())
    assert run(functools.partial(world.keyring().make, "server", after=-1)) == key.id
    assert opening(world.ring(), key.id) == key


def test_only_the_wrapped_key_is_in_the_table_and_it_says_when_it_ends(world: World) -> None:
    key = sealing(world.ring())
    [item] = moto_aws.items()
    assert key.secret not in item["wrapped"]["B"]
    assert (item["pk"], item["sk"]) == ({"S": "keyring#request-state#stack"}, {"S": "server#20787-0"})
    assert int(item["expires_at"]["N"]) == 20_788 * DAY + DAY + 60
    assert set(item) == {"pk", "sk", "wrapped", "created_at", "expires_at"}


def test_a_new_key_each_day_and_the_old_one_opens_while_a_token_can_live(world: World) -> None:
    ring = world.ring()
    old = sealing(ring)
    world.now = 20_788 * DAY + 1
    new = sealing(ring)
    assert (new.id, new.secret != old.secret) == ("20788-0", True)
    world.now = 20_788 * DAY + TTL + 59
    assert opening(ring, old.id) == old
    assert opening(world.ring(), old.id) == old
    world.now += 2
    assert refusal(ring, old.id) == "expired key"
    assert refusal(world.ring(), old.id) == "expired key"
    assert sealing(ring) == new


def test_an_expired_key_is_gone_although_the_table_still_has_it(world: World) -> None:
    old = sealing(world.ring())
    world.now = 20_789 * DAY + 61
    assert run(world.keyring().keys) == []
    ring = world.ring()
    assert refusal(ring, old.id) == "unknown key"
    assert len(moto_aws.items()) == 1


def test_secrets_that_no_longer_open_are_dropped(world: World) -> None:
    ring = world.ring()
    old = sealing(ring)
    world.now = 20_789 * DAY + 61
    sealing(ring)
    assert old.secret not in repr(vars(ring)).encode()
    assert old.id not in ring._unwrapped


def test_a_key_that_was_made_meanwhile_is_looked_for_once(world: World) -> None:
    ring = world.ring()
    sealing(ring)
    run(world.keyring().rotate, "server")
    world.asked()
    assert opening(ring, "20787-1").id == "20787-1"
    assert world.asked() == ["Query", "Decrypt"]
    assert refusal(ring, "20787-2") == "unknown key"
    assert world.asked() == ["Query"]
    assert refusal(ring, "20787-2") == "unknown key"
    assert world.asked() == []


def test_invented_key_ids_cannot_make_an_environment_look_again_and_again(world: World) -> None:
    ring = world.ring()
    sealing(ring)
    world.asked()
    for number in range(1, 1000):
        assert refusal(ring, f"20787-{number}") == "unknown key"
    assert world.asked() == ["Query"] * 3
    world.now += REFRESH
    run(world.keyring().rotate, "server")
    assert opening(ring, "20787-1").id == "20787-1"
    world.asked()
    assert refusal(ring, "20787-2") == "unknown key"
    assert world.asked() == ["Query"]


@pytest.mark.parametrize(
    "key_id",
    [
        "",
        "v1",
        "20787",
        "20787-",
        "-0",
        "20787-x",
        "20787-99999",
        "99999999-0",
        "20785-0",
        "20789-0",
        "٢٠٧٨٧-0",
        "x" * 99,
    ],
)
def test_what_cannot_be_a_key_of_these_days_is_not_looked_for(world: World, key_id: str) -> None:
    ring = world.ring()
    sealing(ring)
    world.asked()
    assert refusal(ring, key_id) == "unknown key"
    assert world.asked() == []


def test_a_clock_that_is_behind_finds_the_next_days_key(world: World) -> None:
    behind = world.ring()
    world.now = 20_788 * DAY - 30
    sealing(behind)
    world.now = 20_788 * DAY + 1
    tomorrow = sealing(world.ring())
    world.now = 20_788 * DAY - 29
    assert opening(behind, tomorrow.id) == tomorrow


def test_a_rotated_key_seals_everywhere_within_the_refresh(world: World) -> None:
    ring = world.ring()
    old = sealing(ring)
    assert run(world.keyring().rotate, "server") == "20787-1"
    assert sealing(ring) == old
    world.now += REFRESH
    new = sealing(ring)
    assert new.id == "20787-1"
    assert new.secret != old.secret
    assert opening(ring, old.id) == old


def test_a_revoked_key_is_refused_within_the_refresh_and_replaced(world: World) -> None:
    ring = world.ring()
    old = sealing(ring)
    run(world.keyring().revoke, "server", old.id)
    assert refusal(world.ring(), old.id) == "revoked key"
    world.now += REFRESH
    assert refusal(ring, old.id) == "revoked key"
    assert sealing(ring).id == "20787-1"
    assert sealing(world.ring()).id == "20787-1"
    [first, second] = run(world.keyring().keys)
    assert (first.revoked_at, second.revoked_at) == (NOON, None)


def test_only_a_key_that_exists_can_be_revoked(world: World) -> None:
    with pytest.raises(KeyRefused, match="unknown key"):
        run(world.keyring().revoke, "server", "20787-0")
    assert moto_aws.items() == []


def alter(wrapped: bytes) -> None:
    moto_aws.client().update_item(
        TableName=moto_aws.TABLE,
        Key={"pk": {"S": "keyring#request-state#stack"}, "sk": {"S": "server#20787-0"}},
        UpdateExpression="SET #wrapped = :wrapped",
        ExpressionAttributeNames={"#wrapped": "wrapped"},
        ExpressionAttributeValues={":wrapped": {"B": wrapped}},
    )


def test_an_altered_wrapped_key_opens_nothing_and_sealing_goes_on_with_a_new_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    cached = world.ring()
    key = sealing(cached)
    alter(moto_aws.items()[0]["wrapped"]["B"][::-1])
    world.asked()
    ring = world.ring()
    for _ in range(3):
        assert refusal(ring, key.id) == "the wrapped key does not open under this encryption context"
    assert world.asked() == ["Query", "Decrypt"]
    assert "data key 20787-0 of server server is refused by KMS" in caplog.text
    assert any(map(is_counted_as_kms_failure, caplog.messages))
    assert sealing(ring).id == "20787-1"
    assert opening(cached, key.id) == key


def test_k2_a_key_that_was_wrapped_under_another_encryption_context_is_refused(world: World) -> None:
    sealing(world.ring())
    foreign = world.keyring(stack="another-stack")
    made = (
        get_session()
        .create_client("kms")
        .generate_data_key_without_plaintext(
            KeyId=world.key_id, KeySpec="AES_256", EncryptionContext=foreign.encryption_context("server")
        )
    )
    alter(made["CiphertextBlob"])
    assert refusal(world.ring(), "20787-0") == "the wrapped key does not open under this encryption context"


def test_the_encryption_context_names_stack_purpose_and_audience(world: World) -> None:
    assert world.keyring().encryption_context("server") == {
        "sealane:stack": "stack",
        "sealane:purpose": "request-state",
        "sealane:audience": "server",
    }


def test_servers_have_keys_of_their_own(world: World) -> None:
    names = ["server", "serve", "server#1", "server#9", "ser#ver", ""]
    keys = {name: sealing(world.ring(name)) for name in names}
    assert len({key.secret for key in keys.values()}) == len(names)
    assert sorted(key.audience for key in run(world.keyring().keys)) == sorted(names)
    for name, key in keys.items():
        assert sealing(world.ring(name)) == key


def test_the_ring_of_a_server_is_kept(world: World) -> None:
    ring = world.keyring()
    assert ring.ring("server") is ring.ring("server")
    assert ring.ring("server") is not ring.ring("other")


def test_kms_out_at_the_start_then_back(world: World) -> None:
    ring = world.ring()
    world.failing["GenerateDataKeyWithoutPlaintext"] = "KMSInternalException"
    with pytest.raises(StateUnavailable):
        sealing(ring)
    del world.failing["GenerateDataKeyWithoutPlaintext"]
    world.failing["Decrypt"] = "AccessDeniedException"
    with pytest.raises(StateUnavailable):
        sealing(ring)
    with pytest.raises(StateUnavailable):
        opening(world.ring(), "20787-0")
    world.failing.clear()
    assert sealing(ring).id == "20787-0"
    assert len(moto_aws.items()) == 1


def test_what_is_loaded_works_on_while_kms_and_the_table_are_out(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    ring = world.ring()
    key = sealing(ring)
    world.failing |= {"Query": "ThrottlingException", "Decrypt": "KMSInternalException"}
    world.asked()
    world.now += REFRESH
    for _ in range(10):
        assert sealing(ring) == opening(ring, key.id) == key
    assert world.asked() == ["Query"]
    assert "what this environment has unwrapped" not in caplog.text
    assert "the keys that this environment has unwrapped keep working" in caplog.text
    with pytest.raises(StateUnavailable):
        sealing(world.ring())
    world.now += REFRESH
    world.failing.clear()
    assert sealing(ring) == key


@pytest.mark.parametrize("operation", ["GenerateDataKeyWithoutPlaintext", "Decrypt"])
def test_an_answer_of_kms_that_was_cut_off_is_none(world: World, operation: str) -> None:
    world.failing[operation] = ""
    ring = world.ring()
    with pytest.raises(StateUnavailable):
        sealing(ring)
    world.failing.clear()
    assert sealing(ring).id == "20787-0"


def test_a_kms_that_opens_nothing_that_it_made_ends_in_an_error(world: World) -> None:
    world.failing["Decrypt"] = "InvalidCiphertextException"
    with pytest.raises(StateUnavailable):
        sealing(world.ring())
    assert world.asked().count("GenerateDataKeyWithoutPlaintext") == 2


def test_more_keys_than_fit_in_an_answer(world: World) -> None:
    ring = world.ring()
    sealing(ring)
    for number in range(40):
        run(world.keyring().rotate, "server")
        moto_aws.client().update_item(
            TableName=moto_aws.TABLE,
            Key={"pk": {"S": "keyring#request-state#stack"}, "sk": {"S": f"server#20787-{number + 1}"}},
            UpdateExpression="SET padding = :padding",
            ExpressionAttributeValues={":padding": {"S": "x" * 40_000}},
        )
    world.asked()
    assert [key.number for key in run(world.keyring().keys)] == list(range(41))
    assert len(world.asked()) > 1
    assert sealing(world.ring()).id == "20787-40"


def test_what_was_snapshotted_is_forgotten_after_a_restore(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = world.ring()
    sealing(plain)
    assert snapshot_restore_py.get_after_restore() == []
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "snap-start")
    ring = world.ring()
    key = sealing(ring)
    world.asked()
    hooks = snapshot_restore_py.get_after_restore()
    try:
        for hook, args, options in hooks:
            hook(*args, **options)
        with pytest.raises(KeyRefused):
            ring.sealing_key()
        assert sealing(ring) == key
        assert world.asked() == ["Query", "Decrypt"]
    finally:
        hooks.clear()


def test_a_key_never_shows_its_secret(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        key = sealing(world.ring())
    assert repr(key) == "DataKey('20787-0')"
    for secret in (repr(key.secret), key.secret.hex()):
        assert secret not in caplog.text


def test_the_environment_names_stack_key_and_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Keyring.configured() is None
    monkeypatch.setenv(KEY_VARIABLE, world.key_id)
    with pytest.raises(StateNotConfigured, match="SEALANE_STACK is not set"):
        Keyring.configured()
    monkeypatch.setenv(STACK_VARIABLE, "stack")
    configured = Keyring.configured()
    assert configured is not None
    assert (configured.stack, configured.key_id, configured.table.name) == ("stack", world.key_id, moto_aws.TABLE)
    monkeypatch.delenv(TABLE_VARIABLE)
    assert Keyring.configured() is None


@pytest.mark.parametrize("token_ttl", [0, -1, 86_401, float("nan")])
def test_a_token_lives_a_day_at_most(token_ttl: float) -> None:
    with pytest.raises(ValueError, match="token_ttl is in seconds"):
        Keyring(stack="stack", key_id="key", token_ttl=token_ttl)
