"""Sealed request state that every environment can open, and the rules of multi round-trip requests around it."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateBoundary,
    RequestStateSecurity,
)
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, MISSING_REQUIRED_CLIENT_CAPABILITY, ClientCapabilities
from mcp_types.methods import INPUT_REQUIRED_METHODS, is_input_required
from starlette.requests import Request

from sealane import telemetry
from sealane.factory import AnyServer, low_level_server
from sealane.state.errors import StateNotConfigured, StateUnavailable
from sealane.state.keyring import KeyRefused, Keyring, Ring
from sealane.state.once import CallIdentity, call_identity

__all__ = ["KeyringCodec", "SealedRounds", "SealedState", "can_ask"]

_NOT_SHARED: Final = (
    "This server asks its callers questions, and what it must remember of them would be sealed with a key of this "
    "environment alone: the next environment could not go on. Give the function a table and a key (SEALANE_TABLE, "
    "SEALANE_KEY and SEALANE_STACK, as template.yaml does, or create_mcp_handler(keyring=…)), or the server a policy "
    "of its own (request_state_security=RequestStateSecurity(keys=[…]))."
)
_TRY_AGAIN: Final = "Request state cannot be {} at the moment. Send the same request again in a few seconds."


class _KeyOfThisProcess:
    """A key that is made when something is sealed with it: servers are made for each request, and few ever ask."""

    @functools.cached_property
    def _codec(self) -> AESGCMRequestStateCodec:
        return AESGCMRequestStateCodec([os.urandom(32)])

    def seal(self, payload: bytes) -> str:
        return self._codec.seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codec.unseal(token)


class _PerProcess(RequestStateSecurity):
    """What `RequestStateSecurity.ephemeral()` makes, MCPServer's default: no other server, and so no other request
    of ours, can open what it seals. The SDK has no other sign of it."""


def _ephemeral(
    cls: type[RequestStateSecurity], /, *, ttl: float = 600.0, audience: str | None = None
) -> RequestStateSecurity:
    return _PerProcess(codec=_KeyOfThisProcess(), ttl=ttl, audience=audience)


RequestStateSecurity.ephemeral = classmethod(_ephemeral)  # type: ignore[assignment,method-assign]


class KeyringCodec:
    """The SDK's AES-256-GCM codec over the data keys of a ring; a token names its key.

    The SDK calls codecs synchronously: what they need is loaded before, with `prepare_to_seal` and
    `prepare_to_unseal`.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    async def prepare_to_seal(self) -> None:
        """Load the key that seals.

        Raises:
            StateUnavailable: KMS or the table is out, and the key was not loaded before.
        """
        await self._ring.load_sealing_key()

    async def prepare_to_unseal(self, token: str) -> None:
        """Load the key that `token` names, if there is one.

        Raises:
            StateUnavailable: KMS or the table is out, and the key was not loaded before.
        """
        await self._ring.load(token.partition(".")[0])

    def seal(self, payload: bytes) -> str:
        """See `RequestStateCodec.seal`."""
        key = self._ring.sealing_key()
        return f"{key.id}.{_codec(key.secret).seal(payload)}"

    def unseal(self, token: str) -> bytes:
        """See `RequestStateCodec.unseal`.

        Raises:
            InvalidRequestState: the token was not sealed with a key of the ring that still opens.
        """
        key_id, _, sealed = token.partition(".")
        try:
            key = self._ring.opening_key(key_id)
        except KeyRefused as refused:
            raise InvalidRequestState(str(refused)) from None
        return _codec(key.secret).unseal(sealed)


@functools.lru_cache(maxsize=32)
def _codec(secret: bytes) -> AESGCMRequestStateCodec:
    return AESGCMRequestStateCodec([secret])


class _NothingShared:
    """The codec of a server on Lambda that has no shared key: fails closed."""

    def seal(self, payload: bytes) -> str:
        raise StateNotConfigured(_NOT_SHARED)

    def unseal(self, token: str) -> bytes:
        raise InvalidRequestState("no shared key is configured")


