"""Spans through the handler, as a collector on this machine and as X-Ray's daemon get them."""

import base64
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import propagate
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from sealane import Catalog, McpHandler, create_mcp_handler, telemetry
from sealane.tracing import Tracing
from tests.events import modern
from tests.planted import PLANTED
from tests.unit import moto_aws
from tests.unit.test_imports import modules_after
from tests.unit.test_telemetry import FORM, Log, ask, call, create_server, log

__all__ = ["log"]

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
XRAY = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled={}"
XRAY_TRACE = "5759e988bd862e3fe1be46a994272793"


class Collector(ThreadingHTTPServer):
    """Takes spans over HTTP.

    Attributes:
        received: what came, as bytes.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Export)
        self.received: list[bytes] = []

    @property
    def spans(self) -> dict[str, Span]:
        """The spans by name."""
        return {
            span.name: span
            for each in self.received
            for resource in ExportTraceServiceRequest.FromString(each).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }


class _Export(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Collector, Tracing]]:
    """The process can have one provider of spans."""
    with Collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        threading.Thread(target=collector.serve_forever, args=(0.01,), daemon=True).start()
        yield collector, Tracing("otlp", "a-stack")
        collector.shutdown()


@pytest.fixture
def collector(server: tuple[Collector, Tracing], monkeypatch: pytest.MonkeyPatch) -> Collector:
    """A collector that has received nothing."""
    collector, tracing = server
    collector.received.clear()
    monkeypatch.setattr(telemetry, "_tracing", tracing)
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    return collector


@pytest.fixture
def handler(log: Log) -> McpHandler:
    """A handler."""
    return create_mcp_handler(create_server)


def test_the_clients_trace_is_passed_on_where_nobody_records_spans(log: Log) -> None:
    catalog = Catalog()

    @catalog.tool()
    async def ask_another() -> str:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier["traceparent"]

    handler = create_mcp_handler(lambda: catalog.server("asking"))
    answered = ask(handler, modern("tools/call", meta={"traceparent": CLIENT}, name="ask_another", arguments={}))
    assert CLIENT.split("-")[1] in answered.json["result"]["content"][0]["text"]


def test_the_clients_trace_goes_on_and_is_linked_with_x_rays(
    handler: McpHandler, log: Log, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", XRAY.format(1))
    ask(handler, modern("tools/call", meta={"traceparent": CLIENT}, name="add", arguments={"a": 1, "b": 2}))
    _, trace_id, span_id, _ = CLIENT.split("-")
    assert set(collector.spans) == {"request", "tools/call add"}
    for span in collector.spans.values():
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace_id, span_id)
    [link] = collector.spans["request"].links
    assert (link.trace_id.hex(), link.span_id.hex()) == (XRAY_TRACE, "53995c3f42cd8ad8")
    assert {line["trace_id"] for line in log.lines} == {trace_id}


def test_x_rays_trace_goes_on_where_the_client_has_none(
    handler: McpHandler, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", XRAY.format(1))
    with moto_aws.moto():
        ask(handler, call("stored"))
    request, tool, put = (collector.spans[name] for name in ("request", "tools/call stored", "dynamodb.put_item"))
    assert {span.trace_id.hex() for span in (request, tool, put)} == {XRAY_TRACE}
    assert request.parent_span_id.hex() == "53995c3f42cd8ad8"
    attributes = {each.key: each.value for each in request.attributes}
    assert attributes["sealane.tool"].string_value == "stored"
    assert attributes["sealane.cold_start"].bool_value
    assert tool.parent_span_id == request.span_id
    assert put.parent_span_id == tool.span_id


def test_what_x_ray_does_not_sample_is_not_sent(
    handler: McpHandler, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", XRAY.format(0))
    ask(handler, call("add", a=1, b=2))
    assert collector.received == []


@pytest.mark.parametrize("header", ["", "nonsense", "Root=1-x-y;Parent=z", "Root=1-0-0;Parent=0"])
@pytest.mark.parametrize("parent", [7, "nonsense", "00-0-0-00"])
def test_what_is_no_trace_is_none(
    handler: McpHandler, collector: Collector, monkeypatch: pytest.MonkeyPatch, header: str, parent: object
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", header)
    arguments = {"a": 1, "b": 2}
    assert (
        ask(handler, modern("tools/call", meta={"traceparent": parent}, name="add", arguments=arguments)).status == 200
    )
    assert not collector.spans["request"].parent_span_id


def test_no_secret_is_in_a_span(log: Log, collector: Collector) -> None:
    handler = create_mcp_handler(create_server)
    for how in ("", "ToolError", "MCPError", "params", "logged", "group"):
        ask(handler, call("fail", how=how, secret=PLANTED))
    ask(handler, call("add", a=PLANTED, b=2))
    ask(handler, call("echo", secret=PLANTED))
    ask(handler, modern("tools/call", name="ask_back", arguments={}, requestState=PLANTED, client_capabilities=FORM))
    assert len(collector.received) == 9
    assert PLANTED.encode() not in b"".join(collector.received)


def test_a_collector_that_is_not_there_harms_nobody(
    handler: McpHandler, server: tuple[Collector, Tracing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(telemetry, "_tracing", Tracing("otlp", "a-stack"))
    assert ask(handler, call("add", a=1, b=2)).status == 200


def test_x_rays_daemon(handler: McpHandler, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(5)
        monkeypatch.setenv("AWS_XRAY_DAEMON_ADDRESS", f"127.0.0.1:{daemon.getsockname()[1]}")
        monkeypatch.setattr(telemetry, "_tracing", Tracing("xray", "a-stack"))
        ask(handler, call("add", a=1, b=2))
        head, _, data = daemon.recv(65_536).partition(b"\n")
    assert head == b'{"format":"json","version":1}'
    assert data.startswith(b"T1S")
    [resource] = TracesData.FromString(base64.b64decode(data[3:])).resource_spans
    [span] = resource.scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("request", log.requests[0]["trace_id"])


def test_there_are_no_other_ways() -> None:
    with pytest.raises(ValueError, match="SEALANE_TRACING is 'off' or one of"):
        Tracing("jaeger", "a-stack")


def test_who_does_not_trace_loads_nothing_of_it() -> None:
    loaded = modules_after("import sealane.handler\nfrom sealane import create_mcp_handler, Catalog\n"
                           "create_mcp_handler(lambda: Catalog().server('s'))")  # fmt: skip
    assert "opentelemetry.trace" in loaded
    assert not {name for name in loaded if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))}
