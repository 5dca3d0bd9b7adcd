"""Whose session it is: callers that a gateway or a token names, each with what is theirs."""

from collections.abc import Iterator
from typing import Any

import pytest

from sealane import GatewayAuth
from tests.legacy.unit.lane import Environments, table, text

AUTH = GatewayAuth(issuer="https://issuer.example", required_scopes=("notes",))
METADATA = "/.well-known/oauth-protected-resource/mcp"


def claims(subject: str = "ada", client: str = "app", issuer: str = "https://issuer.example", **more: Any) -> Any:
    """The request context of a caller with a token, as a REST API's authorizer has it."""
    named = {"client_id": client, "iss": issuer, "sub": subject, "scope": "notes", "exp": 4_000_000_000, **more}
    return {"authorizer": {name: value for name, value in named.items() if value is not None}}


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with table():
        yield


@pytest.fixture
def lane() -> Environments:
    return Environments(2, auth=AUTH)


@pytest.mark.parametrize(
    "other",
    [claims("bob"), claims(client="other"), claims(issuer="https://other.example"), claims(None)],  # type: ignore[arg-type]
)
def test_s1_somebody_elses_session_is_not_there(lane: Environments, other: Any) -> None:
    session = lane.initialize(event=claims())
    stream = {"Accept": "text/event-stream"}
    for answered in (
        lane.ask("ping", at=1, session=session, event=other),
        lane.ask("notifications/initialized", session=session, event=other),
        lane.ask("", http="GET", session=session, headers=stream, event=other),
        lane.ask("", http="DELETE", session=session, event=other),
    ):
        assert answered.status == 404
        assert answered.json["error"]["message"] == "Session not found: initialize a new one"
    assert lane.ask("ping", at=1, session=session, event=claims()).status == 200


def test_s1_a_refreshed_token_is_the_same_owner(lane: Environments) -> None:
    session = lane.initialize(event=claims(jti="1", exp=4_000_000_000))
    answered = lane.ask(
        "tools/call", at=1, session=session, event=claims(jti="2", exp=4_000_003_600, scope="notes more"), name="who"
    )
    assert text(answered.messages[0]) == "app test-client tools/call"


def test_a_session_of_nobody_is_not_of_somebody() -> None:
    lane = Environments(1)
    session = lane.initialize()
    assert lane.ask("ping", session=session, event=claims()).status == 404
    assert lane.ask("ping", session=lane.initialize(event=claims())).status == 404


def test_who_is_not_known_is_asked_to_sign_in(lane: Environments) -> None:
    session = lane.initialize(event=claims())
    for http in ("POST", "GET", "DELETE"):
        refused = lane.ask("ping", http=http, session=session)
        assert refused.status == 401
        assert METADATA in refused.headers["www-authenticate"]
    lacking = lane.ask("ping", session=session, event=claims(scope="other"))
    assert lacking.status == 403
    assert 'error="insufficient_scope"' in lacking.headers["www-authenticate"]


def test_limits_of_one_principal_are_not_those_of_another() -> None:
    lane = Environments(2, max_sessions_per_principal=2)
    for at in (0, 1):
        lane.initialize(at=at, event=claims())
    refused = lane.ask("initialize", event=claims())
    assert refused.status == 503
    lane.initialize(event=claims("bob"))
    # Anyone's are nobody's.
    for _ in range(3):
        lane.initialize()


def test_a_name_that_is_too_long_for_a_key(lane: Environments) -> None:
    assert lane.ask("initialize", event=claims("x" * 2100)).status == 400
    assert lane.ask("ping", session="x" * 32, event=claims("x" * 2100)).status == 400
