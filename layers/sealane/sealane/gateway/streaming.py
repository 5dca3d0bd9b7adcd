"""A Lambda runtime that sends answers as they are produced: `python -m sealane.gateway.streaming`.

AWS's own runtime for Python cannot; `bin/sealane-stream` of the layer starts this one in its place. It serves the
same handlers over the same API: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html

Nobody tells a function that the client has gone: "streamed responses are not interrupted or stopped when the invoking
client connection is broken" (https://docs.aws.amazon.com/lambda/latest/dg/configuration-response-streaming.html).
What is seen here is a Runtime API that takes no more of an answer.
"""

import asyncio
import base64
import http.client
import importlib
import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from starlette.types import ASGIApp, Message, Scope

from sealane import telemetry
from sealane.errors import error_response
from sealane.gateway.buffered import BufferedGateway, is_ping, refusal
from sealane.gateway.events import DEADLINE_KEY
from sealane.gateway.loop import environment_loop
from sealane.gateway.remaining import remaining_seconds, seconds_to_answer
from sealane.state import deadline

__all__ = ["main"]

logger = logging.getLogger(__name__)

_PREFIX: Final = "/2018-06-01/runtime"
_SNAPSHOT_FAILED: Final = 64
_RESTORE_FAILED: Final = 65
"""Exit status of AWS's own runtime when a SnapStart hook fails (awslambdaric, `bootstrap.on_init_complete`)."""


class LambdaContext:
    """What a handler is told of its invocation.

    https://docs.aws.amazon.com/lambda/latest/dg/python-context.html

    Args:
        headers: those of the Runtime API's answer.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.aws_request_id = headers.get("lambda-runtime-aws-request-id", "")
        self.invoked_function_arn = headers.get("lambda-runtime-invoked-function-arn", "")
        self.function_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
        self.function_version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION", "")
        self.memory_limit_in_mb: Any = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")  # Text in AWS's own too.
        self.log_group_name = os.environ.get("AWS_LAMBDA_LOG_GROUP_NAME", "")
        self.log_stream_name = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME", "")
        self.tenant_id = headers.get("lambda-runtime-aws-tenant-id")
        client = _object(headers.get("lambda-runtime-client-context"))
        self.client_context: Any = None
        if client is not None:
            self.client_context = SimpleNamespace(
                client=SimpleNamespace(**client.get("client") or {}),
                custom=client.get("custom"),
                env=client.get("env"),
            )
        identity = _object(headers.get("lambda-runtime-cognito-identity")) or {}
        self.identity: Any = SimpleNamespace(
            cognito_identity_id=identity.get("cognitoIdentityId"),
            cognito_identity_pool_id=identity.get("cognitoIdentityPoolId"),
        )
        self._deadline_ms = int(headers.get("lambda-runtime-deadline-ms", "0"))

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds before Lambda ends the invocation."""
        return max(self._deadline_ms - int(time.time() * 1000), 0)


def _object(text: str | None) -> dict[str, Any] | None:
    with suppress(ValueError):
        value = json.loads(text or "")
        return value if isinstance(value, dict) else None
    return None


@dataclass(frozen=True, slots=True)
class Invocation:
    """One event (JSON) to answer."""

    event: bytes
    context: LambdaContext


