"""The template: what CloudFormation makes of it."""

from pathlib import Path
from typing import Any, cast

import pytest

from sealane.local.errors import TemplateError
from sealane.local.security import LambdaAuthorizer, Nobody
from sealane.local.template import Template, load_template
from sealane.state.keyring import Keyring
from sealane.state.table import Table
from tests.template.conftest import ROOT, Sam
from tests.template.translation import Translated


@pytest.fixture(scope="module")
def template() -> Template:
    return load_template(ROOT / "template.yaml")


def test_every_method_of_the_endpoint_is_the_stateless_functions(template: Template) -> None:
    methods = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}
    routes = {route.path: set(route.methods) for route in template.api.routes if len(route.methods) > 1}
    assert routes == {"/mcp": methods, "/.well-known/{document+}": methods}
    for route in template.api.routes:
        assert route.function.name == "StatelessFunction"
        assert route.function.handler == "app.handler"
        assert route.function.code_dir == ROOT / "functions" / "stateless"
    assert template.api.stage == "prod"


def test_the_function_is_as_designed(template: Template) -> None:
    [function] = template.functions
    assert (function.runtime, function.architecture, function.memory) == ("python3.13", "arm64", 1024)
    assert function.layer_dirs == (ROOT / "layers" / "sealane",)
    assert function.log_group == "/aws/lambda/local-stateless"


def test_the_gateway_gives_up_before_the_function(template: Template) -> None:
    """A client that waited for too long is told so (504); a function that ends first would be a 502 to it."""
    for route in template.api.routes:
        assert route.timeout == 29 < route.function.timeout


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_answers_are_streamed_or_not(streaming: str) -> None:
    """By one parameter, which sets what has to fit together: what the gateway calls, passes on and waits for, and the
    runtime that the function starts."""
    template = load_template(ROOT / "template.yaml", {"ResponseStreaming": streaming, "Timeout": "600"})
    [function] = template.functions
    on = streaming == "true"
    assert function.variables.get("AWS_LAMBDA_EXEC_WRAPPER") == ("/opt/bin/sealane-stream" if on else None)
    assert function.timeout == 600
    assert {(route.streams, route.timeout) for route in template.api.routes} == {(on, 900 if on else 29)}


def test_the_integrations_in_both_settings(resources: dict[str, Any]) -> None:
    paths = resources["Api"]["Properties"]["Body"]["paths"]
    integrations = [
        operation["x-amazon-apigateway-integration"] for methods in paths.values() for operation in methods.values()
    ]
    assert len(integrations) == 3
    arn = "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path"
    for integration in integrations:
        condition, streamed, buffered = integration["uri"]["Fn::If"]
        assert condition == "Streaming"
        assert streamed["Fn::Sub"][0] == f"{arn}/2021-11-15/functions/${{Function}}/response-streaming-invocations"
        assert buffered["Fn::Sub"][0] == f"{arn}/2015-03-31/functions/${{Function}}/invocations"
        assert integration["responseTransferMode"] == {"Fn::If": ["Streaming", "STREAM", "BUFFERED"]}
        assert integration["timeoutInMillis"] == {"Fn::If": ["Streaming", 900000, 29000]}


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    """What CloudFormation gets: the translated resources, intrinsic functions as they are."""
    return cast(dict[str, Any], Translated({}).template["Resources"])


