"""Events to ASGI and back with Mangum: one whole answer for each event."""

import asyncio
import logging
from typing import Any, cast

from mangum import Mangum
from mangum.types import ASGI, LambdaContext, LambdaHandler, Scope
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from sealane import telemetry
from sealane.errors import INTERNAL_ERROR, INVALID_REQUEST, RequestRejected, error_response
from sealane.gateway.events import BUFFERED_KEY, NotAnHttpEvent, http_event
from sealane.gateway.loop import environment_loop
from sealane.gateway.remaining import remaining_seconds, seconds_to_answer
from sealane.state import deadline

__all__ = ["BufferedGateway", "is_ping", "refusal"]

logger = logging.getLogger(__name__)

# Mangum tells of each request, whose line in the log is for others to write.
logging.getLogger("mangum.http").setLevel(logging.WARNING)


class BufferedGateway:
    """Answers Lambda events with an ASGI application. Whatever the event, nothing is raised.

    Mangum reads the events and writes the answers. Its own `__call__` is not used: it runs a loop anew for each
    invocation (see `EnvironmentLoop`), and has a queue for two messages.

    Attributes:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._mangum = Mangum(cast(ASGI, app), lifespan="off")
        self._loop = environment_loop()

    def __call__(self, event: object, context: LambdaContext) -> dict[str, Any]:
        """The answer to one event, in the shape that its sender reads."""
        if is_ping(event):
            return {"statusCode": 204}
        try:
            return self._answer(event, context)
        except (Exception, SystemExit) as error:
            # A library that calls sys.exit would else take the environment with it.
            return _error(refusal(error), event)

    def request(self, event: object, context: LambdaContext) -> tuple[LambdaHandler, Scope]:
        """Mangum's reading of an event (with the body, and the way back to an answer), and the ASGI scope.

        Raises:
            NotAnHttpEvent: it is none that API Gateway, a function URL or an ALB sends.
        """
        made = http_event(event)
        handler = self._mangum.infer(made.event, context)
        try:
            scope = handler.scope
        except UnicodeEncodeError as error:
            # JSON can hold half a surrogate pair, HTTP cannot.
            raise NotAnHttpEvent(str(error)) from None
        made.complete(scope, event)
        return handler, scope

    def _answer(self, event: object, context: LambdaContext) -> dict[str, Any]:
        handler, scope = self.request(event, context)
        scope[BUFFERED_KEY] = seconds = remaining_seconds(context)
        answer = BufferedAnswer(handler.body)

        async def run() -> None:
            with deadline.within(seconds_to_answer(seconds)):
                try:
                    await self.app(scope, answer.receive, answer.send)
                except BaseException:
                    logger.exception("the application failed")
                    if not answer.ended:
                        answer.replace(error_response(_failed()))

        self._loop.run(run())

        # The sender of the event counts the bytes itself, and API Gateway renames a length that it is given.
        headers = [list(header) for header in answer.headers if header[0] != b"content-length"]
        typed = any(name == b"content-type" for name, _ in headers)
        if not typed and answer.body:
            headers.append([b"content-type", b"text/plain; charset=utf-8"])
        written = handler({"status": answer.status, "headers": headers, "body": bytes(answer.body)})
        if not typed and not answer.body:
            # Mangum types an answer of payload 2.0 as JSON even when it has no body.
            written.get("headers", {}).pop("content-type", None)
        return written


class BufferedAnswer:
    """ASGI's `receive` and `send` for one invocation whose answer leaves as a whole.

    Args:
        body: the request's.

    Attributes:
        ended: the answer is complete.
        status: HTTP status; 0 until the answer starts.
        headers: name and value of each.
        body: as much as there is of it.
    """

    def __init__(self, body: bytes) -> None:
        self.ended = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self._unread: bytes | None = body
        self._over = asyncio.Event()

    async def receive(self) -> Message:
        """The request, then its end: the answer is complete."""
        if self._unread is not None:
            body, self._unread = self._unread, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take status and headers, or a piece of the body. After the end this does nothing, as ASGI has it."""
        if self.ended:
            return
        if message["type"] == "http.response.start" and not self.status:
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body" and self.status:
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                self.ended = True
                self._over.set()
        else:
            raise RuntimeError(f"unexpected ASGI message {message['type']}")

    def replace(self, response: Response) -> None:
        """Answer with `response` instead of what there is so far."""
        self.status, self.headers, self.body = response.status_code, response.raw_headers, bytearray(response.body)
        self.ended = True


def is_ping(event: object) -> bool:
    """Whether a scheduler keeps the environment warm: EventBridge, or what warm-up plugins imitate of it."""
    return isinstance(event, dict) and "source" in event and "requestContext" not in event


def refusal(error: BaseException) -> RequestRejected:
    """What the caller is told of an invocation that failed before its answer; tells the telemetry more.

    That is 400 for an event that is no HTTP request, such as one of a queue; 500 for an exception in our own code.
    """
    with telemetry.exchange() as exchange:
        if isinstance(error, NotAnHttpEvent):
            text = "Bad request: not an HTTP event"
            rejection = RequestRejected(400, INVALID_REQUEST, text, reason=f"not an HTTP event: {error}")
        else:
            logger.error("an invocation failed", exc_info=error)
            rejection = _failed(type(error).__name__)
        exchange.refuse(rejection.status, rejection.code, rejection.reason)
        exchange.end(rejection.status)
    return rejection


def _failed(reason: str | None = None) -> RequestRejected:
    """The answer is 500 for an exception in our own code: the log has more."""
    return RequestRejected(500, INTERNAL_ERROR, "Internal server error", reason=reason)


def _error(rejection: RequestRejected, event: object) -> dict[str, Any]:
    media_type = "application/json"
    # A load balancer reads only the kind of headers that it sends.
    multiple = isinstance(event, dict) and "multiValueHeaders" in event
    return {
        "statusCode": rejection.status,
        **(
            {"multiValueHeaders": {"content-type": [media_type]}}
            if multiple
            else {"headers": {"content-type": media_type}}
        ),
        "body": bytes(error_response(rejection).body).decode(),
        "isBase64Encoded": False,
    }
