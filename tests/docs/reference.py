"""Makes docs/reference.md of the code and its docstrings: `python -m tests.docs.reference --write`."""

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, cast

import griffe
import mcp_types
import typer
import yaml
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from sealane.local.cli import app
from sealane.local.template import _read
from tests.docs.blocks import ROOT

__all__ = ["LAYER", "PAGE", "Source", "errors", "page", "sources", "variables"]

PAGE: Final = ROOT / "docs" / "reference.md"
LAYER: Final = ROOT / "layers" / "sealane"

_PUBLIC: Final = ("sealane", "sealane.legacy", "sealane.local.testing")
_OPTIONS: Final = {
    "both handlers": ("sealane.policy.options.EndpointOptions", "The options that both handlers have."),
    "create_mcp_handler": ("sealane.options.HandlerOptions", "And these:"),
    "create_legacy_mcp_handler": ("sealane.legacy.options.LegacyOptions", "And these:"),
    "route_by_era": ("sealane.routing.route_by_era", "Its arguments:"),
    "Catalog.tool": ("sealane.catalog.Catalog.tool", "Beside the arguments of `MCPServer.tool`:"),
}
_EXAMPLES: Final = {
    "sealane": """\
The examples go on from here:

```python
from sealane import Catalog, DynamoDBSubscriptionBus, HandleStore, LegacyFunction
from sealane import create_mcp_handler, once, publish_change, route_by_era

from mcp.server.mcpserver import MCPServer
```

<!-- setup: python
import anyio
from sealane import Principal, principal_context

caller = principal_context(Principal("a-client"))
caller.__enter__()
await anyio.lowlevel.checkpoint()
-->
""",
    "sealane.legacy": """\
```python sdk=1
from mcp.server.fastmcp import FastMCP
from sealane.legacy import create_legacy_mcp_handler

mcp = FastMCP("old-server")
```
""",
}
"""What the examples in docstrings go on from."""
_OF_LAMBDA: Final = re.compile(r"AWS_LAMBDA_\w+|AWS_SAM_LOCAL|AWS_XRAY_DAEMON_ADDRESS|_HANDLER|_X_AMZN_TRACE_ID")
_OF_LAMBDA_AT: Final = "https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html"
_NAME_OF_OURS: Final = re.compile(r"(?:SEALANE|POWERTOOLS)_[A-Z_]+")
_OF_THE_SDK: Final = "(the SDK's)"
_SENTENCE: Final = re.compile(r"(-32\d{3}|\b[2-5]\d\d) ((?:for|when|while|after) .+?)(?=[.;:] |[.;]?$|, and \d{3} )")
"""A docstring's word on a status or code: `404 for a path that is not served`."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


# The source


@dataclass(frozen=True)
class Source:
    """A file of Python.

    Args:
        name: the module's name.
        tree: what is in it.
    """

    name: str
    tree: ast.Module

    @property
    def constants(self) -> Iterator[tuple[str, str, str | None]]:
        """Name, value and docstring of each text that the module gives a name."""
        for node, following in zip(self.tree.body, [*self.tree.body[1:], None], strict=True):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                    pass
                case _:
                    continue
            match following:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield name, text, " ".join(docstring.split())
                case _:
                    yield name, text, None


@cache
def sources() -> tuple[Source, ...]:
    """The package, and what builds its artefacts."""
    paths = [*sorted((LAYER / "sealane").rglob("*.py")), LAYER / "build_artefact.py"]
    return tuple(
        Source(".".join(path.relative_to(LAYER).with_suffix("").parts), ast.parse(path.read_text())) for path in paths
    )


def _functions(tree: ast.AST, outer: Function | None = None) -> Iterator[tuple[Function | None, ast.AST]]:
    """Every node below, with the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        yield outer, node
        yield from _functions(node, node if isinstance(node, Function) else outer)


# Environment variables


def variables(among: Sequence[Source]) -> dict[str, str]:
    """The environment variables that are read, with what they mean.

    Raises:
        LookupError: one has no docstring below the constant that names it.
    """
    values = {name: text for source in among for name, text, _ in source.constants}
    meanings = {text: docstring for source in among for _, text, docstring in source.constants if docstring}
    options = [each for _, command in _commands() for each in _parameters(command)]
    meanings |= {
        str(each.envvar): str(each.help) for each in options if each.envvar and str(each.envvar) not in meanings
    }
    read = {
        name for source in among for node in ast.walk(source.tree) if (name := _read_variable(node, values)) is not None
    }
    if missing := {name for name in read if name not in meanings and not _OF_LAMBDA.fullmatch(name)}:
        raise LookupError(f"no docstring says what these environment variables mean: {', '.join(sorted(missing))}")
    return {name: meanings.get(name, "") for name in sorted(read)}


