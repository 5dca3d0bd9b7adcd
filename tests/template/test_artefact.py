"""What SAM CLI builds from the template: whole, lean, and in the form that Lambda can run fast."""

import importlib.util
import json
import marshal
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import build_artefact
from tests.template.conftest import ROOT, Sam

RUNTIME = f"python3.{sys.version_info.minor}"
TAG = f"cpython-3{sys.version_info.minor}"
ELF_MACHINES = {"arm64": 183, "x86_64": 62}
NATIVE = "arm64" if platform.machine() in ("arm64", "aarch64") else "x86_64"
Ended = subprocess.CompletedProcess[str]
IMPORT_ROOTS = {"SealaneLayer": "python", "StatelessFunction": "", "AuthorizerFunction": "", "LegacyFunction": ""}


def build(sam: Sam, folder: Path, architecture: str) -> Path:
    build_dir = folder / "with a space" / "build"
    overrides = f"Runtime={RUNTIME} Architecture={architecture}"
    built = sam("build", "--build-dir", str(build_dir), "--parameter-overrides", overrides)
    assert built.returncode == 0, built.stdout + built.stderr
    # As from a zip file, whose times have nothing to do with those of the sources that were compiled.
    for path in build_dir.rglob("*.py"):
        os.utime(path, (315532800, 315532800))
    return build_dir


