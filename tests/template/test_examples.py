"""The templates of the examples: small, and in what they have as strict as ours."""

from pathlib import Path
from typing import Any

import pytest

from tests.template.conftest import ROOT, Sam
from tests.template.test_artefact import RUNTIME
from tests.template.test_rules import circle, findings
from tests.template.translation import Translated

EXAMPLES = ROOT / "examples"
GIVEN = {"notebook": {"AuthIssuer": "https://issuer.example.com", "AuthAudience": "notebook"}}
"""Parameters that have no default."""
WITH_DATA = ["approval", "notebook"]
ALL = [*WITH_DATA, "http_api"]


def translated(example: str) -> Translated:
    return Translated(GIVEN.get(example, {}), EXAMPLES / example / "template.yaml")


def test_all_of_them_are_known_here() -> None:
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/template.yaml")) == sorted(ALL)


@pytest.mark.parametrize("example", ALL)
def test_it_keeps_the_rules(example: str) -> None:
    assert findings(translated(example)) == set()
    assert circle(translated(example).template["Resources"]) == []


@pytest.mark.parametrize("example", WITH_DATA)
def test_rights_and_keys_are_those_of_our_template(example: str) -> None:
    own, ours = translated(example), Translated({})
    for name in ("DataTable", "StatelessFunctionRole", "StatelessPolicy"):
        assert own.resolve(own.resources[name]["Properties"]) == ours.resolve(ours.resources[name]["Properties"]), name
    rights = []
    for each in (own, ours):
        key: Any = each.resolve(each.resources["Key"]["Properties"])
        statements = {statement["Sid"]: statement for statement in key["KeyPolicy"]["Statement"]}
        # That is for whoever uses the table, which may be more functions than ours.
        del statements["TableEncryption"]
        rights.append(statements)
    assert rights[0] == rights[1]


@pytest.mark.parametrize("example", ALL)
def test_sam_finds_nothing_in_it(sam: Sam, example: str) -> None:
    checked = sam("validate", "--lint", "--template-file", str(EXAMPLES / example / "template.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("example", ALL)
def test_it_is_built_as_the_others_are(example: str) -> None:
    """So that the next test speaks for all."""
    own, other = ({**each.document["Resources"]} for each in (translated(example), translated("http_api")))
    assert own["SealaneLayer"] == other["SealaneLayer"]
    for name, resource in own.items():
        if resource["Type"] == "AWS::Serverless::Function":
            assert resource["Metadata"] == other["StatelessFunction"]["Metadata"]
            assert (EXAMPLES / example / resource["Properties"]["CodeUri"] / "requirements.txt").is_file(), name


def test_sam_builds_one(sam: Sam, tmp_path: Path) -> None:
    template = EXAMPLES / "http_api" / "template.yaml"
    arguments = ["--build-dir", str(tmp_path), "--parameter-overrides", f"Runtime={RUNTIME}"]
    built = sam("build", "--template-file", str(template), *arguments)
    assert built.returncode == 0, built.stdout + built.stderr
    for source in template.parent.glob("functions/stateless/*.py"):
        assert (tmp_path / "StatelessFunction" / source.name).read_bytes() == source.read_bytes()
    for package in ("httpx2", "mcp", "packaging"):
        assert (tmp_path / "StatelessFunction" / package).is_dir()
    assert (tmp_path / "SealaneLayer" / "python" / "sealane" / "handler.py").is_file()
