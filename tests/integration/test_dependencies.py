"""Functions whose requirements are not those of the running environment: `sealane run` gives them one of their own."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from sealane.local import LocalGateway, Record
from sealane.local.records import Notice

ROOT = Path(__file__).parents[2]
TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function:
    Runtime: python3.11
    Handler: app.handler
    Timeout: 20
    FunctionUrlConfig: {AuthType: NONE}
Resources:
  Function:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: function/
"""
BESIDE = """
      Layers: [!Ref Layer]
  Beside:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: beside/
      Layers: [!Ref Layer]
  Layer:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: %s}
"""
FUNCTION = """
import importlib.metadata, importlib.util, json, sys


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def handler(event, context):
    seen = {
        "versions": {name: version(name) for name in ("mcp", "six", "boto3", "awslambdaric", "mangum", "pytest")},
        "path": sys.path,
        "sealane": getattr(importlib.util.find_spec("sealane"), "origin", None),
        "prefix": sys.prefix,
    }
    return {"statusCode": 200, "body": json.dumps(seen)}
"""
OWN = str(Path(sys.prefix).resolve())


def make_project(folder: Path, requirements: str) -> Path:
    (folder / "function").mkdir(parents=True)
    (folder / "function" / "app.py").write_text(FUNCTION)
    (folder / "function" / "requirements.txt").write_text(requirements)
    (folder / "template.yaml").write_text(TEMPLATE)
    return folder


def ask(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=20) as response:  # noqa: S310
        seen: dict[str, Any] = json.load(response)
    return seen


def venvs(project: Path) -> list[Path]:
    folder = project / ".sealane" / "venvs"
    return list(folder.iterdir()) if folder.exists() else []


