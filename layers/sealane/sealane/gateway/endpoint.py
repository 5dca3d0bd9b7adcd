"""What every endpoint does with a request before it is served, and one answer to each, whatever happens."""

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealane import telemetry
from sealane.errors import INTERNAL_ERROR, INVALID_REQUEST, RequestId, RequestRejected, error_response
from sealane.gateway.authentication import Authentication
from sealane.gateway.observed import observed
from sealane.policy.cors import cors_middleware
from sealane.policy.gateway_auth import GatewayAuth
from sealane.policy.hosts import check_host
from sealane.policy.json_text import decode
from sealane.policy.options import EndpointOptions
from sealane.policy.origins import check_origin, origin_hostnames

__all__ = ["Answer", "Endpoint", "request_id_of"]

logger = logging.getLogger(__name__)


class Endpoint:
    """The door of a lane: CORS, route, metadata documents, Host and Origin.

    Args:
        options: the lane's.
        serve: answers a request that has come through, by `Answer.send`. It may raise whatever it wants, and
            `RequestRejected` as long as nothing was sent.

    Attributes:
        app: the ASGI application.
        authentication: finds callers; `serve` asks it.
    """

    def __init__(self, options: EndpointOptions, serve: "Callable[[Request, Answer], Awaitable[None]]") -> None:
        self._options = options
        self._exchange = serve
        self._route = options.route.rstrip("/")
        self._cors_hostnames = frozenset[str]() if options.cors is False else origin_hostnames(options.cors.origins)
        auth = options.auth or GatewayAuth.configured()
        self.authentication = Authentication(auth, options.public_url, self._route)
        self.app: ASGIApp = observed(
            self._serve if options.cors is False else cors_middleware(self._serve, options.cors)
        )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application inside CORS: one answer for every HTTP request, whatever happens."""
        if scope["type"] != "http":
            raise RuntimeError(f"sealane serves HTTP requests, not {scope['type']}")
        # The spaces around a header's value are no part of it (RFC 9110 section 5.5), whoever has parsed it.
        scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        answer = Answer(receive, send)
        try:
            await self._admit(Request(scope, answer.receive), answer)
        except RequestRejected as rejection:
            await error_response(rejection, answer.request_id)(scope, receive, send)
            self.report(rejection)
        except ClientDisconnect:
            answer.client_left = True
        except (Exception, BaseExceptionGroup) as error:
            logger.exception("a request failed")
            telemetry.current().answer_error(INTERNAL_ERROR)
            telemetry.current().explain(type(error).__name__)
            if not answer.started:
                await error_response(_failed(), answer.request_id)(scope, receive, send)
            self.report(error if isinstance(error, Exception) else _failed(repr(error)))
        else:
            refusal = answer.rejection()
            if not answer.started and not answer.client_left:
                refusal = _failed("the SDK ended the exchange without an answer")
                await error_response(refusal, answer.request_id)(scope, receive, send)
            if refusal is not None:
                self.report(refusal)
        telemetry.current().left = answer.client_left

    async def _admit(self, request: Request, answer: "Answer") -> None:
        """Let a request through to what serves it, or answer with the document that it asks for.

        Raises:
            RequestRejected: 404 for a path that is not served; else see what is called here. Nothing was sent.
        """
        options = self._options
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        document = None
        if path.rstrip("/") != self._route:
            document = self.authentication.metadata(request, path)
            if document is None:
                raise RequestRejected(
                    404, INVALID_REQUEST, "Not found", reason=f"no route {path!r}: MCP is at {options.route}"
                )
        check_host(request, options.allowed_hostnames)
        check_origin(request, options.allowed_origin_hostnames, self._cors_hostnames)
        if document is not None:
            await document(request.scope, request.receive, answer.send)
            return
        await self._exchange(request, answer)

    def report(self, error: Exception) -> None:
        """Tell the telemetry and `on_error` of what is not answered as it was asked for."""
        if isinstance(error, RequestRejected):
            telemetry.current().refuse(error.status, error.code, error.reason)
        if self._options.on_error is not None:
            try:
                self._options.on_error(error)
            except Exception:
                logger.exception("on_error raised; the answer is not changed")


class Answer:
    """What becomes of one request: an ASGI `receive` and `send` that remember it.

    Attributes:
        request_id: JSON-RPC id of the request, once it is known.
        client_left: the client went away before it had its whole answer.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.request_id: RequestId | None = None
        self.client_left = False
        self._receive = receive
        self._send = send
        self._ended = False
        self._status = 0
        self._body = b""

    @property
    def started(self) -> bool:
        """Whether the client has got a status."""
        return self._status != 0

    async def receive(self) -> Message:
        """Pass one ASGI message of the client on."""
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._ended:
            self.client_left = True
        return message

    async def send(self, message: Message) -> None:
        """Pass one ASGI message of the answer on."""
        self._ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif self._status >= 400:
            self._body += message.get("body", b"")
        await self._send(message)

    def rejection(self) -> RequestRejected | None:
        """The refusal that the SDK sent, if the answer was one."""
        if self._status < 400:
            return None
        body = decode(self._body)
        error = body.get("error") if isinstance(body, dict) else None
        code, message = (error["code"], error["message"]) if error else (INVALID_REQUEST, "refused by the SDK")
        return RequestRejected(self._status, code, message)


def _failed(reason: str | None = None) -> RequestRejected:
    """The answer is 500 for an exception in the factory, the server or our own code: the log has more."""
    return RequestRejected(500, INTERNAL_ERROR, "Internal server error", reason=reason)


def request_id_of(message: object) -> RequestId | None:
    """The id of a single JSON-RPC request; an error answers `null` where there is none (JSON-RPC 2.0, section 5)."""
    request_id = message.get("id") if isinstance(message, dict) and "method" in message else None
    return request_id if isinstance(request_id, str | int) and not isinstance(request_id, bool) else None