def _read_variable(node: ast.AST, values: Mapping[str, str]) -> str | None:
    """The environment variable that is read here, if it is named: by a text, or by a constant of some module."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="get" | "pop"), args=[name, *_]) if _is_environ(value):
            pass
        case ast.Subscript(value=value, slice=name) if _is_environ(value):
            pass
        case ast.Compare(left=name, ops=[ast.In()], comparators=[value]) if _is_environ(value):
            pass
        case ast.keyword(arg="envvar", value=name):
            pass
        case ast.Constant(value=str(text)) if _NAME_OF_OURS.fullmatch(text):
            return text
        case _:
            return None
    match name:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=constant):
            return values.get(constant)
    raise LookupError(f"the environment variable in `{ast.unparse(node)}` has no name")


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) == "os.environ"


def _who_sets(name: str) -> str:
    """Who gives a variable its value: the template, from which parameters, or you."""
    document: Any = _read(ROOT / "template.yaml")
    groups = [document["Globals"]["Function"], *(each.get("Properties", {}) for each in document["Resources"].values())]
    set_here = [group["Environment"]["Variables"][name] for group in groups if name in _variables_of(group)]
    if not set_here:
        return "you"
    named = {each for value in set_here for each in re.findall(r"\w+", yaml.dump(value))} & {*document["Parameters"]}
    return f"the template, from {', '.join(f'`{each}`' for each in sorted(named))}" if named else "the template"


def _variables_of(properties: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], properties.get("Environment", {}).get("Variables", {}))


def _variables_table() -> Iterator[str]:
    meanings = variables(sources())
    of_lambda = [name for name in meanings if not meanings[name]]
    yield from _table("variable", "set by", "meaning")
    for name, meaning in meanings.items():
        if meaning:
            yield _row(f"`{name}`", _who_sets(name), meaning)
    names = ", ".join(f"`{name}`" for name in of_lambda)
    yield _row(names, "Lambda; SAM CLI", f"[Lambda's own]({_OF_LAMBDA_AT}), and the sign of `sam local`")


# Errors


@dataclass(frozen=True, order=True)
class Error:
    """An error that clients get.

    Args:
        code: of JSON-RPC.
        status: of HTTP.
        text: its message; what is different each time is `…`.
        when: when they get it.
    """

    code: int
    status: int
    text: str
    when: str


def errors(among: Sequence[Source]) -> list[Error]:
    """The JSON-RPC errors that are made here, by code and status.

    Raises:
        LookupError: the docstring of the function that makes one does not say when.
    """
    found = set[Error]()
    for source in among:
        constants = {name: text for name, text, _ in source.constants}
        for function, node in _functions(source.tree):
            match node:
                case ast.Call(func=ast.Name(id="RequestRejected"), args=[status, code, text]):
                    found.update(_made(source, function, constants, status, code, text))
                case ast.Call(func=ast.Name(id="MCPError"), args=[code, text]):
                    found.update(_made(source, function, constants, None, code, text))
    return sorted(found)


def _made(
    source: Source,
    function: Function | None,
    constants: Mapping[str, str],
    status: ast.expr | None,
    code: ast.expr,
    text: ast.expr,
) -> Iterator[Error]:
    """The errors that one call makes: one for each status and text that it can have."""
    assert function is not None
    when = dict(_SENTENCE.findall(" ".join((ast.get_docstring(function) or "").split())))
    for by in [each for each in when if each.startswith("-")]:
        made_here = (argument for node in ast.walk(function) if isinstance(node, ast.Call) for argument in node.args)
        if int(by) in map(_number, made_here):
            continue
        # What the SDK says, and this function passes on.
        yield Error(int(by), ERROR_CODE_HTTP_STATUS[int(by)], _OF_THE_SDK, when[by])
    if (number := _number(code)) is None:
        if not when and not (ast.get_docstring(function) or "").startswith("The refusal that the SDK sent"):
            raise LookupError(f"the docstring of {source.name}.{function.name} does not say which codes there are")
        return
    if status is not None:
        statuses = [*_numbers(status, function)]
    else:
        # The handshake revisions answer every error of a method with 200.
        statuses = [200 if source.name == "sealane.compatibility" else ERROR_CODE_HTTP_STATUS.get(number, 200)]
    for each in statuses:
        key = str(number) if status is None or str(number) in when else str(each)
        if key not in when:
            raise LookupError(f"the docstring of {source.name}.{function.name} does not say when there is a {key}")
        for words in _texts(text, function, constants):
            yield Error(number, each, words, when[key])


def _number(node: ast.AST) -> int | None:
    """The JSON-RPC code that a name stands for."""
    found = getattr(mcp_types, node.id, None) if isinstance(node, ast.Name) else None
    return found if isinstance(found, int) else None


def _numbers(node: ast.expr, function: Function) -> Iterator[int]:
    match node:
        case ast.Constant(value=int(number)):
            yield number
        case ast.IfExp(body=body, orelse=orelse):
            yield from _numbers(body, function)
            yield from _numbers(orelse, function)
        case ast.Name(id=name):
            for value in _assigned(name, function):
                yield from _numbers(value, function)


def _texts(node: ast.expr, function: Function, constants: Mapping[str, str]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(next(_texts(value, function, constants)) for value in values)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in constants:
            yield constants[name]
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, function, constants)
            yield from _texts(orelse, function, constants)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="format")) if name in constants:
            yield re.sub(r"\{\w*\}", "…", constants[name])
        case ast.Name(id=name) if name in constants:
            yield constants[name]
        case ast.Name(id=name) if assigned := _assigned(name, function):
            for value in assigned:
                yield from _texts(value, function, constants)
        case _:
            yield "…"


def _assigned(name: str, function: Function) -> list[ast.expr]:
    """What a function gives a name of its own."""
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id == name
    ]


def _errors_table() -> Iterator[str]:
    yield from _table("code", "HTTP", "text", "when")
    for (code, status, text), same in groupby(errors(sources()), key=attrgetter("code", "status", "text")):
        shown = text if text in (_OF_THE_SDK, "…") else f"`{text}`"
        yield _row(str(code), str(status), shown, "; ".join(error.when for error in same))


# Commands


Parameter = TyperArgument | TyperOption


@cache
def _commands() -> list[tuple[str, TyperCommand]]:
    """Every command that does something, by its whole name."""

    def below(name: str, command: object) -> Iterator[tuple[str, TyperCommand]]:
        if isinstance(command, TyperGroup):
            for each in command.commands.values():
                yield from below(f"{name} {each.name}", each)
        elif isinstance(command, TyperCommand):
            yield name, command

    return sorted(below("sealane", typer.main.get_command(app)), key=lambda each: each[0])


def _parameters(command: TyperCommand) -> list[Parameter]:
    return [each for each in command.params if isinstance(each, TyperArgument | TyperOption)]


def _commands_table() -> Iterator[str]:
    yield from _table("command", "argument or option", "default", "what")
    for name, command in _commands():
        yield _row(f"`{name}`", "", "", command.help or "")
        for each in _parameters(command):
            default = "" if each.required or each.default in (None, False) else f"`{each.default}`"
            yield _row("", f"`{_spelled(each)}`", default, each.help or "")


def _spelled(parameter: Parameter) -> str:
    if isinstance(parameter, TyperArgument):
        return parameter.metavar or str(parameter.name).upper()
    return parameter.opts[0] + ("" if parameter.is_flag else f" {parameter.metavar or str(parameter.name).upper()}")


# Docstrings


@cache
def _package() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[LAYER], docstring_parser="google")
    loader.load("sealane")
    loader.resolve_aliases(external=False)
    return loader.modules_collection


def _object(path: str) -> griffe.Object:
    return _target(_package()[path])


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    """What a name stands for, wherever it is defined."""
    return found.final_target if isinstance(found, griffe.Alias) else found


def _sections(of: griffe.Object) -> list[griffe.DocstringSection]:
    return of.docstring.parse("google") if of.docstring else []


def _arguments(of: griffe.Object) -> Iterator[griffe.DocstringNamedElement]:
    for section in _sections(of):
        if section.kind is griffe.DocstringSectionKind.parameters:
            yield from section.value


def _options_table(path: str) -> Iterator[str]:
    """What the docstring of an object says of its arguments, with their defaults."""
    of = _object(path)
    yield from _table("option", "default", "what")
    for argument in _arguments(of):
        if not argument.name.startswith("*") and argument.name != "options":
            yield _row(f"`{argument.name}`", _default_of(of, argument.name), argument.description)


def _default_of(of: griffe.Object, name: str) -> str:
    parameters = cast(griffe.Class | griffe.Function, of).parameters
    default = str(parameters[name].default or "") if name in parameters else ""
    return "" if default in ("", "None") or default.startswith("_") else f"`{default}`"


def _names(module: str) -> Iterator[str]:
    """Every public name of a module."""
    listed = _package()[module].exports or []
    for name in sorted({str(each) for each in listed}, key=str.lower):
        of = _object(f"{module}.{name}")
        yield f"### {name}"
        yield from _described(of, module)
        if of.is_class:
            for member in _members(cast(griffe.Class, of)):
                yield f"#### {name}.{member.name}"
                yield from _described(member, module)


def _members(of: griffe.Class) -> Iterator[griffe.Object]:
    for name, member in of.all_members.items():
        target = _target(member)
        is_public = not name.startswith("_") or name == "__call__"
        # Who carries out a protocol says no more than that.
        if is_public and target.docstring and not target.docstring.value.startswith("See `"):
            yield target


def _described(of: griffe.Object, module: str) -> Iterator[str]:
    """Signature and docstring."""
    is_options = of.path in {path for path, _ in _OPTIONS.values()}
    yield ""
    yield f"`{_signature(of, short=is_options)}`"
    for section in _sections(of):
        yield ""
        match section:
            case griffe.DocstringSectionText(value=text):
                yield from _fenced(text, "python sdk=1" if module == "sealane.legacy" else "python")
            case griffe.DocstringSectionParameters() if is_options:
                yield "Arguments: [options](#options)."
            case griffe.DocstringSectionParameters(value=elements) | griffe.DocstringSectionAttributes(value=elements):
                yield from (f"- `{each.name}`: {_line(each.description)}" for each in elements)
            case griffe.DocstringSectionRaises(value=elements):
                yield from (f"- raises `{each.annotation}`: {_line(each.description)}" for each in elements)
            case griffe.DocstringSectionReturns(value=elements):
                yield from (f"- returns: {_line(each.description)}" for each in elements)
            case _:
                raise LookupError(f"the docstring of {of.path} has a section {section.kind}")
    yield ""


def _signature(of: griffe.Object, *, short: bool) -> str:
    match of:
        case griffe.Function():
            awaited = "async " if "async" in of.labels else ""
            return awaited + re.sub(r"\((?:self|cls)(?:, )?", "(", of.signature(return_type=True), count=1)
        case griffe.Class():
            bases = ", ".join(str(base).rpartition(".")[2] for base in of.bases)
            if "__init__" in of.members and not short:
                return f"class {of.signature()}"
            return f"class {of.name}({bases})" if bases else f"class {of.name}"
        case griffe.Attribute():
            annotation = f": {of.annotation}" if of.annotation is not None else ""
            value = f" = {of.value}" if "property" not in of.labels and of.value is not None else ""
            return f"{of.name}{annotation}{value}"
    raise LookupError(f"{of.path} is a {of.kind}")


def _fenced(text: str, fence: str) -> Iterator[str]:
    """A docstring's text; what is indented in it is code."""
    for is_code, lines in groupby(_code_marked(text.split("\n")), key=itemgetter(0)):
        block = "\n".join(line for _, line in lines).strip("\n")
        yield f"\n```{fence}\n{textwrap.dedent(block)}\n```\n" if is_code else block


