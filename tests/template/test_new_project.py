"""The template of a new project: less than ours, and of ours what it has."""

from pathlib import Path

import pytest

from sealane.local.project import make_project
from sealane.local.template import load_template
from tests.template.conftest import ROOT, Sam
from tests.template.test_rules import circle, findings
from tests.template.translation import Translated

TEMPLATE = ROOT / "layers" / "sealane" / "sealane" / "local" / "new_project" / "project" / "template.yaml"
SAME = ["DataTable", "Key", "StatelessFunctionRole", "StatelessPolicy", "StatelessFunctionPermission"]


@pytest.fixture(scope="module")
def translated() -> Translated:
    return Translated({}, TEMPLATE)


def test_it_has_one_function_and_what_that_needs(translated: Translated) -> None:
    types = sorted(str(resource["Type"]).removeprefix("AWS::") for resource in translated.resources.values())
    assert types == [
        "ApiGateway::Deployment",
        "ApiGateway::RestApi",
        "ApiGateway::Stage",
        "DynamoDB::Table",
        "IAM::Policy",
        "IAM::Role",
        "KMS::Key",
        "Lambda::Function",
        "Lambda::LayerVersion",
        "Lambda::Permission",
        "Logs::LogGroup",
    ]


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_it_keeps_the_rules(streaming: str) -> None:
    assert findings(Translated({"ResponseStreaming": streaming}, TEMPLATE)) == set()


def test_a_stack_can_have_our_template_instead(translated: Translated) -> None:
    """What is there keeps its logical id; a second stage of the same name, or a second table, could not be made."""
    ours = Translated({}).resources
    named = {name for name in translated.resources if not name.startswith(("ApiDeployment", "SealaneLayer"))}
    assert named <= ours.keys()


def test_no_resource_waits_for_itself(translated: Translated) -> None:
    assert circle(translated.template["Resources"]) == []
    assert translated.template["Resources"]["StatelessFunction"]["DependsOn"] == "StatelessPolicy"


@pytest.mark.parametrize("name", SAME)
def test_rights_and_data_are_those_of_our_template(translated: Translated, name: str) -> None:
    ours = Translated({})
    wanted, made = ours.resources[name], translated.resources[name]
    assert translated.resolve(made["Properties"]) == ours.resolve(wanted["Properties"])
    for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
        assert translated.resolve(made.get(policy)) == ours.resolve(wanted.get(policy))


@pytest.mark.parametrize("parameters", [{}, {"ResponseStreaming": "true", "Timeout": "310", "Architecture": "x86_64"}])
def test_the_function_and_its_route_are_those_of_our_template(parameters: dict[str, str], tmp_path: Path) -> None:
    make_project(tmp_path / "mine")
    own, ours = (load_template(folder / "template.yaml", parameters) for folder in (tmp_path / "mine", ROOT))
    [function], [wanted] = own.functions, ours.functions
    for name, value in function.variables.items():
        assert value == wanted.variables[name], name
    for about in ("handler", "timeout", "memory", "runtime", "architecture", "log_group"):
        assert getattr(function, about) == getattr(wanted, about), about
    [route] = own.api.routes
    same = next(each for each in ours.api.routes if each.path == route.path and each.any_method)
    assert (route.methods, route.timeout, route.streams) == (same.methods, same.timeout, same.streams)
    assert own.api.stage == ours.api.stage
    for refusal, answer in own.api.gateway_responses.items():
        assert answer.templates == ours.api.gateway_responses[refusal].templates, refusal
    assert own.not_emulated == ()


def test_sam_finds_nothing_in_it(sam: Sam) -> None:
    checked = sam("validate", "--lint", "--template-file", str(TEMPLATE))
    assert checked.returncode == 0, checked.stdout + checked.stderr
