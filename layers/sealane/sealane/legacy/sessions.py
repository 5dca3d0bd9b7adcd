"""Sessions: what a handshake agreed on and what has been asked for since, kept for every environment."""

import dataclasses
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from sealane.errors import INTERNAL_ERROR, INVALID_REQUEST, RequestRejected
from sealane.legacy.mailbox import ENDED, DynamoDBMailbox, InMemoryMailbox, Mailbox
from sealane.legacy.texts import legacy_table
from sealane.policy.principal import Principal
from sealane.state.aws import AwsRefusal
from sealane.state.table import Item, Table, partition

__all__ = [
    "MAX_SUBSCRIPTIONS",
    "DynamoDBSessionStore",
    "InMemorySessionStore",
    "Limits",
    "Session",
    "SessionStore",
    "SessionSummary",
    "client_of",
    "new_session_id",
]

MAX_SUBSCRIPTIONS: Final = 200
"""Of one session. They are read with each of its requests."""
_MAX_PARAMS: Final = 64_000
"""Bytes of a client's `initialize`."""
_SESSIONS: Final = "sessions"
"""Partition of the index of all sessions."""
_TOUCHED: Final = 60
"""Seconds between two notes of a session's use."""
_RETRY_AFTER: Final = "60"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session.

    Attributes:
        id: its name, which the client sends with each request.
        owner: whose it is; `None` for anyone's, on an open server.
        initialize_params: the client's `initialize`.
        protocol_version: the revision that was agreed on.
        log_level: what the client has set, if it has.
        subscriptions: URIs of resources.
        created_at: epoch seconds.
        last_used: epoch seconds, to the minute.
        expires_at: epoch seconds.
    """

    id: str
    owner: Principal | None
    initialize_params: dict[str, Any]
    protocol_version: str
    log_level: str | None = None
    subscriptions: frozenset[str] = frozenset()
    created_at: int
    last_used: int
    expires_at: int

    @property
    def client(self) -> tuple[str, str]:
        """Name and version of the client, as it says."""
        return client_of(self.initialize_params)

    @property
    def is_live(self) -> bool:
        """Whether it has not expired: DynamoDB removes what has, but later."""
        return self.expires_at > time.time()


class SessionSummary(NamedTuple):
    """What is known of a session without reading it; `SessionStore.get` and `.end` take `id` and `owner`."""

    id: str
    owner: Principal | None
    client_name: str
    client_version: str
    protocol_version: str
    created_at: int
    last_used: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long sessions live, and how many at once.

    Args:
        idle: seconds without a request after which a session is gone.
        age: seconds after which it is gone anyway.
        total: of all principals together.
        each: of one principal; an open server, where all are anyone's, has no such limit.
    """

    idle: int
    age: int
    total: int
    each: int

    def expiry(self, created_at: int, last_used: int) -> int:
        """When a session is gone."""
        return min(last_used + self.idle, created_at + self.age)

    def check(self, owners: list[Principal | None], owner: Principal | None) -> None:
        """Refuse a session.

        Args:
            owners: those of all sessions, the new one among them.
            owner: that of the new one.

        Raises:
            RequestRejected: 503 for a session beyond `max_sessions` or `max_sessions_per_principal`.
        """
        if len(owners) > self.total or (owner is not None and owners.count(owner) > self.each):
            raise RequestRejected(
                503,
                INTERNAL_ERROR,
                "Too many sessions are open. Try again in a minute, or end some that are not used any more",
                headers={"Retry-After": _RETRY_AFTER},
            )


class SessionStore(Protocol):
    """Where sessions are kept.

    Attributes:
        mailbox: what clients send to running calls.
    """

    mailbox: Mailbox

    async def create(self, session: Session, limits: Limits) -> int:
        """Keep a new session; how many there are then.

        Raises:
            RequestRejected: there are too many (503), or it is too large (413).
            ValueError: there is one with this id.
        """
        ...

    async def get(self, session_id: str, owner: Principal | None) -> Session | None:
        """The session, as it is now; `None` for one that is unknown, expired or somebody else's."""
        ...

    async def touch(self, session: Session, limits: Limits) -> Session | None:
        """Note that a session is in use, once a minute; `None` if it has ended."""
        ...

    async def set_log_level(self, session: Session, level: str) -> None:
        """Keep the level of what the client wants to be told."""
        ...

    async def subscribe(self, session: Session, uri: str) -> bool:
        """Keep a subscription; false if there are `MAX_SUBSCRIPTIONS`."""
        ...

    async def unsubscribe(self, session: Session, uri: str) -> None:
        """Forget a subscription."""
        ...

    async def end(self, session_id: str, owner: Principal | None) -> Session | None:
        """End a session everywhere; `None` if there was none to end."""
        ...

    async def list(self) -> list[SessionSummary]:
        """All sessions that are not over."""
        ...

    async def count(self) -> int:
        """How many sessions there are."""
        ...


