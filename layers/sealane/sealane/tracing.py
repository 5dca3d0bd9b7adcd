"""Spans of requests and of calls to AWS, beside those that the SDK makes, for X-Ray or any collector that speaks OTLP.

Loaded only where `SEALANE_TRACING` says so: it needs OpenTelemetry's SDK (the extra `tracing` of the package), which a
function has in its own requirements.
"""

import base64
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, TraceFlags

__all__ = ["Tracing"]

_MODES: Final = ("xray", "otlp")
_EXPORT_TIMEOUT: Final = 1.0
"""Seconds that a collector may take, at the end of an invocation that its caller waits for where answers are whole."""
_DAEMON: Final = "127.0.0.1:2000"


class Tracing:
    """Makes spans, and sends those of a request at its end: what waits longer is frozen with the environment.

    Without the texts of errors and events, which have arguments and results in them.

    Args:
        mode: `"xray"` for X-Ray's daemon, which Lambda runs beside a function with active tracing, `"otlp"` for the
            collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names.
        service: the name under which spans are found.

    Raises:
        ValueError: there is no such mode.
    """

    def __init__(self, mode: str, service: str) -> None:
        if mode not in _MODES:
            raise ValueError(f"SEALANE_TRACING is 'off' or one of {_MODES}: got {mode!r}")
        self._spans = _Spans(OTLPSpanExporter(timeout=_EXPORT_TIMEOUT) if mode == "otlp" else _Daemon())
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
        self._provider.add_span_processor(self._spans)
        # The SDK's own spans go where ours go.
        trace.set_tracer_provider(self._provider)
        self._tracer = self._provider.get_tracer("sealane")

    @contextmanager
    def request(
        self, keys: Mapping[str, Any], meta: Mapping[str, Any], headers: Mapping[str, str], started: int
    ) -> Iterator[str]:
        """The span of a request, until the end of the block; gives its trace id.

        It continues the trace of the client, from `_meta.traceparent` (SEP-414) or the header of that name, and is
        linked with X-Ray's; without such, it continues X-Ray's.

        Args:
            keys: what the log says of it.
            meta: the message's `_meta`.
            headers: HTTP headers by lower-case name.
            started: epoch nanoseconds.
        """
        xray = _xray_context(os.environ.get("_X_AMZN_TRACE_ID", ""))
        carrier = {name: each.get(name) for each in (headers, meta) for name in ("traceparent", "tracestate")}
        given = propagate.extract({name: value for name, value in carrier.items() if isinstance(value, str)}, Context())
        is_given = trace.get_current_span(given).get_span_context().is_valid
        if not is_given and xray is not None:
            given = trace.set_span_in_context(NonRecordingSpan(xray), Context())
        with self._tracer.start_as_current_span(
            "request",
            context=given,
            kind=SpanKind.SERVER,
            attributes={f"sealane.{key}": value for key, value in keys.items()},
            links=[Link(xray)] if is_given and xray is not None else [],
            start_time=started,
        ) as span:
            yield trace.format_trace_id(span.get_span_context().trace_id)

    @contextmanager
    def call(self, service: str, operation: str) -> Iterator[None]:
        """The span of a call to AWS."""
        attributes = {"rpc.system": "aws-api", "rpc.service": service, "rpc.method": operation}
        with self._tracer.start_as_current_span(f"{service}.{operation}", kind=SpanKind.CLIENT, attributes=attributes):
            yield

    def flush(self) -> None:
        """Send what has ended."""
        self._spans.flush()


class _Spans(SpanProcessor):
    """Keeps what has ended until it is sent."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._ended.append(_without_texts(span))

    def flush(self) -> None:
        spans, self._ended = self._ended, []
        if spans:
            self._exporter.export(spans)


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


class _Daemon(SpanExporter):
    """Sends spans to X-Ray's daemon, in the form that AWS's distribution of OpenTelemetry sends them.

    https://github.com/aws-observability/aws-otel-python-instrumentation (`otlp_udp_exporter`)
    """

    def __init__(self) -> None:
        host, _, port = os.environ.get("AWS_XRAY_DAEMON_ADDRESS", _DAEMON).rpartition(":")
        self._address = (host, int(port))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
            for span in spans:
                # One by one: a datagram has 64 KB at most. "T1S" is for spans that are sampled.
                data = base64.b64encode(encode_spans([span]).SerializeToString())
                daemon.sendto(b'{"format":"json","version":1}\nT1S' + data, self._address)
        return SpanExportResult.SUCCESS


def _xray_context(header: str) -> SpanContext | None:
    """What X-Ray says of the invocation: `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1`.

    https://docs.aws.amazon.com/xray/latest/devguide/xray-concepts.html#xray-concepts-tracingheader
    """
    parts = dict(part.strip().partition("=")[::2] for part in header.split(";"))
    try:
        trace_id = int("".join(parts["Root"].split("-")[1:]), 16)
        span_id = int(parts["Parent"], 16)
    except (KeyError, ValueError):
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(parts.get("Sampled") == "1"))
    return context if context.is_valid else None
