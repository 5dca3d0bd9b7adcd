"""create_mcp_handler: a server factory and options in, a Lambda handler out."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import anyio
from mangum.types import LambdaContext
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealane import compatibility, stateless, telemetry
from sealane.authentication import authenticated, principal_of
from sealane.bound import Bound
from sealane.catalog import missing_scopes
from sealane.era import Era, era_of
from sealane.errors import INTERNAL_ERROR, RequestRejected
from sealane.factory import RequestContext, ServerFactory, ServerMaker, low_level_server
from sealane.gateway.buffered import BufferedGateway
from sealane.gateway.endpoint import Answer, Endpoint, request_id_of
from sealane.gateway.events import BUFFERED_KEY, DEADLINE_KEY
from sealane.gateway.loop import environment_loop
from sealane.options import HandlerOptions, handler_options
from sealane.outcome import called_tool, observe_outcome
from sealane.policy.auth_context import auth_context
from sealane.policy.body import read_body, receive_again
from sealane.policy.json_text import decode
from sealane.policy.principal import principal_context
from sealane.policy.protected_resource import BearerError
from sealane.request_state import SealedState
from sealane.response_mode import ResponseShaper
from sealane.state.keyring import Keyring
from sealane.state_errors import tell_state_errors
from sealane.subscriptions import Notifier, Subscriptions

__all__ = ["McpHandler", "create_mcp_handler"]

logger = logging.getLogger(__name__)


def create_mcp_handler(factory: ServerFactory, **options: Any) -> "McpHandler":
    """Make a Lambda handler that serves MCP, with a fresh server from `factory` for each HTTP request.

        handler = create_mcp_handler(create_server)

    Args:
        factory: makes an `MCPServer` or low-level `Server`; sync or async, with no parameter or one `RequestContext`.
        options: see `HandlerOptions`.

    Raises:
        TypeError: for a ready server instead of a factory, a server of SDK v1, or an option that does not exist.
        ValueError: for a value that an option refuses.
        StateNotConfigured: on Lambda, for a server that can ask its callers questions while no key is configured
            that all environments share.
    """
    return McpHandler(factory, handler_options(**options))


class McpHandler:
    """Serves MCP to Lambda (call it), to code that has a Starlette request (`fetch`), and to ASGI servers (`app`).

    Made by `create_mcp_handler`.

    Attributes:
        app: the same as an ASGI application.
        notify: publishes changes to open subscriptions: `await handler.notify.resource_updated(uri)`,
            `tools_changed()`, `prompts_changed()`, `resources_changed()`.
    """

    def __init__(self, factory: ServerFactory, options: HandlerOptions) -> None:
        telemetry.start()
        self._maker = ServerMaker(factory)
        self._options = options
        self._subscriptions = Subscriptions(options.subscriptions, options.max_subscriptions, options.listen_seconds)
        self.notify = Notifier(options.subscriptions)
        self._sealed_state = SealedState(options.keyring or Keyring.configured())
        if not self._sealed_state.is_shared:
            self._check_what_would_be_served()
        self._endpoint = Endpoint(options, self._exchange)
        self.app = self._endpoint.app

    def __call__(self, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        """Answer one Lambda event of API Gateway (REST or HTTP API), a function URL or an ALB. Never raises."""
        return self.gateway(event, context)

    @cached_property
    def gateway(self) -> BufferedGateway:
        """What turns Lambda's events into requests to `app`."""
        return BufferedGateway(self.app)

    def _check_what_would_be_served(self) -> None:
        """Make a server for no request, and refuse to start when it cannot keep what it promises.

        A factory that needs a real request tells nothing now; its server then fails when it asks.

        Raises:
            StateNotConfigured: see `create_mcp_handler`.
        """
        scope = {"type": "http", "method": "POST", "path": self._options.route, "query_string": b"", "headers": []}
        try:
            made = environment_loop().run(self._maker.make(RequestContext(era="modern", request=Request(scope))))
        except Exception:
            logger.debug("the factory makes no server without a request", exc_info=True)
        else:
            self._sealed_state.check(made)

    async def fetch(
        self, request: Request, *, auth_info: AccessToken | None = None, parsed_body: object = None
    ) -> Response:
        """Answer one Starlette request, behind another framework or middleware.

        Args:
            request: a request whose body was not consumed, or was read with `await request.body()`.
            auth_info: the caller as the code in front has verified it; wins over the request's user.
            parsed_body: the decoded JSON body, when the code in front has read it; it is not read again.

        Returns:
            The whole answer, or a `StreamingResponse` that is to be iterated while the request is served.
        """
        scope = {**request.scope}
        if auth_info is not None:
            scope["user"] = AuthenticatedUser(auth_info)
            scope["auth"] = AuthCredentials(auth_info.scopes)
        if parsed_body is not None:
            # Whoever has decoded the body has undone its content coding too.
            scope["headers"] = [header for header in scope["headers"] if header[0] != b"content-encoding"]
        if parsed_body is None:
            receive = _receive(request.stream(), request.receive)
        else:
            receive = receive_again(json.dumps(parsed_body).encode(), request.receive)
        return await _collect(self.app, scope, receive)

    async def _exchange(self, request: Request, answer: Answer) -> None:
        """Caller, era, lane, factory, SDK: the way of one request.

        Raises:
            RequestRejected: the request is not served, and nothing was sent.
        """
        options = self._options
        if (scope := await authenticated(self._endpoint.authentication, request)) is not request.scope:
            request = Request(scope, request.receive)
        compatibility.check_method(request)
        stateless.check_media_types(request, options.response_mode == "json")
        body = await read_body(request, options.max_request_body_size)
        message = decode(body)
        answer.request_id = request_id_of(message)
        era = era_of(request.method, request.headers, message)
        lane: telemetry.Lane = "stateless" if era == "modern" else "compatibility"
        telemetry.current().describe(message, request.headers, era=era, lane=lane)
        if era == "modern":
            if isinstance(message, dict) and message.get("method") == "subscriptions/listen":
                # Answered by an event stream in every mode; the SDK's own 406 says nothing.
                stateless.check_media_types(request, json_response=False)
            call = stateless.modern_call(request, message)
            acknowledged = call is None
        else:
            call = None
            acknowledged = compatibility.is_only_acknowledged(request, message, options.legacy)
        if acknowledged:
            await Response(status_code=202)(request.scope, request.receive, answer.send)
            return
        await self._answer(call, request, body, message, answer.send)

    async def _answer(
        self, call: stateless.ModernCall | None, request: Request, body: bytes, message: object, send: Send
    ) -> None:
        """Let a fresh server answer `request`.

        Args:
            call: what a modern request calls; `None` for a legacy one.

        Raises:
            RequestRejected: the caller lacks scopes that the tool needs.
        """
        options = self._options
        era: Era = "legacy" if call is None else "modern"
        scope = request.scope
        user = scope.get("user")
        caller = user if isinstance(user, AuthenticatedUser) else None
        auth_info = caller.access_token if caller is not None else None
        context = RequestContext(
            era=era,
            request=Request(scope, receive_again(body, request.receive)),
            auth_info=auth_info,
            event=scope.get("aws.event"),
            lambda_context=scope.get("aws.context"),
        )
        properties = options.auth_context
        if properties is None and auth_info is not None:
            properties = auth_info.claims
        # The first is what the SDK's AuthContextMiddleware does.
        with (
            Bound(auth_context_var, caller),
            auth_context(properties),
            principal_context(principal_of(auth_info)),
        ):
            product = await self._maker.make(context)
            telemetry.current().tool = called_tool(product, message)
            if missing := missing_scopes(product, message):
                error: BearerError | None = "insufficient_scope" if auth_info is not None else None
                reason = f"the tool needs {' '.join(missing)}"
                raise self._endpoint.authentication.refusal(scope, error=error, scopes=missing, reason=reason)
            server = low_level_server(product)
            self._subscriptions.fit(product, server, scope)
            self._sealed_state.fit(server)
            tell_state_errors(product)
            if call is None:
                compatibility.explain_unreachable_client(server)
            server.middleware.insert(0, observe_outcome)
            # A subscription is a stream in every mode.
            is_listen = call is not None and call.request.method == "subscriptions/listen"
            mode = "auto" if is_listen else options.response_mode
            shaper = ResponseShaper(send, era=era, mode=mode, keep_alive=options.keep_alive)
            # Nobody can end an exchange early whose answer leaves as a whole.
            exchange = anyio.CancelScope() if BUFFERED_KEY not in scope else None
            try:
                with exchange or nullcontext():
                    if exchange is not None and (deadline := scope.get(DEADLINE_KEY)) is not None:
                        shaper.watch(self._end_in_time(deadline, era, message, shaper, exchange))
                    if mode == "sse" and call is not None and options.keep_alive:
                        shaper.watch(shaper.open_in_time())
                    if call is not None:
                        await stateless.serve(server, context.request, call, shaper, exchange)
                    else:
                        await compatibility.serve(
                            server,
                            scope,
                            receive_again(body, request.receive),
                            shaper.send,
                            json_response=options.response_mode == "json",
                            max_body_size=options.max_request_body_size,
                        )
            finally:
                await shaper.close()

    async def _end_in_time(
        self, deadline: float, era: Era, message: object, shaper: ResponseShaper, exchange: anyio.CancelScope
    ) -> None:
        """Give the client an end that it can read while there is time: the environment is killed in mid-sentence.

        It is told before the tool is cancelled: one in a thread cannot be, and must not hold the answer back. A
        subscription has ended by then, with its result. The answer is 504 for what still runs when the time of an
        invocation that streams is up; 200 for a legacy request that still runs then.
        """
        await anyio.sleep_until(deadline)
        try:
            # Clients of the handshake revisions do not read the body of a status that is not 200.
            status = 504 if era == "modern" else 200
            text = "The request took longer than this server may run"
            reason = f"{text}: give the tool a time limit of its own, or raise Timeout"
            rejection = RequestRejected(status, INTERNAL_ERROR, text, reason=reason)
            if await shaper.fail(rejection, request_id_of(message)):
                self._endpoint.report(rejection)
        finally:
            exchange.cancel()


