"""The Streamable HTTP transport of the 2025 revisions, with nothing in memory that the next request needs.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http
"""

import inspect
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast, get_args

import anyio
from mcp.shared.message import ServerMessageMetadata
from mcp.types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
)
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sealane import telemetry
from sealane.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, RequestId, RequestRejected
from sealane.gateway.authentication import public_url
from sealane.gateway.endpoint import Answer
from sealane.gateway.events import BUFFERED_KEY, DEADLINE_KEY
from sealane.legacy.events import STANDALONE, Event, Opening, event_id, parse_event_id
from sealane.legacy.followers import PROMISE, CallFollower, Follower, StandaloneFollower, close_standalone, follow
from sealane.legacy.mailbox import cancellation_of
from sealane.legacy.options import LegacyOptions
from sealane.legacy.server_run import AnyMessage, Lane, ServerRun, initialize, text_of
from sealane.legacy.sessions import Session, client_of
from sealane.legacy.streams import EventStream, priming, sse
from sealane.policy.body import read_body, receive_again
from sealane.policy.json_text import UNPARSABLE, decode
from sealane.policy.principal import Principal
from sealane.state.deadline import last_words
from sealane.state.errors import InvalidValue, StateUnavailable

__all__ = ["Transport"]

logger = logging.getLogger(__name__)

SESSION_HEADER: Final = "Mcp-Session-Id"

_METHODS: Final = ("GET", "POST", "DELETE")
_SESSION_ID: Final = re.compile(r"[\x21-\x7E]{16,512}")
_REVERSE_ID: Final = re.compile(r"([A-Za-z0-9-]{22})\.([1-9][0-9]{0,8})")
_BATCHING: Final = "2025-03-26"
_RESUMING: Final = "2025-11-25"
"""The first revision whose clients come back when a stream has ended on purpose."""

_WHOLE: Final = 27.0
"""Seconds for an answer that leaves as a whole; a REST API waits 29."""
_REST: Final = 1.0
"""Seconds that are left of the invocation when such an answer ends."""
_ACKNOWLEDGED: Final = 5.0
"""Seconds for handlers of notifications where the 202 leaves after them."""
_RENEWAL: Final = 10.0
_LIVE_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 20.0
_LAST_FRAMES: Final = 0.3


