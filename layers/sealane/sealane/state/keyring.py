"""Data keys for what clients carry: one a day from KMS, wrapped in the table, unwrapped once in each environment."""

import functools
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from sealane import snapshot
from sealane.state import aws
from sealane.state.errors import StateUnavailable
from sealane.state.table import TABLE_VARIABLE, Table

__all__ = ["KEY_VARIABLE", "STACK_VARIABLE", "DataKey", "KeyRefused", "Keyring", "Ring", "StoredKey"]

logger = logging.getLogger(__name__)

KEY_VARIABLE: Final = "SEALANE_KEY"
"""Id or ARN of the KMS key that wraps data keys. Default: none, and request state is not shared."""
STACK_VARIABLE: Final = "SEALANE_STACK"
"""Name of the stack, which data keys are bound to. No default."""

MAX_TOKEN_TTL: Final = 86_400
"""Seconds; a wrapped key is kept as long as this after its last day of sealing."""
REFRESH: Final = 60
"""Seconds after which an environment reads the ring again, and so learns of rotated and revoked keys."""
_LOOKS: Final = 3
"""Unknown keys that an environment looks for between two refreshes."""
_CLOCK_SKEW: Final = 60
"""Seconds that the clocks of two environments may differ."""
_DAY: Final = 86_400
_PURPOSE: Final = "request-state"
_KEY_ID: Final = re.compile(r"([0-9]{1,6})-([0-9]{1,4})")
_AUDIENCES: Final = 16
"""Rings that an environment keeps; a server has one name, so more than one is rare."""


class KeyRefused(Exception):
    """A key that opens nothing here; the text says why, for the log."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A data key that this environment has unwrapped.

    Attributes:
        id: names the key in tokens.
        secret: 32 bytes.
    """

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"DataKey({self.id!r})"


class StoredKey(NamedTuple):
    """A data key as the table has it, wrapped by KMS.

    Attributes:
        audience: name of the server whose request state it seals.
        id: days since 1970 and the number of the key on that day, such as `20787-0`.
        wrapped: what KMS made; KMS alone can open it.
        created_at: epoch seconds.
        expires_at: epoch seconds.
        revoked_at: epoch seconds; `None` when it is not revoked.
    """

    audience: str
    id: str
    wrapped: bytes
    created_at: int
    expires_at: int
    revoked_at: int | None

    @property
    def day(self) -> int:
        """Days since 1970 of the day on which it seals, in UTC."""
        return int(self.id.partition("-")[0])

    @property
    def number(self) -> int:
        """Its number on that day; the highest seals."""
        return int(self.id.partition("-")[2])


