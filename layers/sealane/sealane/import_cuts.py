"""What a cold start does not need is not imported before something asks for it.

`import mcp.server` of SDK 2 runs the client half too, and builds some five hundred pydantic models with their schemas:
most of the time and memory of a cold start. `install`, which importing `sealane` calls, makes three cuts in that. No
module of the SDK is changed or replaced: all of it is there, and runs in its own words, at the first use.

1. Modules in `_LAZY` run when they are first asked for a name. `mcp` itself is one, for its `__init__` is what imports
   the client half; `mcp.Client` and `from mcp import Client` import it.
2. The wire models of a protocol revision (`mcp_types._v…`) are built at the first message of that revision: the tables
   of `mcp_types.methods` look them up when they are asked for a row.
3. The SDK's models are made as if their `model_config` said `defer_build`
   (https://docs.pydantic.dev/latest/api/config/#pydantic.config.ConfigDict.defer_build): the schema of a model is built
   when it is first used. The setting does not stay: models of yours that inherit from the SDK's build theirs at once.
   Nothing searches for garbage meanwhile, or later in what is there by then (`gc.freeze`): all of it is kept.

What still shows: until its first use a model's `__pydantic_complete__` is false and `inspect.signature` does not know
its fields; the tables are another type of mapping, and `mcp.server.elicitation` has a stand-in for a type that it
borrows; `vars(mcp)` is short until `mcp` has run.

`SEALANE_IMPORT_CUTS=off` in the environment leaves all imports as they are. So do SnapStart, whose snapshot is to have
all of it, an SDK that was imported before `sealane`, in part or whole, and SDK 1. A module that another release does
not have is not missed.
"""

import builtins
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib._bootstrap import _DeadlockError, _ModuleLockManager  # type: ignore[attr-defined]
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

    from pydantic import BaseModel, GetCoreSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["install"]

logger = logging.getLogger(__name__)

_VARIABLE: Final = "SEALANE_IMPORT_CUTS"
"""`off` leaves all imports as they are, at the price of a longer cold start. Default: `on`."""

_REVISIONS: Final = ("mcp_types._v2025_11_25", "mcp_types._v2026_07_28")
"""The wire models of revisions."""
_LAZY: Final = ("mcp", *_REVISIONS, "anyio.to_process", "httpx2")
_FIRST: Final = {"mcp.client": "mcp"}
"""Modules that need what another one has imported by the time that they run."""
_LOOKING_UP: Final = ("mcp_types.methods", "mcp.server.elicitation")
"""Modules that use wire models of a revision without asking for one as they are imported."""
_DEFERRING: Final = ("mcp.server", "mcp_types", *_REVISIONS)
"""Modules that make models, or import others that do."""

_building: Final = RLock()


def install() -> None:
    """Make the cuts in what this process imports from now on. Again, or too late, it does nothing.

    Too late on Lambda, where somebody waits for it, is told to the log.
    """
    if (
        os.environ.get(_VARIABLE) == "off"
        or os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start"
        or any(isinstance(finder, _Finder) for finder in sys.meta_path)
        or PathFinder.find_spec("mcp_types") is None
    ):
        return
    if not {"mcp", "mcp_types"} & sys.modules.keys():
        sys.meta_path.insert(0, _Finder())
    elif "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
        logger.warning(
            "mcp was imported before sealane, so cold starts take longer: import sealane first in the handler's module"
        )


class _Finder:
    """Finds the modules that are cut, where they would be found anyway."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if target is not None or name not in {*_LAZY, *_FIRST, *_LOOKING_UP, *_DEFERRING}:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or not hasattr(spec.loader, "get_code"):
            return None
        spec.loader = _Loader(spec.loader)  # type: ignore[assignment,arg-type]
        return spec


class _Loader:
    """Runs a module with its cuts, and leaves it with the loader that it would have anyway."""

    def __init__(self, loader: "InspectLoader") -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec: ModuleSpec = module.__spec__  # type: ignore[assignment]
        spec.loader = module.__loader__ = self._loader
        run = self._loader.exec_module
        if spec.name in _LOOKING_UP:
            run = partial(_run_looking_up, run)
        if spec.name in _DEFERRING:
            run = partial(_run_deferring, run)
        if isinstance(first := sys.modules.get(_FIRST.get(spec.name, "")), _LazyModule):
            # Not if another thread is at it, and waits for this one.
            with suppress(_DeadlockError):
                first._run()
        if spec.name in _LAZY:
            spec.loader_state = run
            module.__class__ = _LazyModule
        else:
            run(module)


class _LazyModule(ModuleType):
    """A module whose code runs when it is first asked for a name that it does not have.

    That of the standard library (`importlib.util.LazyLoader`) runs for `__path__` already, which every import of a
    submodule asks for.
    """

    def __getattr__(self, name: str) -> Any:
        self._run()
        return ModuleType.__getattribute__(self, name)

    def __dir__(self) -> list[str]:
        self._run()
        return [*ModuleType.__dir__(self)]

    def _run(self) -> None:
        """Run the code, unless it has run or this thread is at it. What others import meanwhile may wait for that."""
        spec: ModuleSpec = self.__spec__  # type: ignore[assignment]
        with _ModuleLockManager(spec.name):
            run, spec.loader_state = spec.loader_state, None
            if run is None:
                return
            given = {name: value for name, value in vars(self).items() if not name.startswith("__")}
            try:
                run(self)
            except BaseException:
                spec.loader_state = run
                raise
            # What others have set on it, submodules among them, came after its own code.
            vars(self).update(given)
            self.__class__ = ModuleType  # type: ignore[assignment]


def _run_deferring(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module's code so that schemas of the models that it makes, or imports, are built when they are used."""
    # Not before it is needed: importing `sealane` alone does not.
    from pydantic import BaseModel, TypeAdapter

    collects = gc.isenabled()
    gc.disable()
    try:
        with (
            _replaced(BaseModel, "model_config", {**BaseModel.model_config, "defer_build": True}),
            _replaced(TypeAdapter, "_defer_build", True),
        ):
            run(module)
    finally:
        for model in _descendants(BaseModel):
            if model.model_config.pop("defer_build", None):
                _build_once(model)
        if collects:
            gc.freeze()
            gc.enable()