class Transport:
    """Answers the HTTP requests of the endpoint.

    Args:
        lane: the server and the stores.
        options: the handler's.
    """

    def __init__(self, lane: Lane, options: LegacyOptions) -> None:
        self._lane = lane
        self._options = options
        self._handled = {
            method
            for kind in cast("list[type[BaseModel]]", list(lane.server.notification_handlers))
            for method in get_args(kind.model_fields["method"].annotation)
        }

    async def serve(self, request: Request, owner: Principal | None, answer: Answer) -> None:
        """Answer a request of `owner`.

        Raises:
            RequestRejected: 405 for other methods than POST, GET and DELETE. 503 while the table of sessions is out of
                reach. 400 for a caller whose name is too long to keep a session under; else see what is called here.
                Nothing was sent.
        """
        if request.method not in _METHODS:
            allowed = ", ".join(_METHODS)
            text = f"Method not allowed: send one of {allowed}"
            raise RequestRejected(405, INVALID_REQUEST, text, headers={"Allow": allowed})
        telemetry.current().describe(None, request.headers, era="legacy", lane="legacy")
        try:
            if request.method == "POST":
                await self._post(request, owner, answer)
            elif request.method == "GET":
                _check_accept(request, "text/event-stream")
                await self._get(request, await self._session(request, owner), answer)
            else:
                await self._delete(await self._session(request, owner))
                await Response(status_code=204)(request.scope, request.receive, answer.send)
        except StateUnavailable as error:
            if answer.started:
                raise
            raise RequestRejected(503, INTERNAL_ERROR, str(error), headers={"Retry-After": "5"}) from error
        except InvalidValue as error:
            raise RequestRejected(400, INVALID_REQUEST, str(error)) from error

    # Sessions

    async def _session(self, request: Request, owner: Principal | None) -> Session:
        """The session that a request names.

        Raises:
            RequestRejected: 400 for a request without a session, or of another revision than its session; 404 for a
                session that is unknown, expired or somebody else's.
        """
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            raise RequestRejected(
                400, INVALID_REQUEST, f"Bad request: send initialize, then the header {SESSION_HEADER}"
            )
        session = None
        if _SESSION_ID.fullmatch(session_id):
            session = await self._lane.sessions.get(session_id, owner)
        if session is not None:
            session = await self._lane.sessions.touch(session, self._options.limits)
        if session is None:
            raise RequestRejected(404, INVALID_REQUEST, "Session not found: initialize a new one")
        version = request.headers.get("mcp-protocol-version")
        if version is not None and version != session.protocol_version:
            text = f"Bad request: MCP-Protocol-Version is {session.protocol_version} in this session"
            raise RequestRejected(400, INVALID_REQUEST, text)
        self._lane.metrics.request(session.client)
        return session

    async def _delete(self, session: Session) -> None:
        """End a session.

        Raises:
            RequestRejected: 404 for a session that somebody else has just ended.
        """
        ended = await self._lane.sessions.end(session.id, session.owner)
        if ended is None:
            raise RequestRejected(404, INVALID_REQUEST, "Session not found")
        await self._lane.events.forget(session.id)
        await _tell(self._options.on_session_closed, ended)

    # POST

    async def _post(self, request: Request, owner: Principal | None, answer: Answer) -> None:
        """Answer messages of a client.

        Raises:
            RequestRejected: 415 for a body that does not say it is JSON; 400 for a body that is not JSON; else
                see what is called here.
        """
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise RequestRejected(415, INVALID_REQUEST, "Unsupported media type: send Content-Type: application/json")
        wanted = ["application/json"]
        if not self._options.enable_json_response:
            wanted.append("text/event-stream")
        _check_accept(request, *wanted)
        body = await read_body(request, self._options.max_request_body_size)
        value = decode(body)
        if value is UNPARSABLE:
            raise RequestRejected(400, PARSE_ERROR, "Parse error: the body is not JSON")
        telemetry.current().describe(value, request.headers, era="legacy", lane="legacy")
        messages = [_message(each) for each in value] if isinstance(value, list) else [_message(value)]
        if not isinstance(value, list) and isinstance(messages[0], JSONRPCRequest):
            answer.request_id = messages[0].id
        request = Request(request.scope, receive_again(body, request.receive))
        if any(isinstance(each, JSONRPCRequest) and each.method == "initialize" for each in messages):
            await self._initialize(request, messages, owner, answer)
            return
        session = await self._session(request, owner)
        if isinstance(value, list):
            _check_batch(messages, session)
        rest = [each for each in messages if not await self._is_posted(session, each)]
        if any(isinstance(each, JSONRPCRequest) for each in rest):
            await self._call(request, session, rest, answer, as_array=isinstance(value, list))
        else:
            await self._notify(request, session, rest, answer)

    async def _initialize(
        self, request: Request, messages: Sequence[AnyMessage], owner: Principal | None, answer: Answer
    ) -> None:
        """Open a session.

        Raises:
            RequestRejected: 400 for an `initialize` that comes within a session, in a batch, or while the lane drains;
                500 for an `initialize` that is not answered in time; else see `SessionStore.create`.
        """
        options = self._options
        if SESSION_HEADER in request.headers:
            text = "Bad request: the session is initialized already; initialize without its id for another one"
            raise RequestRejected(400, INVALID_REQUEST, text)
        first = messages[0]
        if len(messages) > 1 or not isinstance(first, JSONRPCRequest):
            raise RequestRejected(400, INVALID_REQUEST, "Bad request: initialize is sent by itself, not in a batch")
        self._lane.metrics.request(client_of(first.params or {}))
        if options.mode == "drain":
            url = public_url(request.scope, options.public_url)
            where = "this URL" if url is None else url.rstrip("/") + options.route.rstrip("/")
            text = f"This server takes no new sessions: use MCP 2026-07-28, which needs none, at {where}"
            raise RequestRejected(400, INVALID_REQUEST, text)
        with anyio.CancelScope(deadline=_deadline(request.scope)) as scope:
            message = await initialize(self._lane.server, first, ServerMessageMetadata(request_context=request))
        if scope.cancelled_caught:
            raise RequestRejected(500, INTERNAL_ERROR, "The request took longer than this server may run")
        headers = {}
        if isinstance(message, JSONRPCResponse):
            now = int(time.time())
            session = Session(
                id=self._new_id(),
                owner=owner,
                initialize_params=first.params or {},
                protocol_version=message.result["protocolVersion"],
                created_at=now,
                last_used=now,
                expires_at=options.limits.expiry(now, now),
            )
            active = await self._lane.sessions.create(session, options.limits)
            headers[SESSION_HEADER] = session.id
            self._lane.metrics.session(session.client, active)
            await _tell(options.on_session_initialized, session)
        response = Response(text_of(message), headers=headers, media_type="application/json")
        await response(request.scope, request.receive, answer.send)

    def _new_id(self) -> str:
        session_id = self._options.session_id_generator()
        if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
            raise ValueError("session_id_generator makes texts of 16 to 512 visible ASCII characters")
        return session_id

    async def _is_posted(self, session: Session, message: AnyMessage) -> bool:
        """Post what is for a running call; whether there is nothing else to do with the message."""
        mailbox = self._lane.sessions.mailbox
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            # To something that was never asked: there is nobody to tell.
            if match := _REVERSE_ID.fullmatch(str(message.id)):
                await mailbox.post(session.id, match[1], text_of(message), f"reply-{match[2]}")
            return True
        if isinstance(message, JSONRPCRequest):
            return False
        params = message.params or {}
        if message.method == "notifications/cancelled":
            request_id = params.get("requestId")
            if isinstance(request_id, str | int):
                await mailbox.post(session.id, cancellation_of(request_id), text_of(message), "cancelled")
            return True
        if message.method == "notifications/progress" and (
            match := _REVERSE_ID.fullmatch(str(params.get("progressToken")))
        ):
            await mailbox.post(session.id, match[1], text_of(message))
            return True
        return message.method not in self._handled

    async def _notify(self, request: Request, session: Session, messages: Sequence[AnyMessage], answer: Answer) -> None:
        """Answer 202, and let the server's own handlers see notifications."""
        accepted = Response(status_code=202, headers={SESSION_HEADER: session.id})
        # Before the work, or a client that waits for it could not answer what the server asks meanwhile.
        await accepted(request.scope, request.receive, answer.send)
        if messages:
            deadline = _deadline(request.scope)
            if BUFFERED_KEY in request.scope:
                deadline = min(deadline, anyio.current_time() + _ACKNOWLEDGED)
            run = ServerRun(self._lane, session, _Nowhere(), deadline=deadline)
            await run.run(messages, ServerMessageMetadata(request_context=request))

    async def _call(
        self, request: Request, session: Session, messages: Sequence[AnyMessage], answer: Answer, *, as_array: bool
    ) -> None:
        """Run requests, and answer with their answers."""
        headers = {SESSION_HEADER: session.id}
        deadline = _deadline(request.scope)
        metadata = ServerMessageMetadata(request_context=request)
        if self._options.enable_json_response:
            output = _JsonAnswer()
            if not await ServerRun(self._lane, session, output, deadline=deadline).run(messages, metadata):
                raise _not_restored()
            text = f"[{','.join(output.answers)}]" if as_array else output.answers[0]
            response = Response(text, headers=headers, media_type="application/json")
            await response(request.scope, request.receive, answer.send)
            return
        streamed = BUFFERED_KEY not in request.scope
        stream = EventStream(answer.send, headers, self._options.keep_alive if streamed else 0)
        restored = False
        async with anyio.create_task_group() as tasks:
            call = _CallStream(self._lane, self._options, session, stream, deadline=deadline, streamed=streamed)
            run = ServerRun(self._lane, session, call, deadline=deadline)
            requests = tuple(each.id for each in messages if isinstance(each, JSONRPCRequest))
            call.begins(run.stream_id, requests, lambda: tasks.start_soon(stream.run))
            if session.protocol_version >= _RESUMING:
                metadata.close_sse_stream = call.close
                metadata.close_standalone_sse_stream = call.close_standalone
            try:
                restored = await run.run(messages, metadata)
            finally:
                stream.end()
        if not restored:
            raise _not_restored()

    # GET

    async def _get(self, request: Request, session: Session, answer: Answer) -> None:
        last = request.headers.get("last-event-id")
        place = parse_event_id(last) if last is not None else (STANDALONE, None)
        if place is None:
            raise _unknown_event()
        buffered: float | None = request.scope.get(BUFFERED_KEY)
        now = anyio.current_time()
        if buffered is None:
            seconds = self._options.listen_seconds or _LIVE_SECONDS
            until = min(now + seconds, request.scope.get(DEADLINE_KEY, math.inf) - _LAST_FRAMES)
        else:
            seconds = min(self._options.listen_seconds or _POLL_SECONDS, _WHOLE - 2, buffered - _REST)
            until = now + max(seconds, 0)
        follower = await self._follower(session, *place)
        if follower.over:
            # The client has all of the stream. What is no stream is not come back to, as the TypeScript SDK's client
            # does after an answer that is an error.
            await Response(status_code=204)(request.scope, request.receive, answer.send)
            return
        keep_alive = self._options.keep_alive if buffered is None else 0
        stream = EventStream(answer.send, {SESSION_HEADER: session.id}, keep_alive)
        stream.write(priming(follower.event_id, self._options.retry_interval, session.protocol_version))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            watched = anyio.CancelScope()
            with anyio.CancelScope(deadline=until) as following:
                tasks.start_soon(_watch_client, request, following, watched)
                await follow(follower, stream, following, poll=buffered is not None)
            watched.cancel()
            with anyio.CancelScope(shield=True), last_words():
                await follower.leave()
            stream.end()

    async def _follower(self, session: Session, stream_id: str, number: int | None) -> Follower:
        """What reads a stream after an event.

        Raises:
            RequestRejected: 409 for a second standalone stream of one session; else see `_unknown_event`.
        """
        events = self._lane.events
        try:
            if stream_id != STANDALONE:
                return await CallFollower.at(session, events, stream_id, number or 0)
            listener = await events.listen(session.id, number)
        except LookupError:
            raise _unknown_event() from None
        if listener is None:
            raise RequestRejected(
                409, INVALID_REQUEST, "Conflict: this session has a standalone stream already; end it first"
            )
        return StandaloneFollower(session, self._lane.sessions, self._options.limits, listener)