def client_of(initialize_params: dict[str, Any]) -> tuple[str, str]:
    """Name and version of a client, as it says."""
    info = initialize_params.get("clientInfo")
    info = info if isinstance(info, dict) else {}
    return str(info.get("name", ""))[:128], str(info.get("version", ""))[:64]


def new_session_id() -> str:
    """A name that cannot be guessed: 192 random bits."""
    return secrets.token_urlsafe(24)


def _summary(session: Session) -> SessionSummary:
    name, version = session.client
    return SessionSummary(
        session.id,
        session.owner,
        name,
        version,
        session.protocol_version,
        session.created_at,
        session.last_used,
        session.expires_at,
    )


def _is_used(session: Session) -> bool:
    """Whether it was noted a moment ago that this session is in use."""
    return session.last_used > time.time() - _TOUCHED


class DynamoDBSessionStore:
    """`SessionStore` over the lane's table.

    A session is two items: its own, in a partition of its owner, so that somebody else's is just not there; and a
    small one in an index, by which sessions are counted and listed.

    Args:
        table: the table; by default the lane's.
    """

    def __init__(self, table: Table | None = None) -> None:
        self._table = legacy_table(table)
        self.mailbox: Mailbox = DynamoDBMailbox(self._table)

    async def create(self, session: Session, limits: Limits) -> int:
        """See `SessionStore`.

        Raises:
            RequestRejected: 413 for an `initialize` that is too large; else see `Limits.check`.
            ValueError: there is one with this id.
            StateUnavailable: the table is out of reach.
        """
        params = json.dumps(session.initialize_params, separators=(",", ":"))
        if len(params.encode()) > _MAX_PARAMS:
            text = f"initialize is too large: its parameters may have {_MAX_PARAMS} bytes"
            raise RequestRejected(413, INVALID_REQUEST, text)
        summary = _summary(session)
        times = {name: {"N": str(getattr(session, name))} for name in ("created_at", "last_used", "expires_at")}
        index = _index_key(session.id) | times
        index |= {
            "client_name": {"S": summary.client_name},
            "client_version": {"S": summary.client_version},
            "protocol_version": {"S": session.protocol_version},
        }
        if session.owner is not None:
            index["owner"] = {"S": json.dumps(session.owner)}
        item = _key(session.id, session.owner) | times
        item |= {"params": {"S": params}, "protocol_version": {"S": session.protocol_version}}
        try:
            await self._table.call("put_item", Item=index, ConditionExpression="attribute_not_exists(sk)")
        except AwsRefusal as refusal:
            # botocore sends a write again when its answer was lost.
            if refusal.response["ResponseMetadata"]["RetryAttempts"] == 0:
                raise ValueError("there is a session of this id already; ids must never come twice") from None
        try:
            # Of two who come at once, whoever is written last counts both: there are never too many.
            owners = [each.owner for each in await self.list()]
            limits.check(owners, session.owner)
            await self._table.call("put_item", Item=item)
        except BaseException:
            await self._table.call("delete_item", Key=_index_key(session.id))
            raise
        return len(owners)

    async def get(self, session_id: str, owner: Principal | None) -> Session | None:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        answer = await self._table.call("get_item", Key=_key(session_id, owner), ConsistentRead=True)
        session = _session(answer["Item"], owner) if "Item" in answer else None
        return session if session is not None and session.is_live else None

    async def touch(self, session: Session, limits: Limits) -> Session | None:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        if _is_used(session):
            return session
        now = int(time.time())
        used = dataclasses.replace(session, last_used=now, expires_at=limits.expiry(session.created_at, now))
        values = {":used": {"N": str(now)}, ":expires": {"N": str(used.expires_at)}}
        update = "SET last_used = :used, expires_at = :expires"
        if not await self._update(_key(session.id, session.owner), update, values):
            return None
        await self._update(_index_key(session.id), update, values)
        return used

    async def set_log_level(self, session: Session, level: str) -> None:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        await self._update(_key(session.id, session.owner), "SET log_level = :level", {":level": {"S": level}})

    async def subscribe(self, session: Session, uri: str) -> bool:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        return await self._update(
            _key(session.id, session.owner),
            "ADD subscriptions :uris",
            {":uris": {"SS": [uri]}, ":uri": {"S": uri}, ":most": {"N": str(MAX_SUBSCRIPTIONS)}},
            "(attribute_not_exists(subscriptions) OR contains(subscriptions, :uri) OR size(subscriptions) < :most)",
        )

    async def unsubscribe(self, session: Session, uri: str) -> None:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        await self._update(_key(session.id, session.owner), "DELETE subscriptions :uris", {":uris": {"SS": [uri]}})

    async def end(self, session_id: str, owner: Principal | None) -> Session | None:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        answer = await self._table.call("delete_item", Key=_key(session_id, owner), ReturnValues="ALL_OLD")
        if "Attributes" not in answer:
            return None
        session = _session(answer["Attributes"], owner)
        await self._table.call("delete_item", Key=_index_key(session_id))
        await self.mailbox.post(session_id, ENDED, "{}", "1")
        return session if session.is_live else None

    async def list(self) -> list[SessionSummary]:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        found: list[SessionSummary] = []
        page: dict[str, Any] = {}
        while True:
            answer = await self._table.call(
                "query",
                KeyConditionExpression="pk = :sessions",
                FilterExpression="expires_at > :now",
                ExpressionAttributeValues={":sessions": {"S": _SESSIONS}, ":now": {"N": str(int(time.time()))}},
                ConsistentRead=True,
                **page,
            )
            found += map(_listed, answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return found
            page = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def count(self) -> int:
        """See `SessionStore`.

        Raises:
            StateUnavailable: the table is out of reach.
        """
        return len(await self.list())

    async def _update(
        self, key: dict[str, Any], update: str, values: dict[str, Any], condition: str = "attribute_exists(sk)"
    ) -> bool:
        """Change an item, but never bring one back; whether it was there and the condition held."""
        try:
            await self._table.call(
                "update_item",
                Key=key,
                UpdateExpression=update,
                ConditionExpression=f"expires_at > :now AND {condition}",
                ExpressionAttributeValues={**values, ":now": {"N": str(int(time.time()))}},
            )
        except AwsRefusal:
            return False
        return True


def _key(session_id: str, owner: Principal | None) -> dict[str, Any]:
    return {"pk": {"S": partition("session", owner)}, "sk": {"S": session_id}}


def _index_key(session_id: str) -> dict[str, Any]:
    return {"pk": {"S": _SESSIONS}, "sk": {"S": session_id}}


def _session(item: Item, owner: Principal | None) -> Session:
    return Session(
        id=item["sk"]["S"],
        owner=owner,
        initialize_params=json.loads(item["params"]["S"]),
        protocol_version=item["protocol_version"]["S"],
        log_level=item["log_level"]["S"] if "log_level" in item else None,
        subscriptions=frozenset(item["subscriptions"]["SS"]) if "subscriptions" in item else frozenset(),
        created_at=int(item["created_at"]["N"]),
        last_used=int(item["last_used"]["N"]),
        expires_at=int(item["expires_at"]["N"]),
    )


def _listed(item: Item) -> SessionSummary:
    return SessionSummary(
        item["sk"]["S"],
        Principal(*json.loads(item["owner"]["S"])) if "owner" in item else None,
        item["client_name"]["S"],
        item["client_version"]["S"],
        item["protocol_version"]["S"],
        *(int(item[name]["N"]) for name in ("created_at", "last_used", "expires_at")),
    )


class InMemorySessionStore:
    """`SessionStore` of one process, for tests."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[Principal | None, str], Session] = {}
        self.mailbox: Mailbox = InMemoryMailbox()

    async def create(self, session: Session, limits: Limits) -> int:
        """See `SessionStore`."""
        live = [each for each in self._sessions.values() if each.is_live]
        if any(each.id == session.id for each in live):
            raise ValueError("there is a session of this id already; ids must never come twice")
        limits.check([each.owner for each in [*live, session]], session.owner)
        self._sessions[session.owner, session.id] = session
        return len(live) + 1

    async def get(self, session_id: str, owner: Principal | None) -> Session | None:
        """See `SessionStore`."""
        session = self._sessions.get((owner, session_id))
        return session if session is not None and session.is_live else None

    async def touch(self, session: Session, limits: Limits) -> Session | None:
        """See `SessionStore`."""
        if _is_used(session):
            return session
        now = int(time.time())
        return await self._change(session, last_used=now, expires_at=limits.expiry(session.created_at, now))

    async def set_log_level(self, session: Session, level: str) -> None:
        """See `SessionStore`."""
        await self._change(session, log_level=level)

    async def subscribe(self, session: Session, uri: str) -> bool:
        """See `SessionStore`."""
        kept = await self.get(session.id, session.owner)
        wanted = kept.subscriptions | {uri} if kept is not None else frozenset()
        if not 0 < len(wanted) <= MAX_SUBSCRIPTIONS:
            return False
        return await self._change(session, subscriptions=wanted) is not None

    async def unsubscribe(self, session: Session, uri: str) -> None:
        """See `SessionStore`."""
        if (kept := await self.get(session.id, session.owner)) is not None:
            await self._change(session, subscriptions=kept.subscriptions - {uri})

    async def end(self, session_id: str, owner: Principal | None) -> Session | None:
        """See `SessionStore`."""
        session = self._sessions.pop((owner, session_id), None)
        if session is None or not session.is_live:
            return None
        await self.mailbox.post(session_id, ENDED, "{}", "1")
        return session

    async def list(self) -> list[SessionSummary]:
        """See `SessionStore`."""
        return [_summary(session) for session in self._sessions.values() if session.is_live]

    async def count(self) -> int:
        """See `SessionStore`."""
        return len(await self.list())

    async def _change(self, session: Session, **changes: Any) -> Session | None:
        kept = await self.get(session.id, session.owner)
        if kept is None:
            return None
        changed = self._sessions[session.owner, session.id] = dataclasses.replace(kept, **changes)
        return changed
