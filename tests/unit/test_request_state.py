"""Multi round-trip requests through the handler: state that every environment opens, and what is refused."""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Annotated, Any

import anyio
import pytest
from botocore.session import get_session  # type: ignore[import-untyped]
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp.server.request_state import RequestStateSecurity
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    Tool,
    ToolChoice,
)
from pydantic import BaseModel

from sealane import Catalog, McpHandler, RequestContext, create_mcp_handler
from sealane.request_state import KeyringCodec
from sealane.state import aws
from sealane.state.errors import StateNotConfigured
from sealane.state.keyring import KEY_VARIABLE, STACK_VARIABLE, Keyring
from tests.events import Answer, Handler, ask, legacy, modern
from tests.template.translation import is_counted_as_kms_failure
from tests.unit import moto_aws
from tests.unit.asgi import fetch, starlette_request

INVALID = {"code": -32602, "message": "Invalid or expired requestState", "data": {"reason": "invalid_request_state"}}
FORM: dict[str, Any] = {"elicitation": {"form": {}}}
ACCEPTED = {"action": "accept", "content": {"name": "Oslo"}}

catalog = Catalog()


class City(BaseModel):
    """What is asked for."""

    name: str


def ask_for_city() -> Elicit[City]:
    """A resolver that asks."""
    return Elicit("Which city?", City)


def question(message: str = "Which city?") -> ElicitRequest:
    """The same by hand."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def asked(ctx: Context) -> str:
    """The answer and the state of a round, as the server sees them."""
    answers = {name: getattr(each, "content", None) for name, each in (ctx.input_responses or {}).items()}
    return json.dumps({"answers": answers, "state": ctx.request_state})


@catalog.tool()
async def resolved(topic: str, city: Annotated[City, Resolve(ask_for_city)]) -> str:
    """Asks with a resolver."""
    return f"{topic} in {city.name}"


@catalog.tool()
async def by_hand(ctx: Context, topic: str = "", state: str | None = "mine") -> str | InputRequiredResult:
    """Asks by hand, until it has an answer."""
    if ctx.input_responses:
        return asked(ctx)
    return InputRequiredResult(input_requests={"city": question()}, request_state=state)


@catalog.prompt()
async def prompt(ctx: Context) -> str | InputRequiredResult:
    """Asks too."""
    return asked(ctx) if ctx.input_responses else InputRequiredResult(input_requests={"city": question()})


@catalog.resource("city://{topic}")
async def resource(topic: str, ctx: Context) -> str | InputRequiredResult:
    """Asks too."""
    return asked(ctx) if ctx.input_responses else InputRequiredResult(input_requests={"city": question()})


def create_server() -> MCPServer:
    """A server that asks."""
    return catalog.server("asking-server")


Round = tuple[dict[str, str], dict[str, Any]]


def request(method: str = "tools/call", capabilities: Mapping[str, Any] = FORM, **params: Any) -> Round:
    """A request of a client that can be asked."""
    if method == "tools/call":
        params = {"name": "by_hand", "arguments": {}, **params}
    return modern(method, client_capabilities=capabilities, **params)


def result(answer: Answer) -> Any:
    """The result of an answer."""
    assert answer.status == 200, answer.body
    return answer.json["result"]


def state_of(answer: Answer) -> str:
    """The request state of an answer that asks."""
    asking = result(answer)
    assert asking["resultType"] == "input_required"
    state: str = asking["requestState"]
    return state


def second(state: str, answers: Mapping[str, Any] | None = None, **params: Any) -> Round:
    """The client's second round."""
    key = params.pop("key", "city")
    return request(**params, requestState=state, inputResponses=answers or {key: ACCEPTED})


def error(answer: Answer) -> Any:
    """The error of an answer."""
    return answer.json["error"]