class _Nowhere:
    """Output of a run that answers nothing."""

    can_ask = False

    async def open(self) -> None:
        """Nothing."""

    def begin(self) -> None:
        """Nothing."""

    async def send(self, message: AnyMessage, *, final: bool) -> None:
        """Nothing."""


class _JsonAnswer(_Nowhere):
    """Answers only."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    async def send(self, message: AnyMessage, *, final: bool) -> None:
        """Keep an answer."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self.answers.append(text_of(message))


class _CallStream:
    """The event stream of a call: each event is in the store before it is sent."""

    def __init__(
        self,
        lane: Lane,
        options: LegacyOptions,
        session: Session,
        stream: EventStream,
        *,
        deadline: float,
        streamed: bool,
    ) -> None:
        # Where the answer leaves as a whole, its client would see a question together with the end of the call.
        self.can_ask = streamed
        self._lane = lane
        self._session = session
        self._retry = options.retry_interval
        self._stream = stream
        self._streamed = streamed
        self._deadline = deadline
        self._opened = anyio.Event()
        self._resumable = False
        self._number = 0

    def begins(self, stream_id: str, requests: tuple[RequestId, ...], start: Callable[[], object]) -> None:
        """What is answered here, and what starts the answer."""
        self._id = stream_id
        self._requests = requests
        self._start = start

    def begin(self) -> None:
        """See `Output`."""
        self._start()

    async def open(self) -> None:
        """See `Output`. Promises to live, and renews it, so that those who follow know when to give up."""
        try:
            self._resumable = await self._promise()
            if self._resumable and self._session.protocol_version >= _RESUMING:
                self._stream.write(priming(event_id(self._id, 0), self._retry, self._session.protocol_version))
        finally:
            self._opened.set()
        while True:
            await anyio.sleep(_RENEWAL)
            await self._promise()

    async def _promise(self) -> bool:
        seconds = min(PROMISE, self._deadline - anyio.current_time())
        opening = Opening(time.time() + seconds, self._requests)
        return await self._store(self._lane.events.open(self._session.id, self._id, opening))

    async def send(self, message: AnyMessage, *, final: bool) -> None:
        """See `Output`."""
        self._number += 1
        text = text_of(message)
        event = Event(self._number, text, final)
        # Beside the opening: nobody can ask for it before that is sent.
        stored = await self._store(self._lane.events.append(self._session.id, self._id, event))
        await self._opened.wait()
        retry = self._retry if self._number == 1 and self._session.protocol_version < _RESUMING else None
        self._stream.write(sse(text, event_id(self._id, self._number) if stored else None, retry))

    async def close(self) -> None:
        """End the HTTP answer; the call goes on, and its client comes back for the rest, if it knows how."""
        await self._opened.wait()
        if self._streamed and self._resumable:
            self._stream.end()

    async def close_standalone(self) -> None:
        """End the HTTP answer of the standalone stream, wherever it is."""
        await close_standalone(self._lane.events, self._session.id)

    async def _store(self, storing: Awaitable[None]) -> bool:
        """Whether it is stored: a client without an event cannot come back for the next, but has it."""
        try:
            await storing
        except StateUnavailable as error:
            logger.error("an event is not kept: %s", error)
            return False
        return True


