"""What a cold start does not need is not imported before something asks for it.

`import mcp.server` of SDK 2 runs the client half too, and builds some five hundred pydantic models with their schemas:
most of the time and memory of a cold start. `install`, which importing `sealane` calls, makes seven cuts in that. No
module is changed or replaced: all of it is there, and runs in its own words, at the first use.

1. Modules in `_LAZY` run when they are first asked for a name. `mcp` itself is one, for its `__init__` is what imports
   the client half; `mcp.Client` and `from mcp import Client` import it.
2. In modules in `_IMPORTING`, what is imported from one that is put off, by this cut or another, has its value when it
   is first used, as after `lazy from … import …` (https://peps.python.org/pep-0810/).
3. Modules in `_BY_NAME` are definitions, most of them of models, and each is made when it is first asked for. While the
   module runs, every name in it stands for a `_Later`, out of which its expressions and classes make others.
4. The tables of `mcp_types.methods` look models up when they are asked for a row: of the wire models of a protocol
   revision (`mcp_types._v…`) there are those that its messages so far have needed. So does the table of
   `mcp.server.connection`, for requests to clients.
5. The SDK's models are made as if their `model_config` said `defer_build`
   (https://docs.pydantic.dev/latest/api/config/#pydantic.config.ConfigDict.defer_build): the schema of a model is built
   when it is first used. The setting does not stay: models of yours that inherit from the SDK's build theirs at once.
   Nothing searches for garbage during imports, or later in what is there by then (`gc.freeze`): all of it is kept.
6. The typed dictionaries of modules in `_DESCRIBING` are classes of dictionaries, without what only a reader of their
   annotations would need: type checkers do not run here.
7. Where no package says that it is a plugin of pydantic, the metadata of all is not read to find that out.

What still shows: until its first use a model's `__pydantic_complete__` is false and `inspect.signature` does not know
its fields; the tables are another type of mapping; `vars` of a module is short until its names have been asked for, all
of which `dir` does; modules of cuts 2 and 3 do not see it when another one replaces a builtin; annotations of cut 6 are
text, those that a class inherits are its parent's only, and `typing.is_typeddict` does not know it.

`SEALANE_IMPORT_CUTS=off` in the environment leaves all imports as they are. So do SnapStart, whose snapshot is to have
all of it, an SDK that was imported before `sealane`, in part or whole, and SDK 1. A module that another release does
not have is not missed, and one whose code does more than the cuts are made for runs as it is.
"""

import builtins
import gc
import logging
import operator
import os
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from importlib._bootstrap import _DeadlockError, _ModuleLockManager  # type: ignore[attr-defined]
from importlib.machinery import ModuleSpec, PathFinder
from threading import Lock, RLock
from types import CodeType, FunctionType, MappingProxyType, ModuleType, SimpleNamespace
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
_LAZY: Final = (
    "mcp",
    *_REVISIONS,
    "anyio.to_process",
    "aws_lambda_powertools",
    "aws_lambda_powertools.utilities.jmespath_utils",
    "cryptography.exceptions",
    "cryptography.hazmat.primitives.ciphers",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.hashes",
    "cryptography.hazmat.primitives.kdf",
    "cryptography.hazmat.primitives.kdf.hkdf",
    "http.client",
    "importlib.metadata",
    "httpx2",
    "mcp.server.auth",
    "mcp.server.auth.routes",
    "mcp.server.sse",
    "sse_starlette",
    "starlette.applications",
    "starlette.middleware.authentication",
)
_FIRST: Final = {"mcp.client": "mcp"}
"""Modules that need what another one has imported by the time that they run."""
_BY_NAME: Final = ("mcp_types._types", *_REVISIONS, "mcp.shared.auth", "mcp.server.auth.provider")
_LOOKING_UP: Final = ("mcp_types.methods", "mcp.server.elicitation")
"""Modules that put models into tables and adapters as they are imported, without asking one for anything."""
_PLUGINS: Final = "pydantic.plugin._loader"
_KEYED: Final = ("mcp.server.connection",)
"""Modules that have a table of models by models, and ask what else they import."""
_IMPORTING: Final = (
    *_LOOKING_UP,
    *_KEYED,
    _PLUGINS,
    "mcp_types",
    "mcp.server.lowlevel.server",
    "mcp.server.mcpserver.server",
    "mcp.server.request_state",
    "mcp.server.streamable_http",
    "pydantic.networks",
)
_DESCRIBING: Final = ("pydantic_core.core_schema",)
"""Modules that describe what their functions return with a hundred typed dictionaries."""
_DEFERRING: Final = ("mcp.server", "mcp_types", *_REVISIONS)
"""Modules that make models, or import others that do."""
_CUT: Final = frozenset([*_LAZY, *_FIRST, *_BY_NAME, *_IMPORTING, *_DESCRIBING, *_DEFERRING])

