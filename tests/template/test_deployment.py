"""SnapStart and gradual deployment in the template: versions, the alias, and who calls which."""

from copy import deepcopy
from itertools import product
from typing import Any, cast

import pytest
from samtranslator.model.preferences.deployment_preference_collection import (  # type: ignore[import-untyped]
    CODEDEPLOY_PREDEFINED_CONFIGURATIONS_LIST,
)

from sealane.local.json_values import as_texts
from sealane.local.template import _parameter_values, _read, _Resolver, _take_local_code, _translate, load_template
from tests.template.conftest import ROOT
from tests.template.test_legacy_lane import Parameters, broken_rules, parameters, translated
from tests.template.translation import TEMPLATE

CANARY = "Canary10Percent5Minutes"
COMBINATIONS: list[Parameters] = [
    dict(zip(("SnapStart", "GradualDeployment", "LegacyLane", "ResponseStreaming"), values, strict=True))
    for values in product(("off", "on"), ("off", "AllAtOnce", CANARY), ("off", "on"), ("false", "true"))
]
OF_GRADUAL_DEPLOYMENT = {
    "CodeDeployServiceRole",
    "ServerlessDeploymentApplication",
    "StatelessFunctionDeploymentGroup",
    "StatelessRollback",
}
FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:StatelessFunction"


def given_to_sam(given: Parameters, change: Any = None) -> dict[str, Any]:
    """What SAM makes of the template once AWS::LanguageExtensions has put in the values that it knows, in Resources:

    parameters and conditions: https://github.com/aws/serverless-application-model/issues/2533
    """
    document: Any = _read(TEMPLATE)
    values = _parameter_values(document["Parameters"], parameters(given))
    _take_local_code(document, ROOT)
    resolver = _Resolver({**document, "Resources": {}}, values)

    def known(node: Any) -> Any:
        match node:
            case {"Ref": str(name)} if name in values:
                return values[name]
            case {"Fn::If": _} if len(node) == 1:
                condition, yes, no = node["Fn::If"]
                return known(yes if resolver._condition(condition) else no)
            case {"Fn::FindInMap": _}:
                return resolver.resolve(node)
            case {"Fn::Sub": str(text)}:
                for name, value in values.items():
                    text = text.replace(
                        f"${{{name}}}", ",".join(as_texts(value)) if isinstance(value, list) else cast(str, value)
                    )
                return {"Fn::Sub": text}
            case dict():
                return {key: known(value) for key, value in node.items()}
            case list():
                return [known(item) for item in node]
        return node

    document["Resources"] = known(deepcopy(document["Resources"]))
    if change is not None:
        change(document["Resources"])
    return cast(dict[str, Any], _translate(document, values, TEMPLATE)["Resources"])


def version(given: Parameters, change: Any = None) -> str:
    """Logical id of the function's version: CloudFormation makes a version when there is a new one."""
    [name] = [name for name, each in given_to_sam(given, change).items() if each["Type"] == "AWS::Lambda::Version"]
    return name


@pytest.mark.parametrize("given", COMBINATIONS, ids=lambda given: "-".join(given.values()))
def test_what_is_called_and_deployed(given: Parameters) -> None:
    given = {**given, "LegacyTable": "keep"}
    resolver = translated(given)
    snap_start, gradual = given["SnapStart"] == "on", given["GradualDeployment"] != "off"

    # API Gateway calls the alias where there is need of one, and may call both.
    arn = f"{FUNCTION}:live" if snap_start or gradual else FUNCTION
    [(_, api)] = resolver.of_type("AWS::ApiGateway::RestApi")
    uris = [
        operation["x-amazon-apigateway-integration"]["uri"]
        for methods in cast(Any, api)["Body"]["paths"].values()
        for operation in methods.values()
    ]
    if given["ResponseStreaming"] == "true":
        called = f"2021-11-15/functions/{arn}/response-streaming-invocations"
    else:
        called = f"2015-03-31/functions/{arn}/invocations"
    assert uris == [f"arn:aws:apigateway:us-east-1:lambda:path/{called}"] * 3
    permissions = dict(resolver.of_type("AWS::Lambda::Permission"))
    of_function, of_alias = permissions["StatelessFunctionPermission"], permissions["StatelessAliasPermission"]
    assert (of_function.pop("FunctionName"), of_alias.pop("FunctionName")) == ("StatelessFunction", f"{FUNCTION}:live")
    assert of_function == of_alias

    # One version of the stateless function, and none of another.
    functions = dict(resolver.of_type("AWS::Lambda::Function"))
    applied = {name: cast(Any, each).get("SnapStart", {}).get("ApplyOn") for name, each in functions.items()}
    assert applied.pop("StatelessFunction") == ("PublishedVersions" if snap_start else "None")
    assert set(applied.values()) <= {None}
    [made] = [name for name, each in resolver.resources.items() if each["Type"] == "AWS::Lambda::Version"]
    # Not kept when the next one has its traffic: snapshots cost for as long as there is the version.
    assert resolver.resources[made]["DeletionPolicy"] == "Delete"
    alias: Any = resolver.resources["StatelessFunctionAliaslive"]
    assert alias["Properties"]["FunctionVersion"] == {"Fn::GetAtt": [made, "Version"]}

    assert OF_GRADUAL_DEPLOYMENT & set(resolver.resources) == (OF_GRADUAL_DEPLOYMENT if gradual else set())
    assert ("UpdatePolicy" in alias) == gradual
    if gradual:
        group: Any = resolver.resolve(resolver.resources["StatelessFunctionDeploymentGroup"]["Properties"])
        assert group["DeploymentConfigName"] == f"CodeDeployDefault.Lambda{given['GradualDeployment']}"
        assert group["AlarmConfiguration"] == {"Enabled": True, "Alarms": [{"Name": "StatelessRollback"}]}
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
        [alarm] = [each for name, each in resolver.of_type("AWS::CloudWatch::Alarm") if name == "StatelessRollback"]
        assert alarm["Dimensions"] == [
            {"Name": "FunctionName", "Value": "StatelessFunction"},
            {"Name": "Resource", "Value": "StatelessFunction:live"},
        ]

    # On this machine everything runs, and it is said what is not there.
    template = load_template(TEMPLATE, parameters(given))
    assert {route.function.name for route in template.api.routes} == {"StatelessFunction"}
    missing = {each for each in template.not_emulated if "Legacy" not in each}
    assert missing == ({"SnapStart of StatelessFunction"} if snap_start else set())