def _receive(body: AsyncIterator[bytes], receive: Receive) -> Receive:
    """An ASGI `receive` that gives `body`, then what `receive` has to say (the client's disconnect)."""
    ended = False

    async def receive_body() -> Message:
        nonlocal ended
        if ended:
            return await receive()
        try:
            chunk = await anext(body)
        except StopAsyncIteration:
            chunk, ended = b"", True
        return {"type": "http.request", "body": chunk, "more_body": not ended}

    return receive_body


async def _collect(app: ASGIApp, scope: Scope, receive: Receive) -> Response:
    """Run an ASGI application as far as its answer needs: to the end, or to the first chunk of a stream."""
    sent, messages = anyio.create_memory_object_stream[Message](0)

    async def run() -> None:
        async with sent:
            await app(scope, receive, sent.send)

    task = asyncio.get_running_loop().create_task(run())
    try:
        start, first = await messages.receive(), await messages.receive()
    except anyio.EndOfStream:
        raise ClientDisconnect from None
    except BaseException:
        task.cancel()
        raise

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield first.get("body", b"")
            async for message in messages:
                yield message.get("body", b"")
        finally:
            task.cancel()
            messages.close()

    if first.get("more_body", False):
        response: Response = StreamingResponse(chunks(), status_code=start["status"])
    else:
        messages.close()
        response = Response(first.get("body", b""), status_code=start["status"])
    response.raw_headers = list(start["headers"])
    return response