class RuntimeApi:
    """Lambda's Runtime API, but for streamed answers.

    Args:
        address: `host:port`.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def next(self) -> Invocation:
        """Wait for an invocation, without a limit: the environment is frozen meanwhile."""
        headers, event = self._call("GET", "/invocation/next")
        if trace_id := headers.get("lambda-runtime-trace-id"):
            # https://docs.aws.amazon.com/lambda/latest/dg/runtimes-custom.html#runtimes-custom-build
            os.environ["_X_AMZN_TRACE_ID"] = trace_id
        else:
            os.environ.pop("_X_AMZN_TRACE_ID", None)
        return Invocation(event, LambdaContext(headers))

    def respond(self, request_id: str, answer: bytes) -> None:
        """Send a whole answer (JSON)."""
        self._call("POST", f"/invocation/{request_id}/response", answer, {"Content-Type": "application/json"})

    def fail(self, place: str, report: Mapping[str, Any]) -> None:
        """Report an error at `/init/error`, `/restore/error` or an invocation's own place."""
        headers = {
            "Content-Type": "application/vnd.aws.lambda.error+json",
            "Lambda-Runtime-Function-Error-Type": report["errorType"],
        }
        self._call("POST", place, json.dumps(report).encode(), headers)

    def restored(self) -> None:
        """Say that the snapshot can be taken, and wait until it is restored."""
        self._call("GET", "/restore/next")

    def _call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.address)
        try:
            connection.request(method, _PREFIX + path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= 500 or (method == "GET" and response.status != 200):
            # "Container error. Non-recoverable state. Runtime should exit promptly" (the API's own words for 500).
            raise SystemExit(f"the Runtime API answered {response.status} to {path}")
        if response.status >= 400:
            logger.error("the Runtime API refused %s: %s %s", path, response.status, content.decode("utf-8", "replace"))
        return {name.lower(): value for name, value in response.getheaders()}, content


class StreamedAnswer:
    """ASGI's `receive` and `send` for one invocation whose answer goes out while it is produced.

    https://docs.aws.amazon.com/lambda/latest/dg/runtimes-custom.html#runtimes-custom-response-streaming

    Args:
        address: `host:port` of the Runtime API.
        request_id: Lambda's request id.
        body: the request's.

    Attributes:
        started: status and headers are out.
        ended: the answer is complete, or says that it is not.
        gone: the Runtime API takes no more of it.
    """

    def __init__(self, address: str, request_id: str, body: bytes) -> None:
        self.started = False
        self.ended = False
        self.gone = False
        self._address = address
        self._request_id = request_id
        self._body: bytes | None = body
        self._over = asyncio.Event()
        # Of the application's tasks one may end an answer that another is writing.
        self._lock = asyncio.Lock()

    async def receive(self) -> Message:
        """The request, then its end: the answer is complete or cannot be sent."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send status and headers, or a piece of the body. After the end this does nothing, as ASGI has it."""
        async with self._lock:
            if message["type"] == "http.response.start":
                await self._start(message)
            elif message["type"] == "http.response.body" and self.started:
                if body := message.get("body", b""):
                    await self._write(_chunk(body))
                if not message.get("more_body", False):
                    await self._end()
            else:
                raise RuntimeError(f"unexpected ASGI message {message['type']}")

    async def fail(self, error: BaseException) -> None:
        """End what has begun with the error trailers, so that nobody takes it for the whole answer."""
        async with self._lock:
            report = _report(error, self._request_id)
            await self._end(
                b"Lambda-Runtime-Function-Error-Type: %b\r\nLambda-Runtime-Function-Error-Body: %b\r\n"
                % (report["errorType"].encode(), base64.b64encode(json.dumps(report).encode()))
            )

    async def close(self) -> None:
        """Wait until the Runtime API has the whole answer, and leave it."""
        if not self.started:
            return
        if self.ended and not self.gone:
            await self._reading
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _start(self, message: Message) -> None:
        host, _, port = self._address.rpartition(":")
        reader, self._writer = await asyncio.open_connection(host, int(port))
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        self.started = True
        await self._write(
            b"POST %b/invocation/%b/response HTTP/1.1\r\n"
            b"Host: %b\r\n"
            b"Content-Type: application/vnd.awslambda.http-integration-response\r\n"
            b"Lambda-Runtime-Function-Response-Mode: streaming\r\n"
            b"Trailer: Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
            % (_PREFIX.encode(), self._request_id.encode(), self._address.encode())
            + _chunk(json.dumps(_prelude(message)).encode() + bytes(8))
        )

    async def _end(self, trailers: bytes = b"") -> None:
        if not self.ended:
            self.ended = True
            await self._write(b"0\r\n%b\r\n" % trailers)
            self._over.set()

    async def _write(self, data: bytes) -> None:
        if not self.gone:
            try:
                self._writer.write(data)
                # Waits while the Runtime API is slower than the application: nothing piles up.
                await self._writer.drain()
            except OSError:
                self._leave()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read the Runtime API's answer, which ours comes before: what is early is a refusal."""
        status = b""
        with suppress(OSError, ValueError):
            status = await reader.readline()
            while (await reader.readline()).strip():
                pass
        if not self.ended or b" 202 " not in status:
            logger.warning("the answer could not be sent: %s", status.decode("latin-1").strip() or "connection lost")
            self._leave()

    def _leave(self) -> None:
        self.gone = True
        self._over.set()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _prelude(start: Message) -> dict[str, Any]:
    """What stands before the body, as JSON.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode-lambda.html#response-transfer-mode-lambda-format

    Of headers that come more than once, only cookies cannot be one list (RFC 9110 section 5.3).
    """
    headers: dict[str, str] = {}
    cookies: list[str] = []
    for raw_name, raw_value in start.get("headers", []):
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name == "set-cookie":
            cookies.append(value)
        # The sender of the event counts the bytes itself, and API Gateway renames a length that it is given.
        elif name != "content-length":
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return {"statusCode": start["status"], "headers": headers, "cookies": cookies}


class Runtime:
    """Serves the invocations of an environment, one after the other.

    Args:
        api: where they come from.
        handler: the function's: one that has a `BufferedGateway` (an `McpHandler`), or is one, streams; any other is
            called as AWS's own runtime calls it.
    """

    def __init__(self, api: RuntimeApi, handler: Callable[[Any, Any], Any]) -> None:
        self._api = api
        self._handler = handler
        gateway = handler if isinstance(handler, BufferedGateway) else getattr(handler, "gateway", None)
        self._gateway = gateway if isinstance(gateway, BufferedGateway) else None
        self._loop = environment_loop()

    def serve(self, invocation: Invocation) -> None:
        """Answer one invocation."""
        request_id = invocation.context.aws_request_id
        try:
            event = json.loads(invocation.event)
            if self._gateway is not None and _is_streamed(event):
                self._stream(self._gateway, event, invocation.context)
                return
            answer = json.dumps(self._handler(event, invocation.context)).encode()
        except (Exception, SystemExit) as error:
            logger.exception("an invocation failed")
            self._api.fail(f"/invocation/{request_id}/error", _report(error, request_id))
        else:
            self._api.respond(request_id, answer)

    def _stream(self, gateway: BufferedGateway, event: Mapping[str, Any], context: LambdaContext) -> None:
        made: Scope | None = None
        body = b""
        try:
            handler, scope = gateway.request(event, context)
            body, made = handler.body, dict(scope)
        except Exception as error:
            application: ASGIApp = error_response(refusal(error))
            made = {"type": "http"}
        else:
            application = gateway.app
        answer = StreamedAnswer(self._api.address, context.aws_request_id, body)
        try:
            self._loop.run(_answer(application, made, answer, seconds_to_answer(remaining_seconds(context))))
        except (Exception, SystemExit) as error:
            self._loop.run(_fail(answer, error))
        finally:
            self._loop.run(answer.close())


async def _answer(application: ASGIApp, scope: Scope, answer: StreamedAnswer, seconds: float) -> None:
    """Let an application answer, and tell it when that has to be done."""
    scope[DEADLINE_KEY] = asyncio.get_running_loop().time() + seconds
    with deadline.within(seconds):
        await application(scope, answer.receive, answer.send)
    if not answer.ended and not answer.gone:
        raise RuntimeError("the application left its answer unfinished")


async def _fail(answer: StreamedAnswer, error: BaseException) -> None:
    """End an answer that its application did not end: with a proper status while that can be said."""
    rejection = refusal(error)
    if answer.started:
        await answer.fail(error)
    else:
        await error_response(rejection)({"type": "http"}, answer.receive, answer.send)


def _is_streamed(event: object) -> bool:
    """Whether the sender of an event passes an answer on as it comes.

    REST APIs and function URLs do, HTTP APIs and load balancers cannot:
    https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode.html. The event does not say
    whether it was told to: the template sets that together with this runtime. `sam local` answers 502 to a stream.
    """
    if not isinstance(event, dict) or is_ping(event) or os.environ.get("AWS_SAM_LOCAL") == "true":
        return False
    context = event.get("requestContext")
    if not isinstance(context, dict) or "elb" in context:
        return False
    return "version" not in event or ".lambda-url." in str(context.get("domainName"))


def _report(error: BaseException, request_id: str | None = None) -> dict[str, Any]:
    """An error as the Runtime API wants it, with the fields of AWS's own runtime."""
    report: dict[str, Any] = {"errorMessage": str(error), "errorType": type(error).__name__}
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, InitError):
        report["errorType"] = error.type
        frames = traceback.extract_tb(error.__cause__.__traceback__ if error.__cause__ else None)
        if isinstance(error.__cause__, SyntaxError):
            frames.append(traceback.FrameSummary(error.__cause__.filename or "", error.__cause__.lineno, "<module>"))
    if request_id is not None:
        report["requestId"] = request_id
    # Not our own frames, nor those of the import: what is left is the function's.
    while frames and (frames[0].filename == __file__ or "importlib" in frames[0].filename):
        del frames[0]
    return {**report, "stackTrace": traceback.format_list(frames)}


