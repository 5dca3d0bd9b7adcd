"""What the log and the metrics say of a request, through the handler; and what they never say."""

import asyncio
import json
import logging
import warnings
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import anyio
import httpx2
import pytest
from mangum.types import LambdaContext
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    TextContent,
)

from sealane import (
    ANYONE,
    BearerAuth,
    Catalog,
    HandleStore,
    LegacyFunction,
    create_mcp_handler,
    logs,
    route_by_era,
    telemetry,
)
from sealane.gateway.events import DEADLINE_KEY
from sealane.state import aws
from sealane.state.keyring import Keyring
from tests.cloudwatch import embedded
from tests.events import MODERN, Answer, Handler, Headers, answer, legacy, make_event, modern
from tests.planted import PLANTED, SECRETS
from tests.unit import moto_aws
from tests.unit.asgi import fetch, read, starlette_request

CLIENT = {"io.modelcontextprotocol/clientInfo": {"name": "a-client", "version": "1.2"}}
FORM: dict[str, Any] = {"elicitation": {"form": {}}}

catalog = Catalog()
together = asyncio.Event()


@catalog.tool()
async def add(a: int, b: int) -> int:
    """Logs in three ways."""
    logs.logger.info("adding", terms=2)
    logs.logger.append_keys(order="A-7")
    logging.getLogger("a.library").error("from elsewhere")
    return a + b


@catalog.tool()
async def fail(how: str, secret: str = "") -> str:
    """Fails in all ways."""
    match how:
        case "ToolError":
            raise ToolError(f"no {secret}")
        case "MCPError":
            raise MCPError(-32001, f"no {secret}")
        case "params":
            raise MCPError(-32602, f"no {secret}")
        case "logged":
            try:
                dict[str, str]()[secret]
            except KeyError:
                logs.logger.exception("not there")
                logging.getLogger("a.library").exception("not there")
        case "task":
            asyncio.get_running_loop().create_task(_raise(secret))
            await anyio.sleep(0.01)
            import gc

            gc.collect()
        case "group":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_raise, secret)
    raise ValueError(f"no {secret}")


async def _raise(secret: str) -> None:
    raise LookupError(secret)


@catalog.tool()
async def echo(secret: str, ctx: Context) -> str:
    """Says it to the client in all ways."""
    await ctx.report_progress(1, 2, secret)
    return secret


@catalog.tool()
async def wait(seconds: float, mark: str = "") -> str:
    """Takes its time."""
    await anyio.sleep(seconds)
    logs.logger.info("waited", mark=mark)
    return mark


@catalog.tool()
async def ask_back(ctx: Context) -> str | InputRequiredResult:
    """Asks by hand."""
    if ctx.input_responses:
        return "thanks"
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    question = ElicitRequest(params=ElicitRequestFormParams(message="Who?", requested_schema=schema))
    return InputRequiredResult(input_requests={"who": question}, request_state=f"{PLANTED}-in-a-state")


@catalog.tool(scopes=["notes:write"])
async def write() -> str:
    """Needs a scope."""
    return "written"


@catalog.tool()
async def stored() -> str:
    """Writes to the table."""
    await HandleStore("note").create({}, ttl=60, owner=ANYONE)
    return "stored"


@catalog.resource("note://{name}")
async def note(name: str) -> str:
    """Fails too."""
    raise ValueError(name)


def create_server() -> MCPServer:
    """The server."""
    return catalog.server("telling")