@contextmanager
def _replaced(owner: type, name: str, value: object) -> Iterator[None]:
    """Give a class another attribute for a while, if it has this one."""
    before = vars(owner).get(name)
    if before is None:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _descendants(model: "type[BaseModel]") -> "Iterator[type[BaseModel]]":
    for child in model.__subclasses__():
        yield child
        yield from _descendants(child)


def _build_once(model: "type[BaseModel]") -> None:
    """Let only one thread build a model's schema, out of what the model's own module has.

    pydantic's `model_rebuild` is not for several threads, and reads names of whoever happens to use the model first.
    """

    def build(part: str) -> object:
        with _building:
            if not model.__pydantic_complete__:
                model.model_rebuild(raise_errors=False, _types_namespace={})
            return vars(model)[part] if model.__pydantic_complete__ else None

    for part in ("__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"):
        stand_in: Any = vars(model).get(part)
        if hasattr(stand_in, "_attempt_rebuild"):
            stand_in._attempt_rebuild = partial(build, part)


def _run_looking_up(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module's code with names in place of a revision's wire models, for its tables to look up.

    Where that fails, as code of another release might do more with a model, it runs as it is.
    """
    loader: InspectLoader = module.__loader__  # type: ignore[assignment]
    namespace = vars(module)
    namespace["__builtins__"] = {**vars(builtins), "__import__": _import_names}
    try:
        exec(loader.get_code(module.__name__), namespace)  # type: ignore[arg-type]  # noqa: S102 - the module's own code
    except Exception:
        namespace["__builtins__"] = vars(builtins)
        run(module)
        return
    namespace["__builtins__"] = vars(builtins)
    tables: dict[int, _Table] = {}
    for name, value in [*namespace.items()]:
        if isinstance(value, _Names):
            namespace[name] = value._module
        elif isinstance(value, MappingProxyType) and any(isinstance(row, _Name) for row in value.values()):
            namespace[name] = tables[id(value)] = _Table(value)
    for function in namespace.values():
        if isinstance(function, FunctionType) and function.__kwdefaults__:
            defaults = function.__kwdefaults__
            function.__kwdefaults__ = {name: tables.get(id(value), value) for name, value in defaults.items()}


def _import_names(
    name: str,
    namespace: Mapping[str, object] | None = None,
    variables: Mapping[str, object] | None = None,
    wanted: Sequence[str] | None = (),
    level: int = 0,
) -> object:
    """`__import__` that gives names for what is in a revision's module."""
    if name not in _REVISIONS:
        return builtins.__import__(name, namespace, variables, wanted or (), level)
    package = builtins.__import__(name)
    names = _Names(sys.modules[name])
    # "import a.b as c" takes b from what it gets.
    return names if wanted else SimpleNamespace(**{**vars(package), name.rpartition(".")[2]: names})


class _Names:
    """The names in a module."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> "_Name":
        return _Name(self._module, name)


class _Name:
    """A type in a module, by its name. To pydantic it is that type."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self._name = module, name

    def type(self) -> object:
        """What the name stands for."""
        return getattr(self._module, self._name)

    def __get_pydantic_core_schema__(self, source: object, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        return handler(self.type())


class _Table(Mapping[object, object]):
    """A read-only mapping that looks up what it has by name."""

    def __init__(self, rows: Mapping[object, object]) -> None:
        self._rows = rows

    def __getitem__(self, key: object) -> object:
        row = self._rows[key]
        return row.type() if isinstance(row, _Name) else row

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[object]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __or__(self, other: Mapping[Any, Any]) -> dict[object, object]:
        return {**self, **other}

    def __ror__(self, other: Mapping[Any, Any]) -> dict[object, object]:
        return {**other, **self}

    def copy(self) -> dict[object, object]:
        """All rows, as `MappingProxyType.copy` gives them."""
        return {**self}
