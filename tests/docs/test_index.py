"""docs/README.md leads to every document. Whether what it leads to is there, tests/docs/test_links.py asks."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
INDEX = DOCS / "README.md"


def test_the_index_has_every_document() -> None:
    listed = re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \|", INDEX.read_text("utf-8"), re.MULTILINE)
    assert {path.name for path in DOCS.glob("*.md")} - {INDEX.name} - set(listed) == set()