class Log:
    """What is written to standard output, and to standard error."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured
        self._output = self._errors = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert self.text.endswith("\n")
        return (json.loads(line) for line in self._output.splitlines())

    @property
    def text(self) -> str:
        """All of it."""
        output, errors = self._captured.readouterr()
        self._output += output
        self._errors += errors
        return self._errors + self._output

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All but the metrics."""
        return [line for line in self if "_aws" not in line]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The lines of requests, one each."""
        return [line for line in self.lines if "duration_ms" in line]

    def metrics(self, **dimensions: str) -> dict[str, float]:
        """The sums of all metrics with these dimensions beside `service`."""
        sums: dict[str, float] = {}
        for point in (point for line in self for point in embedded(line)):
            assert point.namespace == "Sealane"
            if point.dimensions == {"service": "a-stack", **dimensions}:
                sums[point.metric] = sums.get(point.metric, 0) + sum(point.values)
        return sums

    def clear(self) -> None:
        """Forget it."""
        self._captured.readouterr()
        self._output = self._errors = ""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Log]:
    """Standard output on Lambda, all loggers at DEBUG, in an environment that has served nothing."""
    loggers = {name: logging.getLogger(name) for name in ("", "sealane", *logs._TALKATIVE)}
    before = {name: (each.level, list(each.handlers)) for name, each in loggers.items()}
    monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "Sealane")
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "a-stack")
    monkeypatch.setenv("SEALANE_LOG_KEY", "a-key")
    monkeypatch.setattr(telemetry, "_environment", telemetry._Environment())
    logging.getLogger().setLevel(logging.DEBUG)
    logs.logger.setLevel(logging.DEBUG)
    with warnings.catch_warnings():
        written = Log(capsys)
        yield written
    for name, each in loggers.items():
        each.setLevel(before[name][0])
        each.handlers[:] = before[name][1]
    assert SECRETS.search(written.text) is None


def context(request_id: str = "request-1", seconds: float = 10) -> LambdaContext:
    """Lambda's context."""
    return cast(
        LambdaContext,
        SimpleNamespace(aws_request_id=request_id, get_remaining_time_in_millis=lambda: int(seconds * 1000)),
    )


def ask(handler: Handler, request: tuple[Headers, Any], seconds: float = 10, **event: Any) -> Answer:
    """The answer to a request."""
    headers, body = request
    return answer(handler(make_event("rest", headers=headers, body=body, **event), context(seconds=seconds)))


