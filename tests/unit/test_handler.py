"""`create_mcp_handler`: its options, what it takes for a factory, and the doors that are no Lambda event."""

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp_types import ListToolsResult, Tool
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.routing import Mount
from starlette.types import Message as AsgiMessage

from sealane import Cors, RequestContext, RequestRejected, create_mcp_handler, get_auth_context
from tests.events import SHAPES, Answer, Message, Shape, answer, ask, legacy, make_event, modern
from tests.unit.asgi import fetch, read, serving, starlette_request

CALLER = AccessToken(
    token="t",  # noqa: S106
    client_id="client-1",
    scopes=["read"],
    subject="user-1",
    claims={"iss": "https://issuer", "tenant": "a"},
)
LIST = modern("tools/list")


def make_server() -> MCPServer:
    """A server whose tools tell who calls, and change what others listen to."""
    server = MCPServer("handler-server")

    @server.tool()
    async def who() -> str:
        return described_caller()

    @server.tool()
    def who_in_a_thread() -> str:
        return described_caller()

    @server.tool()
    async def who_in_a_thread_of_its_own() -> str:
        return await anyio.to_thread.run_sync(described_caller)

    @server.tool()
    async def change(ctx: Context) -> str:
        await ctx.notify_resource_updated("note://1")
        await ctx.notify_tools_changed()
        await ctx.notify_prompts_changed()
        await ctx.notify_resources_changed()
        return "changed"

    return server


def described_caller() -> str:
    """Who calls, by the SDK and by us."""
    token, properties = get_access_token(), get_auth_context()
    return json.dumps([token.client_id if token else None, dict(properties) if properties is not None else None])


def result_of(answer: Answer) -> Any:
    """The JSON value in the answer's tool result."""
    return json.loads(answer.json["result"]["content"][0]["text"])


def call(name: str, **arguments: Any) -> tuple[dict[str, str], Message]:
    """A `tools/call`."""
    return modern("tools/call", name=name, arguments=arguments)


# Options


@pytest.mark.parametrize(
    ("option", "replacement"),
    [
        ("transport", "legacy lane"),
        ("storage", "legacy lane"),
        ("session_id_generator", "legacy lane"),
        ("on_session_initialized", "legacy lane"),
        ("on_session_closed", "legacy lane"),
        ("event_store", "legacy lane"),
        ("retry_interval", "legacy lane"),
        ("enable_json_response", 'response_mode="json"'),
        ("allowed_hosts", "allowed_hostnames"),
        ("allowed_origins", "allowed_origin_hostnames"),
        ("enable_dns_rebinding_protection", "allowed_hostnames"),
    ],
)
def test_option_of_sessions_names_its_replacement(option: str, replacement: str) -> None:
    with pytest.raises(TypeError) as raised:
        create_mcp_handler(make_server, **{option: None})
    assert repr(option) in str(raised.value)
    assert replacement in str(raised.value)


@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("respons_mode", "response_mode"),
        ("keepalive", "keep_alive"),
        ("routes", "route"),
        ("subscription", "subscriptions"),
    ],
)
def test_unknown_option_suggests_the_right_one(option: str, suggestion: str) -> None:
    with pytest.raises(TypeError, match=f"{option}.*did you mean '{suggestion}'"):
        create_mcp_handler(make_server, **{option: None})


