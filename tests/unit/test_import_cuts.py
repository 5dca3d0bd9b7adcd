"""What a cold start leaves out, and that nobody who uses the SDK can tell. Every program has a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LEGACY_MODELS = "mcp_types._v2025_11_25"
MODERN_MODELS = "mcp_types._v2026_07_28"

HANDLER = """
from tests.events import NO_CONTEXT, answer, load_event
from app import handler
def ask(name): return answer(handler(load_event(name), NO_CONTEXT)).messages[0]["result"]
"""
STATE = """
def has_run(*names): return [type(sys.modules.get(name, 0)).__name__ in ("module", "_Unfinished") for name in names]
"""


def output_of(*arguments: str, cuts: str = "on") -> Any:
    """The last line that a fresh Python process writes, as JSON."""
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(  # noqa: S603
        [sys.executable, *arguments],
        env={**os.environ, "SEALANE_IMPORT_CUTS": cuts, "PYTHONHASHSEED": "0", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def told_by(program: str, cuts: str = "on") -> Any:
    """The value of a program's last line, an expression."""
    *lines, last = program.strip().splitlines()
    return output_of("-c", "\n".join(["import json, sys", *lines, f"print(json.dumps({last}))"]), cuts=cuts)


def test_a_modern_call_needs_neither_the_client_half_nor_the_models_of_2025() -> None:
    result, imported, run = told_by(f"""
{HANDLER}{STATE}
result = ask("rest-call-hello")
imported = [name for name in sys.modules if name.startswith(("mcp.client", "mcp.types", "boto", "httpx2."))]
[result, imported, has_run("mcp", "httpx2", "anyio.to_process", "{LEGACY_MODELS}", "{MODERN_MODELS}")]
""")
    assert result["content"][0]["text"].startswith("Hello")
    assert imported == []
    assert run == [False, False, False, False, True]


def test_a_modern_call_makes_the_models_and_runs_the_modules_that_it_needs() -> None:
    made, run = told_by(f"""
{HANDLER}
ask("rest-call-hello")
from pydantic import BaseModel
def models(parent): return [parent, *(model for child in parent.__subclasses__() for model in models(child))]
made = {{(model.__module__, model.__name__) for model in models(BaseModel)}}
modules = ("mcp_types._types", "mcp_types._v2026_07_28")
heavy = ("cryptography.hazmat.bindings", "mcp.server.auth.handlers", "sse_starlette.", "starlette.middleware.errors")
run = [name for name in sys.modules if name.startswith(heavy)]
[[(module, name) in made for module in modules for name in ("CallToolResult", "ListToolsRequest")], run]
""")
    assert made == [True, False, True, False]
    assert run == []


def test_importing_the_function_builds_no_models_of_a_revision() -> None:
    program = f'from app import handler{STATE}has_run("{LEGACY_MODELS}", "{MODERN_MODELS}")'
    assert told_by(program) == [False, False]


def test_a_legacy_request_builds_the_models_of_2025() -> None:
    initialized, called, run = told_by(
        HANDLER + STATE + f'[ask("rest-legacy-initialize"), ask("rest-legacy-call-hello"), has_run("{LEGACY_MODELS}")]'
    )
    assert initialized["protocolVersion"] == "2025-11-25"
    assert called["content"][0]["text"].startswith("Hello")
    assert run == [True]


def test_the_variable_leaves_imports_as_they_are() -> None:
    program = f"""
import sealane.handler{STATE}
from mcp_types import Tool, methods
[*has_run("mcp", "mcp.client", "{LEGACY_MODELS}"), Tool.__pydantic_complete__, type(methods.SERVER_RESULTS).__name__]
"""
    assert told_by(program, cuts="off") == [True, True, True, True, "mappingproxy"]
    assert told_by(program) == [False, False, False, False, "_Table"]


def test_a_snapshot_has_all_of_it() -> None:
    program = f"""
import os
os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"] = "snap-start"
import sealane, mcp.server{STATE}
has_run("mcp", "mcp.client", "{LEGACY_MODELS}", "{MODERN_MODELS}")
"""
    assert told_by(program) == [True] * 4


def test_an_sdk_that_was_imported_before_stays_as_it_is() -> None:
    assert told_by(f'import mcp_types, sealane.handler{STATE}has_run("mcp", "mcp.client")') == [True, True]


def test_every_name_of_the_sdk_is_what_it_is_without_cuts() -> None:
    cut, uncut = (output_of("-m", "tests.unit.sdk_names", cuts=cuts) for cuts in ("on", "off"))
    assert len(uncut) > 100
    assert cut == uncut


