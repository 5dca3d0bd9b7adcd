"""`sealane new` and `sealane update`, from this checkout and from a wheel of it."""

import os
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import chdir
from importlib.metadata import PathDistribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner, Result

from sealane.local import project
from sealane.local.cli import app

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "layers" / "sealane"
SUMS = Path("layers", "sealane", "SHA256SUMS")
Ended = subprocess.CompletedProcess[str]


def python(
    *arguments: str | Path, packages: Path = PACKAGES, cwd: Path = ROOT, before: Callable[[], object] | None = None
) -> Ended:
    """Runs Python with a folder of packages in front of all others; `before` runs in its process first."""
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    return subprocess.run(  # noqa: S603
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd,
        preexec_fn=before,
        capture_output=True,
        text=True,
        check=False,
    )


def sealane(*arguments: str | Path, cwd: Path = ROOT) -> Result:
    """Runs the command `sealane` of this checkout."""
    with chdir(cwd):
        return CliRunner().invoke(app, [str(each) for each in arguments])


def files(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """What a folder has in it: content and whether it can be run, by path; without what Python leaves."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as `sealane new` has made it, for tests that change nothing in it."""
    folder = tmp_path_factory.mktemp("made") / "echo-2"
    told = sealane("new", folder.name, cwd=folder.parent)
    assert told.exit_code == 0, told.stderr
    assert told.stdout == f"echo-2 is made, with Sealane {version('sealane')}. Next:\n\n    cd echo-2\n    make run\n"
    return folder


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A project to change."""
    return Path(shutil.copytree(made, tmp_path / "own"))


def make_older(folder: Path) -> None:
    """Makes a project's copy one of version 0.0.1: a file less, one more, and one that was different."""
    copy = folder / SUMS.parent
    (copy / "sealane" / "handler.py").unlink()
    (copy / "sealane" / "gone.py").write_text("")
    (copy / "sealane" / "era.py").write_text("old = True\n")
    sums = project._sums(copy)
    (folder / SUMS).write_text("# Sealane 0.0.1\n" + "".join(f"{digest}  {name}\n" for name, digest in sums.items()))


def test_a_project_has_what_a_server_needs_and_its_name(made: Path) -> None:
    there = files(made)
    assert {name for name in there if not name.startswith("layers/sealane/sealane/")} == {
        *(".gitignore", "Makefile", "README.md", "pytest.ini", "samconfig.toml", "template.yaml"),
        *(f"functions/stateless/{name}" for name in ("app.py", "requirements.txt", "server.py")),
        "tests/test_server.py",
        *(f"layers/sealane/{name}" for name in ("LICENSE", "Makefile", "SHA256SUMS", "build_artefact.py")),
        *(f"layers/sealane/{name}" for name in ("constraints.txt", "pyproject.toml", "requirements-sam.txt")),
        *("layers/sealane/requirements.txt", "layers/sealane/bin/sealane-stream"),
    }
    assert there["layers/sealane/bin/sealane-stream"][1]
    assert "layers/sealane/sealane/handler.py" in there
    assert not [name for name in there if "/legacy/" in name]
    configuration = tomllib.loads((made / "samconfig.toml").read_text())
    assert configuration["default"]["global"]["parameters"]["stack_name"] == "echo-2"
    for name in ("README.md", "template.yaml", "functions/stateless/server.py"):
        assert "echo-2" in (made / name).read_text()
        assert "my-server" not in (made / name).read_text()


def test_its_own_tests_pass(made: Path) -> None:
    tested = python("-m", "pytest", "-p", "no:cacheprovider", packages=made / "layers" / "sealane", cwd=made)
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


def test_its_copy_is_a_package_of_its_own(made: Path) -> None:
    """What pip would read: our own, without the legacy lane."""
    about = tomllib.loads((made / "layers" / "sealane" / "pyproject.toml").read_text())
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = about["project"]
    for name in ("name", "version", "description", "license", "requires-python", "dependencies", "scripts"):
        assert own[name] == ours[name], name
    assert own["entry-points"] == {"pytest11": ours["entry-points"]["pytest11"]}
    assert own["optional-dependencies"].keys() == {"stateless", "local"}
    for extra, required in own["optional-dependencies"].items():
        assert sorted(required) == sorted(str(Requirement(each)) for each in ours["optional-dependencies"][extra])
    pins = Path("functions", "stateless", "requirements.txt")
    assert (made / pins).read_text() == (ROOT / pins).read_text()


def test_no_link_leads_out_of_the_layers_folder() -> None:
    """A build in a container has nothing else."""
    links = [path for path in PACKAGES.rglob("*") if path.is_symlink()]
    assert links
    assert [path for path in links if not path.resolve(strict=True).is_relative_to(PACKAGES)] == []


def test_make_knows_how(made: Path) -> None:
    """What `make` would run, without anything being installed."""
    for target, command in [
        ("run", "sealane run --port 1"),
        ("test", ".venv/bin/pytest --port 1"),
        ("build", "sam build --port 1"),
    ]:
        told = subprocess.run(  # noqa: S603
            ["make", "--dry-run", target, "ARGS=--port 1"],  # noqa: S607
            cwd=made,
            capture_output=True,
            text=True,
            check=True,
        )
        assert command in told.stdout


@pytest.mark.parametrize("name", ["my_server", "2fast", "a b", "-x", "x" * 129])
def test_what_cannot_be_a_stacks_name_is_refused(tmp_path: Path, name: str) -> None:
    told = sealane("new", "--", name, cwd=tmp_path)
    assert told.exit_code == 1
    assert told.stderr.startswith(f"sealane: {name!r} cannot be the name of a stack: letters, digits and hyphens")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_has_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    told = sealane("new", "mine", cwd=tmp_path)
    assert told.exit_code == 1
    assert told.stderr == "sealane: mine is not empty: `sealane new` makes a folder of its own\n"
    assert files(tmp_path) == {"mine/notes.txt": (b"mine", False)}


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = sealane("new", "file/mine", cwd=tmp_path)
    assert (told.exit_code, told.stderr) == (1, "sealane: cannot write file/mine: Not a directory\n")


def small_files() -> None:
    """Lets no file have more than 20 kB, as a disc that is full would: some of the package's have."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize("was_there", [False, True])
def test_nothing_half_made_is_left_behind(tmp_path: Path, was_there: bool) -> None:
    mine = tmp_path / "mine"
    if was_there:
        mine.mkdir()
    told = python("-m", "sealane", "new", mine, before=small_files)
    assert told.returncode == 1
    assert told.stderr.startswith(f"sealane: cannot write {mine}/layers/sealane/")
    assert list(tmp_path.rglob("*")) == ([mine] if was_there else [])


def test_an_empty_folder_can_be_made_a_project(tmp_path: Path, made: Path) -> None:
    mine = tmp_path / made.name
    mine.mkdir()
    assert sealane("new", ".", cwd=mine).exit_code == 0
    assert files(mine) == files(made)


def test_an_update_replaces_the_copy_and_nothing_else(own: Path, made: Path) -> None:
    make_older(own)
    (own / "template.yaml").write_text("mine")
    (own / "layers" / "sealane" / "sealane.egg-info").mkdir()
    (own / "layers" / "sealane" / "sealane.egg-info" / "PKG-INFO").write_text("")
    told = sealane("update", own)
    assert told.stdout == f"{own}/layers/sealane: Sealane 0.0.1 -> {version('sealane')}\n"
    assert files(own) == files(made) | {"template.yaml": (b"mine", False)}
    assert [path.name for path in (own / "layers").iterdir()] == ["sealane"]


def test_a_copy_that_is_up_to_date_stays(own: Path) -> None:
    before = (own / SUMS).stat().st_mtime_ns
    told = sealane("update", cwd=own)
    assert told.stdout == f"layers/sealane is Sealane {version('sealane')} already\n"
    assert (own / SUMS).stat().st_mtime_ns == before


def test_what_was_changed_by_hand_is_overwritten_by_force_only(own: Path, made: Path) -> None:
    package = own / "layers" / "sealane" / "sealane"
    (package / "era.py").write_text("mine = True\n")
    (package / "mine.py").write_text("")
    (package / "gateway" / "loop.py").unlink()
    changed = files(own)
    told = sealane("update", own)
    assert told.exit_code == 1
    names = "sealane/era.py, sealane/gateway/loop.py, sealane/mine.py"
    assert told.stderr == f"sealane: changed by hand in {own}/layers/sealane, and --force would overwrite it: {names}\n"
    assert files(own) == changed
    assert sealane("update", own, "--force").exit_code == 0
    assert files(own) == files(made)


def test_what_sealane_has_not_made_is_not_updated(tmp_path: Path) -> None:
    (tmp_path / "layers" / "sealane").mkdir(parents=True)
    (tmp_path / "layers" / "sealane" / "mine.py").write_text("")
    told = sealane("update", tmp_path, "--force")
    assert told.exit_code == 1
    assert "is no copy of the layer that `sealane new` has made" in told.stderr
    assert files(tmp_path) == {"layers/sealane/mine.py": (b"", False)}


def test_a_copy_cannot_update_itself(own: Path) -> None:
    told = python("-m", "sealane", "update", "--force", packages=own / "layers" / "sealane", cwd=own)
    assert told.returncode == 1
    assert "sealane: layers/sealane is the Sealane that you run: update it with" in told.stderr


def test_an_update_that_fails_leaves_the_copy_as_it_was(own: Path) -> None:
    make_older(own)
    before = files(own)
    told = python("-m", "sealane", "update", own, before=small_files)
    assert told.returncode == 1
    assert files(own) == before


def test_an_update_that_is_interrupted_leaves_a_whole_copy(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_older(own)
    before = files(own)
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if path.name == ".sealane-new":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        project.update_copy(own)
    assert files(own) == before


def test_an_update_that_was_killed_is_made_good_by_the_next(own: Path, made: Path) -> None:
    """Between the two renames, where no handler helps."""
    make_older(own)
    layers = own / "layers"
    shutil.copytree(layers / "sealane" / "bin", layers / ".sealane-new")
    (layers / "sealane").rename(layers / ".sealane-old")
    assert sealane("update", own).exit_code == 0
    assert files(own) == files(made)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of this checkout installs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(PACKAGES, source / "layers" / "sealane", symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    options = ("--no-index", "--no-deps")
    built = python(*pip, "wheel", *options, "--no-build-isolation", "--wheel-dir", folder, source)
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    put = python(*pip, "install", *options, "--no-compile", "--target", folder / "installed", wheel)
    assert put.returncode == 0, put.stderr
    return folder / "installed"


def test_a_wheel_makes_the_same_project(installed: Path, made: Path, tmp_path: Path) -> None:
    told = python("-m", "sealane", "new", made.name, packages=installed, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert files(tmp_path / made.name) == files(made)


def test_a_wheel_has_its_types_its_extras_and_one_package(installed: Path) -> None:
    [metadata] = installed.glob("*.dist-info")
    distribution = PathDistribution(metadata)
    assert {"stateless", "legacy", "local"} <= {*distribution.metadata.get_all("Provides-Extra", [])}
    assert (installed / "sealane" / "py.typed").is_file()
    assert {path.name for path in installed.iterdir()} == {"sealane", "bin", metadata.name}
    for entry in distribution.entry_points:
        module = installed.joinpath(*entry.module.split("."))
        assert module.with_suffix(".py").is_file(), entry