def sealane_run(project: Path, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", "from sealane.local.cli import app; app()", "run", "--port", "0"],
        cwd=project,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes(marker: str) -> list[int]:
    """Ids of the processes that have this text in their environment, but for those that only wait to be reaped."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def eventually(condition: Any, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that wants an older package than is installed here."""
    assert version("six") != "1.16.0"
    return make_project(tmp_path_factory.mktemp("six"), "six == 1.16.0  # the one before\n")


def test_two_generations_of_the_sdk_run_side_by_side(tmp_path: Path) -> None:
    project = make_project(tmp_path, "mcp==1.30.0\n")
    (project / "template.yaml").write_text(TEMPLATE + BESIDE % (ROOT / "layers" / "sealane"))
    (project / "beside").mkdir()
    (project / "beside" / "app.py").write_text(FUNCTION)
    (project / "beside" / "requirements.txt").write_text("mcp==2.3.0\n")

    told: list[Record] = []
    with LocalGateway(project / "template.yaml", observe=told.append) as gateway:
        old, new = (ask(gateway.urls[f"{name}Url"]) for name in ("Function", "Beside"))
    [notice] = [each.text for each in told if isinstance(each, Notice)]
    [venv] = venvs(project)
    assert notice.startswith("Installing the requirements of Function in ")
    assert venv.name in notice

    same = {name: version(name) for name in ("boto3", "awslambdaric", "mangum")}
    assert old["versions"] == {**same, "mcp": "1.30.0", "six": old["versions"]["six"], "pytest": None}
    assert new["versions"] == {**same, "mcp": "2.3.0", "six": version("six"), "pytest": version("pytest")}
    assert (old["prefix"], new["prefix"]) == (str(venv), sys.prefix)
    # Nothing of the developer's environment is in reach, and the layer is what it is for every function.
    assert not [place for place in old["path"] if Path(place).resolve().is_relative_to(OWN)]
    assert old["sealane"] == new["sealane"] == str(ROOT / "layers" / "sealane" / "sealane" / "__init__.py")
    places = [str(project / "function"), str(ROOT / "layers" / "sealane"), str(venv / "lib")]
    found = [next(index for index, path in enumerate(old["path"]) if path.startswith(place)) for place in places]
    assert found == sorted(found)

    started = time.monotonic()
    with LocalGateway(project / "template.yaml", observe=told.append) as gateway:
        assert time.monotonic() - started < 3
        assert ask(gateway.urls["FunctionUrl"])["versions"]["mcp"] == "1.30.0"
    assert venvs(project) == [venv]
    assert len([each for each in told if isinstance(each, Notice)]) == 1


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_half_made_one_is_never_used(six: Path, tmp_path: Path, ending: signal.Signals) -> None:
    marker = uuid.uuid4().hex
    run = sealane_run(six, MARKER=marker, TMPDIR=str(tmp_path))
    assert run.stdout
    assert run.stdout.readline().startswith("Installing the requirements of Function in .sealane/venvs/")
    assert eventually(lambda: list(six.glob(".sealane/venvs/making-*/venv/lib/python*/site-packages/pip")))
    run.send_signal(ending)
    started = time.monotonic()
    run.communicate(timeout=10)
    assert time.monotonic() - started < 2
    assert eventually(lambda: not processes(marker), 1)
    assert eventually(lambda: not list(tmp_path.iterdir()))
    assert all(venv.name.startswith("making-") for venv in venvs(six))
    if ending == signal.SIGINT:
        assert venvs(six) == []


def test_two_runs_at_once_share_one(six: Path) -> None:
    def once() -> Any:
        with LocalGateway(six / "template.yaml") as gateway:
            return ask(gateway.url)["versions"]["six"]

    with ThreadPoolExecutor() as threads:
        assert [run.result() for run in [threads.submit(once) for _ in range(2)]] == ["1.16.0"] * 2
    assert len([venv for venv in venvs(six) if not venv.name.startswith("making-")]) == 1


def test_a_change_of_the_requirements_is_followed(six: Path) -> None:
    requirements = six / "function" / "requirements.txt"
    wanted = requirements.read_text()
    requirements.write_text("six\n")
    told: list[Record] = []

    def notices() -> list[str]:
        return [each.text for each in told if isinstance(each, Notice)]

    with LocalGateway(six / "template.yaml", reload=True, observe=told.append) as gateway:
        assert ask(gateway.url)["versions"]["six"] == version("six")
        requirements.write_text("six==99\n")
        assert eventually(lambda: any("Function cannot start: its requirements" in text for text in notices()), 30)
        assert ask(gateway.url)["versions"]["six"] == version("six")
        requirements.write_text(wanted)
        assert eventually(lambda: ask(gateway.url)["versions"]["six"] == "1.16.0", 30)


def test_what_cannot_be_installed_is_named_in_one_line(tmp_path: Path) -> None:
    run = sealane_run(make_project(tmp_path, "six==99\n"))
    shown, error = run.communicate(timeout=60)
    assert run.returncode == 1
    assert shown.startswith("Installing the requirements of Function in ")
    assert error.startswith(
        "sealane: Function cannot start: its requirements cannot be installed: "
        "Could not find a version that satisfies the requirement six==99"
    )
    assert (shown.count("\n"), error.count("\n")) == (1, 1)
    assert venvs(tmp_path) == []


@pytest.fixture
def vendored(tmp_path: Path) -> Path:
    """A function that has a package in its own folder, as `sam build` leaves it."""
    project = make_project(tmp_path, "packed==1.0")
    info = project / "function" / "packed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packed\nVersion: 1.0\n")
    return project


@pytest.mark.parametrize(
    "requirements",
    [
        "",
        "packed==1.0",
        "mcp==2.3.0\n# a comment\n",
        "PyJWT[crypto]>=2,<3  # via mcp",
        "nothing-of-this-name==1; python_version < '3'",
        "-r more.txt",
    ],
)
def test_what_is_there_is_not_installed(vendored: Path, requirements: str) -> None:
    (vendored / "function" / "requirements.txt").write_text(requirements)
    (vendored / "function" / "more.txt").write_text("MCP == 2.3.*")
    with LocalGateway(vendored / "template.yaml") as gateway:
        assert ask(gateway.url)["prefix"] == sys.prefix
    assert not (vendored / ".sealane").exists()