_CALL: Final = compile("__call__()", "<sealane>", "eval")

_building: Final = RLock()
_counting: Final = Lock()
_deferrals = 0
"""How often models are deferred at the moment, by modules that run and definitions that are made."""
_while_deferring: Final = ExitStack()


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
        if target is not None or name not in _CUT:
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
        if spec.name in {*_BY_NAME, *_IMPORTING}:
            run = partial(_run_with_names, run)
        if spec.name in _DESCRIBING:
            run = partial(_run_untyped, run)
        if spec.name == _PLUGINS:
            run = partial(_run_without_search, run)
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


class _Unfinished(ModuleType):
    """A module that gets the values of names when it is asked for them."""

    def __getattr__(self, name: str) -> Any:
        return _names_of(self).value(name)

    def __dir__(self) -> list[str]:
        for name in [*_names_of(self).to_come]:
            getattr(self, name)
        return [*ModuleType.__dir__(self)]


class _LazyModule(_Unfinished):
    """A module whose code runs when it is first asked for a name that it does not have.

    That of the standard library (`importlib.util.LazyLoader`) runs for `__path__` already, which every import of a
    submodule asks for.
    """

    def __getattr__(self, name: str) -> Any:
        self._run()
        return _Unfinished.__getattr__(self, name)

    def __dir__(self) -> list[str]:
        self._run()
        return _Unfinished.__dir__(self)

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
            self.__class__ = _Unfinished if _names_of(self).to_come else ModuleType  # type: ignore[assignment]
        # What its submodules import is there by now, uncut.
        for module in [*vars(self).values()]:
            if isinstance(module, _LazyModule) and module.__name__.startswith(f"{spec.name}."):
                module._run()


