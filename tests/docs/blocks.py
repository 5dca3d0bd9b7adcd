"""The code blocks of a document, and what their info strings say.

| block | what becomes of it |
|---|---|
| `python` | goes on where the document's last one ended; top-level `await` is allowed |
| `python`, `yaml`, `json`, `toml` with `file=PATH` | is written to that file of the project; Python is imported |
| `console` | lines after `$ ` are commands, the others what they print: `...` is any text, alone on a line any lines |
| `console background` | a server, which prints this first and goes on until the document ends |
| `console fails` | the last command's exit status is not 0 |
| `console needs=WORD` | cannot be run here, for want of WORD: commands, subcommands and options have to exist |
| `yaml`, `json`, `toml` | is parsed |
| `yaml template` | is merged into `template.yaml`, translated and linted |
| `json request` | is sent to the document's server; `"..."` is the value of that name in the last answer that has one |
| `json response` | is the next message that came back; `"..."` is any value, and `"...": "..."` any further members |
| `text` | a picture |

What is written into the folder of a function that a server has is served when the next block comes.

With `sdk=1` a block belongs to a session and a project of their own, with generation 1 of the SDK. What a page does not
show, but its blocks need, is in a comment that begins with `<!-- setup:` and the info string.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

__all__ = ["MARKDOWN", "ROOT", "Block", "WrongDocument", "blocks"]

ROOT: Final = Path(__file__).parents[2]
MARKDOWN: Final = MarkdownIt("commonmark").enable("table")
"""Markdown as GitHub has it, as far as these documents use it."""

_FORMS: Final = {
    "console": {"background", "fails", "needs", "sdk"},
    "json": {"file", "request", "response", "sdk"},
    "python": {"file", "sdk"},
    "text": set[str](),
    "toml": {"file", "sdk"},
    "yaml": {"file", "template", "sdk"},
}
"""Words that may follow a language."""
_SETUP: Final = re.compile(r"<!-- setup: (?P<info>[^\n]+)\n(?P<source>.*?)-->", re.DOTALL)


class WrongDocument(Exception):
    """A document that does not do what it says; the text names file and line."""


@dataclass(frozen=True)
class Block:
    """One code block.

    Attributes:
        document: the document's path.
        line: the number of the block's first line of code.
        language: the first word of the info string.
        words: its other words, with what is behind their `=`.
        source: the code.
    """

    document: Path
    line: int
    language: str
    words: dict[str, str]
    source: str

    def wrong(self, text: str, line: int | None = None) -> WrongDocument:
        """The error that says what is wrong with this block, or with one of its lines."""
        return WrongDocument(f"{_shown(self.document)}:{line or self.line}: {text}")


def blocks(document: Path) -> list[Block]:
    """The code blocks of a document, in order.

    Raises:
        WrongDocument: a block is indented, or its info string is none of the above.
    """
    found = []
    for token in MARKDOWN.parse(document.read_text("utf-8")):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "code_block":
            raise WrongDocument(f"{_shown(document)}:{line}: an indented block, which cannot say what it is")
        if token.type == "fence":
            found.append(_block(document, line + 1, token.info, token.content))
        elif token.type == "html_block" and (setup := _SETUP.match(token.content)):
            found.append(_block(document, line + 1, setup["info"], setup["source"]))
    return found


def _block(document: Path, line: int, info: str, source: str) -> Block:
    language, *rest = info.split() or [""]
    words = {name: value for name, _, value in (word.partition("=") for word in rest)}
    block = Block(document, line, language, words, source)
    if unknown := [language] if language not in _FORMS else words.keys() - _FORMS[language]:
        raise block.wrong(f"{' '.join(unknown) or 'nothing'} says not what this block is: {info!r}")
    return block


def _shown(document: Path) -> Path:
    return document.relative_to(ROOT) if document.is_relative_to(ROOT) else document
