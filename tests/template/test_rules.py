"""What has to be true of the template in every deployment that the documents name, and the documents' word on it."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from sealane.local.template import ACCOUNT_ID
from sealane.telemetry import Metric
from tests.template.conftest import ROOT, Sam
from tests.template.translation import TEMPLATE, Translated

DOCUMENT = ROOT / "docs" / "template.md"
Parameters = dict[str, str]

ALLOWED = {
    # Network interfaces have no names before there are any, and traces none at all.
    ("NetworkInterfaces", "*"),
    ("Traces", "*"),
    # What DynamoDB does with a key, in the words of its documentation; by way of DynamoDB only.
    ("TableEncryption", "kms:GenerateDataKey*"),
    ("TableEncryption", "kms:ReEncrypt*"),
}
"""Wildcards in statements, by the statement's name."""
WITHOUT_RECOVERY = {"LegacySessions"}
"""Tables in which nothing is older than a day."""
PRIVATE = ("header", "claims", "principalId", "identity", "querystring")
"""Parts of what is in no access log."""


def assignments(text: str) -> Parameters:
    return dict(re.findall(r"\b([A-Z]\w+)=([^\s`\"]*)", text))


def deployments() -> dict[str, Parameters]:
    """Those of the table in docs/template.md; where one takes steps, each step."""
    table = DOCUMENT.read_text().partition("## Deployments")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
    named = {}
    for name, cell in rows:
        for step, text in enumerate(re.findall(r"`([^`]+)`", cell) or [""]):
            named[f"{name} {step}" if step else name] = assignments(text)
    return named


def named_elsewhere() -> dict[str, Parameters]:
    """Parameters that other documents set on one line."""
    known = Translated({}).parameters
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            given = {name: value for name, value in assignments(line).items() if name in known}
            if path != DOCUMENT and given:
                found[f"{path.name}:{number}"] = given
    return found


@functools.cache
def defaults() -> dict[str, Any]:
    """The parameters as they are where nobody says otherwise."""
    return Translated({}).parameters


DEPLOYMENTS = deployments()
NAMED_ELSEWHERE = named_elsewhere()


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def wildcards(type: str, properties: Any) -> Iterator[str]:
    """What a role, a policy or a key allows to more than can be named."""
    match type:
        case "AWS::IAM::Role":
            documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
        case "AWS::IAM::Policy":
            documents = [properties["PolicyDocument"]]
        case "AWS::KMS::Key":
            documents = [properties["KeyPolicy"]]
        case _:
            documents = []
    for statement in [statement for document in documents for statement in document["Statement"]]:
        sid = statement.get("Sid")
        # In the policy of a key, "*" is the key.
        resources = [] if type == "AWS::KMS::Key" else as_list(statement["Resource"])
        # In the ARN of a log group, it is the group's streams.
        resources = [re.sub(r"^(arn:aws:logs:.*):\*$", r"\1", each) for each in resources]
        for each in [*as_list(statement["Action"]), *resources]:
            if "*" in each and (sid, each) not in ALLOWED:
                yield f"{sid} allows {each}"
        if "*" in json.dumps(statement.get("Principal")):
            yield f"{sid} is for anyone"


