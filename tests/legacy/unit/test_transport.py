"""What the revisions of 2025 ask of the transport, through Lambda events: each answer leaves as a whole."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sealane.legacy import create_legacy_mcp_handler
from sealane.state import aws
from sealane.state.errors import StateUnavailable
from tests.legacy.unit.lane import Environments, table, text
from tests.legacy.unit.server import URI, create_server

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with table():
        yield


@pytest.fixture
def lane() -> Environments:
    return Environments(2)


def test_a_session_lives_in_every_environment(lane: Environments) -> None:
    session = lane.initialize(at=0)
    assert lane.ask("notifications/initialized", at=1, session=session).status == 202
    answered = lane.call(session, "add", at=1, a=1, b=2)
    assert text(answered.messages[0]) == "3"
    assert answered.headers["mcp-session-id"] == session
    assert answered.headers["content-type"] == "text/event-stream"
    assert "no-store" in answered.headers["cache-control"]
    # What a handler sees of its client was sent in another environment.
    assert text(lane.call(session, "who", at=1).messages[0]) == "None test-client tools/call"


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_stream_can_be_come_back_to_in_every_revision(lane: Environments, version: str) -> None:
    answered = lane.ask("initialize", version=version)
    assert answered.json["result"]["protocolVersion"] == version
    session = answered.headers["mcp-session-id"]
    body = lane.ask("tools/call", session=session, version=version, name="add", arguments={"a": 1, "b": 2}).body
    first, *_ = body.split("\r\n\r\n")
    assert first.startswith("id: ")
    assert "retry: 1000" in first
    # Clients of the revisions before 2025-11-25 cannot read an event without a message.
    assert ("data: \r\n" in body) == (version == "2025-11-25")


def test_an_unknown_revision_gets_the_newest(lane: Environments) -> None:
    assert lane.ask("initialize", version="1999-01-01").json["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"headers": {"Accept": "application/json"}}, 406, -32600),
        ({"headers": {"Accept": "text/event-stream"}}, 406, -32600),
        ({"headers": {"Accept": ()}}, 406, -32600),
        ({"headers": {"Content-Type": "text/plain"}}, 415, -32600),
        ({"headers": {"Mcp-Session-Id": ()}}, 400, -32600),
        ({"headers": {"Mcp-Session-Id": "x" * 32}}, 404, -32600),
        ({"headers": {"Mcp-Session-Id": "x"}}, 404, -32600),
        ({"headers": {"Mcp-Session-Id": "é" * 20}}, 404, -32600),
        ({"headers": {"MCP-Protocol-Version": "2025-06-18"}}, 400, -32600),
        ({"headers": {"MCP-Protocol-Version": "1999-01-01"}}, 400, -32600),
        ({"body": "{"}, 400, -32700),
        ({"body": '{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}'}, 400, -32700),
        ({"body": {"hello": 1}}, 400, -32600),
        ({"body": {"jsonrpc": "2.0", "id": None, "method": "ping"}}, 400, -32600),
        ({"body": {"jsonrpc": "1.0", "id": 1, "method": "ping"}}, 400, -32600),
        ({"body": '"ping"'}, 400, -32600),
        ({"body": "[]"}, 400, -32600),
        ({"body": [PING]}, 400, -32600),
        ({"http": "PUT"}, 405, -32600),
        ({"http": "GET", "headers": {"Accept": "application/json"}}, 406, -32600),
        ({"http": "GET", "headers": {"Accept": "text/event-stream", "Mcp-Session-Id": ()}}, 400, -32600),
        ({"http": "GET", "headers": {"Accept": "text/event-stream", "Mcp-Session-Id": "x" * 32}}, 404, -32600),
        ({"http": "DELETE", "headers": {"Mcp-Session-Id": "x" * 32}}, 404, -32600),
        ({"http": "DELETE", "headers": {"Mcp-Session-Id": ()}}, 400, -32600),
    ],
)
def test_what_is_refused(lane: Environments, request_: dict[str, Any], status: int, code: int) -> None:
    answered = lane.ask("ping", session=lane.initialize(), **request_)
    assert (answered.status, answered.json["error"]["code"]) == (status, code)
    # No fresh id on a refusal.
    assert "mcp-session-id" not in answered.headers
    if status == 405:
        assert answered.headers["allow"] == "GET, POST, DELETE"


def test_a_version_that_is_not_said_is_the_sessions(lane: Environments) -> None:
    assert lane.ask("ping", session=lane.initialize(), version=None).status == 200


def test_accept_takes_ranges(lane: Environments) -> None:
    assert lane.ask("ping", session=lane.initialize(), headers={"Accept": "*/*"}).status == 200


def test_a_second_initialize_is_refused(lane: Environments) -> None:
    session = lane.initialize()
    answered = lane.ask("initialize", session=session)
    assert answered.status == 400
    assert "mcp-session-id" not in answered.headers
    assert lane.ask("ping", session=session).status == 200


def test_an_initialize_that_the_server_refuses_opens_nothing(lane: Environments) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 5}}
    answered = lane.ask("initialize", body=body)
    assert answered.status == 200
    assert answered.json["error"]["code"] == -32602
    assert "mcp-session-id" not in answered.headers


def test_delete_ends_a_session_everywhere(lane: Environments) -> None:
    session = lane.initialize(at=0)
    assert lane.ask("", http="DELETE", at=1, session=session).status == 204
    for at in (0, 1):
        assert lane.ask("ping", at=at, session=session).status == 404
        assert lane.ask("", http="DELETE", at=at, session=session).status == 404


def test_notifications_and_replies_are_accepted(lane: Environments) -> None:
    session = lane.initialize()
    for body in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": "AAAAAAAAAAAAAAAAAAAAAA.1", "error": {"code": 1, "message": "no"}},
    ):
        answered = lane.ask("", session=session, body=body)
        assert (answered.status, answered.body) == (202, "")
        assert "content-type" not in answered.headers


def test_the_servers_own_handlers_see_notifications_once(lane: Environments) -> None:
    session = lane.initialize()
    lane.ask("notifications/initialized", at=1, session=session)
    lane.ask("notifications/roots/list_changed", at=1, session=session)
    lane.call(session, "add", at=1, a=1, b=2)
    assert lane.records[1].notifications == ["initialized", "roots changed"]


def test_batches_of_their_revision(lane: Environments) -> None:
    session = lane.initialize(version="2025-03-26")
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sleep", "arguments": {"seconds": 0.2}}},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "id": "1 ", "method": "ping"},
        {"jsonrpc": "2.0", "id": 9, "method": "none/such"},
    ]
    answered = lane.ask("", session=session, version=None, body=batch)
    assert sorted(str(message["id"]) for message in answered.messages) == ["1", "1 ", "9"]
    assert answered.messages[-1]["id"] == 1
    assert lane.records[0].notifications == ["roots changed"]
    notified = lane.ask("", session=session, version=None, body=batch[1:2])
    assert (notified.status, notified.body) == (202, "")
    twice = lane.ask("", session=session, version=None, body=[PING, PING])
    assert twice.status == 400
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    assert lane.ask("", body=[initialize, PING], version=None).status == 400


def test_json_answers() -> None:
    lane = Environments(1, enable_json_response=True)
    session = lane.initialize(version="2025-03-26")
    accept = {"Accept": "application/json"}
    arguments: dict[str, Any] = {"name": "steps", "arguments": {}}
    answered = lane.ask("tools/call", session=session, version=None, headers=accept, **arguments)
    assert answered.headers["content-type"] == "application/json"
    assert text(answered.json) == "done"
    batch = lane.ask("", session=session, version=None, headers=accept, body=[PING, PING | {"id": 2}])
    assert [each["id"] for each in batch.json] == [1, 2]


def test_progress_and_log_messages_come_before_the_answer(lane: Environments) -> None:
    found = lane.ask(
        "tools/call", session=lane.initialize(), name="steps", arguments={"count": 2}, _meta={"progressToken": "p"}
    ).messages
    kinds = [each.get("method", "answer") for each in found]
    assert kinds == [*["notifications/progress", "notifications/message"] * 2, "answer"]
    assert found[0]["params"]["progressToken"] == "p"


def test_the_log_level_counts_in_every_environment(lane: Environments) -> None:
    session = lane.initialize()
    assert len(lane.call(session, "levels", at=1).messages) == 4
    assert lane.ask("logging/setLevel", session=session, level="warning").messages[0]["result"] == {}
    levels = [each["params"]["level"] for each in lane.call(session, "levels", at=1).messages[:-1]]
    assert levels == ["warning", "error"]
    # The server's own handler is told again where it cannot know.
    assert "level warning" in lane.records[1].notifications


def test_a_level_that_the_server_refuses_is_not_kept(lane: Environments) -> None:
    session = lane.initialize()
    assert "error" in lane.ask("logging/setLevel", session=session, level="loud").messages[0]
    assert len(lane.call(session, "levels").messages) == 4


def test_subscriptions_are_known_in_every_environment(lane: Environments) -> None:
    session = lane.initialize()
    assert lane.ask("resources/subscribe", at=0, session=session, uri=URI).messages[0]["result"] == {}
    lane.call(session, "touch", at=1)
    updated = lane.ask("", http="GET", session=session, headers={"Accept": "text/event-stream"})
    assert updated.messages == [
        {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "note://one"}}
    ]
    lane.ask("resources/unsubscribe", at=0, session=session, uri=URI)
    lane.records[1].subscribers.clear()
    lane.call(session, "touch", at=1)
    assert len(lane.records[1].subscribers) == 0


def test_what_a_server_keeps_of_a_session_is_told_once(lane: Environments) -> None:
    """v1 servers keep session objects, of which every request makes a new one."""
    session, other = lane.initialize(), lane.initialize()
    for each in (session, other):
        lane.ask("resources/subscribe", session=each, uri=URI)
    for _ in range(3):
        lane.call(session, "add", a=1, b=1)
    assert len(lane.records[0].subscribers[URI]) > 4
    lane.call(other, "touch")
    for each in (session, other):
        told = lane.ask("", http="GET", session=each, headers={"Accept": "text/event-stream"})
        assert len(told.messages) == 1


def test_the_standalone_stream_is_a_long_poll(lane: Environments) -> None:
    session = lane.initialize()
    accept = {"Accept": "text/event-stream"}
    lane.call(session, "announce", at=0)
    lane.call(session, "announce", at=1)
    first = lane.ask("", http="GET", at=1, session=session, headers=accept)
    assert [each["method"] for each in first.messages] == ["notifications/tools/list_changed"] * 2
    assert first.body.startswith("id: get_0\r\nretry: 1000\r\ndata: \r\n\r\nid: get_1\r\n")
    lane.call(session, "announce", at=0)
    # Without an event's id only what nobody was sent; with one, what came after it.
    second = lane.ask("", http="GET", at=0, session=session, headers=accept)
    assert second.body.startswith("id: get_2\r\n")
    assert len(second.messages) == 1
    again = lane.ask("", http="GET", at=0, session=session, headers={**accept, "Last-Event-ID": "get_1"})
    assert len(again.messages) == 2


@pytest.mark.parametrize("last", ["get_1", "get_x", "x", "AAAAAAAAAAAAAAAAAAAAAA_0", "get_-1", ""])
def test_an_event_that_never_was(lane: Environments, last: str) -> None:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    answered = lane.ask("", http="GET", session=lane.initialize(), headers=headers)
    assert answered.status == 400


def test_a_whole_answer_can_be_replayed(lane: Environments) -> None:
    session = lane.initialize()
    body = lane.ask("tools/call", session=session, name="steps", arguments={"count": 2}).body
    ids = [line[4:] for line in body.splitlines() if line.startswith("id: ")]
    assert [each.partition("_")[2] for each in ids] == ["0", "1", "2", "3"]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": ids[1]}
    replayed = lane.ask("", http="GET", at=1, session=session, headers=headers)
    assert [line[4:] for line in replayed.body.splitlines() if line.startswith("id: ")] == ids[1:]
    assert text(replayed.messages[-1]) == "done"
    at_the_end = {**headers, "Last-Event-ID": ids[-1]}
    assert lane.ask("", http="GET", at=1, session=session, headers=at_the_end).status == 204
    beyond = {**headers, "Last-Event-ID": ids[-1][:-1] + "4"}
    assert lane.ask("", http="GET", at=1, session=session, headers=beyond).status == 400


def test_a_text_of_a_megabyte_is_replayed(lane: Environments) -> None:
    session = lane.initialize()
    body = lane.call(session, "big", size=1_000_000).body
    priming = body.partition("\r\n")[0].removeprefix("id: ")
    headers = {"Accept": "text/event-stream", "Last-Event-ID": priming}
    replayed = lane.ask("", http="GET", at=1, session=session, headers=headers)
    assert text(replayed.messages[0]) == "x" * 1_000_000


def test_c3_browsers_may_read_the_session_id_on_every_answer(lane: Environments) -> None:
    origin = {"Origin": "http://localhost:6274"}
    session = lane.initialize()
    for answered in (
        lane.ask("initialize", headers=origin),
        lane.ask("ping", session=session, headers=origin),
        lane.ask("ping", session="x" * 32, headers=origin),
        lane.ask("ping", headers=origin),
        lane.ask("", http="PUT", session=session, headers=origin),
        lane.ask("ping", session=session, body="{", headers=origin),
        lane.ask("", http="DELETE", session=session, headers=origin),
    ):
        assert answered.headers["access-control-expose-headers"] == "Mcp-Session-Id, WWW-Authenticate"
        assert answered.headers["access-control-allow-origin"] == "*"
    preflight = lane.ask(
        "",
        http="OPTIONS",
        headers={
            **origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "mcp-session-id, last-event-id, mcp-protocol-version, authorization",
        },
    )
    assert preflight.status == 200


def test_while_draining_sessions_live_out_and_none_begins(lane: Environments) -> None:
    session = lane.initialize()
    draining = Environments(1, mode="drain", public_url="https://mcp.example.com/prod/")
    assert draining.ask("ping", session=session).status == 200
    refused = draining.ask("initialize")
    assert refused.status == 400
    assert refused.json["error"]["code"] == -32600
    assert "https://mcp.example.com/prod/mcp" in refused.json["error"]["message"]
    assert "mcp-session-id" not in refused.headers


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEALANE_LEGACY_LANE", "on")
    lane = Environments(2, max_sessions=2)
    sessions = [lane.initialize(at=at) for at in (0, 1)]
    refused = lane.ask("initialize")
    assert refused.status == 503
    assert refused.headers["retry-after"] == "60"
    lane.ask("", http="DELETE", session=sessions[0])
    lane.initialize()


def test_sessions_end_when_they_are_idle_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Environments(1, idle_timeout=100, max_session_age=250)
    session = lane.initialize()
    now = [0.0]
    import time

    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + now[0])
    for later in (90, 180, 240):
        now[0] = later
        assert lane.ask("ping", session=session).status == 200
    now[0] = 251
    assert lane.ask("ping", session=session).status == 404
    idle = lane.initialize()
    now[0] += 101
    assert lane.ask("ping", session=idle).status == 404
    assert lane.ask("", http="DELETE", session=idle).status == 404


def test_the_authors_callbacks_are_told(lane: Environments) -> None:
    told: list[str] = []

    async def closed(session: Any) -> None:
        told.append(f"closed {session.id}")

    def opened(session: Any) -> None:
        told.append(f"opened {session.id}")
        raise RuntimeError("not to be seen")

    ids = iter(["my-session-0000001", "my-session-0000002"])
    mine = Environments(
        1, on_session_initialized=opened, on_session_closed=closed, session_id_generator=lambda: next(ids)
    )
    session = mine.initialize()
    mine.ask("", http="DELETE", session=session)
    assert told == ["opened my-session-0000001", "closed my-session-0000001"]


@pytest.mark.parametrize("made", ["short", "has a space in it....", ""])
def test_ids_that_the_author_makes_are_checked(made: str) -> None:
    assert Environments(1, session_id_generator=lambda: made).ask("initialize").status == 500


def test_an_id_never_comes_twice() -> None:
    lane = Environments(1, session_id_generator=lambda: "always-the-same-id")
    lane.initialize()
    assert lane.ask("initialize").status == 500


def test_an_initialize_that_is_too_large_is_refused(lane: Environments) -> None:
    answered = lane.ask("initialize", capabilities={"experimental": {"x": {"y": "z" * 70_000}}})
    assert answered.status == 413


def test_lifespans_end(lane: Environments) -> None:
    session = lane.initialize()
    lane.call(session, "add", a=1, b=1)
    assert (lane.records[0].lifespans, lane.records[0].ended) == (2, 2)


def test_a_slow_call_ends_in_time(lane: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealane.legacy.transport._WHOLE", 0.5)
    session = lane.initialize()
    answered = lane.call(session, "sleep", seconds=30)
    assert answered.messages[-1]["error"] == {
        "code": -32603,
        "message": "The request took longer than this server may run",
    }
    assert lane.records[0].cancelled == ["sleep"]
    # Warm, and as good as new.
    assert text(lane.call(session, "add", a=1, b=2).messages[0]) == "3"


def test_a_server_that_fails_is_an_error_of_each_call() -> None:
    lane = Environments(1)
    session = lane.initialize()

    class Broken:
        async def __aenter__(self) -> None:
            raise RuntimeError("secret")

        async def __aexit__(self, *_: object) -> None: ...

    handler = lane.handlers[0]
    server = handler._transport._lane.server
    server.lifespan = lambda _: Broken()
    answered = lane.call(session, "add", a=1, b=1)
    assert answered.status == 500
    assert "secret" not in answered.body
    assert lane.ask("initialize").status == 500


def test_what_is_no_factory_of_a_v1_server() -> None:
    mcp = create_server()
    with pytest.raises(TypeError, match="lambda: mcp"):
        create_legacy_mcp_handler(mcp)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lambda: mcp"):
        create_legacy_mcp_handler(mcp._mcp_server)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gave a int"):
        create_legacy_mcp_handler(lambda: 5)  # type: ignore[arg-type,return-value]

    class MCPServer: ...

    with pytest.raises(TypeError, match="create_mcp_handler"):
        create_legacy_mcp_handler(MCPServer)  # type: ignore[arg-type]

    async def factory() -> Any:
        return mcp

    with pytest.raises(TypeError, match="async"):
        create_legacy_mcp_handler(factory)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'event_store'"):
        create_legacy_mcp_handler(lambda: mcp, event_stor=None)
    with pytest.raises(ValueError, match="mode is one of"):
        create_legacy_mcp_handler(lambda: mcp, mode="off")
    assert create_legacy_mcp_handler(lambda: mcp._mcp_server)


def test_a_server_that_checks_tokens_itself_is_not_left_open() -> None:
    from mcp.server.fastmcp import FastMCP

    auth: Any = {"issuer_url": "https://issuer.example", "resource_server_url": "https://mcp.example.com"}

    class Verifier:
        async def verify_token(self, token: str) -> None: ...

    mcp: FastMCP[Any] = FastMCP("guarded", auth=auth, token_verifier=Verifier())
    with pytest.raises(ValueError, match="open to anyone"):
        create_legacy_mcp_handler(lambda: mcp)


def test_a_table_out_of_reach_is_an_error_to_come_back_after(
    lane: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = lane.initialize()
    monkeypatch.setattr("sealane.state.aws._call", out_of_reach)
    for answered in (lane.ask("initialize"), lane.ask("ping", session=session)):
        assert answered.status == 503
        assert answered.headers["retry-after"] == "5"
        assert answered.json["error"]["message"].startswith("The stored data is out of reach")


def test_an_answer_that_cannot_be_kept_is_sent(lane: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    session = lane.initialize()
    real = aws._call

    def reads_only(service: Any, operation: str, *arguments: Any) -> Any:
        return real(service, operation, *arguments) if operation == "get_item" else out_of_reach()

    monkeypatch.setattr("sealane.state.aws._call", reads_only)
    answered = lane.call(session, "add", a=1, b=2)
    assert text(answered.messages[0]) == "3"
    # There is nothing to come back to.
    assert "id: " not in answered.body


def out_of_reach(*_: Any) -> Any:
    raise StateUnavailable("The stored data is out of reach at the moment.")


def test_what_v1_cannot_read_is_not_in_its_log(lane: Environments, caplog: pytest.LogCaptureFixture) -> None:
    answered = lane.ask("tools/call", session=lane.initialize(), name=["hunter2"])
    assert answered.messages[0]["error"]["code"] == -32602
    assert "Failed to validate request" in caplog.text
    assert "hunter2" not in caplog.text


def test_nothing_of_a_call_is_in_the_log(lane: Environments, caplog: pytest.LogCaptureFixture) -> None:
    session = lane.initialize()
    with caplog.at_level("DEBUG", "sealane"):
        lane.call(session, "who", password="hunter2")  # noqa: S106
        lane.ask("ping", session=session, headers={"Mcp-Session-Id": "x" * 32})
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("sealane")]
    assert not [line for line in ours if "hunter2" in line or session in line]
    assert json.dumps(ours)