def call(name: str, id: str | int = 1, **arguments: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """A tool call."""
    return modern("tools/call", id=id, meta=CLIENT, name=name, arguments=arguments)


def test_a_call_is_one_line_with_all_that_is_known_of_it(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    assert ask(handler, call("add", id="seven", a=1, b=2)).status == 200
    [line] = log.requests
    assert isinstance(line.pop("duration_ms"), float)
    assert isinstance(line.pop("timestamp"), str)
    assert len(line.pop("environment")) == 12
    assert line == {
        "level": "INFO",
        "message": "served",
        "service": "sealane",
        "request_id": "request-1",
        "rpc_id": "seven",
        "method": "tools/call",
        "tool": "add",
        "era": "modern",
        "lane": "stateless",
        "client_name": "a-client",
        "client_version": "1.2",
        "revision": "2026-07-28",
        "status": 200,
        "cold_start": True,
        "order": "A-7",
    }
    assert log.metrics() == {"Requests": 1, "Latency": log.requests[0]["duration_ms"], "ColdStart": 1}
    assert log.metrics(tool="add") == {"Requests": 1, "Latency": log.requests[0]["duration_ms"]}


@pytest.mark.parametrize("name", ["add", "none"])
def test_a_request_has_the_same_line_where_others_listen_to_the_log(log: Log, name: str) -> None:
    handler = create_mcp_handler(create_server)
    ask(handler, call("add", a=1, b=2))
    log.clear()
    ask(handler, call(name, a=1, b=2))
    heard: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = heard.append  # type: ignore[assignment,method-assign]
    logging.getLogger().addHandler(listener)
    ask(handler, call(name, a=1, b=2))
    alone, beside = log.requests
    for line in alone, beside:
        assert isinstance(line.pop("duration_ms"), float)
        assert datetime.strptime(line.pop("timestamp"), "%Y-%m-%d %H:%M:%S,%f%z")
    assert alone == beside
    assert [record.getMessage() for record in heard if record.name == telemetry.REQUESTS] == [alone["message"]]


def test_lines_of_requests_have_a_level_too(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    logs.logger.setLevel(logging.WARNING)
    ask(handler, call("add", a=1, b=2))
    assert not log.requests
    assert log.metrics()["Requests"] == 1


def test_what_a_tool_logs_has_the_same_keys(log: Log) -> None:
    ask(create_mcp_handler(create_server), call("add", a=1, b=2))
    own, library, last = log.lines
    assert (own["message"], own["terms"], library["message"]) == ("adding", 2, "from elsewhere")
    assert "order" not in own
    for key in ("request_id", "rpc_id", "method", "tool", "client_name", "cold_start", "environment"):
        assert own[key] == library[key] == last[key]


def test_what_a_tool_asks_others_for_is_not_logged(log: Log) -> None:
    def create_server() -> MCPServer:
        server = MCPServer("asking")

        @server.tool()
        async def look_up(word: str) -> int:
            transport = httpx2.MockTransport(lambda request: httpx2.Response(200))
            async with httpx2.AsyncClient(transport=transport) as client:
                return (await client.get("https://example.com/", params={"q": word})).status_code

        return server

    ask(create_mcp_handler(create_server), call("look_up", word=PLANTED))
    assert [line["message"] for line in log.lines] == ["served"]


def test_nothing_is_left_for_the_next_request(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    ask(handler, call("add", a=1, b=2))
    log.clear()
    assert ask(handler, ({}, None), method="GET").status == 405
    [line] = log.requests
    assert not {"order", "tool", "rpc_id", "client_name", "method"} & line.keys()
    assert line["cold_start"] is False
    logs.logger.info("between")
    assert "request_id" not in log.lines[-1]


def test_compatibility_and_batches(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    ask(handler, legacy("initialize", version="2025-06-18"))
    ask(handler, legacy("tools/call", id=3, name="add", arguments={"a": 1, "b": 2}))
    ask(handler, legacy("notifications/initialized"))
    first, second, third = log.requests
    keys = ("era", "lane", "method", "client_name", "revision", "status", "rpc_id")
    assert [first.get(key) for key in keys] == [
        "legacy", "compatibility", "initialize", "test-client", "2025-06-18", 200, 1,
    ]  # fmt: skip
    assert [second.get(key) for key in keys] == ["legacy", "compatibility", "tools/call", None, "2025-11-25", 200, 3]
    assert (third["method"], third["status"]) == ("notifications/initialized", 202)


HEADERS, BODY = call("add", a=1, b=2)
LATER = "2099-01-01"


@pytest.mark.parametrize(
    ("word", "status", "request_", "event"),
    [
        ("host", 421, (HEADERS | {"Host": "evil.example"}, BODY), {}),
        ("origin", 403, (HEADERS | {"Origin": "https://evil.example"}, BODY), {}),
        ("route", 404, (HEADERS, BODY), {"path": "/other"}),
        ("http-method", 405, (HEADERS, None), {"method": "GET"}),
        ("media-type", 415, (HEADERS | {"Content-Type": "text/plain"}, BODY), {}),
        ("accept", 406, (HEADERS | {"Accept": "text/html"}, BODY), {}),
        ("body-size", 413, (HEADERS, {**BODY, "more": "x" * 5_000}), {}),
        ("header-mismatch", 400, (HEADERS | {"Mcp-Name": "other"}, BODY), {}),
        ("version", 400, (HEADERS | {"MCP-Protocol-Version": LATER}, json.dumps(BODY).replace(MODERN, LATER)), {}),
        ("parse", 400, (HEADERS, "{"), {}),
        ("request", 400, ({**HEADERS, "MCP-Protocol-Version": "2025-11-25"}, "[]"), {}),
        ("method-not-found", 404, modern("tools/invent"), {}),
        ("params", 400, modern("tools/call"), {}),
        ("capability", 400, call("ask_back"), {}),
        ("scope", 403, call("write"), {}),
    ],
)
def test_a_refusal_has_its_word(
    log: Log, word: str, status: int, request_: tuple[Any, Any], event: dict[str, Any]
) -> None:
    handler = create_mcp_handler(create_server, max_request_body_size=4_000)
    event_ = make_event("rest", headers=request_[0], body=request_[1], **event)
    event_["requestContext"]["authorizer"] = {"client_id": "c", "iss": "i", "sub": "s"}
    assert answer(handler(event_, context())).status == status
    [line] = log.requests
    assert (line["refused_for"], line["status"], line["level"]) == (word, status, "WARNING")
    assert line["message"] == f"refused: {line['reason']}"
    assert isinstance(line["error_code"], int)
    assert log.metrics(reason=word) == {"Refused": 1}
    assert log.metrics()["Requests"] == log.metrics()["Refused"] == 1
    assert "Errors" not in log.metrics()


def test_a_token_that_is_refused(log: Log) -> None:
    handler = create_mcp_handler(create_server, auth=BearerAuth(issuer="https://issuer.example", audience="a"))
    assert ask(handler, (HEADERS | {"Authorization": f"Bearer {PLANTED}"}, BODY)).status == 401
    assert log.requests[0]["reason"] == "the token is no signed JWT"
    assert log.metrics(reason="token") == {"Refused": 1}
    assert PLANTED not in log.text


def test_what_is_no_http_request(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    assert handler({}, context())["statusCode"] == 400
    assert handler({"source": "aws.events"}, context())["statusCode"] == 204
    [line] = log.requests
    assert line["message"] == "refused: not an HTTP event: the event has no requestContext"
    assert log.metrics()["Refused"] == 1


@pytest.mark.parametrize(
    ("request_", "code", "level", "reason"),
    [
        (call("fail", how=""), "tool_error", "WARNING", "ValueError"),
        (call("fail", how="group"), "tool_error", "WARNING", "ExceptionGroup"),
        (call("fail", how="ToolError"), "tool_error", "WARNING", "ToolError"),
        (call("fail", how="MCPError"), -32001, "ERROR", "MCPError"),
        (call("add", a="x", b=2), "tool_error", "WARNING", "ValidationError: a"),
        (modern("resources/read", uri="note://x"), -32603, "ERROR", "ValueError"),
    ],
)
@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"])
def test_an_error_names_its_kind(
    log: Log, request_: tuple[dict[str, str], Any], code: int | str, level: str, reason: str, accept: str
) -> None:
    mode = "json" if accept == "application/json" else "auto"
    handler = create_mcp_handler(create_server, response_mode=mode)
    ask(handler, ({**request_[0], "Accept": accept}, request_[1]))
    [line] = log.requests
    assert (line["error_code"], line["level"], line["reason"]) == (code, level, reason)
    assert log.metrics()["Errors"] == log.metrics()["Requests"] == 1
    assert "Refused" not in log.metrics()
    if "tool" in line:
        assert log.metrics(tool=line["tool"])["Errors"] == 1


def test_a_resource_is_named_without_what_stands_in_its_uri(log: Log) -> None:
    ask(create_mcp_handler(create_server), modern("resources/read", uri=f"note://{PLANTED}"))
    [line] = log.requests
    assert line["resource"] == "note"


def test_what_nobody_has_foreseen(log: Log) -> None:
    def broken() -> MCPServer:
        raise RuntimeError(PLANTED)

    handler = create_mcp_handler(broken)
    assert ask(handler, call("add")).json["error"]["code"] == -32603
    [line] = log.requests
    assert (line["message"], line["status"], line["error_code"]) == ("failed: RuntimeError", 500, -32603)
    [trace] = [each for each in log.lines if each["message"] == "a request failed"]
    assert "in broken" in trace["exception"]
    assert log.metrics()["Errors"] == 1
    assert PLANTED not in trace["exception"]


def test_a_service_that_is_out_is_named(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    door = moto_aws.Door()
    with door.open():
        door.fates = ["throttled"] * 9
        assert ask(handler, call("stored")).json["result"]["isError"]
    with moto_aws.moto():
        moto_aws.client().delete_table(TableName=moto_aws.TABLE)
        assert ask(handler, call("stored")).json["result"]["isError"]
    throttled, gone = log.requests
    assert throttled["reason"] == "dynamodb put_item: ProvisionedThroughputExceededException"
    assert gone["reason"] == "dynamodb put_item: ResourceNotFoundException"
    assert log.metrics()["Errors"] == 2


def test_sealed_state_and_the_calls_of_kms(log: Log) -> None:
    with moto_aws.moto():
        key = moto_aws.get_session().create_client("kms").create_key()["KeyMetadata"]["KeyId"]
        handler = create_mcp_handler(create_server, keyring=Keyring(stack="stack", key_id=key))
        asking = modern("tools/call", client_capabilities=FORM, name="ask_back", arguments={})
        state = ask(handler, asking).json["result"]["requestState"]
        assert log.metrics()["StateSealed"] == 1
        assert log.metrics()["KmsCalls"] == 2
        answers = {"who": {"action": "accept", "content": {}}}
        for sent in (state, state[:-4] + "AAAA"):
            again = modern(
                "tools/call",
                client_capabilities=FORM,
                name="ask_back",
                arguments={},
                requestState=sent,
                inputResponses=answers,
            )
            ask(handler, again)
        assert log.metrics()["StateRefused"] == 1
        assert log.metrics()["StateSealed"] == 1
        assert log.metrics(reason="state") == {"Refused": 1}
        assert log.requests[-1]["reason"] == "the request state is not accepted"
        assert state not in log.text
        assert "in-a-state" not in log.text
        aws.forget_clients()
        other = create_mcp_handler(create_server, keyring=Keyring(stack="another", key_id=str(UUID(int=1))))
        log.clear()
        assert ask(other, asking).json["error"]["code"] == -32603
        assert log.requests[-1]["reason"] == "kms generate_data_key_without_plaintext: NotFoundException"
        assert log.metrics()["Errors"] == 1


def test_an_invocation_whose_time_is_up_is_told_of_before(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    assert ask(handler, call("wait", seconds=0.4), seconds=0.3).status == 200
    [line] = log.requests
    assert (line["message"], line["level"]) == ("failed: the time of the invocation is up", "ERROR")
    assert "status" not in line
    assert log.metrics()["Errors"] == log.metrics()["Requests"] == 1


def test_an_answer_that_is_ended_in_time_is_an_error(log: Log) -> None:
    handler = create_mcp_handler(create_server)

    async def run() -> Answer:
        request = starlette_request(call("wait", seconds=5))
        request.scope[DEADLINE_KEY] = anyio.current_time() + 0.2
        answer = await read(await handler.fetch(request))
        # The line is written when the application has ended.
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=1)
        return answer

    assert asyncio.run(run()).status == 504
    [line] = log.requests
    assert line["reason"].endswith("give the tool a time limit of its own, or raise Timeout")
    assert log.metrics()["Errors"] == 1


def test_requests_at_the_same_time_do_not_mix(log: Log) -> None:
    handler = create_mcp_handler(create_server)

    async def one(number: int) -> None:
        request = starlette_request(call("wait", id=number, seconds=0.01 * (number % 3), mark=str(number)))
        assert (await read(await handler.fetch(request))).status == 200

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(30)))

    asyncio.run(run())
    waited = [line for line in log.lines if line["message"] == "waited"]
    assert sorted(line["rpc_id"] for line in waited) == list(range(30))
    assert all(line["mark"] == str(line["rpc_id"]) for line in waited)
    assert sorted(line["rpc_id"] for line in log.requests) == list(range(30))


def test_a_caller_is_a_keyed_hash(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = create_mcp_handler(create_server)

    def seen(subject: str) -> str:
        token = AccessToken(
            token=PLANTED, client_id="client-1", scopes=[], subject=subject, claims={"iss": "https://i"}
        )
        fetch(handler, starlette_request(call("add", a=1, b=2)), auth_info=token)
        principal: str = log.requests[-1]["principal"]
        return principal

    zoe = seen("zoe")
    assert len(zoe) == 16
    assert zoe == seen("zoe") != seen("bob")
    monkeypatch.setattr(telemetry, "_environment", telemetry._Environment())
    assert seen("zoe") == zoe
    monkeypatch.setenv("SEALANE_LOG_KEY", "another key")
    monkeypatch.setattr(telemetry, "_environment", telemetry._Environment())
    assert seen("zoe") != zoe
    monkeypatch.delenv("SEALANE_LOG_KEY")
    monkeypatch.setattr(telemetry, "_environment", telemetry._Environment())
    assert seen("zoe") != zoe
    for name in ("zoe", "bob", "client-1", "https://i", PLANTED):
        assert name not in log.text


def test_clients_cannot_make_metrics(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    for number in range(1_000):
        name = f"invented-{number}"
        client = {"io.modelcontextprotocol/clientInfo": {"name": name, "version": name}}
        ask(handler, modern("tools/call", meta=client, name=name, arguments={}))
        ask(handler, modern(name, meta=client))
    dimensions = {
        (name, blob[name])
        for blob in log
        for directive in blob.get("_aws", {}).get("CloudWatchMetrics", ())
        for names in directive["Dimensions"]
        for name in names
    }
    assert dimensions == {("service", "a-stack"), ("reason", "method-not-found")}
    assert log.metrics()["Requests"] == 2_000


def test_a_server_with_more_tools_than_metrics(log: Log) -> None:
    known: set[str] = set()
    names = [telemetry.one_of(known, telemetry.clean(f"tool {number}", 64), 50) for number in range(10_000)]
    assert set(names) == {"other", *(f"tool {number}" for number in range(50))}


def test_values_of_clients_are_cut(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    huge = "x" * 3_000
    meta = {"io.modelcontextprotocol/clientInfo": {"name": huge, "version": {"a": huge}}}
    ask(handler, modern("tools/call", id=huge, meta=meta, name=huge, arguments={}))
    [line] = log.requests
    assert (len(line["tool"]), len(line["rpc_id"]), len(line["client_name"])) == (128, 128, 128)
    assert "client_version" not in line


def test_a_low_level_server_is_counted_without_its_tools(log: Log) -> None:
    async def called(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="hi")], is_error=params.name == "bad")

    def create() -> Server[Any]:
        return Server("low", on_call_tool=called)

    handler = create_mcp_handler(create)
    ask(handler, call("good"))
    ask(handler, call("bad"))
    assert [line["message"] for line in log.requests] == ["served", "failed: tool_error"]
    assert log.metrics()["Errors"] == 1
    assert log.metrics(tool="good") == {}


def test_a_request_that_is_forwarded_and_not_answered(log: Log) -> None:
    handler = route_by_era(create_mcp_handler(create_server, legacy="reject"), LegacyFunction("gone"))
    with moto_aws.aws_variables(moto_aws.NOWHERE):
        assert ask(handler, legacy("tools/list")).status == 503
    [line] = log.requests
    assert (line["lane"], line["era"], line["status"]) == ("legacy", "legacy", 503)
    assert "EndpointConnectionError" in line["reason"]
    assert log.metrics()["Errors"] == 1


def test_without_a_namespace_there_are_no_metrics(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POWERTOOLS_METRICS_NAMESPACE")
    ask(create_mcp_handler(create_server), call("add", a=1, b=2))
    assert len(log.requests) == 1
    assert "_aws" not in log.text


def test_off_lambda_nobodys_logging_is_changed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_LAMBDA_RUNTIME_API")
    handlers, level = list(logging.getLogger().handlers), logging.getLogger("mcp").level
    create_mcp_handler(create_server)
    assert (logging.getLogger().handlers, logging.getLogger("mcp").level) == (handlers, level)


def test_some_requests_are_logged_in_detail(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = create_mcp_handler(create_server)
    monkeypatch.setattr(logs.logger, "sampling_rate", "1")
    logs.logger.setLevel(logging.INFO)
    ask(handler, call("add", a=1, b=2))
    assert logging.getLogger("sealane").level == logging.DEBUG
    monkeypatch.setattr(logs.logger, "sampling_rate", "0.0")
    ask(handler, call("add", a=1, b=2))
    assert logging.getLogger("sealane").level == logging.INFO


def test_a_restored_snapshot_is_a_new_environment(log: Log) -> None:
    handler = create_mcp_handler(create_server)
    ask(handler, call("add", a=1, b=2))
    telemetry._renew()
    ask(handler, call("add", a=1, b=2))
    first, second = log.requests
    assert first["environment"] != second["environment"]
    assert first["cold_start"] is second["cold_start"] is True


@pytest.mark.parametrize("mode", ["json", "sse", "auto"])
def test_no_secret_is_in_any_output(log: Log, mode: str) -> None:
    """At DEBUG, with every library's logger at DEBUG: in a token, an argument, a state, a header and a result."""
    handler = create_mcp_handler(create_server, response_mode=mode, auth=None)
    requests = [
        call("echo", secret=PLANTED),
        call("echo", secret={"a": PLANTED}),
        call("add", a=PLANTED, b=2),
        call("add", a={PLANTED: PLANTED}, b=[PLANTED]),
        *(
            call("fail", how=how, secret=PLANTED)
            for how in ("", "ToolError", "MCPError", "params", "logged", "task", "group")
        ),
        modern("tools/call", name="ask_back", arguments={}, requestState=PLANTED, client_capabilities=FORM),
        modern("tools/call", name="ask_back", arguments={"x": PLANTED}, client_capabilities=FORM),
        modern("tools/call", name="ask_back", arguments={}, requestState={"a": PLANTED}),
        modern("tools/list", cursor=[PLANTED]),
        modern("logging/setLevel", level=PLANTED),
        legacy("tools/call", name="fail", arguments={"how": "", "secret": PLANTED}),
        legacy("tools/call", name="add", arguments={"a": PLANTED}),
        legacy("tools/call", arguments={"a": PLANTED}),
        legacy("notifications/cancelled", requestId=[PLANTED]),
        ({**HEADERS, "Mcp-Name": PLANTED}, BODY),
        ({**HEADERS, "Content-Type": PLANTED}, BODY),
        ({**HEADERS, "Accept": PLANTED}, BODY),
        (HEADERS, PLANTED),
        (HEADERS, json.dumps({**BODY, "jsonrpc": PLANTED})),
        (HEADERS, json.dumps([BODY, PLANTED])),
    ]
    secret_headers = {
        "Authorization": f"Bearer {PLANTED}",
        "Cookie": f"a={PLANTED}",
        "X-Api-Key": PLANTED,
        "Mcp-Param-Secret": PLANTED,
        "User-Agent": PLANTED,
        "Mcp-Session-Id": PLANTED,
    }
    for headers, body in requests:
        ask(handler, ({**headers, **secret_headers}, body))
    assert len(log.requests) == len(requests)
    assert PLANTED not in log.text
