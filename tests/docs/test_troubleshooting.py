"""What docs/troubleshooting.md says is seen comes when one does what leads to it."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from sealane import ANYONE, BearerAuth, Catalog, GatewayAuth, HandleStore, StateNotConfigured, create_mcp_handler
from sealane.gateway.events import DEADLINE_KEY
from sealane.local.errors import LocalError
from sealane.local.testing import ObservedGateway, deny
from tests.docs.blocks import ROOT
from tests.docs.reference import LAYER
from tests.events import Headers, ask, legacy, modern
from tests.template.test_artefact import run_build
from tests.unit.asgi import read, starlette_request
from tests.unit.issuer import Issuer

DOCUMENT = (ROOT / "docs" / "troubleshooting.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"^> `(.+)`$", part, re.MULTILINE) for part in DOCUMENT.split("\n## ")[2:]
}
"""By heading: what is seen, as it is; `…` is different each time."""
HELLO = modern("tools/call", name="hello", arguments={})
FUNCTION = ROOT / "functions" / "stateless"

catalog = Catalog()


@catalog.tool()
async def hello() -> str:
    """Answer at once."""
    return "Hello"


@catalog.tool()
async def wait() -> str:
    """Never answer."""
    await anyio.sleep_forever()
    return ""


@catalog.tool()
async def keep() -> str:
    """Keep something."""
    return await HandleStore("note").create("Milk", ttl=60, owner=ANYONE)


@catalog.tool()
async def book() -> str | InputRequiredResult:
    """Ask first."""
    schema: dict[str, Any] = {"type": "object", "properties": {"day": {"type": "string"}}}
    question = ElicitRequestFormParams(message="Which day?", requested_schema=schema)
    return InputRequiredResult(input_requests={"day": ElicitRequest(params=question)})


def create_server() -> MCPServer[Any]:
    return catalog.server("troubled")


def answered(request: tuple[Headers, Any] = HELLO, method: str = "POST", **options: Any) -> str:
    """What a client of a handler with these options gets."""
    return ask(create_mcp_handler(create_server, **options), request, method=method).body


def changed(request: tuple[Headers, Any], **headers: str | tuple[()]) -> tuple[Headers, Any]:
    """A request with other headers."""
    return {**request[0], **{name.replace("_", "-"): value for name, value in headers.items()}}, request[1]


def printed(*command: str, variables: Mapping[str, str] | None = None, folder: Path = ROOT) -> str:
    """What a command prints that fails or does nothing but import."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ = {**ours, "PYTHONPATH": os.pathsep.join(sys.path), **(variables or {})}
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def sealane(*arguments: str, **variables: str) -> str:
    return printed(sys.executable, "-c", "from sealane.local.cli import app; app()", *arguments, variables=variables)


@pytest.fixture(scope="module")
def deployment() -> Iterator[ObservedGateway]:
    """The sample deployment."""
    with ObservedGateway(ROOT / "template.yaml", concurrency=1) as running:
        yield running


def told(deployment: ObservedGateway, path: str, request: tuple[Headers, Any] = HELLO) -> str:
    """What a client of the deployment gets."""
    headers, body = request
    sent = {name: value for name, value in headers.items() if isinstance(value, str)}
    return httpx2.post(deployment.base_url + path, headers=sent, json=body).text


def of_function(folder: Path, code: str) -> ObservedGateway:
    """The template with a function of another code."""
    (folder / "functions" / "stateless").mkdir(parents=True)
    (folder / "functions" / "stateless" / "app.py").write_text(code)
    (folder / "layers" / "sealane").mkdir(parents=True)
    shutil.copy(ROOT / "template.yaml", folder)
    return ObservedGateway(folder / "template.yaml", concurrency=1)


def no_python(tmp_path: Path) -> str:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return printed(str(shutil.which("make")), "run", variables={"PATH": "/nonexistent"}, folder=tmp_path)


def port_in_use() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        return sealane("run", "--port", str(port)).replace(str(port), "3000")


def function_cannot_start(tmp_path: Path) -> str:
    with pytest.raises(LocalError) as error, of_function(tmp_path, "import pandas_of_mine"):
        pass
    return f"sealane: {error.value}".replace("pandas_of_mine", "pandas")


def another_python(tmp_path: Path) -> str:
    return run_build(tmp_path, FUNCTION, "python3.99").stderr.replace("3.99", "3.13")