def reasons(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Why states were refused, as the log has it."""
    texts = (record.getMessage() for record in caplog.records)
    return {text.rpartition(": ")[2] for text in texts if text.startswith("requestState rejected")}


@pytest.fixture
def key_id() -> Iterator[str]:
    with moto_aws.moto():
        yield get_session().create_client("kms").create_key()["KeyMetadata"]["Arn"]


def environment(key_id: str, stack: str = "stack", token_ttl: float = 600) -> McpHandler:
    """A new environment of a deployment."""
    keyring = Keyring(stack=stack, key_id=key_id, token_ttl=token_ttl)
    return create_mcp_handler(create_server, keyring=keyring)


ROUNDS = [
    (request(), {}),
    (request(name="resolved", arguments={"topic": "rain"}), {"name": "resolved", "arguments": {"topic": "rain"}}),
    (request("prompts/get", name="prompt"), {"method": "prompts/get", "name": "prompt"}),
    (request("resources/read", uri="city://rain"), {"method": "resources/read", "uri": "city://rain"}),
]


@pytest.mark.parametrize(("first", "again"), ROUNDS)
def test_p3_what_one_environment_asks_another_takes(key_id: str, first: Round, again: dict[str, Any]) -> None:
    environments = [environment(key_id) for _ in range(3)]
    for one in environments:
        for other in environments:
            asking = ask(one, first)
            [key] = result(asking)["inputRequests"]
            done = result(ask(other, second(state_of(asking), key=key, **again)))
            assert done.get("resultType", "complete") == "complete"
            assert "Oslo" in json.dumps(done)


def test_without_a_keyring_one_process_is_enough_for_itself() -> None:
    handler = create_mcp_handler(create_server)
    done = result(ask(handler, second(state_of(ask(handler, request())))))
    assert json.loads(done["content"][0]["text"]) == {"answers": {"city": {"name": "Oslo"}}, "state": "mine"}
    assert error(ask(create_mcp_handler(create_server), second(state_of(ask(handler, request()))))) == INVALID


@pytest.mark.parametrize("state", [None, "", "+", "-", "☃", "x" * 5000])
def test_a_server_gets_back_what_it_gave(key_id: str, state: str | None) -> None:
    arguments = {"state": state}
    asking = ask(environment(key_id), request(arguments=arguments))
    done = result(ask(environment(key_id), second(state_of(asking), arguments=arguments)))
    assert json.loads(done["content"][0]["text"])["state"] == state


def test_the_client_can_read_nothing_of_the_state(key_id: str) -> None:
    assert "mine" not in state_of(ask(environment(key_id), request()))


def test_every_byte_of_a_state_counts(key_id: str, caplog: pytest.LogCaptureFixture) -> None:
    handler = environment(key_id)
    state = state_of(ask(handler, request()))
    for place, letter in enumerate(state):
        other = "A" if letter != "A" else "B"
        assert error(ask(handler, second(state[:place] + other + state[place + 1 :]))) == INVALID, place
    for length in range(0, len(state), 7):
        assert error(ask(handler, second(state[:length]))) == INVALID, length
    for odd in (state + "A", " " + state, state + "\n", state.upper(), "🎈", "a" * 100_000):
        assert error(ask(handler, second(odd))) == INVALID
    assert result(ask(handler, second(state)))["content"]
    assert reasons(caplog) == {"unknown key", "malformed", "seal"}


@pytest.mark.parametrize("state", [7, True, [], {}, 1.5])
def test_a_state_that_is_no_text_is_refused(key_id: str, state: object) -> None:
    answer = ask(environment(key_id), request(requestState=state, inputResponses={"city": ACCEPTED}))
    assert error(answer)["code"] == -32602


def caller(subject: str, client: str = "client", issuer: str = "https://issuer.example") -> AccessToken:
    """A verified caller."""
    return AccessToken(token="t", client_id=client, scopes=[], subject=subject, claims={"iss": issuer})  # noqa: S106


def test_a_state_is_good_for_its_own_call_only(key_id: str, caplog: pytest.LogCaptureFixture) -> None:
    handler = environment(key_id)
    state = state_of(ask(handler, request(arguments={"topic": "rain"})))
    cases = {
        "other arguments": second(state, arguments={"topic": "snow"}),
        "more arguments": second(state, arguments={"topic": "rain", "state": "x"}),
        "other tool": second(state, name="resolved", arguments={"topic": "rain"}),
        "other method": second(state, method="prompts/get", name="prompt", arguments={"topic": "rain"}),
    }
    for name, case in cases.items():
        caplog.clear()
        assert error(ask(handler, case)) == INVALID, name
        assert reasons(caplog) == {"request binding"}, name
    assert result(ask(handler, second(state, arguments={"topic": "rain"})))


def test_a_state_is_good_for_its_own_principal_only(key_id: str, caplog: pytest.LogCaptureFixture) -> None:
    handler = environment(key_id)
    ada = caller("ada")
    asking = fetch(handler, starlette_request(request()), auth_info=ada)
    again = second(state_of(asking))
    strangers = [caller("bob"), caller("ada", client="other"), caller("ada", issuer="https://other.example"), None]
    for stranger in strangers:
        caplog.clear()
        answer = fetch(handler, starlette_request(again), auth_info=stranger)
        assert error(answer) == INVALID
        assert reasons(caplog) == {"principal drift" if stranger is None else "principal"}
    refreshed = ada.model_copy(update={"token": "another", "expires_at": 1})
    assert result(fetch(environment(key_id), starlette_request(again), auth_info=refreshed))


def test_a_state_is_good_in_its_own_stack_and_server_only(key_id: str, caplog: pytest.LogCaptureFixture) -> None:
    state = state_of(ask(environment(key_id), request()))
    neighbour = environment(key_id, stack="neighbour")
    assert error(ask(neighbour, second(state))) == INVALID
    assert reasons(caplog) == {"unknown key"}
    keyring = Keyring(stack="stack", key_id=key_id)
    other_server = create_mcp_handler(lambda: catalog.server("other-server"), keyring=keyring)
    assert error(ask(other_server, second(state))) == INVALID


def test_k2_a_data_key_of_another_encryption_context_opens_no_state(
    key_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_of(ask(environment(key_id), request()))
    [item] = moto_aws.items()
    foreign = Keyring(stack="neighbour", key_id=key_id).encryption_context("asking-server")
    made = (
        get_session()
        .create_client("kms")
        .generate_data_key_without_plaintext(KeyId=key_id, KeySpec="AES_256", EncryptionContext=foreign)
    )
    moto_aws.client().put_item(TableName=moto_aws.TABLE, Item={**item, "wrapped": {"B": made["CiphertextBlob"]}})
    assert error(ask(environment(key_id), second(state))) == INVALID
    assert reasons(caplog) == {"the wrapped key does not open under this encryption context"}


def test_a_state_says_whom_it_is_for(key_id: str) -> None:
    """Also to a codec whose keys are shared by servers."""
    state = state_of(ask(environment(key_id), request()))
    ring = Keyring(stack="stack", key_id=key_id).ring("asking-server")
    codec = KeyringCodec(ring)
    anyio.run(codec.prepare_to_unseal, state)
    assert json.loads(codec.unseal(state))["aud"] == "stack/asking-server"


def test_a_state_expires(key_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    handler = environment(key_id, token_ttl=5)
    state = state_of(ask(handler, request()))
    now = time.time()
    monkeypatch.setattr("mcp.server.request_state.time", SimpleNamespace(time=lambda: now + 6))
    assert error(ask(handler, second(state))) == INVALID
    assert reasons(caplog) == {"expired"}


def test_answers_without_a_state_are_not_taken(key_id: str) -> None:
    handler = environment(key_id)
    resolved: dict[str, Any] = {"name": "resolved", "arguments": {"topic": "rain"}}
    assert state_of(ask(handler, request(inputResponses={"city": ACCEPTED})))
    assert state_of(ask(handler, request(inputResponses={"city": ACCEPTED}, requestState=None)))
    [key] = result(ask(handler, request(**resolved)))["inputRequests"]
    assert state_of(ask(handler, request(inputResponses={key: ACCEPTED}, **resolved)))


def test_answers_come_too_early_only_where_there_is_something_to_remember(key_id: str) -> None:
    handler = environment(key_id)
    arguments = {"state": None}
    answer = ask(handler, request(arguments=arguments, inputResponses={"city": ACCEPTED}))
    expected = {"answers": {"city": {"name": "Oslo"}}, "state": None}
    assert json.loads(result(answer)["content"][0]["text"]) == expected
    assert state_of(ask(handler, request(arguments=arguments, inputResponses={})))


def test_k1_a_hundred_round_trips_in_a_warm_environment_call_nobody(key_id: str) -> None:
    handler = environment(key_id)
    state_of(ask(handler, request()))
    calls: list[str] = []
    for service in ("dynamodb", "kms"):
        aws._client(service).meta.events.register("before-call", lambda model, **_: calls.append(model.name))
    for _ in range(100):
        assert result(ask(handler, second(state_of(ask(handler, request())))))
    assert calls == []


def test_a_server_that_never_asks_costs_no_call(key_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_aws.NOWHERE)
    aws.forget_clients()
    plain = Catalog()

    @plain.tool()
    def hello() -> str:
        return "Hello"

    handler = create_mcp_handler(lambda: plain.server("plain"), keyring=Keyring(stack="stack", key_id=key_id))
    assert result(ask(handler, request(name="hello")))["content"][0]["text"] == "Hello"
    assert aws._client.cache_info().currsize == 0


def failing(service: aws.Service, operation: str, code: str) -> Any:
    """Makes an operation fail; gives what ends it."""
    events = aws._client(service).meta.events

    def refuse(**_: Any) -> Any:
        return type("Http", (), {"status_code": 400}), {"Error": {"Code": code}, "ResponseMetadata": {}}

    name = f"before-call.{service}.{operation}"
    events.register(name, refuse)
    return lambda: events.unregister(name, refuse)


def test_while_there_is_no_key_callers_are_told_to_try_again(key_id: str, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = state_of(ask(environment(key_id), request()))
    handler = environment(key_id)
    restore = failing("kms", "Decrypt", "KMSInternalException")
    for case in (request(), second(elsewhere)):
        answer = ask(handler, case)
        assert error(answer)["code"] == -32603
        assert "Send the same request again" in error(answer)["message"]
        assert "KMSInternal" not in answer.body
    assert "kms decrypt failed: KMSInternalException" in caplog.text
    assert any(map(is_counted_as_kms_failure, caplog.messages))
    restore()
    assert result(ask(handler, second(elsewhere)))["content"]
    assert state_of(ask(handler, request()))


# --- capabilities (P5) ---

URL = ElicitRequest(params=ElicitRequestURLParams(message="Sign in", url="https://example.com", elicitation_id="1"))
MESSAGE = SamplingMessage(role="user", content=TextContent(type="text", text="Hi"))
SAMPLE = CreateMessageRequest(params=CreateMessageRequestParams(messages=[MESSAGE], max_tokens=5))
SAMPLE_TOOLS = CreateMessageRequest(
    params=CreateMessageRequestParams(messages=[MESSAGE], max_tokens=5, tool_choice=ToolChoice(mode="auto"))
)
ROOTS = ListRootsRequest()


@pytest.mark.parametrize(
    ("asked_for", "declared", "missing"),
    [
        ({"a": question()}, {}, {"elicitation": {"form": {}}}),
        ({"a": question()}, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ({"a": question()}, {"elicitation": {}}, None),
        ({"a": question()}, {"elicitation": {"form": {}, "url": {}}}, None),
        ({"a": URL}, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ({"a": URL}, FORM, {"elicitation": {"url": {}}}),
        ({"a": URL}, {"elicitation": {"url": {}}}, None),
        ({"a": SAMPLE}, FORM, {"sampling": {}}),
        ({"a": SAMPLE}, {"sampling": {}}, None),
        ({"a": SAMPLE_TOOLS}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        ({"a": SAMPLE_TOOLS}, {"sampling": {"tools": {}}}, None),
        ({"a": ROOTS}, {"sampling": {}}, {"roots": {}}),
        ({"a": ROOTS}, {"roots": {}}, None),
        ({"a": question(), "b": URL, "c": ROOTS}, {}, {"elicitation": {"form": {}, "url": {}}, "roots": {}}),
    ],
)
def test_p5_no_question_reaches_a_caller_that_has_not_declared_it(
    asked_for: dict[str, Any], declared: dict[str, Any], missing: dict[str, Any] | None
) -> None:
    def create() -> MCPServer:
        server = MCPServer("asking")

        @server.tool()
        async def asks() -> InputRequiredResult:
            return InputRequiredResult(input_requests=asked_for)

        return server

    answer = ask(create_mcp_handler(create), request(capabilities=declared, name="asks"))
    if missing is None:
        assert state_of(answer)
    else:
        assert (answer.status, error(answer)["code"]) == (400, -32021)
        assert error(answer)["data"] == {"requiredCapabilities": missing}
        for capability in missing:
            assert capability in error(answer)["message"]


def test_p5_by_resolver() -> None:
    answer = ask(create_mcp_handler(create_server), request(capabilities={}, name="resolved", arguments={"topic": "x"}))
    assert (answer.status, error(answer)["code"]) == (400, -32021)
    assert error(answer)["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


# --- servers that are made otherwise ---


async def list_tools(ctx: ServerRequestContext[Any], params: Any) -> Any:
    """The tool of a low-level server."""
    return {"tools": [Tool(name="by_hand", input_schema={"type": "object"})]}


async def call_tool(ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> Any:
    """Asks once."""
    if not params.input_responses:
        return InputRequiredResult(input_requests={"city": question()}, request_state="low")
    return CallToolResult(content=[TextContent(type="text", text=str(params.request_state))])


def low_level() -> Server[Any]:
    """A low-level server, which the SDK gives no boundary."""
    return Server("low-level", on_list_tools=list_tools, on_call_tool=call_tool)


def test_a_low_level_server_is_sealed_too(key_id: str) -> None:
    keyring = Keyring(stack="stack", key_id=key_id)
    one, other = (create_mcp_handler(low_level, keyring=keyring) for _ in range(2))
    state = state_of(ask(one, request()))
    assert "low" not in state
    assert result(ask(other, second(state)))["content"][0]["text"] == "low"
    assert error(ask(other, second(state[:-1]))) == INVALID
    assert error(ask(one, request(capabilities={})))["code"] == -32021


def test_a_policy_of_the_servers_own_is_kept(key_id: str) -> None:
    policy = RequestStateSecurity(keys=["a secret of the author's, which every environment has"])

    def create() -> MCPServer:
        return catalog.server("own", request_state_security=policy)

    keyring = Keyring(stack="stack", key_id=key_id)
    one, other = (create_mcp_handler(create, keyring=keyring) for _ in range(2))
    state = state_of(ask(one, request()))
    assert state.startswith("v1.")
    assert result(ask(other, second(state)))["content"]
    assert state_of(ask(one, request(inputResponses={"city": ACCEPTED})))
    assert moto_aws.items() == []


def test_a_key_of_one_process_is_replaced_even_when_it_is_asked_for(key_id: str) -> None:
    def create() -> MCPServer:
        return catalog.server("own", request_state_security=RequestStateSecurity.ephemeral())

    keyring = Keyring(stack="stack", key_id=key_id)
    one, other = (create_mcp_handler(create, keyring=keyring) for _ in range(2))
    assert result(ask(other, second(state_of(ask(one, request())))))["content"]


def test_old_clients_are_told_that_they_cannot_be_asked(key_id: str) -> None:
    answer = ask(environment(key_id), legacy("tools/call", name="by_hand", arguments={}))
    assert "cannot read" in result(answer)["content"][0]["text"]
    assert moto_aws.items() == []


# --- on Lambda without shared keys (P3) ---


def plain_dependency() -> str:
    """A resolver that asks nobody."""
    return "found"


def server_with(function: Any, kind: str = "tool", **options: Any) -> Any:
    """A factory of a server with one tool, prompt or resource."""

    def create() -> MCPServer:
        server = MCPServer("one", **options)
        match kind:
            case "tool":
                server.tool()(function)
            case "prompt":
                server.prompt()(function)
            case _:
                server.resource("a://{name}")(function)
        return server

    return create


async def asks_in_prose(name: str = "") -> "str | InputRequiredResult":
    """A tool, prompt or template that asks by hand."""
    return InputRequiredResult(input_requests={"city": question()})


async def asks_by_resolver(city: Annotated[City, Resolve(ask_for_city)]) -> str:
    """A tool with a resolver that elicits."""
    return city.name


def sample_resolver() -> Sample | str:
    """A resolver that may sample."""
    return "no need"


def roots_resolver() -> ListRoots:
    """A resolver that lists roots."""
    return ListRoots()


async def asks_for_a_sample(text: Annotated[Any, Resolve(sample_resolver)]) -> str:
    """A tool with a resolver that samples."""
    return str(text)


async def asks_for_roots(roots: Annotated[Any, Resolve(roots_resolver)]) -> str:
    """A tool with a resolver that lists roots."""
    return str(roots)


@pytest.fixture
def on_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "function")
    for variable in (KEY_VARIABLE, STACK_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("on_lambda")
@pytest.mark.parametrize(
    "factory",
    [
        create_server,
        server_with(asks_in_prose),
        server_with(asks_in_prose, "prompt"),
        server_with(asks_in_prose, "resource"),
        server_with(asks_by_resolver),
        server_with(asks_for_a_sample),
        server_with(asks_for_roots),
        server_with(asks_in_prose, request_state_security=RequestStateSecurity.ephemeral()),
    ],
)
def test_p3_on_lambda_a_server_that_asks_does_not_start_without_shared_keys(factory: Any) -> None:
    with pytest.raises(StateNotConfigured, match="SEALANE_TABLE"):
        create_mcp_handler(factory)


@pytest.mark.usefixtures("on_lambda")
def test_p3_the_same_for_factories_that_are_async_or_take_the_context() -> None:
    async def create() -> MCPServer:
        return create_server()

    def create_for(context: RequestContext) -> MCPServer:
        return create_server()

    for factory in (create, create_for):
        with pytest.raises(StateNotConfigured):
            create_mcp_handler(factory)


@pytest.mark.usefixtures("on_lambda")
def test_p3_what_asks_nobody_and_what_has_shared_keys_starts() -> None:
    async def injected(value: Annotated[str, Resolve(plain_dependency)]) -> str:
        return value

    handler = create_mcp_handler(server_with(injected))
    assert result(ask(handler, request(name="injected")))["content"][0]["text"] == "found"
    shared = RequestStateSecurity(keys=["a secret of the author's, which every environment has"])
    handler = create_mcp_handler(server_with(asks_in_prose, request_state_security=shared))
    assert state_of(ask(handler, request(name="asks_in_prose")))


@pytest.mark.usefixtures("on_lambda")
def test_p3_what_could_not_be_known_at_the_start_fails_closed(caplog: pytest.LogCaptureFixture) -> None:
    def create(context: RequestContext) -> MCPServer:
        assert context.event is not None
        return create_server()

    handlers: list[Handler] = [create_mcp_handler(create), create_mcp_handler(low_level)]
    for handler in handlers:
        caplog.clear()
        answer = ask(handler, request())
        assert error(answer) == {"code": -32603, "message": "Internal error"}
        assert "SEALANE_TABLE" in caplog.text
        assert error(ask(handler, second("v1.AAAA"))) == INVALID


def test_p3_on_lambda_the_environment_gives_the_keyring(key_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "function")
    monkeypatch.setenv(KEY_VARIABLE, key_id)
    monkeypatch.setenv(STACK_VARIABLE, "stack")
    one, other = create_mcp_handler(create_server), create_mcp_handler(create_server)
    assert result(ask(other, second(state_of(ask(one, request())))))["content"]
    assert [item["sk"]["S"].partition("#")[0] for item in moto_aws.items()] == ["asking-server"]


def test_secrets_are_never_logged(key_id: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        handler = environment(key_id)
        state = state_of(ask(handler, request(arguments={"state": "SECRET-STATE", "topic": "SECRET-ARGUMENT"})))
        arguments = {"state": "SECRET-STATE", "topic": "SECRET-ARGUMENT"}
        ask(
            handler,
            second(
                state, arguments=arguments, answers={"city": {"action": "accept", "content": {"name": "SECRET-ANSWER"}}}
            ),
        )
        ask(handler, second(state[:-2], arguments=arguments))
    assert "requestState rejected" in caplog.text
    assert "SECRET" not in caplog.text
    assert state not in caplog.text
    assert state[:-2] not in caplog.text