def rules(name: str, properties: Any, translated: Translated) -> Iterator[tuple[bool, str]]:
    """What has to be true of a resource, and what is the matter where it is not.

    A template that does not ask for a parameter has its default.
    """
    resource, given = translated.resources[name], defaults() | translated.parameters
    is_decided = "DeletionPolicy" in resource and "UpdateReplacePolicy" in resource
    match resource["Type"]:
        case "AWS::IAM::Role":
            yield "ManagedPolicyArns" not in properties or name == "CodeDeployServiceRole", "has a policy of AWS's"
        case "AWS::Lambda::Function":
            variables = properties["Environment"]["Variables"]
            yield "LogGroup" in properties.get("LoggingConfig", {}), "logs where nobody says how long"
            yield properties["Role"] == f"arn:aws:iam::{ACCOUNT_ID}:role/{name}Role", "has no role of its own"
            reserved = properties.get("ReservedConcurrentExecutions", "")
            yield reserved == given["ReservedConcurrency"], "reserves other than it is told to"
            yield variables["POWERTOOLS_METRICS_NAMESPACE"] == "Sealane", "has metrics that no alarm looks at"
            yield variables["POWERTOOLS_SERVICE_NAME"] == "local", "has metrics that no alarm looks at"
            subnets = properties.get("VpcConfig", {}).get("SubnetIds", [""])
            # The authorizer has to reach an issuer.
            yield subnets == given["SubnetIds"] or name == "AuthorizerFunction", "is in another network"
        case "AWS::Logs::LogGroup":
            yield str(properties.get("RetentionInDays")) == given["LogRetentionDays"], "is kept for ever"
            masks = "DataProtectionPolicy" in properties
            yield masks == (given["LogDataProtection"] == "true") or name == "AccessLogGroup", "masks other than told"
        case "AWS::DynamoDB::Table":
            key = properties.get("SSESpecification", {}).get("KMSMasterKeyId")
            yield key == translated.arn("Key"), "is not encrypted with the key"
            recovery = properties.get("PointInTimeRecoverySpecification", {}).get("PointInTimeRecoveryEnabled")
            yield recovery is True or name in WITHOUT_RECOVERY, "cannot be recovered"
            yield is_decided, "nobody says what becomes of it"
        case "AWS::KMS::Key":
            yield properties.get("EnableKeyRotation") is True, "does not rotate"
            yield is_decided, "nobody says what becomes of it"
        case "AWS::Lambda::Permission":
            yield "SourceArn" in properties, "is for any API"
        case "AWS::ApiGateway::Stage":
            [settings] = properties.get("MethodSettings", [{}])
            for limit in ("ThrottlingRateLimit", "ThrottlingBurstLimit"):
                yield str(settings.get(limit)) == given[limit], "takes more than it is told to"
            log = properties.get("AccessLogSetting", {"DestinationArn": "", "Format": "{}"})
            has_log = log["DestinationArn"].endswith("/aws/apigateway/local")
            yield has_log == (given["AccessLogs"] == "true"), "logs other than it is told to"
            for field in json.loads(log["Format"]).values():
                yield not any(each in field for each in PRIVATE), f"logs {field}"
            guards = json.dumps(translated.of_type("AWS::WAFv2::WebACLAssociation"))
            is_guarded = f'/restapis/{properties["RestApiId"]}/stages/{name}"' in guards
            yield is_guarded == bool(given["WebAclArn"]), "is guarded other than told"
        case "AWS::ApiGateway::DomainName":
            yield properties.get("SecurityPolicy") == "TLS_1_2", "takes old TLS"
            yield properties["DomainName"] == "mcp.example.com", "has another name"
        case "AWS::CloudWatch::Alarm":
            # One tells CodeDeploy.
            yield properties.get("AlarmActions") == [given["AlarmTopic"]] or name == "StatelessRollback", "tells nobody"
            yield properties["TreatMissingData"] == "notBreaching", "is about a server that nobody calls"


def findings(translated: Translated) -> set[str]:
    """What is wrong with a deployment."""
    found = set()
    for name, resource in translated.resources.items():
        properties = translated.resolve(resource.get("Properties", {}))
        found |= {f"{name}: {text}" for text in wildcards(str(resource["Type"]), properties)}
        found |= {f"{name}: {text}" for right, text in rules(name, properties, translated) if not right}
    return found


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_deployment_of_the_table_keeps_the_rules(name: str) -> None:
    translated = Translated(DEPLOYMENTS[name])
    assert translated.broken_rules() == []
    assert findings(translated) == set()
    for output in translated.template["Outputs"].values():
        if "Condition" not in output or translated.resolve({"Condition": output["Condition"]}):
            assert translated.resolve(output["Value"])


