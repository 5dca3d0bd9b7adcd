"""Every link of the documents leads somewhere. What is not of this repository is looked up by `tests.docs.links`."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.links import dead_links
from tests.docs.session import DOCUMENTS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    assert dead_links(ROOT / document) == []


LINKS = """# The `first` heading, twice

[file](sub/there.txt), [folder](sub), [heading](#the-first-heading-twice), [again](#the-first-heading-twice-1),
[other](sub/other.md#überschrift), ![picture](sub/there.txt), <https://example.com>, <img src="sub/there.txt">

# The `first` heading, twice

[no file](sub/nowhere.txt)
[not tracked](sub/new.txt) [no heading](#second),
[no heading there](sub/other.md#first), [no heading of a document](sub/there.txt#first), ![no picture](nowhere.png),
[no host](https:///page), [no encryption](http://example.com), <img src="nowhere.svg">
"""


def test_dead_links_are_found(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(LINKS)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "there.txt").touch()
    (tmp_path / "sub" / "other.md").write_text("## Überschrift\n")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)  # noqa: S603, S607
    (tmp_path / "sub" / "new.txt").touch()
    assert dead_links(document, tmp_path) == [
        f"document.md:{line}: {target} leads nowhere"
        for line, target in [
            (8, "sub/nowhere.txt"),
            (9, "sub/new.txt"),
            (9, "#second"),
            (10, "sub/other.md#first"),
            (10, "sub/there.txt#first"),
            (10, "nowhere.png"),
            (11, "https:///page"),
            (11, "http://example.com"),
            (11, "nowhere.svg"),
        ]
    ]