def test_option_that_resembles_none_lists_them_all() -> None:
    with pytest.raises(TypeError, match=r"zzz.*route.*on_error.*response_mode"):
        create_mcp_handler(make_server, zzz=1)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"route": "mcp"}, ValueError, "route"),
        ({"cors": True}, TypeError, "Cors"),
        ({"cors": "*"}, TypeError, "Cors"),
        ({"legacy": "sessions"}, ValueError, "legacy is one of"),
        ({"response_mode": "stream"}, ValueError, "response_mode is one of"),
        ({"keep_alive": -1}, ValueError, "keep_alive"),
        ({"keep_alive": float("nan")}, ValueError, "keep_alive"),
        ({"max_subscriptions": 0}, ValueError, "max_subscriptions"),
        ({"max_request_body_size": 0}, ValueError, "max_request_body_size"),
        ({"on_error": "log"}, TypeError, "on_error"),
        ({"allowed_hostnames": "mcp.example.com"}, TypeError, "allowed_hostnames"),
        ({"allowed_hostnames": "*"}, TypeError, "allowed_hostnames"),
        ({"allowed_hostnames": ["https://mcp.example.com"]}, ValueError, "without scheme or port"),
        ({"allowed_hostnames": ["mcp.example.com:443"]}, ValueError, "without scheme or port"),
        ({"allowed_hostnames": ["[::1]:3000"]}, ValueError, "without scheme or port"),
        ({"allowed_hostnames": ["*.example.com"]}, ValueError, "without scheme or port"),
        ({"allowed_hostnames": [""]}, ValueError, "without scheme or port"),
        ({"allowed_origin_hostnames": "app.example.com"}, TypeError, "allowed_origin_hostnames"),
        ({"allowed_origin_hostnames": ["https://app.example.com"]}, ValueError, "without scheme or port"),
        ({"allowed_origin_hostnames": ["*"]}, ValueError, "without scheme or port"),
    ],
)
def test_bad_value_is_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        create_mcp_handler(make_server, **options)


@pytest.mark.parametrize("name", ["origins", "headers", "methods", "expose_headers"])
def test_cors_refuses_a_string_for_a_sequence(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        Cors(**{name: "x"})  # type: ignore[arg-type]


# Route


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("route", "path", "status"),
    [
        ("/mcp", "/mcp", 200),
        ("/mcp", "/mcp/", 200),
        ("/mcp", "/mcp/x", 404),
        ("/mcp", "/mcpx", 404),
        ("/mcp", "/", 404),
        ("/mcp", "/MCP", 404),
        ("/tools/v1/", "/tools/v1", 200),
        ("/tools/v1", "/tools/v1/", 200),
        ("/tools/v1", "/mcp", 404),
        ("/", "/", 200),
        ("/", "/mcp", 404),
    ],
)
def test_route_is_exact(route: str, path: str, status: int, shape: Shape) -> None:
    answer = ask(create_mcp_handler(make_server, route=route), LIST, shape, path=path)
    assert answer.status == status
    if status == 404:
        assert answer.json["error"]["code"] == -32600
        assert not answer.was_base64


@pytest.mark.parametrize("shape", ["url", "alb", "alb-multi"])
def test_longer_path_is_not_found_where_there_is_no_base_path(shape: Shape) -> None:
    assert ask(create_mcp_handler(make_server), LIST, shape, path="/x/mcp").status == 404


# Factory


class Factory:
    """A factory that is an object."""

    def __call__(self) -> MCPServer:
        return make_server()


class OwnServer(MCPServer):
    """A class is a factory of its objects."""


async def make_server_later() -> MCPServer:
    """An async factory."""
    await asyncio.sleep(0)
    return make_server()


async def make_server_later_for(context: RequestContext) -> MCPServer:
    """An async factory that takes the context."""
    assert isinstance(context, RequestContext)
    return make_server()


def make_named(name: str, context: RequestContext) -> MCPServer:
    """A factory once its name is given."""
    assert isinstance(context, RequestContext)
    return MCPServer(name)


def make_if_given(context: RequestContext | None = None) -> MCPServer:
    """A factory whose parameter has a default."""
    assert isinstance(context, RequestContext)
    return make_server()


def make_with_default(name: str = "mine") -> MCPServer:
    """A factory with a parameter that is no context."""
    return MCPServer(name)


def make_low_level() -> Server[Any]:
    """A factory of a low-level server."""

    async def list_tools(context: object, params: object) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="low", input_schema={"type": "object"})])

    return Server("low-level", on_list_tools=list_tools)