def _code_marked(lines: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it is code: it is indented, or it is empty and the next that is not is indented."""
    for number, line in enumerate(lines):
        yield next((each.startswith("    ") for each in lines[number:] if each), False), line


# The page


def _line(text: str) -> str:
    return " ".join(text.split())


def _row(*cells: str) -> str:
    return "|" + "".join(f" {text} |" if (text := _line(cell).replace("|", r"\|")) else " |" for cell in cells)


def _table(*heads: str) -> Iterable[str]:
    return _row(*heads), "|" + "---|" * len(heads)


def _lines() -> Iterator[str]:
    yield """\
# Reference

Made from the code and its docstrings by `python -m tests.docs.reference --write`; a test fails when they differ.

Parameters of the template, with what they cost: [the template](template.md#parameters). Fields of the log:
[telemetry](telemetry.md#the-line-of-a-request). Metrics, with unit and dimensions: [telemetry](telemetry.md#metrics).
What to do about an error: [troubleshooting](troubleshooting.md).

## Options

They are given by keyword. Where no default is shown it is `None`, or there is none."""
    for name, (path, introduction) in _OPTIONS.items():
        yield f"\n### Options of {name}\n\n{introduction}\n"
        yield from _options_table(path)
    yield """
## Errors

JSON-RPC errors as clients get them; `…` is different each time. Why it is so is in the log, in the field `reason`.
Besides, the MCP SDK answers what a method finds wrong with its parameters (-32602), and methods that there are not
(-32601). Errors of tools are results with `isError`. Errors that are made while a method runs have the HTTP status 200
for legacy requests.
"""
    yield from _errors_table()
    yield """
## Environment variables

Powertools and OpenTelemetry read further ones: [telemetry](telemetry.md#environment-variables).
"""
    yield from _variables_table()
    yield "\n## Commands\n"
    yield from _commands_table()
    for module in _PUBLIC:
        yield f"\n## {module}\n"
        yield _EXAMPLES.get(module, "")
        yield from _names(module)


def page() -> str:
    """The whole page."""
    # Two empty lines are between functions of an example only.
    return re.sub(r"\n{3,}(?!@|def )", "\n\n", "\n".join(_lines())).rstrip() + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page(), end="")