def test_without_parameters_there_is_what_a_server_needs() -> None:
    """What costs money for being there is the key, and a fourth dashboard."""
    types = sorted(str(resource["Type"]).removeprefix("AWS::") for resource in Translated({}).resources.values())
    assert types == [
        "ApiGateway::Deployment",
        "ApiGateway::RestApi",
        "ApiGateway::Stage",
        "CloudWatch::Dashboard",
        "DynamoDB::Table",
        "IAM::Policy",
        "IAM::Role",
        "KMS::Key",
        "Lambda::Alias",
        "Lambda::Function",
        "Lambda::LayerVersion",
        "Lambda::Permission",
        "Lambda::Permission",
        "Lambda::Version",
        "Logs::LogGroup",
        "Logs::MetricFilter",
    ]


@pytest.mark.parametrize("place", NAMED_ELSEWHERE)
def test_what_other_documents_name_can_be_deployed(place: str) -> None:
    assert findings(Translated(NAMED_ELSEWHERE[place])) == set()


def test_the_table_names_what_there_is() -> None:
    """Every value of a parameter that has few, and every parameter that is empty by default."""
    declared = Translated({}).document["Parameters"]
    used = {(name, value) for given in DEPLOYMENTS.values() for name, value in given.items()}
    for name, rules in declared.items():
        if rules["Default"] == "":
            assert name in {given for given, _ in used}, name
        elif name not in ("Runtime", "Architecture", "LogRetentionDays", "GradualDeployment"):
            for value in rules.get("AllowedValues", []):
                assert value == rules["Default"] or (name, value) in used, (name, value)


ALL = {name: value for given in DEPLOYMENTS.values() for name, value in given.items()} | {
    "LegacyLane": "on",
    "LegacyTable": "keep",
    "LegacyRouting": "domain",
    "AuthMode": "jwt",
    "Dashboard": "true",
}
"""Everything at once."""


def test_everything_at_once_keeps_the_rules() -> None:
    assert findings(Translated(ALL)) == set()


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("- dynamodb:UpdateItem", "- dynamodb:*", "StatelessPolicy: Data allows dynamodb:*"),
        ("Resource: !GetAtt DataTable.Arn", 'Resource: "*"', "StatelessPolicy: Data allows *"),
        ("Resource: !GetAtt StatelessLogGroup.Arn", 'Resource: "*"', "StatelessFunctionRole: Log allows *"),
        ("- kms:PutKeyPolicy", "- kms:*", "Key: Administration allows kms:*"),
        ("AWS: !GetAtt StatelessFunctionRole.Arn", 'AWS: "*"', "Key: OpenDataKeys is for anyone"),
        ("EnableKeyRotation: true", "EnableKeyRotation: false", "Key: does not rotate"),
        (
            "Role: !GetAtt LegacyFunctionRole.Arn",
            "Role: !GetAtt StatelessFunctionRole.Arn",
            "LegacyFunction: has no role of its own",
        ),
        (
            "AssumeRolePolicyDocument:",
            "ManagedPolicyArns: [x]\n      AssumeRolePolicyDocument:",
            "AuthorizerFunctionRole: has a policy of AWS's",
        ),
        ("RetentionInDays: !Ref LogRetentionDays\n\n", "KmsKeyId: x\n\n", "AccessLogGroup: is kept for ever"),
        ("PointInTimeRecoveryEnabled: true", "PointInTimeRecoveryEnabled: false", "DataTable: cannot be recovered"),
        (
            "KMSMasterKeyId: !GetAtt Key.Arn",
            "KMSMasterKeyId: alias/aws/dynamodb",
            "DataTable: is not encrypted with the key",
        ),
        ("DeletionPolicy: !Ref DataDeletionPolicy", "DependsOn: Api", "DataTable: nobody says what becomes of it"),
        (
            "ThrottlingRateLimit: !Ref Throttling",
            "Throttling: !Ref Throttling",
            "ApiStage: takes more than it is told to",
        ),
        ("$context.apiId", "$context.identity.sourceIp", "ApiStage: logs $context.identity.sourceIp"),
        ("SecurityPolicy: TLS_1_2", "SecurityPolicy: TLS_1_0", "Domain: takes old TLS"),
        ("AlarmActions: [!Ref AlarmTopic]", "AlarmActions: []", "FailuresAlarm: tells nobody"),
        (
            "    ReservedConcurrentExecutions:",
            "    EphemeralStorage:",
            "LegacyFunction: reserves other than it is told to",
        ),
        ("stages/${LegacyApi.Stage}", "stages/prod", "LegacyApiStage: is guarded other than told"),
    ],
)
def test_broken_rules_are_found(tmp_path: Path, old: str, new: str, finding: str) -> None:
    text = TEMPLATE.read_text()
    assert old in text
    broken = tmp_path / "template.yaml"
    broken.write_text(text.replace(old, new))
    assert finding in findings(Translated(ALL, broken))