class Keyring:
    """The data keys of a stack.

    Args:
        stack: name of the stack, a part of every key's encryption context.
        key_id: id or ARN of the KMS key that wraps.
        table: the data table; by default the one that the environment names.
        token_ttl: seconds that a sealed token lives; keys open that much longer than they seal.
    """

    def __init__(self, *, stack: str, key_id: str, table: Table | None = None, token_ttl: float = 600.0) -> None:
        if not 0 < token_ttl <= MAX_TOKEN_TTL:
            raise ValueError(f"token_ttl is in seconds, above 0 and up to {MAX_TOKEN_TTL}: got {token_ttl!r}")
        self.stack = stack
        self.key_id = key_id
        self.table = table or Table()
        self.token_ttl = token_ttl
        self.ring = functools.lru_cache(maxsize=_AUDIENCES)(functools.partial(Ring, self))

    @classmethod
    def configured(cls) -> Self | None:
        """`from_environment()` where the environment names a key and a table, else `None`."""
        if KEY_VARIABLE in os.environ and TABLE_VARIABLE in os.environ:
            return cls.from_environment()
        return None

    @classmethod
    def from_environment(cls, *, token_ttl: float = 600.0) -> Self:
        """The keyring that the environment variables `SEALANE_STACK`, `SEALANE_KEY` and `SEALANE_TABLE` name.

        Raises:
            StateNotConfigured: one of them is not set.
        """
        return cls(
            stack=aws.setting(STACK_VARIABLE),
            key_id=aws.setting(KEY_VARIABLE),
            table=Table(Table().name),
            token_ttl=token_ttl,
        )

    async def keys(self, audience: str | None = None) -> list[StoredKey]:
        """Every key that is not expired, in the order of making; only those of one server where it is named.

        Raises:
            StateUnavailable: the table cannot be read.
        """
        condition, values = "pk = :pk", {":pk": {"S": self._partition}}
        if audience is not None:
            condition += " AND begins_with(sk, :audience)"
            values[":audience"] = {"S": f"{audience}#"}
        query = {"KeyConditionExpression": condition, "ExpressionAttributeValues": values, "ConsistentRead": True}
        found: list[StoredKey] = []
        while True:
            answer = await self.table.call("query", **query)
            found += _stored_keys(answer["Items"])
            if "LastEvaluatedKey" not in answer:
                break
            query["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        now = time.time()
        live = (key for key in found if key.expires_at > now and audience in (None, key.audience))
        return sorted(live, key=lambda key: (key.day, key.number))

    async def make(self, audience: str, *, after: int) -> str:
        """Make the data key that follows today's key number `after`, unless another environment has just made it.

        Returns:
            The id of the key, whoever made it. It seals as soon as an environment has read the ring again.

        Raises:
            StateUnavailable: KMS or the table does not do it.
        """
        now = int(time.time())
        key_id = f"{now // _DAY}-{after + 1}"
        # https://docs.aws.amazon.com/kms/latest/APIReference/API_GenerateDataKeyWithoutPlaintext.html
        made = await aws.call(
            "kms",
            "generate_data_key_without_plaintext",
            KeyId=self.key_id,
            KeySpec="AES_256",
            EncryptionContext=self.encryption_context(audience),
        )
        item = {
            **self._item_key(audience, key_id),
            "wrapped": {"B": _given(made, "CiphertextBlob")},
            "created_at": {"N": str(now)},
            "expires_at": {"N": str((now // _DAY + 1) * _DAY + MAX_TOKEN_TTL + _CLOCK_SKEW)},
        }
        try:
            await self.table.call("put_item", Item=item, ConditionExpression="attribute_not_exists(pk)")
        except aws.AwsRefusal:
            logger.info("another environment made data key %s first", key_id)
        return key_id

    async def rotate(self, audience: str) -> str:
        """Make a new data key at once; the one before opens on. Gives the id of the new one.

        Raises:
            StateUnavailable: KMS or the table does not do it.
        """
        today = int(time.time()) // _DAY
        numbers = [key.number for key in await self.keys(audience) if key.day == today]
        return await self.make(audience, after=max(numbers, default=-1))

    async def revoke(self, audience: str, key_id: str) -> None:
        """Take a data key out of use: environments refuse what it sealed within `REFRESH` seconds.

        Raises:
            KeyRefused: there is no such key.
            StateUnavailable: the table cannot be written.
        """
        try:
            await self.table.call(
                "update_item",
                Key=self._item_key(audience, key_id),
                UpdateExpression="SET revoked_at = if_not_exists(revoked_at, :now)",
                ConditionExpression="attribute_exists(pk)",
                ExpressionAttributeValues={":now": {"N": str(int(time.time()))}},
            )
        except aws.AwsRefusal:
            raise KeyRefused("unknown key") from None

    @property
    def _partition(self) -> str:
        return f"keyring#{_PURPOSE}#{self.stack}"

    def _item_key(self, audience: str, key_id: str) -> dict[str, Any]:
        return {"pk": {"S": self._partition}, "sk": {"S": f"{audience}#{key_id}"}}

    def encryption_context(self, audience: str) -> dict[str, str]:
        """What a wrapped key is bound to: KMS opens it under the same words only.

        https://docs.aws.amazon.com/kms/latest/developerguide/encrypt_context.html
        """
        return {"sealane:stack": self.stack, "sealane:purpose": _PURPOSE, "sealane:audience": audience}


class Ring:
    """The keys of one server, as far as this environment knows them.

    `load` and `load_sealing_key` may call AWS; what they have loaded is there without a call until the day ends.

    Args:
        keyring: where the keys come from.
        audience: the server's name.
    """

    def __init__(self, keyring: Keyring, audience: str) -> None:
        self._keyring = keyring
        self._audience = audience
        self.forget()
        snapshot.after_restore(self.forget)

    def forget(self) -> None:
        """Know nothing, as a new environment does."""
        self._stored: dict[str, StoredKey] = {}
        # By key id: the wrapped key, and what KMS made of it; None where KMS says that it is not what it wrapped.
        self._unwrapped: dict[str, tuple[bytes, DataKey | None]] = {}
        self._refresh_due = 0.0
        self._looked: set[str] = set()

    async def load(self, key_id: str) -> None:
        """Learn what there is to know of a key that a token names.

        A key that this environment has not seen makes it read the ring once; a client that invents keys is
        given a few such reads between two refreshes.

        Raises:
            StateUnavailable: KMS or the table is out, and the key was not loaded before.
        """
        now = time.time()
        await self._refresh_when_due(now)
        if key_id not in self._stored and self._may_look(key_id, now):
            self._looked.add(key_id)
            await self._refresh(now)
        if (stored := self._stored.get(key_id)) is not None and self._refusal(stored, now) is None:
            await self._unwrap(stored)

    async def load_sealing_key(self) -> None:
        """Get today's newest key, and make it where there is none.

        Raises:
            StateUnavailable: KMS or the table is out, and the key was not loaded before.
        """
        now = time.time()
        await self._refresh_when_due(now)
        for _ in range(2):
            for stored in self._sealing_keys(now):
                if await self._unwrap(stored) is not None:
                    return
            numbers = [key.number for key in self._stored.values() if key.day == now // _DAY]
            await self._keyring.make(self._audience, after=max(numbers, default=-1))
            await self._refresh(now)
        logger.error("no data key of server %s can be unwrapped, not even a new one", self._audience)
        raise StateUnavailable("There is no data key to seal with: KMS opens none. The log has the reason.")

    def sealing_key(self) -> DataKey:
        """The key that `load_sealing_key` has loaded.

        Raises:
            KeyRefused: it has loaded none.
        """
        for stored in self._sealing_keys(time.time()):
            if (key := self._known(stored)) is not None:
                return key
        raise KeyRefused("no key to seal with")

    def opening_key(self, key_id: str) -> DataKey:
        """The key with this id, after `load`.

        Raises:
            KeyRefused: it is unknown, revoked, past its time, or KMS does not open it under this stack's name.
        """
        stored = self._stored.get(key_id)
        if stored is None:
            raise KeyRefused("unknown key")
        if (refusal := self._refusal(stored, time.time())) is not None:
            raise KeyRefused(refusal)
        if (key := self._known(stored)) is None:
            raise KeyRefused("the wrapped key does not open under this encryption context")
        return key

    def _sealing_keys(self, now: float) -> Iterator[StoredKey]:
        """Today's keys, the newest first."""
        for stored in reversed(self._stored.values()):
            if stored.day == now // _DAY and self._refusal(stored, now) is None:
                yield stored

    def _refusal(self, stored: StoredKey, now: float) -> str | None:
        if stored.revoked_at is not None:
            return "revoked key"
        return None if now < self._opens_until(stored.day) else "expired key"

    def _opens_until(self, day: int) -> float:
        """Epoch seconds until which a token that was sealed on `day` can live."""
        return (day + 1) * _DAY + self._keyring.token_ttl + _CLOCK_SKEW

    def _may_look(self, key_id: str, now: float) -> bool:
        """Whether there may be such a key by now, and no client has had us look in vain too often."""
        match = _KEY_ID.fullmatch(key_id)
        if match is None or key_id in self._looked or len(self._looked) >= _LOOKS:
            return False
        day = int(match[1])
        return day * _DAY <= now + _CLOCK_SKEW and now < self._opens_until(day)

    async def _refresh_when_due(self, now: float) -> None:
        if now < self._refresh_due:
            return
        try:
            await self._refresh(now)
            self._looked.clear()
        except StateUnavailable:
            if not self._stored:
                raise
            logger.warning("the keyring cannot be read; the keys that this environment has unwrapped keep working")
        self._refresh_due = now + REFRESH

    async def _refresh(self, now: float) -> None:
        self._stored = {key.id: key for key in await self._keyring.keys(self._audience)}
        self._unwrapped = {id: known for id, known in self._unwrapped.items() if id in self._stored}

    def _known(self, stored: StoredKey) -> DataKey | None:
        return self._unwrapped.get(stored.id, (b"", None))[1]

    async def _unwrap(self, stored: StoredKey) -> DataKey | None:
        """The data key, by KMS when it is seen for the first time; `None` when KMS says that it never wrapped it."""
        wrapped, key = self._unwrapped.get(stored.id, (None, None))
        if key is not None or wrapped == stored.wrapped:
            return key
        try:
            # https://docs.aws.amazon.com/kms/latest/APIReference/API_Decrypt.html
            answer = await aws.call(
                "kms",
                "decrypt",
                expected=("InvalidCiphertextException", "IncorrectKeyException"),
                CiphertextBlob=stored.wrapped,
                KeyId=self._keyring.key_id,
                EncryptionContext=self._keyring.encryption_context(self._audience),
            )
            key = DataKey(stored.id, _given(answer, "Plaintext"))
        except aws.AwsRefusal as refusal:
            logger.error("data key %s of server %s is refused by KMS: %s", stored.id, self._audience, refusal.code)
        self._unwrapped[stored.id] = (stored.wrapped, key)
        return key


def _given(answer: Mapping[str, Any], member: str) -> bytes:
    """A member of KMS's answer; botocore takes an answer that was cut off for one that has none."""
    if member not in answer:
        raise StateUnavailable("KMS did not answer to the end. Try the same call again in a few seconds.")
    value: bytes = answer[member]
    return value


def _stored_keys(items: list[Mapping[str, Any]]) -> Iterator[StoredKey]:
    for item in items:
        audience, _, key_id = item["sk"]["S"].rpartition("#")
        if _KEY_ID.fullmatch(key_id):
            yield StoredKey(
                audience=audience,
                id=key_id,
                wrapped=item["wrapped"]["B"],
                created_at=int(item["created_at"]["N"]),
                expires_at=int(item["expires_at"]["N"]),
                revoked_at=int(item["revoked_at"]["N"]) if "revoked_at" in item else None,
            )
