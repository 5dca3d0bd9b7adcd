"""The links of the documents.

python -m tests.docs.links    asks for every page of the web that they lead to, and names those that are not there
"""

import posixpath
import re
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import httpx2
from markdown_it.token import Token

from tests.docs.blocks import MARKDOWN, ROOT
from tests.docs.project import tracked

__all__ = ["dead_links", "links"]


class _Html(HTMLParser):
    """The links of HTML in a document."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "src") and value]


def links(document: Path) -> Iterator[tuple[int, str]]:
    """Line number and target of each link and picture of a document."""
    for line, token in _tokens(document):
        if target := token.attrs.get("href" if token.type == "link_open" else "src"):
            yield line, str(target)
        elif token.type in ("html_inline", "html_block"):
            html = _Html()
            html.feed(token.content)
            yield from ((line, target) for target in html.found)


def dead_links(document: Path, root: Path = ROOT) -> list[str]:
    """What is wrong with a document's links: one text each, with file and line.

    A relative link has to lead to what git tracks, with an anchor to a heading of a document; a URL has to be
    a whole one.
    """
    files = {path.as_posix() for path in tracked(root)}
    folders = {str(parent) for file in files for parent in PurePosixPath(file).parents}
    here = document.relative_to(root).as_posix()
    found = []
    for line, target in links(document):
        url = urlsplit(target)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), unquote(url.path))) if url.path else here
        if url.scheme or url.netloc:
            right = url.scheme == "https" and bool(url.hostname) and not re.search(r"\s", target)
        elif url.fragment:
            right = path in files and path.endswith(".md") and unquote(url.fragment) in _anchors(root / path)
        else:
            right = path in files | folders
        if not right:
            found.append(f"{here}:{line}: {target} leads nowhere")
    return found


def _anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives a document's headings.

    https://docs.github.com/en/get-started/writing-on-github/getting-started-with-writing-and-formatting-on-github/basic-writing-and-formatting-syntax#section-links
    """
    anchors: set[str] = set()
    used: Counter[str] = Counter()
    tokens = MARKDOWN.parse(document.read_text("utf-8"))
    for opening, heading in pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in heading.children or [])
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            anchors.add(f"{slug}-{used[slug]}" if used[slug] else slug)
            used[slug] += 1
    return anchors


def _tokens(document: Path) -> Iterator[tuple[int, Token]]:
    for token in MARKDOWN.parse(document.read_text("utf-8")):
        line = token.map[0] + 1 if token.map else 0
        yield line, token
        for child in token.children or []:
            line += child.type in ("softbreak", "hardbreak")
            yield line, child


def main() -> None:
    """Asks for every URL once."""
    places: dict[str, str] = {}
    for path in tracked():
        if path.suffix == ".md":
            for line, target in links(ROOT / path):
                if urlsplit(target).scheme:
                    places.setdefault(target.partition("#")[0], f"{path}:{line}")
    dead = 0
    with httpx2.Client(follow_redirects=True, timeout=30, headers={"User-Agent": "Mozilla/5.0"}) as client:
        for url, place in places.items():
            try:
                came = str(client.get(url).status_code)
            except httpx2.HTTPError as error:
                came = repr(error)
            if came != "200":
                dead += 1
                print(f"{place}: {url}: {came}")
    print(f"{len(places) - dead} of {len(places)} pages are there")
    sys.exit(dead > 0)


if __name__ == "__main__":
    main()