def _deadline(scope: Scope) -> float:
    """When an answer has to be whole, in the event loop's time."""
    deadline: float = scope.get(DEADLINE_KEY, math.inf)
    if (buffered := scope.get(BUFFERED_KEY)) is not None:
        deadline = min(deadline, anyio.current_time() + min(buffered - _REST, _WHOLE))
    return deadline


def _message(value: object) -> AnyMessage:
    """A JSON-RPC message.

    Raises:
        RequestRejected: 400 for a body that is no JSON-RPC message.
    """
    # The SDK takes a request with the id null for a notification.
    if isinstance(value, dict) and ("method" not in value or "id" not in value or value["id"] is not None):
        try:
            return JSONRPCMessage.model_validate(value).root
        except ValidationError:
            pass
    raise RequestRejected(400, INVALID_REQUEST, "Invalid request: the body is not a JSON-RPC message")


def _check_batch(messages: Sequence[AnyMessage], session: Session) -> None:
    """Refuse a batch where its revision has none, and one that cannot be answered.

    https://modelcontextprotocol.io/specification/2025-03-26/basic/transports#sending-messages-to-the-server

    Raises:
        RequestRejected: 400 for a batch of another revision than 2025-03-26, without messages, or with an id twice.
    """
    if session.protocol_version != _BATCHING:
        text = f"Invalid request: revision {session.protocol_version} has no batches: send each message by itself"
        raise RequestRejected(400, INVALID_REQUEST, text)
    ids = [str(each.id) for each in messages if isinstance(each, JSONRPCRequest)]
    if not messages or len(set(ids)) < len(ids):
        raise RequestRejected(400, INVALID_REQUEST, "Invalid request: the batch is empty, or an id comes twice")