class InitError(Exception):
    """The function's handler cannot be had, for a reason that AWS's own runtime has a name for.

    Args:
        type: the name: https://docs.aws.amazon.com/lambda/latest/dg/troubleshooting-invocation.html
    """

    def __init__(self, type: str, text: str) -> None:
        self.type = type
        super().__init__(text)


def load_handler(name: str) -> Callable[[Any, Any], Any]:
    """The function's handler, imported.

    Raises:
        InitError: it cannot be found.
        Exception: whatever its module raises.
    """
    module_name, dot, attribute = name.rpartition(".")
    if not dot:
        raise InitError("Runtime.MalformedHandlerName", f"Bad handler '{name}': it is no module.name")
    try:
        module = importlib.import_module(module_name.replace("/", "."))
    except ImportError as error:
        raise InitError("Runtime.ImportModuleError", f"Unable to import module '{module_name}': {error}") from error
    except SyntaxError as error:
        text = f"Syntax error in module '{module_name}': {error}"
        raise InitError("Runtime.UserCodeSyntaxError", text) from error
    try:
        handler: Callable[[Any, Any], Any] = getattr(module, attribute)
    except AttributeError as error:
        text = f"Handler '{attribute}' missing on module '{module_name}'"
        raise InitError("Runtime.HandlerNotFound", text) from error
    return handler


