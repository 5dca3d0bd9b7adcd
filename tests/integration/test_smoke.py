"""`sealane smoke`: what is right is ok, and each thing that is wrong is said to be.

What is wrong is a proxy in front of a deployment that is right, which does one thing otherwise.
"""

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from tests.integration.authorization_server import AuthorizationServer, running
from tests.unit.asgi import serving
from typer.testing import CliRunner

from sealane.local.cli import app
from sealane.local.gateway import LocalGateway

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "template.yaml"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"

Forward = Callable[..., Awaitable[Response]]
"""Sends the request on, with other `method`, `content` or `headers` (`None` leaves one out)."""
Fault = Callable[[Request, bytes, Forward], Awaitable[Response]]
"""Answers a request with this body."""


async def none(request: Request, body: bytes, forward: Forward) -> Response:
    """No fault."""
    return await forward()


class Proxy:
    """An ASGI application in front of a deployment, with a fault.

    Attributes:
        target: base URL of the deployment.
        url: URL of the endpoint, as the proxy has it.
    """

    target = ""
    url = ""

    def __init__(self) -> None:
        self.fault: Fault = none
        # What speaks no TLS needs no certificates, which take their time.
        self._http = httpx2.AsyncClient(timeout=60, verify=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        target = httpx2.URL(self.target)

        async def forward(
            *, method: str = request.method, content: bytes = body, headers: dict[str, str | None] | None = None
        ) -> Response:
            sent = {name: value for name, value in request.headers.items() if name != "content-length"}
            if sent["host"] in self.url:
                sent["host"] = target.netloc.decode()
            changed = {**sent, **(headers or {})}
            answer = await self._http.request(
                method,
                target.copy_with(path=request.url.path),
                headers=[(name, value) for name, value in changed.items() if value is not None],
                content=content,
            )
            kept = {name: value for name, value in answer.headers.items() if name not in ("content-length", "date")}
            return Response(answer.content, answer.status_code, kept)

        response = await self.fault(request, body, forward)
        await response(scope, receive, send)

    @contextmanager
    def broken(self, fault: Fault) -> Iterator[str]:
        """The URL of the endpoint, while it has a fault."""
        self.fault = fault
        yield self.url
        self.fault = none


@contextmanager
def proxied(**parameters: str) -> Iterator[Proxy]:
    """A proxy before the sample, which knows the proxy's URL as its own where it is given `PublicUrl=…`."""
    proxy = Proxy()
    with serving(proxy) as base:
        proxy.url = f"{base}/mcp"
        known = {name: value.format(base=base) for name, value in parameters.items()}
        with LocalGateway(TEMPLATE, parameters=known) as gateway:
            proxy.target = gateway.base_url
            yield proxy


@pytest.fixture(scope="module")
def sample() -> Iterator[Proxy]:
    with proxied() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def issuer() -> Iterator[AuthorizationServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def guarded(issuer: AuthorizationServer) -> Iterator[Proxy]:
    """The sample where callers sign in."""
    tokens = {"AuthMode": "jwt", "AuthIssuer": issuer.url, "AuthAudience": "{base}/mcp", "PublicUrl": "{base}"}
    with proxied(**tokens) as proxy:
        yield proxy


@dataclass(frozen=True)
class Report:
    """What the command has said in JSON, and how it ended."""

    exit_code: int
    output: str

    def steps(self, outcome: str) -> dict[str, str]:
        """The details of the steps with this outcome."""
        return {each["step"]: each["detail"] for each in json.loads(self.output)["steps"] if each["outcome"] == outcome}


def smoke(url: str, *options: str, token: str | None = None) -> Report:
    """Run the command."""
    ended = CliRunner().invoke(app, ["smoke", url, "--json", *options], env={"SEALANE_TOKEN": token})
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return Report(ended.exit_code, ended.stdout)


# Deployments that are right


def test_the_sample_is_right(sample: Proxy) -> None:
    report = smoke(sample.url)
    assert (report.exit_code, report.steps("failed")) == (0, {})
    assert report.steps("skipped") == {
        "challenge": "anyone may call: there is no sign-in",
        "metadata": "no challenge names it",
    }
    assert report.steps("ok") == {
        "discover": "sealane-sample 0.1.0, revision 2026-07-28, 9 tools",
        "legacy": "revision 2025-11-25, without a session, 9 tools",
        "call": "hello answered",
        "unknown-tool": "a tool error",
        "sealed": "delete_notebook took its state back, 3 times at once",
        "tampered": "a changed state is error -32602",
        "listen": "not offered: 404 and error -32601",
        "preflight": "pages of https://app.example may ask, with all headers of MCP",
        "origin": "a page of https://evil.example is refused",
        "host": "the Host evil.example is refused with 421",
        "methods": "GET and DELETE are 405 with Allow: POST",
        "not-json": "400 and error -32700",
    }


def test_the_sample_is_right_with_a_sign_in(guarded: Proxy, issuer: AuthorizationServer) -> None:
    report = smoke(guarded.url, token=issuer.token(aud=guarded.url))
    assert (report.exit_code, report.steps("failed"), report.steps("skipped")) == (0, {}, {})
    assert report.steps("ok")["challenge"] == "401 with WWW-Authenticate, which names the resource metadata"
    assert report.steps("ok")["metadata"] == f"sign-in at {issuer.url}"


def test_the_sample_is_right_with_streaming() -> None:
    with LocalGateway(TEMPLATE, parameters={"ResponseStreaming": "true", "Timeout": "60"}) as streaming:
        report = smoke(streaming.url, "--without", "sealed")
        assert (report.exit_code, report.steps("failed")) == (0, {})
        assert report.steps("ok")["listen"] == "acknowledged"

        proxy = Proxy()
        proxy.fault = holds_back
        with serving(proxy) as base:
            proxy.target, proxy.url = streaming.base_url, f"{base}/mcp"
            report = smoke(proxy.url, "--timeout", "5", "--without", "sealed")
        assert set(report.steps("failed")) == {"listen"}
        assert "something in between may hold answers back" in report.steps("failed")["listen"]


async def holds_back(request: Request, body: bytes, forward: Forward) -> Response:
    """Sends nothing of an answer before its end, which that of a subscription has not."""
    if method_of(body) != "subscriptions/listen":
        return await forward()
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return Response(status_code=504)


def test_the_legacy_lane_is_known_by_its_sessions() -> None:
    with LocalGateway(TEMPLATE, parameters={"LegacyLane": "on", "LegacyTable": "keep"}) as gateway:
        report = smoke(gateway.url, "--without", "sealed")
    assert (report.exit_code, report.steps("failed")) == (0, {})
    assert report.steps("ok")["legacy"] == "revision 2025-11-25, with a session, 10 tools"
    assert report.steps("skipped")["methods"] == "the legacy lane has GET and DELETE"


def test_a_report_is_plain(sample: Proxy) -> None:
    ended = CliRunner().invoke(app, ["smoke", sample.url, "--without", "sealed"])
    lines = ended.output.splitlines()
    assert ended.exit_code == 0
    assert lines[0] == "skipped  challenge     anyone may call: there is no sign-in"
    assert lines[2] == "ok       discover      sealane-sample 0.1.0, revision 2026-07-28, 9 tools"
    assert "skipped  sealed        left out, as asked" in lines
    assert lines[-1] == "10 ok, 0 failed, 4 skipped"


def test_a_server_of_ones_own_is_tested_by_what_is_named() -> None:
    """Nothing that may have effects is called unasked. That each process has a key of its own is found."""
    own = {"StatelessFunction": Path(__file__).parent / "smoke_function"}
    with LocalGateway(TEMPLATE, code_dirs=own) as gateway:
        report = smoke(gateway.url)
        assert (report.exit_code, report.steps("failed")) == (0, {})
        assert report.steps("ok")["call"] == "status answered"
        assert "--ask-tool" in report.steps("skipped")["sealed"]
        assert report.steps("skipped")["legacy"].startswith("clients of 2025 are refused")

        asking = ("--ask-tool", "stop", "--ask-arguments", '{"name": "x"}')
        report = smoke(gateway.url, "--tool", "launch", *asking)
        assert report.exit_code == 1
        assert set(report.steps("failed")) == {"call", "sealed"}
        assert "environments need shared keys" in report.steps("failed")["sealed"]
        assert "error -32602 (Invalid or expired requestState) with HTTP 400" in report.steps("failed")["sealed"]
        assert "tampered" in report.steps("ok")


# Deployments with a fault


def method_of(body: bytes) -> str | None:
    """The JSON-RPC method of a body."""
    return json.loads(body)["method"] if body.endswith(b"}") else None


def instead(response: Callable[[], Response], *asked_for: str) -> Fault:
    """Answers these JSON-RPC or HTTP methods, or requests for these paths, itself."""

    async def fault(request: Request, body: bytes, forward: Forward) -> Response:
        asked = {request.method, method_of(body), request.url.path}
        return response() if asked & set(asked_for) else await forward()

    return fault


def status(code: int) -> Callable[[], Response]:
    return lambda: Response(status_code=code)


def answers(changed: Callable[[Response], object], when: int | None = None) -> Fault:
    """Changes answers, or those with this status."""

    async def fault(request: Request, body: bytes, forward: Forward) -> Response:
        response = await forward()
        if when in (None, response.status_code):
            changed(response)
        return response

    return fault


def header(name: str, value: Callable[[str], str | None]) -> Callable[[Response], None]:
    """Changes a header, or takes it away."""

    def changed(response: Response) -> None:
        if name in response.headers:
            new = value(response.headers[name])
            del response.headers[name]
            if new is not None:
                response.headers[name] = new

    return changed


def renamed(response: Response) -> None:
    """What API Gateway does to a function's challenge."""
    response.headers["x-amzn-Remapped-WWW-Authenticate"] = response.headers["www-authenticate"]
    del response.headers["www-authenticate"]


def refused_otherwise(response: Response) -> None:
    response.status_code = 403


def without(*names: str) -> Fault:
    """Keeps request headers to itself."""

    async def fault(request: Request, body: bytes, forward: Forward) -> Response:
        return await forward(headers=dict.fromkeys(names))

    return fault


async def any_tool(request: Request, body: bytes, forward: Forward) -> Response:
    """Has every tool there is, and more."""
    name = "sealane-smoke-no-such-tool"
    if request.headers.get("mcp-name") != name:
        return await forward()
    return await forward(content=body.replace(name.encode(), b"hello"), headers={"mcp-name": "hello"})


async def no_parser(request: Request, body: bytes, forward: Forward) -> Response:
    """Breaks at what is not JSON."""
    return Response(status_code=500) if body == b"{" else await forward()


FAULTS: list[tuple[Fault, set[str], str]] = [
    (
        instead(status(404), "server/discover"),
        {"challenge", "discover", "origin"},
        "is this the endpoint of the stateless function?",
    ),
    (instead(status(502), "tools/list"), {"discover", "legacy"}, "with HTTP 502"),
    (instead(status(500), "initialize"), {"legacy"}, "with HTTP 500"),
    (instead(status(504), "tools/call"), {"call", "unknown-tool"}, "with HTTP 504"),
    (any_tool, {"unknown-tool"}, "answers for tools that it does not list"),
    (
        instead(status(200), "subscriptions/listen"),
        {"listen"},
        "404 and error -32601, since it is not offered; came HTTP 200",
    ),
    (instead(status(401), "OPTIONS"), {"preflight"}, "browsers send none"),
    (
        answers(header("access-control-allow-headers", lambda names: names.replace("mcp-param-region", ""))),
        {"preflight"},
        "came all but mcp-param-region",
    ),
    (without("origin"), {"origin"}, "came HTTP 200; any web page could use it"),
    (without("host"), {"host"}, "came HTTP 200; see allowed_hostnames"),
    (instead(status(200), "GET"), {"methods"}, "405 with Allow: POST for GET; came HTTP 200"),
    (instead(status(204), "DELETE"), {"methods"}, "405 with Allow: POST for DELETE; came HTTP 204"),
    (answers(header("allow", lambda _: None)), {"methods"}, "came HTTP 405 with no Allow"),
    (no_parser, {"not-json"}, "400 and error -32700; came HTTP 500"),
]


@pytest.mark.parametrize(("fault", "steps", "said"), FAULTS)
def test_a_fault_is_found(sample: Proxy, fault: Fault, steps: set[str], said: str) -> None:
    with sample.broken(fault) as url:
        report = smoke(url, "--without", "sealed")
    assert report.exit_code == 1
    assert set(report.steps("failed")) == steps
    assert said in " ".join(report.steps("failed").values())


def let_in(token: str) -> Fault:
    """Takes everybody for the bearer of a token."""

    async def fault(request: Request, body: bytes, forward: Forward) -> Response:
        return await forward(headers={"authorization": f"Bearer {token}"})

    return fault


async def forbids(request: Request, body: bytes, forward: Forward) -> Response:
    """Takes a token that is none for one that is not enough."""
    return Response(status_code=403) if request.headers.get("authorization") == "Bearer nonsense" else await forward()


def document(resource: str) -> Callable[[], Response]:
    return lambda: JSONResponse({"resource": resource, "authorization_servers": ["https://issuer.example"]})


SIGN_IN_FAULTS: list[tuple[Fault, set[str], str]] = [
    (answers(renamed, when=401), {"challenge"}, "x-amzn-remapped-www-authenticate; API Gateway renames it"),
    (answers(header("www-authenticate", lambda _: None)), {"challenge"}, "came none; set it in the gateway's response"),
    (
        answers(header("www-authenticate", lambda _: "Bearer")),
        {"challenge"},
        "came 'Bearer'; deploy again with PublicUrl",
    ),
    (answers(refused_otherwise, when=401), {"challenge"}, "401 without a token; came HTTP 403"),
    (forbids, {"challenge"}, "401 with a token that is none; came HTTP 403"),
    (instead(status(404), RESOURCE_METADATA), {"metadata"}, "came HTTP 404; PublicUrl is"),
    (
        instead(document("https://other.example/mcp"), RESOURCE_METADATA),
        {"metadata"},
        "came 'https://other.example/mcp'",
    ),
]


@pytest.mark.parametrize(("fault", "steps", "said"), SIGN_IN_FAULTS)
def test_a_fault_of_the_sign_in_is_found(
    guarded: Proxy, issuer: AuthorizationServer, fault: Fault, steps: set[str], said: str
) -> None:
    with guarded.broken(fault) as url:
        report = smoke(url, "--without", "sealed", token=issuer.token(aud=guarded.url))
    assert report.exit_code == 1
    assert set(report.steps("failed")) == steps
    assert said in " ".join(report.steps("failed").values())


def test_a_deployment_without_a_sign_in_is_found_by_who_has_a_token(
    guarded: Proxy, issuer: AuthorizationServer
) -> None:
    token = issuer.token(aud=guarded.url)
    with guarded.broken(let_in(token)) as url:
        report = smoke(url, "--without", "sealed", token=token)
    assert report.exit_code == 1
    assert report.steps("failed") == {
        "challenge": "expected 401 without a token; came HTTP 200; set AuthMode: anyone can call every tool"
    }


def test_without_a_token_little_can_be_tested_and_that_is_a_failure(guarded: Proxy) -> None:
    report = smoke(guarded.url)
    assert report.exit_code == 1
    assert report.steps("failed") == {"discover": "expected a token; came none; give one by --token or SEALANE_TOKEN"}
    assert set(report.steps("ok")) == {"challenge", "metadata", "preflight"}


def test_a_token_that_is_refused_is_one_failure(guarded: Proxy, issuer: AuthorizationServer) -> None:
    report = smoke(guarded.url, token=issuer.token(aud="https://other.example/mcp"))
    assert report.exit_code == 1
    assert list(report.steps("failed")) == ["discover"]
    assert (
        "came HTTP 401 and error -32600; has it expired, or is it for another URL?"
        in report.steps("failed")["discover"]
    )
    assert set(report.steps("ok")) == {"challenge", "metadata", "preflight"}


def test_a_token_is_shown_to_nobody(guarded: Proxy, issuer: AuthorizationServer) -> None:
    token = issuer.token(aud=guarded.url)

    def echo() -> Response:
        error = {"code": -32603, "message": f"\x1b[31mno: Bearer {token}"}
        return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": error}, 500)

    with guarded.broken(instead(echo, "tools/call")) as url:
        ended = CliRunner().invoke(app, ["smoke", url, "--token", token])
        report = smoke(url, token=token)
    assert ended.exit_code == report.exit_code == 1
    for output in (ended.output, report.output):
        assert "no: Bearer [token]" in output
        assert token not in output
        assert "\x1b" not in output


# Request state


class Trusting:
    """Takes every state for the one that it gave out."""

    state = ""

    async def __call__(self, request: Request, body: bytes, forward: Forward) -> Response:
        message = json.loads(body) if method_of(body) == "tools/call" else {"params": {}}
        if "requestState" in message["params"]:
            message["params"]["requestState"] = self.state
            return await forward(content=json.dumps(message).encode())
        response = await forward()
        if b'"requestState"' in (answer := bytes(response.body)):
            self.state = json.loads(answer)["result"]["requestState"]
        return response


async def forgetful(request: Request, body: bytes, forward: Forward) -> Response:
    """Changes every state that comes back."""
    return await forward(content=body.replace(b'"requestState":"', b'"requestState":"x'))


@pytest.mark.parametrize(
    ("fault", "step", "said"),
    [
        (Trusting(), "tampered", "came a result; the server trusts what callers can write"),
        (forgetful, "sealed", "came error -32602 (Invalid or expired requestState) with HTTP 400; environments need"),
    ],
)
def test_a_fault_of_request_state_is_found(sample: Proxy, fault: Fault, step: str, said: str) -> None:
    with sample.broken(fault) as url:
        report = smoke(url)
    assert report.exit_code == 1
    assert set(report.steps("failed")) == {step}
    assert said in report.steps("failed")[step]


# What can be wrong on this side


def test_nobody_there_is_a_failure_of_every_step_that_asks() -> None:
    report = smoke("http://127.0.0.1:9/mcp", "--timeout", "5")
    assert report.exit_code == 1
    assert "is the URL right, and reachable?" in report.steps("failed")["discover"]
    assert report.steps("ok") == {}


@pytest.mark.parametrize(
    "options",
    [
        ("--arguments", "[1]"),
        ("--arguments", "{"),
        ("--ask-arguments", "x"),
        ("--without", "nothing"),
        ("--timeout", "0"),
        ("--token", "two words"),
    ],
)
def test_options_that_say_nothing_are_refused(options: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(app, ["smoke", "http://127.0.0.1:9/mcp", *options])
    assert ended.exit_code == 2
    assert options[0] in ended.stderr
    assert "two words" not in ended.stderr


@pytest.mark.parametrize("url", ["mcp.example", "ftp://mcp.example/mcp", "https:///mcp", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    ended = CliRunner().invoke(app, ["smoke", url])
    assert ended.exit_code == 2
    assert "is no URL of HTTP" in ended.stderr


def test_what_is_missing_is_named() -> None:
    code = (
        "import sys; sys.modules['mcp'] = None; sys.argv = ['sealane', 'smoke', 'http://127.0.0.1:9/mcp']; "
        "from sealane.local.cli import app; app()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    assert ended.returncode == 1
    assert ended.stderr == "sealane: smoke needs the client of the MCP SDK 2: pip install 'sealane[stateless,local]'\n"