def _run_deferring(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module's code so that schemas of the models that it makes, or imports, are built when they are used."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with _deferred():
            run(module)
    finally:
        if collects:
            gc.freeze()
            gc.enable()


@contextmanager
def _deferred(*parents: object) -> Iterator[None]:
    """Let schemas of the models that are made meanwhile be built when they are used.

    Args:
        parents: what they may inherit the setting from, besides `BaseModel`.
    """
    # Not before it is needed: importing `sealane` alone does not.
    from pydantic import BaseModel, TypeAdapter

    global _deferrals
    with _counting:
        for model in (BaseModel, *parents):
            if isinstance(model, type) and issubclass(model, BaseModel):
                model.model_config["defer_build"] = True
        if not _deferrals:
            _while_deferring.enter_context(_replaced(TypeAdapter, "_defer_build", True))
        _deferrals += 1
    try:
        yield
    finally:
        with _counting:
            _deferrals -= 1
            if not _deferrals:
                _while_deferring.close()
                del BaseModel.model_config["defer_build"]
                for model in _descendants(BaseModel):
                    if model.model_config.pop("defer_build", None):
                        _build_once(model)


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


def _run_with_names(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module's code so that names which it imports, or defines, have their values when they are asked for.

    Where that fails, as code of another release might do more with what a name stands for, it runs as it is.
    """
    loader: InspectLoader = module.__loader__  # type: ignore[assignment]
    namespace = vars(module)
    if type(module) is ModuleType:
        module.__class__ = _Unfinished
    try:
        _Names(module).run(loader.get_code(module.__name__))  # type: ignore[arg-type]
    except Exception:
        namespace["__builtins__"] = vars(builtins)
        run(module)
        return
    tables: dict[int, _Table] = {}
    for name, value in [*namespace.items()]:
        if isinstance(value, _Origin):
            namespace[name] = sys.modules[value.module]
        elif isinstance(value, MappingProxyType) and any(isinstance(row, _Later) for row in value.values()):
            namespace[name] = tables[id(value)] = _Table(value)
        elif isinstance(value, dict) and any(isinstance(key, _Later) for key in value):
            namespace[name] = _ByModel(value)
    for function in namespace.values():
        if isinstance(function, FunctionType) and function.__kwdefaults__:
            defaults = function.__kwdefaults__
            function.__kwdefaults__ = {name: tables.get(id(value), value) for name, value in defaults.items()}


def _run_untyped(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module's code with another `TypedDict`; where that fails, as it is."""
    loader: InspectLoader = module.__loader__  # type: ignore[assignment]
    namespace = vars(module)
    namespace["__builtins__"] = {**vars(builtins), "__import__": _import_untyped}
    try:
        exec(loader.get_code(module.__name__), namespace)  # type: ignore[arg-type]  # noqa: S102 - the module's own code
    except Exception:
        namespace["__builtins__"] = vars(builtins)
        run(module)
    else:
        namespace["__builtins__"] = vars(builtins)


def _import_untyped(name: str, *arguments: Any) -> object:
    """`__import__` for `_run_untyped`."""
    imported = builtins.__import__(name, *arguments)
    if name in ("typing", "typing_extensions"):
        return SimpleNamespace(**{**vars(imported), "TypedDict": _Untyped})
    return imported


def _run_without_search(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run pydantic's loader of plugins, and let it know if there are none."""
    run(module)
    if vars(module).get("_plugins", ()) is None and not any(_declares_a_plugin(folder) for folder in sys.path):
        module._plugins = {}  # type: ignore[attr-defined]


def _declares_a_plugin(folder: str) -> bool:
    """Whether a package there says that it is a plugin of pydantic, or may say so, in an archive.

    https://packaging.python.org/en/latest/specifications/entry-points/
    """
    if os.path.isfile(folder):
        return True
    with suppress(OSError):
        for name in os.listdir(folder or "."):
            if name.endswith((".dist-info", ".egg-info", ".egg")):
                with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if b"[pydantic]" in file.read():
                        return True
    return False


class _Untyped(dict[str, Any]):
    def __init_subclass__(cls, total: bool = True) -> None:
        """Take `total`, as typed dictionaries do."""


class _Names(dict[str, Any]):
    """A module's builtins, and the names that it has no values for yet.

    Python looks into the `__builtins__` of a module for all that its code, or an annotation, names and the module does
    not have (https://docs.python.org/3/reference/executionmodel.html#builtins-and-restricted-execution).
    """

    def __init__(self, module: ModuleType) -> None:
        super().__init__(vars(builtins))
        self.module = module.__name__
        self.namespace = vars(module)
        self.to_come: dict[str, _Later] = {}
        self.by_name = self.module in _BY_NAME
        self.looking_up = self.module in _LOOKING_UP
        self.keyed = self.module in _KEYED

    def run(self, code: CodeType) -> None:
        """Run the module's code."""
        meanwhile: dict[str, object] = {"__import__": self._import}
        if self.by_name:
            meanwhile["__build_class__"] = partial(_Later, self, builtins.__build_class__)
        if self.looking_up:
            meanwhile["issubclass"] = _inherits
        self.update(meanwhile)
        self.namespace["__builtins__"] = self
        statements = None if self.looking_up else _Statements(self)
        exec(code, self.namespace, statements)  # noqa: S102 - the module's own code
        later = {name: value for name, value in self.namespace.items() if isinstance(value, _Later)}
        self.to_come.update({name: self.namespace.pop(name) for name in later})
        self.update({name: vars(builtins)[name] for name in meanwhile})

    def __missing__(self, name: str) -> Any:
        if (later := self.to_come.get(name)) is not None:
            self.namespace.setdefault(name, later.now())
            self.to_come.pop(name, None)
        return self.namespace[name]

    def value(self, name: str) -> Any:
        """What the module has by a name.

        Raises:
            AttributeError: nothing.
        """
        try:
            return self.__missing__(name)
        except KeyError:
            raise AttributeError(f"module {self.module!r} has no attribute {name!r}", name=name) from None

    def _import(
        self,
        name: str,
        namespace: Mapping[str, object] | None = None,
        variables: Mapping[str, object] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        """`__import__` for the module's code."""
        if self.by_name and wanted:
            return _Origin(self, name)
        if name in _CUT and (wanted or self.looking_up):
            package = builtins.__import__(name)
            if isinstance(sys.modules[name], _Unfinished):
                origin = _Origin(self, name)
                # "import a.b as c" takes b from what it gets.
                _, inside, last = name.rpartition(".")
                return SimpleNamespace(**{**vars(package), last: origin}) if inside and not wanted else origin
        return builtins.__import__(name, namespace, variables, wanted or (), level)


def _names_of(module: ModuleType) -> _Names:
    names = vars(module).get("__builtins__")
    return names if isinstance(names, _Names) else _Names(module)


class _Statements(UserDict[str, object]):
    """The namespace of a module for its own code, while that runs."""

    def __init__(self, names: _Names) -> None:
        self.data = names.namespace
        self._names = names

    def __getitem__(self, name: str) -> object:
        names = self._names
        if (later := names.to_come.get(name)) is not None:
            return later if names.by_name or (names.keyed and later.is_class) else names.value(name)
        if names.by_name and name in vars(builtins) and name not in names.namespace:
            return _Later(names, getattr, builtins, name)
        return self.data[name]

    def __setitem__(self, name: str, value: object) -> None:
        names = self._names
        if names.by_name and isinstance(value, FunctionType):
            value = _Later(names, _now, value)
        if isinstance(value, _Later):
            names.to_come[name] = value
        elif names.by_name and not isinstance(value, str) and not name.startswith("__"):
            raise TypeError(f"{names.module} has more than definitions: {name}")
        else:
            names.to_come.pop(name, None)
            self.data[name] = value


class _Origin:
    """A module that names are imported from."""

    def __init__(self, names: _Names, module: str) -> None:
        self._names, self.module = names, module

    def __getattr__(self, name: str) -> object:
        if not self._names.by_name:
            has = vars(sys.modules[self.module])
            if name in has:
                return has[name]
            if (later := _names_of(sys.modules[self.module]).to_come.get(name)) is not None:
                return later
        return _Imported(self._names, self.module, name)


class _Later:
    """The value of an expression, made when it is needed.

    Args:
        names: those of the module that has the expression.
        function: what gives the value for `arguments` and `options`, all of which may be still to be made too.
    """

    def __init__(self, names: _Names, function: object, /, *arguments: object, **options: object) -> None:
        self._names, self._function, self._arguments, self._options = names, function, arguments, options
        self._values: list[Any] = []
        self._is_making = False

    def now(self) -> Any:
        """The value.

        Raises:
            NameError: it needs itself.
        """
        with _building if not self._values else nullcontext():
            if not self._values:
                if self._is_making:
                    raise NameError("a definition that needs itself")
                self._is_making = True
                try:
                    self._values.append(self._make())
                finally:
                    self._is_making = False
        return self._values[0]

    def _make(self) -> object:
        function, *arguments = _now((self._function, *self._arguments))
        call = partial(function, *arguments, **{name: _now(value) for name, value in self._options.items()})
        with _deferred(*arguments):
            # To pydantic and typing, which look at who calls, it is the module's own code.
            self._names["__call__"] = call
            return eval(_CALL, self._names.namespace)  # noqa: S307 - what the module's code says

    @property
    def is_class(self) -> bool:
        """Whether it is what a `class` statement makes."""
        return self._function is builtins.__build_class__

    def inherits(self, parent: object) -> bool:
        """Whether it will be a subclass, or a union with one, of another class."""
        if self is parent or parent in self._values:
            return True
        return any(part.inherits(parent) for part in self._arguments if isinstance(part, _Later))

    def model_rebuild(self) -> None:
        """Do nothing: what a model needs is there when it is made."""

    def __get_pydantic_core_schema__(self, source: object, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        return handler(self.now())

    def __call__(self, *arguments: object, **options: object) -> "_Later":
        return _Later(self._names, operator.call, self, *arguments, **options)

    def __getitem__(self, key: object) -> "_Later":
        return _Later(self._names, operator.getitem, self, key)

    def __or__(self, other: object) -> "_Later":
        return _Later(self._names, operator.or_, self, other)

    def __ror__(self, other: object) -> "_Later":
        return _Later(self._names, operator.or_, other, self)


class _Imported(_Later):
    """What another module has by a name. Modules may wait for each other's imports: this waits for nothing else."""

    def __init__(self, names: _Names, module: str, name: str) -> None:
        super().__init__(names, getattr)
        self._module, self._name = module, name

    def now(self) -> Any:
        return getattr(__import__(self._module, fromlist=[self._name]), self._name)


def _now(value: Any) -> Any:
    """A value whose parts are all made."""
    if isinstance(value, _Later):
        return value.now()
    if isinstance(value, FunctionType):
        value.__defaults__ = _now(value.__defaults__)
        for part in (value.__annotations__, value.__kwdefaults__ or {}):
            part.update({name: _now(each) for name, each in part.items()})
    return tuple(map(_now, value)) if isinstance(value, tuple) else value


def _inherits(value: type, parent: type) -> bool:
    """`issubclass`, also of what is still to be made."""
    return value.inherits(parent) if isinstance(value, _Later) else issubclass(value, _now(parent))


class _Table(Mapping[object, object]):
    """A read-only mapping that looks up what it has by name."""

    def __init__(self, rows: Mapping[object, object]) -> None:
        self._rows = rows

    def __getitem__(self, key: object) -> object:
        return _now(self._rows[key])

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


class _ByModel(UserDict[object, object]):
    """A table whose rows are made when it is first asked for one."""

    def __init__(self, rows: Mapping[object, object]) -> None:
        self._rows = rows

    @cached_property
    def data(self) -> dict[object, object]:  # type: ignore[override]
        """The rows."""
        return {_now(key): _now(value) for key, value in self._rows.items()}