@pytest.mark.parametrize("request_", [LIST, legacy("tools/list")], ids=["modern", "legacy"])
@pytest.mark.parametrize(
    "factory",
    [
        make_server,
        make_server_later,
        make_server_later_for,
        make_if_given,
        make_with_default,
        make_low_level,
        lambda: make_server(),
        lambda context: make_named("lambda", context),
        Factory(),
        OwnServer,
        functools.partial(make_named, "partial"),
        functools.partial(make_with_default, "partial"),
    ],
    ids=range(12),
)
def test_factory_of_every_form_is_called(factory: Any, request_: tuple[dict[str, str], Message]) -> None:
    handler = create_mcp_handler(factory)
    for _ in range(2):
        assert "tools" in ask(handler, request_).json["result"]


def noting(contexts: list[RequestContext]) -> Callable[[RequestContext], MCPServer]:
    """A factory that keeps what it is told."""

    def factory(context: RequestContext) -> MCPServer:
        contexts.append(context)
        return make_server()

    return factory


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("era", "request_"), [("modern", LIST), ("legacy", legacy("tools/list"))])
def test_factory_is_told_of_the_request(era: str, request_: tuple[dict[str, str], Message], shape: Shape) -> None:
    contexts: list[RequestContext] = []
    handler = create_mcp_handler(noting(contexts))
    headers, body = request_
    event = make_event(shape, headers={**headers, "X-Tenant": "a"}, body=body)
    sent = json.loads(json.dumps(event))
    lambda_context: Any = SimpleNamespace(aws_request_id="r-1")
    assert answer(handler(event, lambda_context)).status == 200
    (context,) = contexts
    assert context.era == era
    assert context.auth_info is None
    assert context.request.headers["x-tenant"] == "a"
    assert context.event == sent
    assert context.lambda_context is lambda_context


def test_factory_is_told_that_there_is_no_event() -> None:
    contexts: list[RequestContext] = []
    fetch(create_mcp_handler(noting(contexts)), starlette_request(LIST), auth_info=CALLER)
    (context,) = contexts
    assert (context.event, context.lambda_context, context.auth_info) == (None, None, CALLER)


@pytest.mark.parametrize("ready", [MCPServer("ready"), Server("ready"), OwnServer("ready")])
def test_ready_server_is_refused_with_the_right_form(ready: Any) -> None:
    with pytest.raises(
        TypeError, match=r"(?s)takes a factory.*def create_server\(\).*create_mcp_handler\(create_server\)"
    ):
        create_mcp_handler(ready)


@pytest.mark.parametrize("nothing", [None, "server", 1, {}])
def test_what_cannot_be_called_is_refused(nothing: Any) -> None:
    with pytest.raises(TypeError, match="takes a factory"):
        create_mcp_handler(nothing)


def test_factory_with_two_parameters_is_refused() -> None:
    def factory(context: RequestContext, name: str) -> MCPServer:
        return MCPServer(name)

    with pytest.raises(TypeError, match="2 parameters"):
        create_mcp_handler(factory)  # type: ignore[arg-type]


class FastMCP:
    """As SDK v1 and the FastMCP package name theirs."""

    def __call__(self) -> None:
        raise AssertionError("called")


V1Server = type("Server", (), {"__module__": "mcp.server.lowlevel.server"})
OwnV1Server = type("MyServer", (V1Server,), {"__module__": "my_server"})


@pytest.mark.parametrize("v1", [FastMCP(), FastMCP, V1Server(), V1Server, OwnV1Server()])
def test_server_of_sdk_v1_is_pointed_at_the_legacy_lane(v1: Any) -> None:
    with pytest.raises(TypeError, match=r"SDK v1.*legacy lane"):
        create_mcp_handler(v1)


@pytest.mark.parametrize("product", [FastMCP(), V1Server(), None, "server", make_server])
def test_factory_that_makes_no_server_is_an_error_that_says_so(product: Any) -> None:
    errors: list[Exception] = []
    handler = create_mcp_handler(lambda: product, on_error=errors.append)
    assert ask(handler, LIST).status == 500
    (error,) = errors
    assert isinstance(error, TypeError)
    assert ("SDK v1" if isinstance(product, FastMCP | V1Server) else "takes a factory") in str(error)


