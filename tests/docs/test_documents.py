"""Every document does what it says: commands print what it shows, code runs, messages come back as they stand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import WrongDocument
from tests.docs.session import DOCUMENTS, check, lambda_variables, read
from tests.docs.wire import agrees, filled


@pytest.fixture(scope="session")
def variables() -> Iterator[dict[str, str]]:
    with lambda_variables("StatelessFunction") as found:
        yield found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_document_does_what_it_says(document: str, tmp_path: Path, variables: dict[str, str]) -> None:
    check(document, tmp_path, variables)


def fenced(info: str, source: str) -> str:
    return f"# Heading\n\n```{info}\n{source}\n```\n"


FOUND_OUT = [
    ("text\n\n    make run\n", "3: an indented block"),
    (fenced("", "make run"), "4: nothing says not what this block is: ''"),
    (fenced("shell", "make run"), "4: shell says not"),
    (fenced("python slow", "pass"), "4: slow says not"),
    ("text\n\n<!-- setup: pyton\npass\n-->\n", "4: pyton says not"),
    (fenced("python", "\nundefined"), "line 5, in <module>\n    undefined\n"),
    (fenced("python", "raise SystemExit"), "SystemExit"),
    (fenced("python", "await nothing("), "SyntaxError"),
    (fenced("python", "import os\nos._exit(0)"), "Python has ended"),
    (fenced("python file=functions/stateless/server.py", "import nowhere"), "No module named 'nowhere'"),
    (fenced("console", "make run"), "4: output of no command"),
    (fenced("console", "$ echo one\none\n$ echo two\nthree"), "6: $ echo two\n\nexpected:\nthree\n\nseen:\ntwo"),
    (fenced("console", "$ echo one"), "expected:\nnothing\n\nseen:\none"),
    (fenced("console", "$ echo one; echo two\none"), "seen:\none\ntwo"),
    (fenced("console", "$ false"), "exit status 1"),
    (fenced("console", "$ exit 0"), "exit status -1"),
    (fenced("console fails", "$ false\n$ false"), "4: $ false\n\nexit status 1"),
    (fenced("console fails", "$ true\n$ true"), "5: $ true\n\nexit status 0"),
    (fenced("console background", "$ .venv/bin/sealane run --port x\nServing ..."), "Invalid value for '--port'"),
    (fenced("console needs=minutes", "$ make nothing"), "No rule to make target 'nothing'"),
    (fenced("console needs=aws", "$ .venv/bin/sealane keys list --all"), "No such option: --all"),
    (fenced("console needs=aws", "$ sealane keys list"), "sealane: command not found"),
    (fenced("console needs=aws", "$ sam deploy"), "sam: not found"),
    (fenced("console needs=aws", "$ cd nowhere"), "nowhere: No such file or directory"),
    (fenced("console needs=aws", "$ X=1 .venv-sam/bin/sam deploy --all"), "sam deploy has no --all"),
    (fenced("console needs=claude", "$ claude 'mcp"), "unexpected EOF"),
    (fenced("yaml", "a: b: c"), "4: mapping values are not allowed"),
    (fenced("json file=a/b.json", "{"), "4: Expecting property name"),
    (fenced("toml", "a"), "4: Expected '='"),
    (fenced("yaml template", "a: b: c"), "4: mapping values are not allowed"),
    (fenced("json response", '{"id": 1}'), 'expected:\n{"id": 1}\n\nseen:\nnull'),
]


@pytest.mark.parametrize(("text", "failure"), FOUND_OUT, ids=range(len(FOUND_OUT)))
def test_a_document_that_does_something_else_is_found_out(
    text: str, failure: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    document = tmp_path / "document.md"
    document.write_text(text)
    with pytest.raises(WrongDocument) as found:
        read(document, tmp_path, variables)
    assert str(found.value).startswith(f"{document}:")
    assert failure in str(found.value)


@pytest.mark.parametrize(
    ("expected", "seen", "agree"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "...": "..."}, {"a": 1, "b": 2}, True),
        ({"a": 1, "...": "..."}, {"b": 2}, False),
        ({"a": "..."}, {"a": [1]}, True),
        ({"a": "..."}, {}, False),
        ([1, "..."], [1, 2], True),
        ([1, "..."], [2, 2], False),
        ([1], [1, 2], False),
    ],
)
def test_messages_agree_in_all_that_is_shown(expected: object, seen: object, agree: bool) -> None:
    assert agrees(expected, seen) is agree


def test_what_a_request_leaves_out_is_what_the_last_answer_has() -> None:
    answers = [{"result": [{"state": "new"}]}, {"state": "old", "handle": "h"}]
    asked = {"params": {"state": "...", "list": [{"handle": "..."}], "n": 1}}
    assert filled(asked, answers) == {"params": {"state": "new", "list": [{"handle": "h"}], "n": 1}}
    with pytest.raises(KeyError, match="no answer before has 'id'"):
        filled({"id": "..."}, answers)