def main() -> NoReturn:
    """Import the handler, and serve until the environment is ended."""
    # Only here, with all that it needs: who imports this module may only want to know its classes.
    from sealane.logs import logger as log

    api = RuntimeApi(os.environ["AWS_LAMBDA_RUNTIME_API"])
    telemetry.start()
    if level := os.environ.get("AWS_LAMBDA_LOG_LEVEL"):
        logging.getLogger().setLevel(5 if level == "TRACE" else level)
    try:
        runtime = Runtime(api, load_handler(os.environ["_HANDLER"]))
    except Exception as error:
        logger.exception("the function cannot start")
        api.fail("/init/error", _report(error))
        raise SystemExit(1) from None
    if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start":
        _be_restored(api)
    while True:
        invocation = api.next()
        log.append_keys(request_id=invocation.context.aws_request_id)
        runtime.serve(invocation)


def _be_restored(api: RuntimeApi) -> None:
    """Let a snapshot be taken; what comes after that happens in each environment that is made from it.

    https://docs.aws.amazon.com/lambda/latest/dg/snapstart-runtime-hooks-python.html
    """
    try:
        _run_hooks("get_before_snapshot", reverse=True)
    except Exception as error:
        logger.exception("a snapshot of the function cannot be taken")
        api.fail("/init/error", _report(InitError("Runtime.BeforeSnapshotError", str(error))))
        raise SystemExit(_SNAPSHOT_FAILED) from None
    api.restored()
    try:
        _run_hooks("get_after_restore")
    except Exception as error:
        logger.exception("the function cannot be restored")
        api.fail("/restore/error", _report(InitError("Runtime.AfterRestoreError", str(error))))
        raise SystemExit(_RESTORE_FAILED) from None


def _run_hooks(registered: str, *, reverse: bool = False) -> None:
    # A part of AWS's runtimes, which nobody without SnapStart needs.
    hooks = getattr(importlib.import_module("snapshot_restore_py"), registered)()
    for function, args, kwargs in reversed(hooks) if reverse else hooks:
        function(*args, **kwargs)


if __name__ == "__main__":
    main()