def test_server_that_is_handed_out_twice_is_refused() -> None:
    server = make_server()
    errors: list[Exception] = []
    handler = create_mcp_handler(lambda: server, on_error=errors.append)
    assert [ask(handler, LIST).status for _ in range(3)] == [200, 500, 500]
    assert len(errors) == 2
    assert "returned a server that it had returned before" in str(errors[0])


def failing_factory() -> MCPServer:
    """A factory that fails, with a secret in its error."""
    raise RuntimeError("password=hunter2")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("request_", [modern("tools/list", id="f"), legacy("tools/list", id="f")])
def test_factory_that_raises_is_an_internal_error_without_internals(
    request_: tuple[dict[str, str], Message], shape: Shape
) -> None:
    errors: list[Exception] = []
    answer = ask(create_mcp_handler(failing_factory, on_error=errors.append), request_, shape)
    assert answer.status == 500
    assert answer.json == {"jsonrpc": "2.0", "id": "f", "error": {"code": -32603, "message": "Internal server error"}}
    assert [str(error) for error in errors] == ["password=hunter2"]


def test_environment_serves_on_after_a_factory_that_raised() -> None:
    fail = [True, False, True, False]

    def factory() -> MCPServer:
        return failing_factory() if fail.pop(0) else make_server()

    handler = create_mcp_handler(factory)
    assert [ask(handler, LIST).status for _ in range(4)] == [500, 200, 500, 200]


# on_error


REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "host": (({**LIST[0], "Host": "evil.example"}, LIST[1]), {}),
    "path": (LIST, {"path": "/other"}),
    "method": (({}, None), {"method": "GET"}),
    "not JSON": ((LIST[0], "{"), {}),
    "header": (({**LIST[0], "Mcp-Method": "ping"}, LIST[1]), {}),
    "unknown method": (modern("no/such"), {}),
    "served": (LIST, {}),
    "failing": (LIST, {}),
}


def raising(error: Exception) -> None:
    """An on_error that is broken itself."""
    raise ValueError("on_error is broken") from error


@pytest.mark.parametrize("name", REFUSED)
def test_on_error_that_raises_changes_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    request, event = REFUSED[name]
    factory = failing_factory if name == "failing" else make_server
    plain = ask(create_mcp_handler(factory), request, **event)
    assert ask(create_mcp_handler(factory, on_error=raising), request, **event) == plain
    assert ("on_error raised" in caplog.text) is (name != "served")


@pytest.mark.parametrize(
    ("name", "status"),
    [("host", 421), ("path", 404), ("method", 405), ("not JSON", 400), ("header", 400), ("unknown method", 404)],
)
def test_on_error_is_told_once_of_a_refusal(name: str, status: int) -> None:
    request, event = REFUSED[name]
    errors: list[Exception] = []
    ask(create_mcp_handler(make_server, on_error=errors.append), request, **event)
    (error,) = errors
    assert isinstance(error, RequestRejected)
    assert error.status == status


# fetch