PROGRAMS = [
    "from mcp import Client; Client.__module__",
    "import mcp; mcp.Client.__module__",
    "import mcp.server; mcp.types.Tool.__module__",
    "from mcp.client.session_group import ClientSessionGroup; ClientSessionGroup.__module__",
    "import mcp; sorted(dir(mcp))",
    "from mcp import *; sorted(globals())",
    "import mcp; sorted(mcp.__all__)",
    "import mcp; hasattr(mcp, 'nothing')",
    "import importlib, mcp; importlib.reload(mcp).Client.__module__",
    "import mcp; [type(mcp.__loader__).__name__, type(mcp.__spec__.loader).__name__, mcp.__file__]",
    "import httpx2; httpx2.URL('http://a/b').path",
    "import pickle, mcp_types; repr(pickle.loads(pickle.dumps(mcp_types.TextContent(text='a'))))",
    "import mcp_types; repr(mcp_types.Tool.model_construct(name='a').model_dump(by_alias=True))",
    "from mcp_types import methods; sorted(map(str, methods.CLIENT_REQUESTS | {('a', 'b'): 1}))",
    "from mcp_types import methods; sorted(map(str, methods.SERVER_RESULTS.copy().values()))",
    "from mcp_types.methods import CLIENT_REQUESTS; ('ping', '2026-07-28') in CLIENT_REQUESTS",
    "from mcp_types import *; sorted(globals())",
    "import mcp_types; hasattr(mcp_types, 'len')",
    "import mcp_types; [mcp_types.Tool.__module__, mcp_types.Tool is mcp_types._types.Tool]",
    "import mcp_types._types as t; t.PingRequest; sorted(name for name in vars(t) if 'ping' in name)",
    "import pickle, mcp_types; pickle.loads(pickle.dumps(mcp_types.PingRequest.__mro__[1])).__qualname__",
    "import mcp_types, typing; sorted(map(repr, typing.get_type_hints(mcp_types.CallToolResult).items()))",
    "import mcp_types; [mcp_types.Request.__parameters__, mcp_types._types.RequestParamsT.__module__].__repr__()",
    "import mcp_types; mcp_types.client_request_adapter.validate_python({'method': 'ping'}).__class__.__name__",
    "from mcp.server import Server; Server('a').streamable_http_app().routes[0].path",
    "import mcp.server; sorted(dir(mcp.server.auth))",
    "import mcp.server; mcp.server.auth.errors.__name__",
    "import mcp.server.streamable_http as module; module.EventSourceResponse.__module__",
    "from mcp.server.request_state import AESGCM, InvalidTag; [AESGCM.__name__, InvalidTag.__name__]",
    "import cryptography.hazmat.primitives.ciphers as module; module.Cipher.__name__",
    "from mcp.server.connection import _RESULT_FOR as rows; sorted(f'{key} {rows[key]}' for key in rows)",
    "from mcp.server import connection; import mcp_types; connection._RESULT_FOR[mcp_types.PingRequest].__name__",
    "from mcp.server.connection import _LOG_LEVELS; [*_LOG_LEVELS]",
    "from aws_lambda_powertools import Metrics, Tracer; [Metrics.__module__, Tracer.__module__]",
    "import aws_lambda_powertools.logging; aws_lambda_powertools.VERSION",
    "import http.client; http.client.responses[404]",
    "import http.client; issubclass(type('C', (http.client.HTTPConnection,), {}), http.client.HTTPConnection)",
    "import importlib.metadata as metadata; metadata.version('pydantic')",
    "from pydantic.networks import import_email_validator, AnyUrl; str(AnyUrl('http://a/'))",
]


def values_of(programs: list[str], cuts: str = "on") -> Any:
    """The values of programs' last parts, one after the other in one process."""
    return told_by(
        f"""
import sealane
def value(program):
    *parts, last = program.split("; ")
    names = {{}}
    exec("\\n".join(parts), names)
    return eval(last, names)
[value(program) for program in {programs!r}]
""",
        cuts,
    )