def test_the_ways_to_deploy_are_code_deploys() -> None:
    document: Any = _read(TEMPLATE)
    allowed = document["Parameters"]["GradualDeployment"]["AllowedValues"]
    assert set(allowed) == {"off", *CODEDEPLOY_PREDEFINED_CONFIGURATIONS_LIST}
    enabled = {name: each["Enabled"] for name, each in document["Mappings"]["GradualDeployments"].items()}
    assert enabled == {name: "false" if name == "off" else "true" for name in allowed}


@pytest.mark.parametrize("runtime", ["python3.11", "python3.12", "python3.13"])
def test_snap_start_needs_a_runtime_that_has_it(runtime: str) -> None:
    refused = ["SnapStart needs Runtime python3.12 or later."] if runtime == "python3.11" else []
    assert broken_rules(SnapStart="on", Runtime=runtime) == refused
    assert broken_rules(SnapStart="off", Runtime=runtime) == []


CHANGED = {
    "Runtime": "python3.12",
    "Architecture": "x86_64",
    "MemorySize": "512",
    "Timeout": "7",
    "ResponseStreaming": "true",
    "AuthMode": "iam",
    "AuthIssuer": "https://other.example",
    "AuthAudience": "other",
    "AuthUserPool": "us-east-1_Other",
    "AuthScopes": "other",
    "PublicUrl": "https://other.example.com",
    "SnapStart": "on",
    "SubnetIds": "subnet-1",
    "LegacyLane": "on",
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_the_function_makes_a_version(name: str) -> None:
    """Else the alias would go on serving with what was before."""
    given = {"GradualDeployment": CANARY, "LegacyTable": "keep"}
    assert version({**given, name: CHANGED[name]}) != version(given)


@pytest.mark.parametrize(("name", "key"), [("StatelessFunction", "CodeUri"), ("SealaneLayer", "ContentUri")])
def test_so_does_new_code(name: str, key: str) -> None:
    def new_code(resources: Any) -> None:
        resources[name]["Properties"][key] = "s3://local/new"

    assert version({"SnapStart": "on"}, new_code) != version({"SnapStart": "on"})


def test_what_does_not_change_the_function_makes_none() -> None:
    """CloudFormation fails to make a version that does not differ from the one before."""
    others = {"LogRetentionDays": "1", "DataDeletionPolicy": "Delete", "StageName": "dev", "ReservedConcurrency": "5"}
    for name, value in others.items():
        assert version({"SnapStart": "on", name: value}) == version({"SnapStart": "on"})


def test_every_setting_for_all_functions_makes_a_version() -> None:
    """What stands under Globals is not seen where the versions are named."""

    def named(node: Any) -> set[str]:
        match node:
            case {"Ref": str(name)}:
                return {name}
            case {"Fn::Sub": str(text)}:
                return {each.partition("}")[0] for each in text.split("${")[1:]}
            case dict():
                return set().union(*map(named, node.values()))
            case list():
                return set().union(*map(named, node))
        return set()

    document: Any = _read(TEMPLATE)
    settings = document["Resources"]["StatelessFunction"]["Properties"]["Environment"]["Variables"]["SEALANE_SETTINGS"]
    declared = set(document["Parameters"])
    # How many environments there may be is no part of a version.
    assert named(settings) & declared == (named(document["Globals"]["Function"]) & declared) - {"ReservedConcurrency"}