@pytest.fixture(scope="module")
def foreign(sam: Sam, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `sam build` makes for this Python and the architecture that this machine has not."""
    return build(sam, tmp_path_factory.mktemp("foreign"), "x86_64" if NATIVE == "arm64" else "arm64")


@pytest.fixture(scope="module")
def native(sam: Sam, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `sam build` makes for this Python and this machine."""
    return build(sam, tmp_path_factory.mktemp("native"), NATIVE)


@pytest.fixture(params=["arm64", "x86_64"])
def artefact(request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A build, and its architecture."""
    folder: Path = request.getfixturevalue("native" if request.param == NATIVE else "foreign")
    return folder, request.param


def test_b1_every_shared_object_is_for_the_architecture_and_this_python(artefact: tuple[Path, str]) -> None:
    folder, architecture = artefact
    libraries = [path for path in folder.rglob("*") if re.search(r"\.so(\.\d+)*$", path.name)]
    assert any("pydantic_core" in path.name for path in libraries)
    for path in libraries:
        header = path.read_bytes()[:20]
        assert header[:4] == b"\x7fELF", path
        assert int.from_bytes(header[18:20], "little") == ELF_MACHINES[architecture], path
        assert TAG in path.name or ".abi3." in path.name, path


def test_all_bytecode_is_valid_whatever_the_time_of_its_source(artefact: tuple[Path, str]) -> None:
    """A module has a source and bytecode in `__pycache__`, or bytecode in the place of the source."""
    for resource, root in IMPORT_ROOTS.items():
        folder = artefact[0] / resource / root
        sources = set(folder.rglob("*.py"))
        cached = set()
        for path in folder.rglob("*.pyc"):
            content = path.read_bytes()
            assert content[:4] == importlib.util.MAGIC_NUMBER, path
            assert int.from_bytes(content[4:8], "little") == 0b01, path
            on_lambda = "/opt/python" if root else "/var/task"
            code = marshal.loads(content[16:])  # noqa: S302
            if path.parent.name == "__pycache__":
                source = Path(importlib.util.source_from_cache(str(path)))
                assert content[8:16] == importlib.util.source_hash(source.read_bytes()), path
                cached.add(source)
            else:
                source = path.with_suffix(".py")
                assert not source.exists()
            # No folder of the machine that built it shows in a traceback.
            assert code.co_filename == f"{on_lambda}/{source.relative_to(folder)}"
        assert cached == sources
        packaged = {
            path for path in sources if path.parent != folder and path.relative_to(folder).parts[0] != "sealane"
        }
        assert packaged == set()


def test_nothing_is_there_that_is_never_imported(artefact: tuple[Path, str]) -> None:
    unwanted = {"tests", "RECORD", "WHEEL", "INSTALLER", "REQUESTED", "Makefile", "swagger_ui", "pycparser", "sboms"}
    for path in artefact[0].rglob("*"):
        assert path.name not in unwanted, path
        assert path.suffix not in (".pyi", ".h", ".c"), path
    assert not (artefact[0] / "SealaneLayer" / "python" / "bin").exists()


def test_function_and_layer_are_small(artefact: tuple[Path, str]) -> None:
    """In bytes, unzipped. Versions of packages move a little; what is for x86_64 has more machine code."""
    files = [path for name in ("StatelessFunction", "SealaneLayer") for path in (artefact[0] / name).rglob("*")]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 28_000_000


def test_the_layer_holds_the_package_and_what_it_needs_only(foreign: Path) -> None:
    layer = foreign / "SealaneLayer"
    assert sorted(path.name for path in layer.iterdir()) == ["bin", "python"]
    [wrapper] = (layer / "bin").iterdir()
    assert wrapper.name == "sealane-stream"
    assert wrapper.stat().st_mode & 0o555 == 0o555
    packages = layer / "python"
    assert (packages / "mangum" / "__init__.pyc").is_file()
    assert (packages / "sealane" / "handler.py").is_file()
    assert (packages / "sealane" / "gateway" / "streaming.py").is_file()
    assert (packages / "sealane" / "py.typed").is_file()
    assert not (packages / "sealane" / "local").exists()
    assert not (packages / "mcp").exists()
    assert not (packages / "build_artefact.py").exists()


def test_the_function_holds_its_code_and_the_sdk(foreign: Path) -> None:
    function = foreign / "StatelessFunction"
    assert (function / "app.py").is_file()
    assert (function / "mcp" / "__init__.pyc").is_file()
    assert not (function / "sealane").exists()


def test_the_legacy_function_holds_the_sdks_generation_1(foreign: Path) -> None:
    function = foreign / "LegacyFunction"
    assert {"app.py", "server.py"} <= {path.name for path in function.iterdir()}
    assert [path.name for path in function.glob("mcp-*.dist-info")] == ["mcp-1.30.0.dist-info"]
    assert [path.name for path in (foreign / "StatelessFunction").glob("mcp-*.dist-info")] == ["mcp-2.3.0.dist-info"]
    assert not (function / "sealane").exists()


def test_the_authorizer_holds_no_sdk(foreign: Path) -> None:
    function = foreign / "AuthorizerFunction"
    assert {"app.py", "jwt", "cryptography"} <= {path.name for path in function.iterdir()}
    assert not (function / "mcp").exists()


def test_the_built_template_points_at_the_artefact(foreign: Path) -> None:
    document = yaml.load((foreign / "template.yaml").read_text(), yaml.BaseLoader)  # noqa: S506
    assert document["Resources"]["StatelessFunction"]["Properties"]["CodeUri"] == "StatelessFunction"


SERVE = """
import json, sys
sys.path[:0] = sys.argv[2:]
from app import handler
print(json.dumps(handler(json.load(open(sys.argv[1])), None)))
"""


def serve(native: Path, function: str, event: Path, *options: str, **variables: str) -> Ended:
    """Runs a function of the artefact in a process that can import nothing else: isolated, without site-packages."""
    folders = [native / function, native / "SealaneLayer" / "python"]
    command = [sys.executable, "-I", "-S", "-B", *options, "-c", SERVE, *map(str, [event, *folders])]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)  # noqa: S603


def test_what_is_built_needs_nothing_else_to_serve(native: Path, tmp_path: Path) -> None:
    served = serve(native, "StatelessFunction", ROOT / "events" / "rest-call-hello.json")
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout)["statusCode"] == 200
    assert "Hello, Ada!" in served.stdout

    # It asks for a session before it asks its table.
    table = {"SEALANE_LEGACY_TABLE": "sessions"}
    refused = serve(native, "LegacyFunction", ROOT / "events" / "rest-call-hello.json", **table)
    assert refused.returncode == 0, refused.stderr
    assert "Mcp-Session-Id" in refused.stdout

    issuer = {"SEALANE_AUTH_ISSUER": "https://issuer.example", "SEALANE_AUTH_AUDIENCE": "https://mcp.example.com/mcp"}
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"type": "REQUEST", "methodArn": "arn:aws:execute-api:r:1:api/prod/POST/mcp"}))
    asked = serve(native, "AuthorizerFunction", event, **issuer)
    assert asked.stderr.rstrip().endswith("Exception: Unauthorized"), asked.stderr


def test_a_cold_start_compiles_nothing(native: Path) -> None:
    """On a disc that is read-only, as Lambda's is, where it would compile everything again at each start."""
    everything = [native, *native.rglob("*")]
    try:
        for path in everything:
            path.chmod(path.stat().st_mode & ~0o222)
        served = serve(native, "StatelessFunction", ROOT / "events" / "rest-call-hello.json", "-v")
    finally:
        for path in everything:
            path.chmod(path.stat().st_mode | 0o200)
    assert served.returncode == 0, served.stderr[-2000:]
    loaded = re.findall(r"^# code object from '?(.+?)'?$", served.stderr, re.MULTILINE)
    own = [path for path in loaded if path.startswith(str(native))]
    assert {f"{native}/StatelessFunction/__pycache__/{name}.{TAG}.pyc" for name in ("app", "server")} <= set(own)
    assert len(own) > 200
    assert [path for path in own if not path.endswith(".pyc")] == []
    assert sorted([native, *native.rglob("*")]) == sorted(everything)


METADATA = """
import sys
sys.path[:0] = sys.argv[1:]
from importlib.metadata import entry_points, metadata, version
print(version("mcp"), metadata("pydantic")["Name"], len(entry_points(group="opentelemetry_context")))
"""


def test_packages_still_know_their_versions_and_entry_points(native: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", METADATA, str(native / "StatelessFunction")]
    told = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert told.stdout.split() == ["2.3.0", "pydantic", "1"]


def test_defects_are_found(tmp_path: Path) -> None:
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    for name in ("good", "other", "checked", "stale", "alone"):
        source = tmp_path / f"{name}.py"
        source.write_text("x = 1\n")
        good = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + importlib.util.source_hash(source.read_bytes())
        bytecode = {"other": b"\0\0\r\n" + good[4:], "checked": good[:4] + b"\3\0\0\0" + good[8:]}.get(name, good)
        (cache / f"{name}.{TAG}.pyc").write_bytes(bytecode)
    (tmp_path / "stale.py").write_text("x = 2\n")
    (tmp_path / "alone.py").unlink()
    for name, machine in {f"a.{TAG}-x.so": 183, "b.cpython-38-x.so": 183, "c.abi3.so": 183, "lib.so.1": 62}.items():
        (tmp_path / name).write_bytes(b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little"))
    assert {text.removeprefix(f"{tmp_path}/") for text in build_artefact.defects(tmp_path, "arm64")} == {
        f"__pycache__/other.{TAG}.pyc is for another Python",
        f"__pycache__/checked.{TAG}.pyc is checked against its source",
        f"__pycache__/stale.{TAG}.pyc is of another source",
        f"__pycache__/alone.{TAG}.pyc has no source",
        "b.cpython-38-x.so is for another Python",
        "lib.so.1 is not for arm64",
    }


def run_build(folder: Path, source: Path, runtime: str = RUNTIME, **variables: str) -> Ended:
    """Builds a function `Mine` as the Makefile does, into the folder `build/Mine`."""
    (folder / "build.toml").write_text(
        "[function_build_definitions.1]\n"
        f'codeuri = "{source}"\nruntime = "{runtime}"\narchitecture = "arm64"\nfunctions = ["Nested/Mine"]\n'
    )
    script = ROOT / "layers" / "sealane" / "build_artefact.py"
    return subprocess.run(  # noqa: S603
        [sys.executable, "-P", str(script), "Mine", str(folder / "build" / "Mine")],
        cwd=source,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A function's folder, with what is no part of the function."""
    files = {
        "app.py": "def handler(event, context): ...\n",
        "tests/data.json": "{}",
        "broken.py": "def\n",
        "pip.py": "raise RuntimeError\n",
        "__pycache__/app.cpython-38.pyc": "",
        ".venv/lib/x.py": "",
        ".mypy_cache/x.json": "",
    }
    for name, text in files.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "source"


def test_a_functions_own_files_stay_as_they_are(tmp_path: Path, source: Path) -> None:
    built = run_build(tmp_path, source, PYTHONPYCACHEPREFIX=str(tmp_path / "elsewhere"), PYTHONOPTIMIZE="2")
    assert built.returncode == 0, built.stderr
    assert f"Mine is built for {RUNTIME} on arm64" in built.stdout
    assert "broken.py" in built.stdout
    made = tmp_path / "build" / "Mine"
    assert {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()} == {
        *("app.py", "broken.py", "pip.py", "tests/data.json"),
        *(f"__pycache__/{name}.{TAG}.pyc" for name in ("app", "pip")),
    }


def wheel(folder: Path, tag: str = "py3-none-any", name: str = "tiny") -> Path:
    """A package with everything that wheels carry along."""
    path = folder / f"{name}-1.0-{tag}.whl"
    files = {
        f"{name}/__init__.py": "",
        f"{name}/__init__.pyi": "",
        f"{name}/py.typed": "",
        f"{name}/data.json": "{}",
        f"{name}/__pycache__/__init__.cpython-38.pyc": "",
        f"{name}/other-python/legacy.py": "print 1\n",
        f"{name}/tests/test_tiny.py": "",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nLong text.\n",
        f"{name}-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        f"{name}-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


@pytest.mark.parametrize("whole", [False, True])
def test_a_package_is_cut_unless_it_is_wanted_whole(tmp_path: Path, source: Path, whole: bool) -> None:
    (source / "requirements.txt").write_text(str(wheel(tmp_path)))
    built = run_build(tmp_path, source, SEALANE_WHOLE_PACKAGES="1" if whole else "", PIP_NO_INDEX="1")
    assert built.returncode == 0, built.stderr
    made = tmp_path / "build" / "Mine"
    packaged = {str(path.relative_to(made)) for path in made.rglob("tiny*/**/*") if path.is_file()}
    lean = {
        "tiny/data.json",
        "tiny/other-python/legacy.py",
        "tiny-1.0.dist-info/METADATA",
        "tiny-1.0.dist-info/entry_points.txt",
    }
    if whole:
        assert packaged > lean | {
            *("tiny/__init__.py", "tiny/__init__.pyi", "tiny/tests/test_tiny.py", "tiny-1.0.dist-info/RECORD"),
            f"tiny/__pycache__/__init__.{TAG}.pyc",
        }
    else:
        assert packaged == lean | {"tiny/__init__.pyc"}
        assert "Long text" not in (made / "tiny-1.0.dist-info" / "METADATA").read_text()


@pytest.mark.parametrize(
    ("code", "requirement", "stays"),
    [
        ("", "", False),
        ("def main():\n    import uvicorn\n", "", True),
        ("from uvicorn.config import Config\n", "", True),
        ("", "uvicorn==1.0\n", True),
        ("# uvicorn\n", "# uvicorn\n", False),
    ],
)
def test_a_server_stays_where_somebody_mentions_it(
    tmp_path: Path, source: Path, code: str, requirement: str, stays: bool
) -> None:
    (source / "server.py").write_text(code)
    (source / "requirements.txt").write_text(f"{wheel(tmp_path, name='uvicorn')}\n{requirement}")
    built = run_build(tmp_path, source, PIP_NO_INDEX="1")
    assert built.returncode == 0, built.stderr
    assert {path.name for path in (tmp_path / "build" / "Mine").glob("uvicorn*")} == (
        {"uvicorn", "uvicorn-1.0.dist-info"} if stays else set()
    )


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux2014_x86_64", "cp38-cp38-manylinux2014_aarch64"])
def test_a_package_for_other_machines_ends_the_build(tmp_path: Path, source: Path, tag: str) -> None:
    (source / "requirements.txt").write_text(str(wheel(tmp_path, tag)))
    built = run_build(tmp_path, source, PIP_NO_INDEX="1")
    assert built.returncode == 1
    assert f"pip could not install {source}/requirements.txt for arm64" in built.stderr
    assert "Traceback" not in built.stderr


def test_a_missing_python_is_named(tmp_path: Path, source: Path) -> None:
    built = run_build(tmp_path, source, runtime="python3.99")
    assert built.returncode == 1
    assert built.stderr.startswith("build_artefact.py: Mine needs python3.99 with pip on the PATH")


def test_what_sam_does_not_know_is_not_built(tmp_path: Path, source: Path) -> None:
    (tmp_path / "build").mkdir()
    script = ROOT / "layers" / "sealane" / "build_artefact.py"
    command = [sys.executable, "-P", str(script), "Mine", str(tmp_path / "build" / "Mine")]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)  # noqa: S603
    assert built.returncode == 1
    assert 'SAM has 0 records of Mine: run "sam build" without a name' in built.stderr