@pytest.mark.parametrize("tool", ["who", "who_in_a_thread", "who_in_a_thread_of_its_own"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_fetch_with_auth_info_makes_the_caller_known(era: str, tool: str) -> None:
    request = call(tool) if era == "modern" else legacy("tools/call", name=tool, arguments={})
    answer = fetch(create_mcp_handler(make_server), starlette_request(request), auth_info=CALLER)
    assert result_of(answer) == ["client-1", CALLER.claims]


@pytest.mark.parametrize("tool", ["who", "who_in_a_thread", "who_in_a_thread_of_its_own"])
def test_auth_context_of_the_handler_wins_over_the_claims(tool: str) -> None:
    handler = create_mcp_handler(make_server, auth_context={"tenant": "b"})
    assert result_of(fetch(handler, starlette_request(call(tool)), auth_info=CALLER)) == ["client-1", {"tenant": "b"}]
    assert result_of(fetch(handler, starlette_request(call(tool)))) == [None, {"tenant": "b"}]
    assert result_of(ask(handler, call(tool))) == [None, {"tenant": "b"}]


def test_caller_is_known_in_the_factory() -> None:
    known: list[str] = []

    def factory(context: RequestContext) -> MCPServer:
        assert context.auth_info is CALLER
        known.append(described_caller())
        return make_server()

    fetch(create_mcp_handler(factory), starlette_request(LIST), auth_info=CALLER)
    assert json.loads(known[0]) == ["client-1", CALLER.claims]


@pytest.mark.parametrize("tool", ["who", "who_in_a_thread", "who_in_a_thread_of_its_own"])
def test_caller_is_forgotten_after_the_request(tool: str) -> None:
    handler = create_mcp_handler(make_server)

    async def one_then_another() -> list[Any]:
        first = await read(await handler.fetch(starlette_request(call(tool)), auth_info=CALLER))
        second = await read(await handler.fetch(starlette_request(call(tool))))
        return [result_of(first)[0], result_of(second), json.loads(described_caller())]

    assert asyncio.run(one_then_another()) == ["client-1", [None, None], [None, None]]


def test_callers_at_the_same_time_are_not_mixed_up() -> None:
    handler = create_mcp_handler(make_server)

    async def many() -> list[str]:
        async def one(number: int) -> str:
            caller = CALLER.model_copy(update={"client_id": f"client-{number}"})
            request = starlette_request(call("who_in_a_thread_of_its_own"))
            return str(result_of(await read(await handler.fetch(request, auth_info=caller)))[0])

        return await asyncio.gather(*map(one, range(20)))

    assert asyncio.run(many()) == [f"client-{number}" for number in range(20)]


def test_fetch_with_a_parsed_body_does_not_read() -> None:
    handler = create_mcp_handler(make_server)

    async def consume_then_fetch() -> int:
        headers, body = call("who")
        request = starlette_request((headers, "what is never looked at"))
        async for _ in request.stream():
            pass  # a stream can be read once only
        return (await handler.fetch(request, parsed_body=body)).status_code

    assert asyncio.run(consume_then_fetch()) == 200


def test_fetch_with_a_body_that_was_read_before() -> None:
    handler = create_mcp_handler(make_server)

    async def read_then_fetch() -> int:
        request = starlette_request(call("who"))
        await request.json()
        return (await handler.fetch(request)).status_code

    assert asyncio.run(read_then_fetch()) == 200


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_fetch_returns_a_stream_and_its_consumer_may_leave(era: str) -> None:
    async def leave() -> list[str]:
        seen: list[str] = []
        begun, ended = asyncio.Event(), asyncio.Event()

        def factory() -> MCPServer:
            server = MCPServer("stream-server")

            @server.tool()
            async def endless(ctx: Context) -> str:
                await ctx.report_progress(1, 2)
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    seen.append("cancelled")
                    ended.set()
                raise AssertionError("never set")

            return server

        if era == "modern":
            request = modern("tools/call", meta={"progressToken": 1}, name="endless", arguments={})
        else:
            request = legacy("tools/call", name="endless", arguments={}, _meta={"progressToken": 1})
        response = await create_mcp_handler(factory).fetch(starlette_request(request))
        assert isinstance(response, StreamingResponse)
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks: Any = response.body_iterator
        assert b"notifications/progress" in await anext(chunks)
        await begun.wait()
        await chunks.aclose()
        await asyncio.wait_for(ended.wait(), 5)
        return seen

    assert asyncio.run(leave()) == ["cancelled"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_nothing_is_left_running_when_the_consumer_leaves_a_busy_stream(era: str) -> None:
    def factory() -> MCPServer:
        server = MCPServer("busy-server")

        @server.tool()
        async def busy(ctx: Context) -> str:
            for step in range(1000):
                await ctx.report_progress(step)
            return "done"

        return server

    if era == "modern":
        request = modern("tools/call", meta={"progressToken": 1}, name="busy", arguments={})
    else:
        request = legacy("tools/call", name="busy", arguments={}, _meta={"progressToken": 1})

    async def leave() -> None:
        response = await create_mcp_handler(factory).fetch(starlette_request(request))
        assert isinstance(response, StreamingResponse)
        chunks: Any = response.body_iterator
        await anext(chunks)
        for _ in range(100):
            await asyncio.sleep(0)  # the tool goes on until nobody takes what it sends
        await chunks.aclose()

    async def left_running() -> list[str]:
        await leave()
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        ours = [task for task in tasks if "sse_starlette" not in repr(task)]  # that watches for the server's end
        await asyncio.wait([*ours, asyncio.create_task(asyncio.sleep(0))], timeout=1)
        return [repr(task) for task in ours if not task.done()]

    assert asyncio.run(left_running()) == []


def test_fetch_for_a_client_that_left_before_its_body_was_sent_ends() -> None:
    request = starlette_request(LIST)

    async def receive() -> AsgiMessage:
        return {"type": "http.disconnect"}

    request._receive = receive
    with pytest.raises(ClientDisconnect):
        asyncio.run(asyncio.wait_for(create_mcp_handler(make_server).fetch(request), 2))


def test_a_client_that_leaves_during_the_call_is_no_failure() -> None:
    """The tool is cancelled, nobody is told of an error, and nothing is sent to who is not there."""
    ended: list[str] = []
    errors: list[Exception] = []
    sent: list[AsgiMessage] = []

    def slow_server() -> MCPServer:
        server = MCPServer("slow-server")

        @server.tool()
        async def wait() -> str:
            try:
                await asyncio.sleep(30)
            finally:
                ended.append("wait")
            return "waited"

        return server

    headers, body = modern("tools/call", name="wait", arguments={})
    request = starlette_request((headers, body))
    messages: list[AsgiMessage] = [
        {"type": "http.request", "body": json.dumps(body).encode()},
        {"type": "http.disconnect"},
    ]

    async def receive() -> AsgiMessage:
        await asyncio.sleep(0.05)
        return messages.pop(0)

    async def send(message: AsgiMessage) -> None:
        sent.append(message)

    handler = create_mcp_handler(slow_server, on_error=errors.append)
    asyncio.run(asyncio.wait_for(handler.app(request.scope, receive, send), 5))
    assert (ended, errors, sent) == (["wait"], [], [])


@pytest.mark.parametrize("prefix", ["/api", "/api/v1"])
def test_app_is_mounted_under_a_prefix(prefix: str) -> None:
    mounted = Starlette(routes=[Mount(prefix, app=create_mcp_handler(make_server).app)])

    async def post(path: str) -> int:
        transport = httpx2.ASGITransport(app=mounted)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.post(path, headers=LIST[0], json=LIST[1])).status_code

    assert asyncio.run(post(f"{prefix}/mcp")) == 200
    assert asyncio.run(post(f"{prefix}/mcp/")) == 200
    assert asyncio.run(post(f"{prefix}/other")) == 404
    assert asyncio.run(post("/mcp")) == 404


def test_a_factory_can_read_the_body_of_its_request() -> None:
    seen: list[object] = []

    async def create(context: RequestContext) -> MCPServer:
        seen.append(await context.request.json())
        return make_server()

    assert ask(create_mcp_handler(create), LIST).status == 200
    assert seen == [LIST[1]]


# Subscriptions


def test_notify_without_a_bus_does_nothing() -> None:
    handler = create_mcp_handler(make_server)

    async def notify() -> None:
        await handler.notify.tools_changed()
        await handler.notify.prompts_changed()
        await handler.notify.resources_changed()
        await handler.notify.resource_updated("note://1")

    asyncio.run(notify())
    assert ask(handler, call("change")).status == 200


@pytest.mark.parametrize("factory", [make_server, make_low_level])
def test_bus_makes_subscriptions_advertised(factory: Any) -> None:
    without = ask(create_mcp_handler(factory), modern("server/discover")).json["result"]["capabilities"]
    handler = create_mcp_handler(factory, subscriptions=InMemorySubscriptionBus())
    capabilities = ask(handler, modern("server/discover")).json["result"]["capabilities"]
    assert capabilities != without
    assert capabilities["tools"]["listChanged"] is True


LISTEN = modern(
    "subscriptions/listen",
    id="listen-1",
    notifications={
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["note://1"],
    },
)
CHANGES = [
    "notifications/resources/updated",
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
]


@contextmanager
def listening(client: httpx2.Client, request: tuple[dict[str, str], Message] = LISTEN) -> Iterator[Iterator[Message]]:
    """The messages of an open `subscriptions/listen` stream, after its acknowledgement."""
    with client.stream("POST", "/mcp", headers=request[0], json=request[1]) as response:
        assert response.status_code == 200
        messages = (json.loads(line[5:]) for line in response.iter_lines() if line.startswith("data:"))
        assert next(messages)["method"] == "notifications/subscriptions/acknowledged"
        yield messages


def test_tool_that_notifies_reaches_an_open_subscription() -> None:
    handler = create_mcp_handler(make_server, subscriptions=InMemorySubscriptionBus())
    with serving(handler.app) as address, httpx2.Client(base_url=address) as client, listening(client) as messages:
        headers, body = call("change")
        assert client.post("/mcp", headers=headers, json=body).status_code == 200
        received = [next(messages) for _ in CHANGES]
    assert [message["method"] for message in received] == CHANGES
    assert received[0]["params"]["uri"] == "note://1"


@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
def test_notify_reaches_an_open_subscription_in_every_mode(mode: str) -> None:
    handler = create_mcp_handler(make_server, subscriptions=InMemorySubscriptionBus(), response_mode=mode)

    async def notify(scope: Any, receive: Any, send: Any) -> None:
        """The application, with one more path: the code of the owner that knows of a change."""
        if scope["path"] != "/changed":
            await handler.app(scope, receive, send)
            return
        await handler.notify.resource_updated("note://2")
        await handler.notify.resource_updated("note://1")
        await handler.notify.tools_changed()
        await handler.notify.prompts_changed()
        await handler.notify.resources_changed()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with serving(notify) as address, httpx2.Client(base_url=address) as client, listening(client) as messages:
        assert client.post("/changed").status_code == 204
        received = [next(messages) for _ in CHANGES]
    assert [message["method"] for message in received] == CHANGES


def test_subscription_beyond_the_limit_is_refused_until_one_ends() -> None:
    handler = create_mcp_handler(make_server, subscriptions=InMemorySubscriptionBus(), max_subscriptions=1)
    with serving(handler.app) as address, httpx2.Client(base_url=address) as client:
        with listening(client):
            refused = client.post("/mcp", headers=LISTEN[0], json=LISTEN[1])
            assert refused.json()["id"] == "listen-1"
            assert "limit" in refused.json()["error"]["message"]
        for _ in range(100):
            with client.stream("POST", "/mcp", headers=LISTEN[0], json=LISTEN[1]) as response:
                if response.headers["content-type"].startswith("text/event-stream"):
                    return
    pytest.fail("the place of a subscription that ended was not given free")


def test_low_level_server_gets_the_bus() -> None:
    bus = InMemorySubscriptionBus()
    handler = create_mcp_handler(make_low_level, subscriptions=bus)
    with serving(handler.app) as address, httpx2.Client(base_url=address) as client, listening(client):
        pass


def test_log_says_what_was_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="sealane"):
        ask(create_mcp_handler(make_server), REFUSED["host"][0], domain_name="a.execute-api.eu-west-1.amazonaws.com")
    assert "evil.example" in caplog.text
    assert "allowed_hostnames" in caplog.text