def test_the_table_is_made_to_keep_data(template: Template, resources: dict[str, Any]) -> None:
    [table] = template.tables
    assert table.definition["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    assert table.definition["BillingMode"] == "PAY_PER_REQUEST"
    assert table.ttl_attribute == "expires_at"
    properties = resources["DataTable"]["Properties"]
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    key = {"Fn::GetAtt": ["Key", "Arn"]}
    assert properties["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key}
    assert resources["Key"]["Properties"]["EnableKeyRotation"] is True
    for name in ("DataTable", "Key"):
        for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
            assert resources[name][policy] == {"Ref": "DataDeletionPolicy"}


def test_the_function_may_use_its_table_and_log_and_nothing_else(resources: dict[str, Any]) -> None:
    log, traces, network = resources["StatelessFunctionRole"]["Properties"]["Policies"]
    [statement] = log["PolicyDocument"]["Statement"]
    assert statement["Resource"] == {"Fn::GetAtt": ["StatelessLogGroup", "Arn"]}
    assert statement["Action"] == ["logs:CreateLogStream", "logs:PutLogEvents"]
    assert traces["Fn::If"][::2] == ["WithXRay", {"Ref": "AWS::NoValue"}]
    assert network["Fn::If"][::2] == ["InVpc", {"Ref": "AWS::NoValue"}]
    data = resources["StatelessPolicy"]["Properties"]
    assert data["Roles"] == [{"Ref": "StatelessFunctionRole"}]
    [statement] = data["PolicyDocument"]["Statement"]
    assert statement["Resource"] == {"Fn::GetAtt": ["DataTable", "Arn"]}
    assert not any("*" in action or action.endswith("Scan") for action in statement["Action"])


def test_the_key_opens_data_keys_for_the_function_alone(resources: dict[str, Any]) -> None:
    """Under the words that the keyring wraps them with. The account's administrators can manage the key, not use it."""
    statements = {each["Sid"]: each for each in resources["Key"]["Properties"]["KeyPolicy"]["Statement"]}
    function = {"Fn::GetAtt": ["StatelessFunctionRole", "Arn"]}
    account = {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}
    assert {name: each["Principal"]["AWS"] for name, each in statements.items()} == {
        "Administration": account,
        "MakeDataKeys": [function, account],
        "OpenDataKeys": function,
        "TableEncryption": [
            function,
            account,
            {"Fn::If": ["WithLegacyLane", {"Fn::GetAtt": ["LegacyFunctionRole", "Arn"]}, {"Ref": "AWS::NoValue"}]},
        ],
        "TableCreation": account,
    }
    words = Keyring(stack="local", key_id="key", table=Table("table")).encryption_context("server")
    wanted = {f"kms:EncryptionContext:{name}": value for name, value in words.items() if name != "sealane:audience"}
    for name, action in (
        ("OpenDataKeys", "kms:Decrypt"),
        ("MakeDataKeys", "kms:GenerateDataKeyWithoutPlaintext"),
    ):
        assert statements[name]["Action"] == action
        condition = statements[name]["Condition"]["StringEquals"]
        assert condition == {**wanted, "kms:EncryptionContext:sealane:stack": {"Ref": "AWS::StackName"}}
    for name in ("TableEncryption", "TableCreation"):
        via = statements[name]["Condition"]["StringEquals"]
        assert via == {"kms:ViaService": {"Fn::Sub": "dynamodb.${AWS::Region}.amazonaws.com"}}
    uses = ("Crypt", "DataKey", "Grant", "Sign", "Mac", "*")
    administration = [action for action in statements["Administration"]["Action"] if any(use in action for use in uses)]
    assert administration == ["kms:ListGrants", "kms:RevokeGrant"]


def test_the_function_knows_its_stack_table_and_key(template: Template) -> None:
    [function] = template.functions
    assert function.variables["SEALANE_STACK"] == "local"
    assert function.variables["SEALANE_TABLE"] == template.tables[0].physical_name
    assert function.variables["SEALANE_KEY"].endswith(f"key/{template.keys[0].id}")


AUTH_MODES: dict[str, dict[str, str]] = {
    "none": {},
    "jwt": {"AuthIssuer": "https://issuer.example", "AuthAudience": "https://mcp.example.com/mcp"},
    "cognito": {"AuthUserPool": "us-east-1_Pool", "AuthAudience": "app-client"},
    "iam": {},
}


def with_auth(mode: str, **parameters: str) -> Template:
    """The template with this `AuthMode`."""
    return load_template(ROOT / "template.yaml", {"AuthMode": mode, **AUTH_MODES[mode], **parameters})


@pytest.mark.parametrize("mode", AUTH_MODES)
def test_every_route_has_the_authorizer_of_the_mode(mode: str) -> None:
    template = with_auth(mode)
    routes = {(route.path, route.any_method): route.authorizer for route in template.api.routes}
    endpoint = routes.pop(("/mcp", True))
    # A preflight has no token, and how to get one is read without one.
    assert routes == {("/mcp", False): None, ("/.well-known/{document+}", True): None}
    [preflight] = [route for route in template.api.routes if route.path == "/mcp" and not route.any_method]
    assert preflight.methods == ("OPTIONS",)
    match mode:
        case "none":
            assert endpoint is None
        case "iam":
            assert endpoint is Nobody.IAM
        case _:
            assert isinstance(endpoint, LambdaAuthorizer)
            assert (endpoint.function, endpoint.ttl, endpoint.required) == ("AuthorizerFunction", 300, True)
            assert endpoint.sources == ("method.request.header.Authorization",)
    names = [function.name for function in template.functions]
    assert names == ["StatelessFunction", "AuthorizerFunction"][: 2 if mode in ("jwt", "cognito") else 1]


@pytest.mark.parametrize(
    ("mode", "issuer"),
    [
        ("none", ""),
        ("jwt", "https://issuer.example"),
        ("cognito", "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_Pool"),
        ("iam", ""),
    ],
)
def test_the_functions_know_who_verifies_callers(mode: str, issuer: str) -> None:
    for function in with_auth(mode, AuthScopes="a b", PublicUrl="https://mcp.example.com").functions:
        assert {name: value for name, value in function.variables.items() if "AUTH" in name or "URL" in name} == {
            "SEALANE_AUTH_MODE": mode,
            "SEALANE_AUTH_ISSUER": issuer,
            "SEALANE_AUTH_AUDIENCE": AUTH_MODES[mode].get("AuthAudience", ""),
            "SEALANE_AUTH_SCOPES": "a b",
            "SEALANE_PUBLIC_URL": "https://mcp.example.com",
        }


@pytest.mark.parametrize("mode", AUTH_MODES)
def test_the_gateways_own_refusals_are_for_mcp_clients_and_browsers(mode: str) -> None:
    responses = with_auth(mode, AuthScopes="a", PublicUrl="https://mcp.example.com").api.gateway_responses
    assert set(responses) == {
        "UNAUTHORIZED",
        "ACCESS_DENIED",
        "MISSING_AUTHENTICATION_TOKEN",
        "DEFAULT_4XX",
        "DEFAULT_5XX",
    }
    for response in responses.values():
        assert response.headers["Access-Control-Allow-Origin"] == "'*'"
        assert response.headers["Access-Control-Expose-Headers"] == "'WWW-Authenticate'"
        assert '"jsonrpc":"2.0"' in response.templates["application/json"]
    assert responses["MISSING_AUTHENTICATION_TOKEN"].status == (401 if mode == "iam" else 404)
    if mode not in ("jwt", "cognito"):
        assert "WWW-Authenticate" not in responses["ACCESS_DENIED"].headers
        return
    metadata = 'resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp"'
    assert responses["UNAUTHORIZED"].headers["WWW-Authenticate"] == f"'Bearer {metadata}, scope=\"a\"'"
    denied = responses["ACCESS_DENIED"].headers["WWW-Authenticate"]
    assert denied == f'\'Bearer error="insufficient_scope", {metadata}, scope="a"\''
    assert responses["MISSING_AUTHENTICATION_TOKEN"].status == (401 if mode == "iam" else 404)


@pytest.mark.parametrize(
    "parameters", [{"AuthMode": "oauth"}, {"PublicUrl": "https://mcp.example.com/"}, {"PublicUrl": "mcp.example.com"}]
)
def test_parameters_are_checked(parameters: dict[str, str]) -> None:
    with pytest.raises(TemplateError):
        load_template(ROOT / "template.yaml", parameters)


def test_parameters_reach_the_function() -> None:
    parameters = {
        "Runtime": "python3.11",
        "Architecture": "x86_64",
        "MemorySize": "512",
        "Timeout": "7",
        "StageName": "dev",
    }
    changed = load_template(ROOT / "template.yaml", parameters)
    [function] = changed.functions
    assert (function.runtime, function.architecture, function.memory) == ("python3.11", "x86_64", 512)
    assert (function.timeout, changed.api.stage) == (7, "dev")


def test_nothing_in_the_template_is_beyond_the_local_gateway(template: Template) -> None:
    assert template.not_emulated == ()


INTRINSICS = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Kind: {Type: String, Default: small}
  Names: {Type: CommaDelimitedList, Default: "a, b"}
Mappings:
  Sizes: {small: {Memory: 256}, large: {Memory: 512}}
Conditions:
  Large: !Equals [!Ref Kind, large]
  Small: !Not [!Condition Large]
  Either: !Or [!Condition Large, !Condition Small]
  Both: !And [!Condition Large, !Condition Small]
Resources:
  Hello:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.13
      Handler: app.handler
      CodeUri: .
      MemorySize: !FindInMap [Sizes, !Ref Kind, Memory]
      Environment:
        Variables:
          REF: !Ref Kind
          ARN: !GetAtt Role.Arn
          SUB: !Sub "${Kind} ${!Kind} ${Role.Arn} ${AWS::Region}"
          SUB_OWN: !Sub ["${x}-${Kind}", {x: !Ref "AWS::AccountId"}]
          JOIN: !Join ["+", !Ref Names]
          SELECT: !Select [1, !Split ["-", "a-b-c"]]
          IF: !If [Large, big, little]
          OR: !If [Either, "yes", "no"]
          AND: !If [Both, "yes", "no"]
          NONE: !If [Large, x, !Ref "AWS::NoValue"]
      Events:
        Get: {Type: Api, Properties: {Path: "/users/{id}", Method: get}}
  Role:
    Type: AWS::IAM::Role
    Properties: {RoleName: me, AssumeRolePolicyDocument: {}}
  OnlyLarge:
    Type: AWS::SQS::Queue
    Condition: Large
  Waiting:
    Type: AWS::SQS::Queue
    Condition: Large
  Errors:
    Type: AWS::CloudWatch::Alarm
    Properties: {ComparisonOperator: GreaterThanThreshold, EvaluationPeriods: 1}
"""


def test_intrinsic_functions(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(INTRINSICS)
    small = load_template(tmp_path / "t.yaml")
    [function] = small.functions
    assert function.variables == {
        "REF": "small",
        "ARN": "arn:aws:iam::123456789012:role/me",
        "SUB": "small ${Kind} arn:aws:iam::123456789012:role/me us-east-1",
        "SUB_OWN": "123456789012-small",
        "JOIN": "a+b",
        "SELECT": "b",
        "IF": "little",
        "OR": "yes",
        "AND": "no",
    }
    assert function.memory == 256
    assert (small.api.routes[0].path, small.api.routes[0].methods) == ("/users/{id}", ("GET",))
    assert small.not_emulated == ()

    large = load_template(tmp_path / "t.yaml", {"Kind": "large"})
    assert (large.functions[0].memory, large.functions[0].variables["IF"]) == (512, "big")
    assert large.functions[0].variables["NONE"] == "x"
    # What one who calls the server does not notice is not worth a line.
    assert large.not_emulated == ("OnlyLarge, Waiting (AWS::SQS::Queue)",)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("!Ref Kind\n          ARN", "!Ref Nobody\n          ARN", "Nobody"),
        ("!GetAtt Role.Arn", "!GetAtt Role.RoleId", "Fn::GetAtt Role.RoleId is not known on this machine"),
        ("!Select [1", "!Select [3", "Fn::Select finds nothing at 3"),
        ("!Join", "!Transform", "Fn::Transform cannot be resolved on this machine"),
        ("Default: small", "Default: tiny", "Fn::FindInMap finds nothing"),
        ('Default: "a, b"', "NoEcho: false", "parameter Names has no default"),
    ],
)
def test_what_cannot_be_resolved_is_an_error(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in INTRINSICS
    (tmp_path / "t.yaml").write_text(INTRINSICS.replace(old, new))
    with pytest.raises(TemplateError, match=error):
        load_template(tmp_path / "t.yaml")


def test_sam_finds_nothing_to_complain_about(sam: Sam) -> None:
    checked = sam("validate", "--lint")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "is a valid SAM Template" in checked.stdout
