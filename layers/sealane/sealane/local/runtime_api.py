"""Lambda's Runtime API, from which one environment takes its invocations.

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sealane.local.errors import FunctionError
from sealane.local.http_server import Server, listen

_PREFIX = "/2018-06-01/runtime"


@dataclass(frozen=True)
class Invocation:
    """One event on its way through an environment.

    Attributes:
        request_id: Lambda's request id.
        event: the event as JSON.
        arn: ARN of the function.
        deadline_ms: Unix time in milliseconds at which the function will be stopped.
        trace_id: X-Ray trace header.
        answer: the function's JSON answer, or its `FunctionError`.
    """

    request_id: str
    event: bytes
    arn: str
    deadline_ms: int
    trace_id: str
    answer: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RuntimeApi:
    """A Runtime API server for one environment, on a free port of 127.0.0.1.

    Args:
        code_dir: the function's folder, to say where in it an error comes from.

    Attributes:
        address: `host:port`, for `AWS_LAMBDA_RUNTIME_API`.
        ready: done when the environment first asks for an invocation; holds its `FunctionError` when it cannot start.
    """

    def __init__(self, code_dir: Path) -> None:
        self._code_dir = code_dir
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self._invocations: asyncio.Queue[Invocation | None] = asyncio.Queue()
        self._current: Invocation | None = None
        self._socket = listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        app = Starlette(
            routes=[
                Route(f"{_PREFIX}/invocation/next", self._next),
                Route(f"{_PREFIX}/invocation/{{request_id}}/response", self._response, methods=["POST"]),
                Route(f"{_PREFIX}/invocation/{{request_id}}/error", self._error, methods=["POST"]),
                Route(f"{_PREFIX}/init/error", self._init_error, methods=["POST"]),
            ]
        )
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=24 * 3600)
        self._server = Server(config)
        self._serving = loop.create_task(self._server.serve(sockets=[self._socket]))

    async def invoke(self, invocation: Invocation) -> bytes:
        """Hands an event to the environment and waits for its answer.

        Raises:
            FunctionError: the function raised, or the environment failed.
        """
        self._current = invocation
        self._invocations.put_nowait(invocation)
        return await invocation.answer

    def fail(self, error: FunctionError) -> None:
        """The environment is gone: nobody needs to wait for it any longer."""
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # Marks it as seen: nobody may be waiting any more.
        if self._current and not self._current.answer.done():
            self._current.answer.set_exception(error)

    async def close(self) -> None:
        """Ends the server and closes its port."""
        self._invocations.put_nowait(None)
        self._server.should_exit = self._server.force_exit = True
        await self._serving
        self._socket.close()

    async def _next(self, request: Request) -> Response:
        if not self.ready.done():
            self.ready.set_result(None)
        invocation = await self._invocations.get()
        if invocation is None:
            return Response(status_code=410)
        return Response(
            invocation.event,
            media_type="application/json",
            headers={
                "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
                "Lambda-Runtime-Deadline-Ms": str(invocation.deadline_ms),
                "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
                "Lambda-Runtime-Trace-Id": invocation.trace_id,
            },
        )

    async def _response(self, request: Request) -> Response:
        body = await request.body()
        invocation = self._take(request)
        if invocation is None:
            return _unknown_request_id()
        invocation.answer.set_result(body)
        return _accepted()

    async def _error(self, request: Request) -> Response:
        error = await self._function_error(request)
        invocation = self._take(request)
        if invocation is None:
            return _unknown_request_id()
        invocation.answer.set_exception(error)
        return _accepted()

    async def _init_error(self, request: Request) -> Response:
        self.fail(await self._function_error(request))
        return _accepted()

    async def _function_error(self, request: Request) -> FunctionError:
        report = await request.json()
        where = failing_line(report.get("stackTrace") or [], self._code_dir)
        return FunctionError(report["errorType"], report["errorMessage"], where)

    def _take(self, request: Request) -> Invocation | None:
        """The invocation that the request answers, if it is the one being served and not answered yet."""
        invocation = self._current
        if invocation is None or invocation.request_id != request.path_params["request_id"] or invocation.answer.done():
            return None
        self._current = None
        return invocation


def failing_line(stack: Iterable[str], code_dir: Path) -> str | None:
    """`file:line` of the last frame in the function's own folder, else of the last frame, in lines of a traceback."""
    frames = [(Path(file), line) for file, line in re.findall(r'File "([^<].*?)",? [Ll]ine (\d+)', "\n".join(stack))]
    if not frames:
        return None
    file, line = next((frame for frame in reversed(frames) if frame[0].is_relative_to(code_dir)), frames[-1])
    return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{line}"


def _accepted() -> Response:
    return JSONResponse({"status": "OK"}, status_code=202)


def _unknown_request_id() -> Response:
    return JSONResponse({"errorType": "InvalidRequestID", "errorMessage": "Invalid request ID"}, status_code=400)