def references(node: Any) -> Iterator[str]:
    """Names that a part of a template refers to, whether conditions hold or not."""
    match node:
        case {"Ref": str(name)}:
            yield name
        case {"Fn::GetAtt": [str(name), *_]}:
            yield name
        case {"Fn::Sub": str(text)}:
            yield from re.findall(r"\$\{(\w+)[.}]", text)
        case {"Fn::Sub": [str(text), dict(variables)]}:
            yield from set(re.findall(r"\$\{(\w+)[.}]", text)) - set(variables)
            yield from references(variables)
        case dict():
            for each in node.values():
                yield from references(each)
        case list():
            for each in node:
                yield from references(each)


def circle(resources: dict[str, Any]) -> list[str]:
    """Resources that wait for each other, in order; empty where none do."""
    waits_for = {
        name: {each for each in references(resource) if each in resources} | set(as_list(resource.get("DependsOn", [])))
        for name, resource in resources.items()
    }
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        for each in sorted(waits_for[name] - finished):
            if found := visit(each, [*path, name]):
                return found
        finished.add(name)
        return []

    return next((found for name in waits_for if (found := visit(name, []))), [])


def test_no_resource_waits_for_itself() -> None:
    """CloudFormation would refuse the template; neither SAM nor the local gateway does."""
    resources = Translated({}).template["Resources"]
    assert circle(resources) == []
    # With the table's statement in the role, which the key's policy names, while the table needs the key.
    role = resources["StatelessFunctionRole"]["Properties"]
    role["Policies"].append(resources["StatelessPolicy"]["Properties"]["PolicyDocument"])
    assert set(circle(resources)) == {"StatelessFunctionRole", "DataTable", "Key"}


def test_roles_are_ready_before_their_functions() -> None:
    """A policy that is a resource of its own would else come when the function already serves."""
    resources = Translated({}).template["Resources"]
    assert resources["StatelessFunction"]["DependsOn"] == "StatelessPolicy"
    assert resources["LegacyFunction"]["DependsOn"] == "LegacyPolicy"


@pytest.mark.parametrize("dashboard", ["OperationsDashboard", "LegacyDashboard"])
def test_dashboards_are_tidy(dashboard: str) -> None:
    """Widgets fill 24 columns, row by row, without gap or overlap; every metric is of this stack."""
    translated = Translated(ALL)
    [body] = [each for name, each in translated.of_type("AWS::CloudWatch::Dashboard") if name == dashboard]
    text = body["DashboardBody"]
    assert isinstance(text, str)
    assert "${" not in text
    widgets = json.loads(text)["widgets"]
    places = {
        (x, y)
        for each in widgets
        for x in range(each["x"], each["x"] + each["width"])
        for y in range(each["y"], each["y"] + each["height"])
    }
    assert len(places) == sum(each["width"] * each["height"] for each in widgets)
    assert places == {(x, y) for x in range(24) for y in range(max(y for _, y in places) + 1)}
    own = {"local", "StatelessFunction", "LegacyFunction", "DataTable"}
    for widget in widgets[1:]:
        for metric in widget["properties"]["metrics"]:
            if isinstance(metric[0], dict):
                assert ' service="local"' in metric[0]["expression"]
            else:
                assert metric[3] in own


