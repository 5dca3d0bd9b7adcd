"""The tables of the documents are what the code says."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from sealane.telemetry import Metric
from tests.docs.blocks import ROOT
from tests.docs.reference import PAGE, Source, errors, page, sources, variables

TELEMETRY = (ROOT / "docs" / "telemetry.md").read_text()


def source(text: str) -> Source:
    return Source("sealane.some", ast.parse(text))


def listed(heading: str) -> Iterator[tuple[str, list[str]]]:
    """The names of each row of a table in docs/telemetry.md, and the row's other cells."""
    section = TELEMETRY.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
            yield first, others


def names(heading: str) -> list[str]:
    return [name for first, _ in listed(heading) for name in re.findall(r"`(\w+)`", first)]


def telemetry() -> ast.Module:
    [found] = [each.tree for each in sources() if each.name == "sealane.telemetry"]
    return found


def texts(*nodes: ast.AST) -> set[str]:
    return {
        each.value
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.docs.reference --write"


@pytest.mark.parametrize(
    "read",
    [
        'os.environ.get("SEALANE_NEW")',
        'os.environ["OTHER_NEW"]',
        '"OTHER_NEW" in os.environ',
        'setting("SEALANE_NEW")',
        'NEW: Final = "OTHER_NEW"\nos.environ.get(NEW, "")',
    ],
)
def test_a_variable_that_is_not_documented_is_found(read: str) -> None:
    with pytest.raises(LookupError, match=r"mean: \w+_NEW$"):
        variables([*sources(), source(read)])


def test_a_variable_that_is_documented_is_listed() -> None:
    made = source('NEW: Final = "OTHER_NEW"\n"""What it\nmeans."""\nos.environ.get(NEW)')
    assert variables([made])["OTHER_NEW"] == "What it means."


@pytest.mark.parametrize("docstring", ["", "415 for another status.", "404, though not when."])
def test_an_error_that_is_not_documented_is_found(docstring: str) -> None:
    made = source(f'def refuse():\n    """{docstring}"""\n    raise RequestRejected(404, INVALID_REQUEST, "Gone")')
    with pytest.raises(LookupError, match="refuse does not say when there is a 404"):
        errors([made])


def test_an_error_that_is_documented_is_listed() -> None:
    made = source('''
def refuse(name):
    """Refuse.

    Raises:
        RequestRejected: 404 for what is not
            there; 415 for what is.
    """
    text = f"Gone: {name}"
    raise RequestRejected(404, INVALID_REQUEST, text)
''')
    [error] = errors([made])
    assert error == replace(error, code=-32600, status=404, text="Gone: …", when="for what is not there")


def test_the_metrics_are_listed_with_their_units() -> None:
    assert names("Metrics") == [*get_args(Metric)]
    assert {units[0] for first, units in listed("Metrics") if "Latency" not in first} == {"Count"}
    assert [units[0] for first, units in listed("Metrics") if "Latency" in first] == ["Milliseconds"]


def test_the_words_of_a_refusal_are_listed() -> None:
    words = re.search(r"`reason` is one of ((?:`[a-z-]+`[,.]\s+)+)", TELEMETRY)
    assert words is not None
    made = set[str]()
    for node in ast.walk(telemetry()):
        match node:
            case ast.AnnAssign(target=ast.Name(id="_BY_CODE" | "_BY_STATUS"), value=ast.Dict(values=values)):
                made |= texts(*values)
            case ast.Return(value=ast.IfExp(body=body, orelse=orelse)):
                made |= texts(body, orelse)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_BY_STATUS"), attr="get"), args=[_, default]):
                made |= texts(default)
            case ast.Assign(targets=[ast.Attribute(attr="_refused_for")], value=ast.Constant() as value):
                made |= texts(value)
    assert re.findall(r"`([a-z-]+)`", words[1]) == sorted(made)


def test_the_fields_of_the_log_are_listed() -> None:
    made = {"trace_id"}
    for node in ast.walk(telemetry()):
        match node:
            case ast.Call(func=ast.Name(id="_put"), args=[_, ast.Constant(value=str(key)), _]):
                made.add(key)
            case ast.Subscript(value=ast.Name(id="keys") | ast.Attribute(attr="keys"), slice=key, ctx=ast.Store()):
                made |= texts(key)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="keys"), attr="update"), keywords=keywords):
                made |= {each.arg for each in keywords if each.arg is not None}
            case ast.AnnAssign(target=ast.Name(id="REQUEST_FIELDS"), value=ast.Tuple(elts=fields)):
                made |= texts(*fields)
            case ast.AnnAssign(target=ast.Name(id="_NAMED"), value=ast.Dict(values=values)):
                made |= {value.elts[0].value for value in values if isinstance(value, ast.Tuple)}  # type: ignore[attr-defined]
    assert {*names("The line of a request"), "trace_id"} == made