class SealedState:
    """Gives every server that has not chosen its own a policy for request state that all environments share.

    With a keyring, its keys seal. Without one, a key of this process does, which is enough for one process; on
    Lambda nothing does, and a server that asks is refused.

    Args:
        keyring: the stack's data keys.
    """

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring
        self._on_lambda = "AWS_LAMBDA_FUNCTION_NAME" in os.environ
        self._security = functools.lru_cache(maxsize=16)(self._make_security)

    @property
    def is_shared(self) -> bool:
        """Whether what one environment seals can be opened where it has to be."""
        return self._keyring is not None or not self._on_lambda

    def check(self, server: AnyServer) -> None:
        """Refuse to start with a server that can ask and would not get its state back.

        Raises:
            StateNotConfigured: the text says what to configure.
        """
        if not self.is_shared and can_ask(server) and self._own_boundary(low_level_server(server)) is None:
            raise StateNotConfigured(_NOT_SHARED)

    def fit(self, server: Server[Any]) -> None:
        """Put the rules of multi round-trip requests around a fresh server's handlers."""
        boundary = self._own_boundary(server)
        codec: object = None
        if boundary is None:
            security = self._security(server.name)
            boundary, codec = RequestStateBoundary(security, default_audience=server.name), security.codec
        rounds = SealedRounds(boundary, codec if isinstance(codec, KeyringCodec) else None)
        for place, middleware in enumerate(server.middleware):
            if isinstance(middleware, RequestStateBoundary):
                server.middleware[place] = rounds
                return
        # As MCPServer has it: inside OpenTelemetry's, whose spans then record the sealed form.
        server.middleware.insert(1, rounds)

    @staticmethod
    def _own_boundary(server: Server[Any]) -> RequestStateBoundary | None:
        """The boundary of a server whose author has chosen a policy."""
        for middleware in server.middleware:
            if isinstance(middleware, RequestStateBoundary) and not isinstance(middleware._security, _PerProcess):
                return middleware
        return None

    def _make_security(self, server_name: str) -> RequestStateSecurity:
        if self._keyring is not None:
            codec = KeyringCodec(self._keyring.ring(server_name))
            audience = f"{self._keyring.stack}/{server_name}"
            return RequestStateSecurity(codec=codec, ttl=self._keyring.token_ttl, audience=audience)
        if self._on_lambda:
            return RequestStateSecurity(codec=_NothingShared())
        return RequestStateSecurity.ephemeral()


class SealedRounds:
    """Server middleware: one round of a multi round-trip request, its state opened before and sealed after.

    The rules that the boundary of the SDK leaves to servers: no question reaches a caller that cannot answer it
    (schema, `MissingRequiredClientCapabilityError`), and answers count only together with a state that this server
    has sealed (patterns/mrtr, "Server Requirements"), which is why a question without a state gets one. Answers to
    what was not asked yet are put to the server once it has asked, if it has nothing to remember of that.

    Args:
        boundary: opens and seals.
        codec: its codec, where that has something to load first.
    """

    def __init__(self, boundary: RequestStateBoundary, codec: KeyringCodec | None) -> None:
        self._boundary = boundary
        self._codec = codec

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Serve one request.

        Raises:
            MCPError: -32603 for request state while DynamoDB or KMS is out of reach; -32602 for request
                state that is not accepted: expired, changed, of another call or caller.
        """
        if ctx.method not in INPUT_REQUIRED_METHODS:
            return await call_next(ctx)
        token = (ctx.params or {}).get("requestState")
        if self._codec is not None and isinstance(token, str):
            try:
                await self._codec.prepare_to_unseal(token)
            except StateUnavailable:
                raise MCPError(INTERNAL_ERROR, _TRY_AGAIN.format("opened")) from None

        is_opened = False

        async def one_round(ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
            nonlocal is_opened
            is_opened = True
            first, answered = _rounds(ctx)
            result = await call_next(first)
            if answered is not None and is_input_required(result) and _wire(result).get("requestState") is None:
                result = await call_next(answered)
            return await self._question(ctx, result) if is_input_required(result) else result

        with call_identity(_identity(ctx)):
            try:
                result = await self._boundary(ctx, one_round)
            except MCPError:
                if not is_opened:
                    telemetry.current().refuse_state()
                raise
        if is_input_required(result):
            telemetry.count("StateSealed")
        return result

    async def _question(self, ctx: ServerRequestContext[Any, Any], result: HandlerResult) -> HandlerResult:
        """A result that asks, ready to be sealed.

        Raises:
            MCPError: -32603 for a question while DynamoDB or KMS is out of reach; else see `_require_capabilities`.
        """
        wire = _wire(result)
        _require_capabilities(ctx, wire.get("inputRequests") or {})
        if self._codec is not None:
            try:
                await self._codec.prepare_to_seal()
            except StateUnavailable:
                raise MCPError(INTERNAL_ERROR, _TRY_AGAIN.format("sealed")) from None
        return {**wire, "requestState": _marked(wire.get("requestState"))}


def _identity(ctx: ServerRequestContext[Any, Any]) -> CallIdentity:
    """What makes this call the same as another one, for effects that happen once."""
    params = ctx.params or {}
    name, arguments, token = params.get("name", params.get("uri")), params.get("arguments"), params.get("requestState")
    return CallIdentity(
        ctx.method,
        name if isinstance(name, str) else "",
        arguments if isinstance(arguments, Mapping) else None,
        token if isinstance(token, str) else None,
        lambda_context=ctx.request.scope.get("aws.context") if isinstance(ctx.request, Request) else None,
    )


def _marked(state: str | None) -> str:
    """What is sealed for a server's own state, so that "none" can be told from an empty one."""
    return "-" if state is None else f"+{state}"


