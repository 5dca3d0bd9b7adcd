"""The legacy lane in the template: what there is of it, in every combination of the parameters."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

from sealane.local.security import LambdaAuthorizer
from sealane.local.template import Template, load_template
from tests.template.conftest import ROOT
from tests.template.translation import TEMPLATE, Translated

TOKENS = {"AuthIssuer": "https://issuer.example", "AuthAudience": "https://mcp.example.com/mcp"}
DOMAIN = {"PublicUrl": "https://mcp.example.com"}
TOPIC = "arn:aws:sns:us-east-1:123456789012:alarms"
OF_THE_LANE = {"LegacyFunction", "LegacyFunctionRole", "LegacyPolicy", "LegacyLogGroup", "LegacyDashboard"}
OF_INVOKE = {"LegacyInvokePolicy"}
OF_DOMAIN = {"LegacyApi", "LegacyApiStage", "LegacyFunctionPermission", "ModernRule", "LegacyRule"}

Parameters = dict[str, str]
COMBINATIONS: list[Parameters] = [
    dict(zip(("LegacyLane", "LegacyTable", "LegacyRouting", "ResponseStreaming", "AuthMode"), values, strict=True))
    for values in product(
        ("off", "on", "drain"), ("delete", "keep"), ("invoke", "domain"), ("false", "true"), ("none", "jwt")
    )
]


def parameters(given: Parameters) -> Parameters:
    """With those that the given ones need."""
    return {**(TOKENS if given.get("AuthMode") == "jwt" else {}), **DOMAIN, **given}


def translated(given: Parameters, path: Path = TEMPLATE) -> Translated:
    """What CloudFormation gets, with what the given parameters need."""
    return Translated(parameters(given), path)


def lane(**given: str) -> Template:
    """The template with this lane."""
    return load_template(TEMPLATE, parameters({"LegacyTable": "keep", **given}))


def broken_rules(**given: str) -> list[str]:
    """What CloudFormation says of these parameters alone."""
    return Translated(given).broken_rules()


@pytest.mark.parametrize("given", COMBINATIONS, ids=lambda given: "-".join(given.values()))
def test_what_there_is_of_the_lane(given: Parameters) -> None:
    resolver = translated(given)
    template = load_template(TEMPLATE, parameters(given))
    on, domain, tokens = given["LegacyLane"] != "off", given["LegacyRouting"] == "domain", given["AuthMode"] == "jwt"
    streams = given["ResponseStreaming"] == "true"

    expected = set()
    if on or given["LegacyTable"] == "keep":
        expected |= {"LegacySessions"}
    if on:
        expected |= OF_THE_LANE | (OF_DOMAIN if domain else OF_INVOKE)
    if on and domain and tokens:
        expected |= {"LegacyAuthorizerPermission"}
    names = {name for name in resolver.resources if name.startswith(("Legacy", "Modern"))}
    assert {name for name in names if not name.startswith("LegacyApiDeployment")} == expected

    functions = {function.name: function for function in template.functions}
    assert set(functions) == {
        "StatelessFunction",
        *(["AuthorizerFunction"] if tokens else []),
        *(["LegacyFunction"] if on else []),
    }
    told = {name: value for name, value in functions["StatelessFunction"].variables.items() if "LEGACY" in name}
    if on and not domain:
        assert told == {
            "SEALANE_LEGACY_FUNCTION": "LegacyFunction",
            "SEALANE_LEGACY_LANE": given["LegacyLane"],
            "SEALANE_LEGACY_DRAIN_TO": "refuse",
        }
    else:
        assert told == {}
    assert template.api.name == "Api"
    assert {route.function.name for route in template.api.routes} == {"StatelessFunction"}
    if on:
        function = functions["LegacyFunction"]
        assert function.code_dir == ROOT / "functions" / "legacy"
        assert function.log_group == "/aws/lambda/local-legacy"
        assert function.variables["SEALANE_LEGACY_TABLE"] == "LegacySessions"
        assert function.variables["SEALANE_LEGACY_LANE"] == given["LegacyLane"]
        assert function.variables["POWERTOOLS_METRICS_NAMESPACE"] == "Sealane"
        assert function.variables["SEALANE_AUTH_MODE"] == given["AuthMode"]
        assert ("AWS_LAMBDA_EXEC_WRAPPER" in function.variables) == streams
        assert function.timeout == functions["StatelessFunction"].timeout
    if on and domain:
        api = template.apis[1]
        assert {(route.function.name, route.streams) for route in api.routes} == {("LegacyFunction", streams)}
        assert {route.path for route in api.routes} == {"/mcp", "/.well-known/{document+}"}
        authorizers = {type(route.authorizer) for route in api.routes if route.any_method and route.path == "/mcp"}
        assert authorizers == {LambdaAuthorizer if tokens else type(None)}


def test_a_stack_without_a_lane_has_no_part_of_it() -> None:
    """By default there is none."""
    template = load_template(TEMPLATE)
    assert [table.name for table in template.tables] == ["DataTable"]
    assert [function.name for function in template.functions] == ["StatelessFunction"]
    assert template.not_emulated == ()


def test_the_lane_ends_in_two_steps() -> None:
    """Each deployment changes one parameter, and CloudFormation lets nobody skip the first step."""
    tables = [
        [table.name for table in lane(LegacyLane=of_lane, LegacyTable=of_table).tables]
        for of_lane, of_table in (("on", "keep"), ("drain", "keep"), ("off", "keep"), ("off", "delete"))
    ]
    assert tables == [["DataTable", "LegacySessions"]] * 3 + [["DataTable"]]
    for of_lane in ("on", "drain"):
        assert broken_rules(LegacyLane=of_lane, LegacyTable="keep") == []
        assert broken_rules(LegacyLane=of_lane) == [
            "LegacyLane on and drain need LegacyTable=keep, which then outlives the lane."
        ]
    for of_table in ("keep", "delete"):
        assert broken_rules(LegacyTable=of_table) == []


def test_routing_rules_need_a_domain() -> None:
    given = {"LegacyLane": "on", "LegacyTable": "keep", "LegacyRouting": "domain"}
    assert broken_rules(**given) == ["LegacyRouting domain needs PublicUrl, the URL of the custom domain."]
    assert broken_rules(**given, **DOMAIN) == []
    assert broken_rules(LegacyRouting="domain") == []


@pytest.mark.parametrize("drain_to", ["refuse", "compatibility"])
def test_a_drained_lane_says_to_where(drain_to: str) -> None:
    stateless, legacy = lane(LegacyLane="drain", LegacyDrainTo=drain_to).functions
    assert stateless.variables["SEALANE_LEGACY_DRAIN_TO"] == drain_to
    assert (stateless.variables["SEALANE_LEGACY_LANE"], legacy.variables["SEALANE_LEGACY_LANE"]) == ("drain", "drain")


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    """The translated resources, intrinsic functions as they are."""
    return cast(dict[str, Any], Translated({}).template["Resources"])


def test_the_stateless_function_may_invoke_the_legacy_one_and_no_other(resources: dict[str, Any]) -> None:
    policy = resources["LegacyInvokePolicy"]["Properties"]
    assert policy["Roles"] == [{"Ref": "StatelessFunctionRole"}]
    [statement] = policy["PolicyDocument"]["Statement"]
    # Lambda has no action of its own for InvokeWithResponseStream.
    assert statement["Action"] == "lambda:InvokeFunction"
    assert statement["Resource"] == {"Fn::GetAtt": ["LegacyFunction", "Arn"]}
    for own in ("StatelessFunctionRole", "StatelessPolicy"):
        assert "lambda:" not in json.dumps(
            resources[own]["Properties"]["Policies" if own.endswith("Role") else "PolicyDocument"]
        )


def test_the_legacy_function_may_use_its_table_and_nothing_else(resources: dict[str, Any]) -> None:
    policy = resources["LegacyPolicy"]["Properties"]
    assert policy["Roles"] == [{"Ref": "LegacyFunctionRole"}]
    [statement] = policy["PolicyDocument"]["Statement"]
    assert statement["Resource"] == {"Fn::GetAtt": ["LegacySessions", "Arn"]}
    assert not any("*" in action or action.endswith("Scan") for action in statement["Action"])


def test_alarms_of_the_lane_go_with_the_others() -> None:
    """With a topic, and the one for its end with a date."""
    of_lane = {"LegacyLane": "on", "LegacyTable": "keep"}

    def alarms(**given: str) -> dict[str, Any]:
        found = dict(translated({**of_lane, **given}).of_type("AWS::CloudWatch::Alarm"))
        return {name: alarm for name, alarm in found.items() if name.startswith("Legacy")}

    assert alarms() == alarms(LegacyUntil="2027-06-30") == {}
    assert set(alarms(AlarmTopic=TOPIC)) == {"LegacyErrors"}
    assert alarms(AlarmTopic=TOPIC, LegacyUntil="2027-06-30", LegacyLane="off") == {}
    late = alarms(AlarmTopic=TOPIC, LegacyUntil="2027-06-30")["LegacyStillUsed"]
    expression, sessions = late["Metrics"]
    # Of the day after it is 20270701.
    assert expression["Expression"] == (
        "IF(YEAR(sessions) * 10000 + MONTH(sessions) * 100 + DATE(sessions) > 20270630, sessions, 0)"
    )
    assert sessions["MetricStat"]["Metric"]["MetricName"] == "LegacySessions"
    assert late["AlarmActions"] == [TOPIC]


def test_the_table_of_sessions_goes_with_the_lane(resources: dict[str, Any]) -> None:
    table = resources["LegacySessions"]
    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Delete", "Delete")
    key = {"Fn::GetAtt": ["Key", "Arn"]}
    assert table["Properties"]["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key}
    [_, made] = lane(LegacyLane="on").tables
    assert (made.name, made.ttl_attribute) == ("LegacySessions", "expires_at")
    assert [each["AttributeName"] for each in cast(Any, made.definition["KeySchema"])] == ["pk", "sk"]


def test_routing_rules_look_at_the_revision() -> None:
    resolver = translated({"LegacyLane": "on", "LegacyTable": "keep", "LegacyRouting": "domain"})
    rules = dict(resolver.of_type("AWS::ApiGatewayV2::RoutingRule"))
    arn = "arn:aws:apigateway:us-east-1::/domainnames/mcp.example.com"
    assert rules["ModernRule"] == {
        "DomainNameArn": arn,
        "Priority": 1000,
        "Conditions": [{"MatchHeaders": {"AnyOf": [{"Header": "MCP-Protocol-Version", "ValueGlob": "2026-07-28"}]}}],
        "Actions": [{"InvokeApi": {"ApiId": "Api", "Stage": "ApiStage"}}],
    }
    assert rules["LegacyRule"] == {
        "DomainNameArn": arn,
        "Priority": 2000,
        "Conditions": [],
        "Actions": [{"InvokeApi": {"ApiId": "LegacyApi", "Stage": "LegacyApiStage"}}],
    }


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_both_apis_are_alike(resources: dict[str, Any], streaming: str) -> None:
    """But for the function behind them, and the title."""
    given = {"LegacyLane": "on", "LegacyTable": "keep", "LegacyRouting": "domain", "ResponseStreaming": streaming}
    bodies = [api["Body"] for _, api in translated(given).of_type("AWS::ApiGateway::RestApi")]
    of_stateless, of_legacy = (json.dumps({**cast(Any, body), "info": {}}) for body in bodies)
    assert of_stateless.replace("StatelessFunction", "LegacyFunction") == of_legacy
    stages = [resources[name]["Properties"]["StageName"] for name in ("ApiStage", "LegacyApiStage")]
    assert stages[0] == stages[1]


def test_the_dashboard_asks_who_is_left() -> None:
    dashboards = dict(translated({"LegacyLane": "on", "LegacyTable": "keep"}).of_type("AWS::CloudWatch::Dashboard"))
    body = json.loads(cast(str, dashboards["LegacyDashboard"]["DashboardBody"]))
    text, *widgets = body["widgets"]
    assert "Who still needs the legacy lane?" in text["properties"]["markdown"]
    metrics = json.dumps([widget["properties"]["metrics"] for widget in widgets])
    for name in ("LegacyRequests", "LegacySessions", "LegacyActiveSessions", "LegacyReverseRequests", "Invocations"):
        assert name in metrics


def test_deleting_what_is_marked_removes_the_lane(tmp_path: Path) -> None:
    """And nothing but the lane: what is left is what `LegacyLane=off` is today."""
    lines, kept, marker = TEMPLATE.read_text().splitlines(), [], None
    inside = False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.startswith("  # The legacy lane, from here to its end"):
            inside = True
        elif line == "  # End of the legacy lane.":
            inside = False
            continue
        elif line.strip() == "# The legacy lane.":
            marker = indent
        elif marker is not None and (not line or indent < marker):
            marker = None
        if not inside and marker is None:
            kept.append(line)
    text = "\n".join(kept)
    assert not re.search("legacy", text, re.IGNORECASE)
    (tmp_path / "template.yaml").write_text(text)
    today = translated({"LegacyLane": "off"})
    left = translated({}, tmp_path / "template.yaml")
    # A version is named after what is in its function.
    names = [
        [re.sub("Version[0-9a-f]{10}", "Version", name) for name in each if not name.startswith("Legacy")]
        for each in (left.resources, today.resources)
    ]
    assert names[0] == names[1]
    for type in ("AWS::Lambda::Function", "AWS::ApiGateway::RestApi", "AWS::IAM::Role"):
        assert left.of_type(type) == today.of_type(type)
