"""One run of the v1 server: a session restored for one HTTP exchange, the exchange's messages, what the server says."""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import anyio
import mcp.types as types
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.server.models import InitializationOptions
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from sealane import telemetry
from sealane.errors import INTERNAL_ERROR
from sealane.legacy.events import EventStore, new_stream_id
from sealane.legacy.mailbox import ENDED, Mail, cancellation_of
from sealane.legacy.metrics import LegacyMetrics
from sealane.legacy.sessions import MAX_SUBSCRIPTIONS, Session, SessionStore
from sealane.state.deadline import last_words
from sealane.state.errors import InvalidValue, StateUnavailable

__all__ = ["AnyMessage", "Lane", "Output", "ServerRun", "initialize", "text_of"]

logger = logging.getLogger(__name__)

AnyMessage = JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError
Answer = JSONRPCResponse | JSONRPCError
V1Server = Server[Any, Any]

_REQUEST_TIMEOUT: Final = 408
"""What v1's own sessions say of a request that nobody answered."""
_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_FIRST_LOOK: Final = 1.0
"""Seconds between two looks for a cancellation, and before the first: most calls are over by then."""
_ASKING: Final = (0.05, 0.25)
"""Seconds between two looks for the reply to a question: at first, and at last."""
_CLOSING: Final = 2.0
"""Seconds that the server has to leave its lifespan."""
_CLOSING_LATE: Final = 0.2
_PING: Final = "sealane-ping"


class Output(Protocol):
    """Where a run's messages go.

    Attributes:
        can_ask: the client sees a request on it at once, or when it comes back.
    """

    can_ask: bool

    async def open(self) -> None:
        """Runs beside the call, from its beginning to its end."""
        ...

    def begin(self) -> None:
        """The server takes the call."""
        ...

    async def send(self, message: AnyMessage, *, final: bool) -> None:
        """Send one message; nothing comes after a final one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What all runs of an environment share.

    Args:
        server: the server.
        options: what it tells of itself when a session is restored.
        sessions: the sessions.
        events: the events.
        metrics: is told of what tells who still needs the lane.
        reply_timeout: seconds that a call waits for its client's answer.
    """

    server: V1Server
    options: InitializationOptions
    sessions: SessionStore
    events: EventStore
    metrics: LegacyMetrics
    reply_timeout: float

    def __post_init__(self) -> None:
        handlers = self.server.notification_handlers
        for kind, handler in handlers.items():
            handlers[kind] = _counted(handler)


@dataclass(slots=True)
class _Question:
    """A reverse request that has no answer yet.

    Attributes:
        request_id: its id inside the server.
        until: when to stop waiting, in the event loop's time.
    """

    request_id: str | int
    until: float


class _WriteStream:
    """The server's end of a session: what it sends is dealt with at once, and what has to wait makes it wait.

    Unlike the SDK's own streams it can be written to when the run is over: servers keep sessions.
    """

    def __init__(self, deliver: Callable[[AnyMessage, str | None], Awaitable[None]]) -> None:
        self._deliver = deliver

    async def __aenter__(self) -> "_WriteStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is to be closed."""

    async def aclose(self) -> None:
        """Nothing is to be closed."""

    async def send(self, sent: SessionMessage) -> None:
        """Take a message of the server."""
        metadata = sent.metadata
        related = metadata.related_request_id if isinstance(metadata, ServerMessageMetadata) else None
        # A client must not see half of what happened because a call was cancelled in between.
        with anyio.CancelScope(shield=True):
            await self._deliver(sent.message.root, None if related is None else str(related))