def _wire(result: HandlerResult) -> Mapping[str, Any]:
    """A result as it is sent."""
    if isinstance(result, Mapping):
        return result
    return cast(Mapping[str, Any], cast(Any, result).model_dump(by_alias=True, mode="json", exclude_none=True))


def _rounds(
    ctx: ServerRequestContext[Any, Any],
) -> tuple[ServerRequestContext[Any, Any], ServerRequestContext[Any, Any] | None]:
    """The request as the server is to see it: with the state that it gave, and without answers unless a state came.

    Answers without one are in the second, for a server that turns out to ask just that and to remember nothing.
    """
    params = dict(ctx.params or {})
    if "requestState" not in params and "inputResponses" not in params:
        return ctx, None
    opened = params.pop("requestState", None)
    if opened is None and params.get("inputResponses") is not None:
        unanswered = {name: value for name, value in params.items() if name != "inputResponses"}
        return replace(ctx, params=unanswered), replace(ctx, params=params)
    if opened is not None and opened.startswith("+"):
        params["requestState"] = opened[1:]
    return replace(ctx, params=params), None


def _require_capabilities(ctx: ServerRequestContext[Any, Any], requests: Mapping[str, Any]) -> None:
    """Refuse to send questions that the caller has not declared to understand.

    Raises:
        MCPError: -32021 for a question to a client that has not declared that it can answer it; `requiredCapabilities`
            has all that is missing.
    """
    declared = ctx.session.client_capabilities or ClientCapabilities()
    missing: dict[str, dict[str, Any]] = {}
    for request in requests.values():
        for capability, part in _needed(request, declared):
            missing.setdefault(capability, {}).update(part)
    if missing:
        names = ", ".join(".".join([capability, *parts]) for capability, parts in missing.items())
        telemetry.current().explain(f"the client has not declared {names}")
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"The client has not declared what this request needs: {names}. One that can do this says so in "
            f"clientCapabilities",
            data={"requiredCapabilities": missing},
        )


def _needed(request: Mapping[str, Any], declared: ClientCapabilities) -> Iterator[tuple[str, dict[str, Any]]]:
    """What an input request needs and the client has not declared: capability and its part, on the wire."""
    params = request.get("params") or {}
    match request.get("method"):
        case "elicitation/create":
            elicitation = declared.elicitation
            if params.get("mode") == "url":
                if elicitation is None or elicitation.url is None:
                    yield "elicitation", {"url": {}}
            # A bare `elicitation: {}` means forms, as it did before there were modes.
            elif elicitation is None or (elicitation.form is None and elicitation.url is not None):
                yield "elicitation", {"form": {}}
        case "sampling/createMessage":
            with_tools = bool(params.get("tools")) or params.get("toolChoice") is not None
            if declared.sampling is None or (with_tools and declared.sampling.tools is None):
                yield "sampling", {"tools": {}} if with_tools else {}
        case "roots/list":
            if declared.roots is None:
                yield "roots", {}


def can_ask(server: AnyServer) -> bool:
    """Whether anything of a server is described as asking its caller; a low-level server is not described."""
    if not isinstance(server, MCPServer):
        return False
    tools = server._tool_manager.list_tools()
    functions: list[Callable[..., object]] = [tool.fn for tool in tools]
    functions += [plan.fn for tool in tools for plan in tool.resolver_plans.values()]
    functions += [prompt.fn for prompt in server._prompt_manager.list_prompts()]
    functions += [template.fn for template in server._resource_manager.list_templates()]
    return any(_may_ask(function) for function in functions)


def _may_ask(function: Callable[..., object]) -> bool:
    """Whether the return annotation has a result that asks, or one of the SDK's markers for resolvers."""
    annotation = str(inspect.signature(function).return_annotation)
    return any(name in annotation for name in ("InputRequiredResult", "Elicit", "Sample", "ListRoots"))
