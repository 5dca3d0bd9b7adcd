"""What the documents show of generation 1 of the SDK does what they say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.session import DOCUMENTS, check, lambda_variables


@pytest.fixture(scope="session")
def variables() -> Iterator[dict[str, str]]:
    with lambda_variables("LegacyFunction") as found:
        yield found


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if "sdk=1" in (ROOT / each).read_text("utf-8")])
def test_the_document_does_what_it_says(document: str, tmp_path: Path, variables: dict[str, str]) -> None:
    check(document, tmp_path, variables, sdk="1")