def _check_accept(request: Request, *wanted: str) -> None:
    """Refuse a client that cannot read the answer (RFC 9110 section 12.5.1).

    Raises:
        RequestRejected: 406 for a client that does not accept what it would get.
    """
    ranges = ",".join(request.headers.getlist("accept")).lower().split(",")
    accepted = {each.partition(";")[0].strip() for each in ranges}
    for media_type in wanted:
        if accepted.isdisjoint((media_type, media_type.partition("/")[0] + "/*", "*/*")):
            raise RequestRejected(406, INVALID_REQUEST, f"Not acceptable: send Accept: {', '.join(wanted)}")


def _not_restored() -> RequestRejected:
    """The answer is 500 for a session that your server refuses to go on with in another environment."""
    reason = "the server does not accept a session that it has agreed to"
    return RequestRejected(500, INTERNAL_ERROR, "Internal server error", reason=reason)


def _unknown_event() -> RequestRejected:
    """The answer is 400 for an event that is not kept any more, or never was.

    An empty stream would have the client come back for ever.
    """
    text = "Bad request: this session has no event of the id in Last-Event-ID; begin a stream without it"
    return RequestRejected(400, INVALID_REQUEST, text)


async def _watch_client(request: Request, following: anyio.CancelScope, watched: anyio.CancelScope) -> None:
    """End an answer whose client has gone."""
    with watched:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        following.cancel()


async def _tell(callback: Callable[[Session], object] | None, session: Session) -> None:
    """Call a function of the author's; what it raises is for the log."""
    if callback is None:
        return
    try:
        told = callback(session)
        if inspect.isawaitable(told):
            await told
    except Exception:
        logger.exception("a session callback raised")