@pytest.fixture(scope="module")
def values_without_cuts() -> dict[str, Any]:
    return dict(zip(PROGRAMS, values_of(PROGRAMS, cuts="off"), strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_imports_do_what_they_do_without_cuts(program: str, values_without_cuts: dict[str, Any]) -> None:
    assert values_of([program]) == [values_without_cuts[program]]


def test_a_model_that_inherits_from_one_of_the_sdk_is_built_at_once() -> None:
    assert told_by("""
import sealane
from mcp_types import Tool
class Own(Tool): price: int
complete = Own.__pydantic_complete__
own = Own(name="a", input_schema={}, price=1)
[Tool.__pydantic_complete__, complete, "defer_build" in Own.model_config, own.price]
""") == [False, True, False, 1]


def test_what_fails_at_the_first_use_fails_again_and_works_when_the_reason_is_gone() -> None:
    assert told_by("""
import sealane, mcp
def client():
    try:
        return mcp.Client.__name__
    except ImportError as error:
        return error.name
sys.modules["mcp.client.stdio"] = None
before = [client(), client()]
del sys.modules["mcp.client.stdio"]
[*before, client()]
""") == ["mcp.client.stdio", "mcp.client.stdio", "Client"]


def test_what_is_set_on_a_module_before_its_first_use_stays() -> None:
    assert told_by("""
import sealane, mcp
mcp.Client = 1
[mcp.ClientSession.__name__, mcp.Client]
""") == ["ClientSession", 1]


def test_what_is_not_only_definitions_runs_as_it_is() -> None:
    assert told_by("""
import sealane
from sealane import import_cuts
import_cuts._CUT |= {"mcp.shared.inbound", "mcp_types.version"}
import_cuts._BY_NAME += ("mcp.shared.inbound", "mcp_types.version")
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS
[ERROR_CODE_HTTP_STATUS[-32601], KNOWN_PROTOCOL_VERSIONS[-1]]
""") == [404, "2026-07-28"]


def test_what_only_type_checkers_read_is_there_as_text() -> None:
    program = """
import sealane
from pydantic_core import core_schema
from typing import ForwardRef
def told(value):
    if isinstance(value, ForwardRef):
        return value.__forward_arg__
    if isinstance(value, type) and issubclass(value, dict):
        found = [vars(each).get("__annotations__", {}) for each in reversed(value.__mro__)]
        return [value.__name__, value.__module__, {name: told(part) for each in found for name, part in each.items()}]
    return str(value) if not callable(value) else getattr(value, "__name__", str(value))
schema = core_schema.typed_dict_schema({"a": core_schema.typed_dict_field(core_schema.int_schema(ge=1))})
names = sorted(name for name in vars(core_schema) if name[:2] != "__" and name != "TypedDict")
[{name: told(getattr(core_schema, name)) for name in names}, schema]
"""
    cut, uncut = told_by(program), told_by(program, cuts="off")
    assert cut == uncut
    assert len(cut[0]) > 200
    assert cut[0]["IntSchema"][2]["ge"] == "int"


PLUGIN = """
import sealane
from mcp_types import Tool
Tool.model_rebuild()
[Tool(name="a", input_schema={}).name, "a_plugin" in sys.modules, "importlib.metadata._meta" in sys.modules]
"""


def test_metadata_is_read_where_a_package_is_a_plugin_of_pydantic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    information = tmp_path / "a_plugin-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1\n")
    (tmp_path / "a_plugin.py").write_text(
        "class Plugin:\n    def new_schema_validator(self, *_): return None, None, None\nplugin = Plugin()\n"
    )
    (information / "entry_points.txt").write_text("[console_scripts]\na = a_plugin:main\n")
    assert told_by(PLUGIN) == ["a", False, False]
    (information / "entry_points.txt").write_text("[pydantic]\na_plugin = a_plugin:plugin\n")
    assert told_by(PLUGIN.replace('Tool(name="a", input_schema={}).name', '"a"')) == ["a", True, True]


def test_many_threads_may_be_the_first_to_ask_for_a_definition() -> None:
    assert told_by("""
import sealane, mcp_types, threading, time
from mcp.server.lowlevel import server
from mcp_types import methods
sys.setswitchinterval(1e-6)
barrier, found, made = threading.Barrier(16), [], []
def slow(cls, **options):
    made.append(cls.__name__)
    time.sleep(0.1)
mcp_types.Result.__pydantic_init_subclass__ = classmethod(slow)
def use(number):
    barrier.wait()
    own = [mcp_types.CallToolRequest, mcp_types.CreateTaskResult, server.Starlette]
    own += [methods.CLIENT_REQUESTS["tools/call", "2026-07-28"], methods.CLIENT_REQUESTS["ping", "2025-11-25"]]
    found.append(tuple(own if number % 2 else own[::-1]))
threads = [threading.Thread(target=use, args=[number]) for number in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
[len(found), len({frozenset(each) for each in found}), made]
""") == [16, 1, ["CreateTaskResult"]]


def test_many_threads_may_be_the_first() -> None:
    assert told_by("""
import sealane, mcp, threading, time
from mcp_types import CallToolResult, TextContent
sys.setswitchinterval(1e-6)
barrier, found, built = threading.Barrier(16), [], []
rebuild = CallToolResult.model_rebuild
def slow(**options):
    built.append(time.sleep(0.1))
    return rebuild(**options)
CallToolResult.model_rebuild = slow
def use():
    barrier.wait()
    result = CallToolResult.model_validate({"content": [{"type": "text", "text": "a"}]})
    found.append((mcp.Client, type(result.content[0]), type(result), json.dumps(result.model_dump())))
threads = [threading.Thread(target=use) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
[len(found), len(built), len(set(found)), found[0][:3] == (mcp.Client, TextContent, CallToolResult)]
""") == [16, 1, 1, True]