class ServerRun:
    """One run of the server for a session.

    Args:
        lane: what it shares with others.
        session: the session.
        output: where answers go, and what belongs to them.
        deadline: when the run has to be over, in the event loop's time.

    Attributes:
        stream_id: names the run, in its events and its mail.
    """

    def __init__(self, lane: Lane, session: Session, output: Output, *, deadline: float) -> None:
        self.stream_id = new_stream_id()
        self._lane = lane
        self._session = session
        self._level = session.log_level
        self._output = output
        self._deadline = deadline
        self._feed, self._fed = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self._write_stream = _WriteStream(self._deliver)
        self._lock = anyio.Lock()
        self._unrestored = 0
        self._restored = anyio.Event()
        self._refused = False
        self._waiting: dict[str, JSONRPCRequest] = {}
        self._questions: dict[str, _Question] = {}
        self._asked = anyio.Event()
        self._count = 0
        self._finished = anyio.Event()
        self._stopped = anyio.Event()
        self._over = False
        self._told: dict[tuple[str, str], ServerRun] = {}
        self._handling = 0
        self._idle = anyio.Event()

    async def run(self, messages: Sequence[AnyMessage], metadata: ServerMessageMetadata) -> bool:
        """Let the server handle `messages`, until all requests among them are answered.

        Args:
            messages: the client's.
            metadata: what handlers are told of the HTTP exchange.

        Returns:
            Whether the server accepts the session; if not, nothing was sent.
        """
        self._waiting = {str(each.id): each for each in messages if isinstance(each, JSONRPCRequest)}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._output.open)
            tasks.start_soon(self._serve)
            with anyio.CancelScope(deadline=self._deadline):
                await self._restore()
            if self._refused or not self._restored.is_set():
                tasks.cancel_scope.cancel()
                return False
            self._output.begin()
            for message in messages:
                self._put(message, metadata)
            tasks.start_soon(self._watch)
            with anyio.CancelScope(deadline=self._deadline):
                if self._waiting:
                    await self._finished.wait()
                else:
                    await self._notifications_handled()
            # Told before the handlers are cancelled: one that cannot be must not hold the answer back.
            await self.fail("The request took longer than this server may run")
            self._feed.close()
            late = anyio.current_time() >= self._deadline
            with anyio.move_on_after(_CLOSING_LATE if late else _CLOSING):
                await self._stopped.wait()
            tasks.cancel_scope.cancel()
        self._over = True
        return True

    async def fail(self, text: str) -> None:
        """Answer whatever is not answered with an error."""
        with anyio.CancelScope(shield=True), last_words():
            if self._waiting:
                telemetry.current().explain(text)
            for request in list(self._waiting.values()):
                error = types.ErrorData(code=INTERNAL_ERROR, message=text)
                await self._answer(JSONRPCError(jsonrpc="2.0", id=request.id, error=error))

    async def _serve(self) -> None:
        _current_run.set(self)
        try:
            # The SDK names anyio's class, and uses what is written above.
            stream = cast(MemoryObjectSendStream[SessionMessage], self._write_stream)
            await self._lane.server.run(self._fed, stream, self._lane.options)
        except Exception:
            logger.exception("the server failed")
            self._refused = True
            self._restored.set()
            await self.fail("Internal server error")
        finally:
            self._stopped.set()

    async def _restore(self) -> None:
        """Tell the server what it knew of the session; what it says to that was said long ago."""
        session, handlers = self._session, self._lane.server.request_handlers
        requests: list[tuple[str, dict[str, Any]]] = [("initialize", session.initialize_params)]
        if session.log_level is not None and types.SetLevelRequest in handlers:
            requests.append(("logging/setLevel", {"level": session.log_level}))
        if types.SubscribeRequest in handlers:
            requests += [("resources/subscribe", {"uri": uri}) for uri in sorted(session.subscriptions)]
        self._unrestored = len(requests)
        for number, (method, params) in enumerate(requests):
            self._put(JSONRPCRequest(jsonrpc="2.0", id=f"restore-{number}", method=method, params=params))
        await self._restored.wait()

    def _put(self, message: AnyMessage, metadata: ServerMessageMetadata | None = None) -> None:
        # A server that has ended needs no more.
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._feed.send_nowait(SessionMessage(JSONRPCMessage(message), metadata))

    async def _notifications_handled(self) -> None:
        """Wait for the handlers of notifications, of which v1 does not tell when they are done."""
        # Requests are taken after the notifications that came before them.
        self._waiting = {_PING: JSONRPCRequest(jsonrpc="2.0", id=_PING, method="ping")}
        self._put(self._waiting[_PING])
        await self._finished.wait()
        if self._handling:
            await self._idle.wait()

    @contextmanager
    def handling(self) -> Iterator[None]:
        """The handler of a notification is at work."""
        self._handling += 1
        try:
            yield
        finally:
            self._handling -= 1
            if self._handling == 0:
                self._idle.set()

    async def _deliver(self, message: AnyMessage, related: str | None) -> None:
        """What becomes of a message of the server."""
        if self._over:
            if not isinstance(message, JSONRPCNotification):
                raise anyio.ClosedResourceError
            if related is None:
                await self._publish(message)
        elif not self._restored.is_set():
            await self._swallow(message)
        elif isinstance(message, JSONRPCResponse | JSONRPCError):
            await self._answer(message)
        elif isinstance(message, JSONRPCRequest):
            await self._ask(message)
        elif not self._is_wanted(message):
            pass
        elif related is None:
            await self._publish(message)
        elif related in self._waiting:
            await self._send(self._translated(message))

    async def _swallow(self, message: AnyMessage) -> None:
        if isinstance(message, JSONRPCRequest):
            error = types.ErrorData(code=types.INVALID_REQUEST, message="the session is being restored")
            self._put(JSONRPCError(jsonrpc="2.0", id=message.id, error=error))
        elif not isinstance(message, JSONRPCNotification):
            self._refused |= isinstance(message, JSONRPCError) and message.id == "restore-0"
            self._unrestored -= 1
            if self._unrestored == 0:
                self._restored.set()

    def _is_wanted(self, message: JSONRPCNotification) -> bool:
        """Whether a client wants a log message; v1 does not ask itself."""
        if message.method != "notifications/message" or self._level not in _LEVELS:
            return True
        level = (message.params or {}).get("level")
        return level not in _LEVELS or _LEVELS.index(level) >= _LEVELS.index(self._level)

    async def _answer(self, message: Answer) -> None:
        request = self._waiting.get(str(message.id))
        if request is None:
            return
        if isinstance(message, JSONRPCResponse):
            message = await self._keep(request, message)
        if isinstance(message, JSONRPCError):
            telemetry.current().answer_error(message.error.code)
        elif request.method == "tools/call" and message.result.get("isError") is True:
            telemetry.current().answer_tool_error()
        async with self._lock:
            if self._waiting.pop(str(message.id), None) is not None:
                await self._output.send(message, final=not self._waiting)
            if not self._waiting:
                self._finished.set()

    async def _send(self, message: AnyMessage) -> None:
        async with self._lock:
            # Nothing comes after the last answer.
            if self._waiting:
                await self._output.send(message, final=False)

    async def _publish(self, message: AnyMessage) -> None:
        """Put a message on the standalone stream.

        v1 servers keep the sessions that they notify, and each run has made another object of the same one: what two of
        them are told by one run is said once.
        """
        text, session_id = text_of(message), self._session.id
        try:
            if _current_run.get(self)._told.setdefault((session_id, text), self) is self:
                await self._lane.events.publish(session_id, text)
        except (InvalidValue, StateUnavailable) as error:
            logger.error("a message could not be put on the standalone stream: %s", error)
            if isinstance(message, JSONRPCRequest):
                raise

    async def _keep(self, request: JSONRPCRequest, answer: JSONRPCResponse) -> Answer:
        """Keep what the client and the server have agreed on, beyond this environment."""
        params = request.params or {}
        sessions, session = self._lane.sessions, self._session
        try:
            match request.method:
                case "logging/setLevel":
                    await sessions.set_log_level(session, str(params.get("level")))
                    self._level = str(params.get("level"))
                case "resources/subscribe":
                    if not await sessions.subscribe(session, str(params.get("uri"))):
                        text = f"A session can have {MAX_SUBSCRIPTIONS} subscriptions"
                        error = types.ErrorData(code=types.INVALID_REQUEST, message=text)
                        return JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
                case "resources/unsubscribe":
                    await sessions.unsubscribe(session, str(params.get("uri")))
        except StateUnavailable as error:
            return JSONRPCError(
                jsonrpc="2.0", id=request.id, error=types.ErrorData(code=INTERNAL_ERROR, message=str(error))
            )
        return answer

    async def _ask(self, request: JSONRPCRequest) -> None:
        """Send a reverse request, under an id that is the only one of all environments."""
        self._count += 1
        ours = f"{self.stream_id}.{self._count}"
        params = dict(request.params) if request.params is not None else None
        if params is not None and (meta := params.get("_meta")) and meta.get("progressToken") == request.id:
            params["_meta"] = {**meta, "progressToken": ours}
        asked = JSONRPCRequest(jsonrpc="2.0", id=ours, method=request.method, params=params)
        self._questions[ours] = _Question(request.id, anyio.current_time() + self._lane.reply_timeout)
        self._lane.metrics.reverse_request(request.method)
        try:
            if self._output.can_ask:
                await self._send(asked)
            else:
                await self._publish(asked)
        except (InvalidValue, StateUnavailable) as error:
            self._reply_with_error(ours, INTERNAL_ERROR, str(error))
        self._asked.set()

    def _translated(self, message: JSONRPCNotification) -> JSONRPCNotification:
        """A cancellation of a question names it as the client knows it."""
        params = message.params or {}
        if message.method == "notifications/cancelled":
            for ours, question in self._questions.items():
                if question.request_id == params.get("requestId"):
                    return message.model_copy(update={"params": {**params, "requestId": ours}})
        return message

    async def _watch(self) -> None:
        """Look at the mailbox: seldom, and often while the client is to answer."""
        pause = _FIRST_LOOK
        while True:
            with anyio.move_on_after(pause):
                await self._asked.wait()
                await anyio.sleep(_ASKING[0])
            if self._asked.is_set():
                self._asked, pause = anyio.Event(), _ASKING[0]
            try:
                addresses = {self.stream_id: None, ENDED: None}
                addresses |= {cancellation_of(each.id): None for each in self._waiting.values()}
                for mail in await self._lane.sessions.mailbox.collect(self._session.id, addresses):
                    await self._take(mail)
            except StateUnavailable:
                logger.error("the mailbox is out of reach; replies will be read later")
            now = anyio.current_time()
            for ours in [ours for ours, question in self._questions.items() if question.until < now]:
                self._reply_with_error(ours, _REQUEST_TIMEOUT, "Timed out while waiting for the client's answer")
            pause = min(pause * 1.5, _ASKING[1]) if self._questions else _FIRST_LOOK

    async def _take(self, mail: Mail) -> None:
        if mail.address == ENDED:
            # Whoever asks is told why; the other calls of the session read it too.
            for ours in list(self._questions):
                self._reply_with_error(ours, INTERNAL_ERROR, "The session has ended")
            await self.fail("The session has ended")
            return
        with suppress(ValueError):
            self._put_mail(JSONRPCMessage.model_validate_json(mail.message).root)
        await self._lane.sessions.mailbox.discard(self._session.id, mail)

    def _put_mail(self, message: AnyMessage) -> None:
        """Hand the server what its client sent, with the ids that it knows."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            if (question := self._questions.pop(str(message.id), None)) is not None:
                self._put(message.model_copy(update={"id": question.request_id}))
        elif isinstance(message, JSONRPCNotification):
            params = message.params or {}
            if message.method == "notifications/progress":
                asked = self._questions.get(str(params.get("progressToken")))
                if asked is None:
                    return
                message = message.model_copy(update={"params": {**params, "progressToken": asked.request_id}})
                # A client that works on it has not forgotten it.
                asked.until = anyio.current_time() + self._lane.reply_timeout
            self._put(message)

    def _reply_with_error(self, ours: str, code: int, text: str) -> None:
        if (question := self._questions.pop(ours, None)) is not None:
            error = types.ErrorData(code=code, message=text)
            self._put(JSONRPCError(jsonrpc="2.0", id=question.request_id, error=error))


_current_run: ContextVar[ServerRun] = ContextVar("sealane_server_run")


def _counted(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """`handler`, which the run that it works for knows of."""

    async def counted(notification: object) -> None:
        with _current_run.get().handling():
            await handler(notification)

    return counted


async def initialize(server: V1Server, request: JSONRPCRequest, metadata: ServerMessageMetadata) -> Answer:
    """The server's answer to the handshake.

    Raises:
        RuntimeError: it gave none.
    """
    answered = anyio.Event()
    answers: list[Answer] = []

    async def deliver(message: AnyMessage, _: str | None) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            answers.append(message)
            answered.set()

    feed, fed = anyio.create_memory_object_stream[SessionMessage | Exception](1)
    stream = cast(MemoryObjectSendStream[SessionMessage], _WriteStream(deliver))
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await server.run(fed, stream, server.create_initialization_options())
            answered.set()

        tasks.start_soon(serve)
        feed.send_nowait(SessionMessage(JSONRPCMessage(request), metadata))
        await answered.wait()
        feed.close()
    if not answers:
        raise RuntimeError("the server ended without an answer to initialize")
    return answers[0]


def text_of(message: AnyMessage) -> str:
    """A message as JSON."""
    return message.model_dump_json(by_alias=True, exclude_none=True)