def test_the_document_lists_the_parameters() -> None:
    """In groups, in the order in which they are asked for, with their defaults."""
    document = Translated({}).document
    declared = document["Parameters"]
    groups = {
        group["Label"]["default"]: group["Parameters"]
        for group in document["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    }
    assert [name for names in groups.values() for name in names] == list(declared)
    section = DOCUMENT.read_text().partition("## Parameters\n")[2].partition("\n## ")[0]
    listed = {
        part.partition("\n")[0]: re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", part, re.MULTILINE)
        for part in section.split("\n### ")[1:]
    }
    assert listed == {
        label: [(name, str(declared[name]["Default"])) for name in names] for label, names in groups.items()
    }


def looked_at(value: Any) -> Iterator[str]:
    """Names of our metrics in an alarm or a dashboard."""
    match value:
        case {"Namespace": "Sealane", "MetricName": name}:
            yield name
        case ["Sealane", str(name), *_]:
            yield name
        case str() if "{Sealane," in value:
            yield from re.findall(r'MetricName="(\w+)"', value)
        case dict() | list():
            for each in value.values() if isinstance(value, dict) else value:
                yield from looked_at(each)


def test_alarms_and_dashboards_look_at_metrics_that_there_are() -> None:
    translated = Translated(ALL)
    dashboards = [
        json.loads(str(each["DashboardBody"])) for _, each in translated.of_type("AWS::CloudWatch::Dashboard")
    ]
    [(_, counting)] = translated.of_type("AWS::Logs::MetricFilter")
    counted: Any = counting["MetricTransformations"]
    there_are = {*get_args(Metric), *(each["MetricName"] for each in counted)}
    in_alarms = set(looked_at([alarm for _, alarm in translated.of_type("AWS::CloudWatch::Alarm")]))
    in_dashboards = set(looked_at(dashboards))
    assert in_alarms >= {"Errors", "KmsFailures", "LegacySessions", "StateRefused"}
    assert in_dashboards >= {"ColdStart", "LegacyRequests", "LegacyReverseRequests", "Refused"}
    assert in_alarms | in_dashboards <= there_are


@pytest.mark.parametrize(
    ("document", "heading"), [("template.md", "## Alarms"), ("operations.md", "## At three in the morning")]
)
def test_the_documents_list_the_alarms(document: str, heading: str) -> None:
    section = (DOCUMENT.parent / document).read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    alarms = [name for name, _ in Translated(ALL).of_type("AWS::CloudWatch::Alarm")]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(alarms)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"CertificateArn": "arn"}, "CertificateArn needs PublicUrl, the URL of the custom domain."),
        ({"HostedZoneId": "Z1"}, "HostedZoneId needs CertificateArn."),
        ({"SubnetIds": "subnet-1"}, "SubnetIds needs SecurityGroupIds."),
        ({"AuthMode": "jwt", "AuthAudience": "a"}, "AuthMode jwt needs AuthIssuer."),
    ],
)
def test_parameters_that_need_others_say_so(given: Parameters, text: str) -> None:
    assert Translated(given).broken_rules() == [text]


def test_cfn_lint_finds_nothing_in_what_cloudformation_gets(cfn_lint: Sam, tmp_path: Path) -> None:
    translated = tmp_path / "translated.json"
    translated.write_text(json.dumps(Translated({}).template | {"Transform": "AWS::LanguageExtensions"}))
    # SAM has used a mapping, and left it.
    checked = cfn_lint(str(translated), "--ignore-checks", "W7001")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    translated.write_text(translated.read_text().replace('"EnableKeyRotation"', '"EnableRotation"'))
    assert "EnableRotation" in cfn_lint(str(translated)).stdout