def not_configured(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "troubled")
    with pytest.raises(StateNotConfigured) as error:
        create_mcp_handler(create_server)
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME")
    return str(error.value) + answered(modern("tools/call", name="keep", arguments={}))


def tokens() -> str:
    with Issuer().running() as issuer:
        issuer.add_key()
        auth = BearerAuth(issuer=issuer.url, audience="https://mcp.example.com/prod/mcp")
        signed = [issuer.token(), issuer.token(iss=f"{issuer.url}/")]
        refused = [answered(changed(HELLO, Authorization=f"Bearer {token}"), auth=auth) for token in signed]
    return " ".join([answered(auth=GatewayAuth()), *refused])


def too_slow() -> str:
    async def run() -> str:
        request = starlette_request(modern("tools/call", name="wait", arguments={}))
        request.scope[DEADLINE_KEY] = anyio.current_time() + 0.2
        body = (await read(await create_mcp_handler(create_server).fetch(request))).body
        # The line is written when the application has ended.
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=5)
        return body

    gateways = (LAYER / "sealane" / "local" / "rest_api.py").read_text()
    return asyncio.run(run()) + "".join(re.findall(r'message\(504, "(.+)"\)', gateways))


def too_large(tmp_path: Path) -> str:
    code = 'def handler(event, context):\n    return {"statusCode": 200, "body": "x" * 7_000_000}\n'
    with of_function(tmp_path, code) as gateway:
        body = told(gateway, "/mcp")
        return body + str(gateway.calls[-1])


def kms_denies(deployment: ObservedGateway) -> str:
    made = told(deployment, "/mcp", modern("tools/call", name="create_notebook", arguments={"title": "Groceries"}))
    handle = json.loads(made)["result"]["structuredContent"]
    capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
    request = modern("tools/call", name="delete_notebook", arguments=handle, client_capabilities=capabilities)
    with deployment.aws.fault("kms", deny):
        body = told(deployment, "/mcp", request)
    return body + "\n".join(line.text for line in deployment.lines)


def imported_late() -> str:
    code = "import logging\nlogging.basicConfig()\nimport mcp\nimport sealane"
    return printed(sys.executable, "-c", code, variables={"AWS_LAMBDA_FUNCTION_NAME": "troubled"})


def no_credentials(tmp_path: Path) -> str:
    nowhere = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"}
    return sealane("keys", "list", **nowhere)


SEEN: dict[str, Callable[..., str]] = {
    "`make run` finds no Python": no_python,
    "The port is in use": port_in_use,
    "The function cannot start": function_cannot_start,
    "`sam build` wants another Python": another_python,
    "The server does not start on Lambda: `StateNotConfigured`": not_configured,
    "403 `Missing Authentication Token`": lambda deployment: told(deployment, "/"),
    "421, the Host": partial(answered, allowed_hostnames=["mcp.example.com"]),
    "403, the Origin": lambda: answered(changed(HELLO, Origin="https://app.example.com"), cors=False),
    "401, again and again": tokens,
    "-32020, a header does not match": lambda: (
        answered(changed(HELLO, Mcp_Method=())) + answered(changed(HELLO, MCP_Protocol_Version=()))
    ),
    "-32021, the client cannot ask": lambda: answered(modern("tools/call", name="book", arguments={})),
    "-32602, the request state": lambda: answered(
        modern("tools/call", name="book", arguments={}, requestState="expired")
    ),
    "405 for GET": lambda: answered(legacy("ping"), "GET"),
    "504, the tool takes too long": too_slow,
    "502, an answer above 6 MB": too_large,
    "KMS denies access": kms_denies,
    "Cold starts take longer than they should": imported_late,
    "`sealane keys` and the like find no stack": no_credentials,
}


def test_every_section_is_tried() -> None:
    assert list(SECTIONS) == list(SEEN)
    assert all(SECTIONS.values())


@pytest.mark.parametrize("heading", SEEN)
def test_what_is_seen_comes(heading: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    seen = SEEN[heading]
    wanted = getattr(seen, "__code__", None)
    fixtures = wanted.co_varnames[: wanted.co_argcount] if wanted else ()
    came = " ".join((seen(*map(request.getfixturevalue, fixtures)) + caplog.text).split())
    for text in SECTIONS[heading]:
        pattern = ".+?".join(re.escape(part) for part in text.split("…"))
        assert re.search(pattern, came), came
