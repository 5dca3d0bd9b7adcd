"""Authentication as API Gateway does it: authorizers of REST and HTTP APIs, and a REST API's own answers."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.integration.test_api_gateway import Reply, Stub, write_template

from sealane.local import LocalGateway, Record, TemplateError
from sealane.local.api_gateway import Failure, Refused
from sealane.local.authorizers import LambdaAuthorizers
from sealane.local.environment import Outcome
from sealane.local.rest_api import RestApi
from sealane.local.security import JwtAuthorizer, LambdaAuthorizer, Nobody
from sealane.local.template import load_template

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  HasAuth: {Type: String, Default: "yes"}
Conditions:
  Secured: !Equals [!Ref HasAuth, "yes"]
Resources:
  Rest:
    Type: AWS::Serverless::Api
    Properties:
      StageName: dev
      OpenApiVersion: 3.0.1
      Auth:
        Authorizers:
          Request: {FunctionPayloadType: REQUEST, FunctionArn: !GetAtt Guard.Arn, Identity: {Headers: [Authorization]}}
          Two:
            FunctionPayloadType: REQUEST
            FunctionArn: !GetAtt Guard.Arn
            Identity: {Headers: [Authorization], QueryStrings: [tenant], Context: [httpMethod]}
          Always:
            FunctionPayloadType: REQUEST
            FunctionArn: !GetAtt Guard.Arn
            Identity: {Headers: [Authorization], ReauthorizeEvery: 0}
          Short: {FunctionArn: !GetAtt Guard.Arn, Identity: {ReauthorizeEvery: 1}}
          Token: {FunctionArn: !GetAtt Guard.Arn, Identity: {Header: X-Token, ValidationExpression: "[a-z]+"}}
          Pool: {UserPoolArn: "arn:aws:cognito-idp:us-east-1:123456789012:userpool/us-east-1_x"}
  Custom:
    Type: AWS::Serverless::Api
    Properties:
      StageName: dev
      DefinitionBody:
        openapi: 3.0.1
        info: {title: custom, version: "1"}
        paths:
          /mcp:
            post: &post
              security: !If [Secured, [{LambdaAuthorizer: []}], []]
              x-amazon-apigateway-integration: &integration
                type: aws_proxy
                httpMethod: POST
                timeoutInMillis: 300
                uri: !Sub "arn:aws:apigateway:x:lambda:path/x/functions/${Function.Arn}/invocations"
            get:
              <<: *post
              security: !If [Secured, [{LambdaAuthorizer: []}], !Ref AWS::NoValue]
          /stream:
            post:
              security: !If [Secured, [{LambdaAuthorizer: []}], []]
              x-amazon-apigateway-integration:
                type: aws_proxy
                httpMethod: POST
                responseTransferMode: STREAM
                uri: !Sub "arn:aws:apigateway:x:lambda:path/x/functions/${Function.Arn}/response-streaming-invocations"
          /open: {post: {x-amazon-apigateway-integration: *integration}}
        components:
          securitySchemes:
            LambdaAuthorizer:
              type: apiKey
              name: Authorization
              in: header
              x-amazon-apigateway-authtype: custom
              x-amazon-apigateway-authorizer:
                type: request
                authorizerUri: !Sub "arn:aws:apigateway:x:lambda:path/x/functions/${Guard.Arn}/invocations"
                identitySource: method.request.header.Authorization
                authorizerResultTtlInSeconds: 0
        x-amazon-apigateway-gateway-responses:
          UNAUTHORIZED:
            responseParameters:
              gatewayresponse.header.WWW-Authenticate: !Sub "'Bearer resource_metadata=\\"${AWS::StackName}\\"'"
            responseTemplates:
              application/json: '{"why": $context.error.messageString, "is": "$context.error.responseType"}'
          ACCESS_DENIED:
            statusCode: "403"
            responseParameters:
              gatewayresponse.header.WWW-Authenticate: context.authorizer.challenge
              gatewayresponse.header.X-Origin: method.request.header.Origin
              gatewayresponse.header.X-None: context.authorizer.none
            responseTemplates:
              application/problem+json: |-
                {"stage": "$context.stage", "number": $context.authorizer.number, "none": "$context.none"}
          DEFAULT_4XX:
            responseParameters: {gatewayresponse.header.Access-Control-Allow-Origin: "'*'"}
          DEFAULT_5XX:
            statusCode: 599
            responseParameters: {gatewayresponse.header.Access-Control-Allow-Origin: "'*'"}
  Throttled:
    Type: AWS::ApiGateway::GatewayResponse
    Properties:
      RestApiId: !Ref Custom
      ResponseType: INTEGRATION_TIMEOUT
      StatusCode: "418"
      ResponseTemplates: {text/plain: "$context.error.message at $context.requestId"}
  Http:
    Type: AWS::Serverless::HttpApi
    Properties:
      StageName: prod
      Auth:
        EnableIamAuthorizer: true
        DefaultAuthorizer: Jwt
        Authorizers:
          Jwt:
            IdentitySource: $request.header.Authorization
            JwtConfiguration: {issuer: "ISSUER", audience: [mcp, other]}
          Lost:
            IdentitySource: $request.querystring.token
            JwtConfiguration: {issuer: "http://127.0.0.1:1", audience: [mcp]}
          Simple:
            FunctionArn: !GetAtt Guard.Arn
            AuthorizerPayloadFormatVersion: "2.0"
            EnableSimpleResponses: true
            Identity: {Headers: [Authorization], ReauthorizeEvery: 300}
          Policy:
            FunctionArn: !GetAtt Guard.Arn
            AuthorizerPayloadFormatVersion: "2.0"
            Identity: {Headers: [Authorization], QueryStrings: [tenant]}
          Old:
            FunctionArn: !GetAtt Guard.Arn
            AuthorizerPayloadFormatVersion: "1.0"
            Identity: {Headers: [Authorization]}
  Guard:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: CODE, Handler: guard.handler, Runtime: python3.11, Timeout: 2}
  Function:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: CODE
      Handler: app.handler
      Runtime: python3.11
      Timeout: 5
      FunctionUrlConfig: {AuthType: AWS_IAM}
      Events:
        Open: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /open, Method: ANY}}
        Request:
          Type: Api
          Properties: {RestApiId: !Ref Rest, Path: "/request/{id}", Method: ANY, Auth: {Authorizer: Request}}
        Two: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /two, Method: ANY, Auth: {Authorizer: Two}}}
        Always: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /always, Method: ANY, Auth: {Authorizer: Always}}}
        Short: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /short, Method: ANY, Auth: {Authorizer: Short}}}
        Token: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /token, Method: ANY, Auth: {Authorizer: Token}}}
        Pool: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /pool, Method: ANY, Auth: {Authorizer: Pool}}}
        Iam: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /iam, Method: ANY, Auth: {Authorizer: AWS_IAM}}}
        Key: {Type: Api, Properties: {RestApiId: !Ref Rest, Path: /key, Method: ANY, Auth: {ApiKeyRequired: true}}}
        HttpOpen: {Type: HttpApi, Properties: {ApiId: !Ref Http, Path: /open, Method: ANY, Auth: {Authorizer: NONE}}}
        HttpJwt: {Type: HttpApi, Properties: {ApiId: !Ref Http, Path: /jwt, Method: ANY, Auth: {Authorizer: Jwt}}}
        HttpJwtV1:
          Type: HttpApi
          Properties: {ApiId: !Ref Http, Path: /v1/jwt, Method: ANY, PayloadFormatVersion: "1.0"}
        HttpScope:
          Type: HttpApi
          Properties:
            {ApiId: !Ref Http, Path: /scope, Method: ANY, Auth: {Authorizer: Jwt, AuthorizationScopes: [read, write]}}
        HttpLost: {Type: HttpApi, Properties: {ApiId: !Ref Http, Path: /lost, Method: ANY, Auth: {Authorizer: Lost}}}
        HttpSimple:
          Type: HttpApi
          Properties: {ApiId: !Ref Http, Path: /simple, Method: ANY, Auth: {Authorizer: Simple}}
        HttpPolicy:
          Type: HttpApi
          Properties: {ApiId: !Ref Http, Path: "/policy/{id}", Method: ANY, Auth: {Authorizer: Policy}}
        HttpOld: {Type: HttpApi, Properties: {ApiId: !Ref Http, Path: /old, Method: ANY, Auth: {Authorizer: Old}}}
        HttpIam: {Type: HttpApi, Properties: {ApiId: !Ref Http, Path: /iam, Method: ANY, Auth: {Authorizer: AWS_IAM}}}
"""

GUARD = """
import json, time, uuid


def handler(event, context):
    headers = {name.lower(): value for name, value in event.get("headers", {}).items()}
    command, _, argument = (event.get("authorizationToken") or headers.get("authorization", "none")).partition(" ")
    print("asked", command)
    arn = event.get("methodArn") or event.get("routeArn")
    if command == "raise":
        raise ValueError(argument)
    if command == "sleep":
        time.sleep(float(argument))
    if command == "answer":
        return json.loads(argument)
    told = {"asked": str(uuid.uuid4()), "event": json.dumps(event)}
    if command in ("yes", "no"):
        return {"isAuthorized": command == "yes", "context": {**told, "list": [1, {"a": True}]}}
    effect = "Deny" if command == "deny" else "Allow"
    return {
        "principalId": "ada",
        "policyDocument": {
            "Version": "2012-10-17",
            "Statement": [
                {"Action": "execute-api:Invoke", "Effect": effect, "Resource": argument or arn}
            ],
        },
        "context": {**told, "number": 1, "half": 0.5, "yes": True, "null": None, "challenge": 'Bearer scope="x"'},
    }
"""

FUNCTION = """
import json, time


def handler(event, context):
    if event.get("body") == "raise":
        raise ValueError("no")
    if event.get("body") == "sleep":
        time.sleep(0.8)
    if event.get("body") == "challenge":
        return {"statusCode": 401, "headers": {"WWW-Authenticate": "Bearer"}}
    return {"statusCode": 200, "headers": {"content-type": "application/json"}, "body": json.dumps(event)}
"""

REST_ARN = "arn:aws:execute-api:us-east-1:123456789012:Rest/dev"
UNAUTHORIZED = {"message": "Unauthorized"}
DENIED = {"Message": "User is not authorized to access this resource"}
DENIED_EXPLICITLY = {"Message": "User is not authorized to access this resource with an explicit deny"}


class Issuer:
    """An OpenID provider on loopback: what it publishes, and tokens that it signs."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.stranger = rsa.generate_private_key(65537, 2048)
        self.curve = ec.generate_private_key(ec.SECP256R1())
        self.fetched: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetched.append(self.path)
                body = json.dumps(issuer.documents[self.path]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        published = [
            {**jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True), "kid": "one", "alg": "RS256"},
            {
                **jwt.algorithms.ECAlgorithm.to_jwk(self.curve.public_key(), as_dict=True),
                "kid": "curve",
                "alg": "ES256",
            },
        ]
        self.documents: dict[str, Any] = {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": published},
        }
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self, key: Any = None, kid: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
        """A token that is good, but for what is said; a claim that is None is left out, but for one that is null."""
        now = int(time.time())
        all_ = {"iss": self.url, "aud": "mcp", "sub": "ada", "iat": now, "nbf": now, "exp": now + 60, **claims}
        signer: Any = None if algorithm == "none" else key or self.key
        kept = {name: value for name, value in all_.items() if value is not None}
        return jwt.encode({**kept, "nothing": None}, signer, algorithm, headers={"kid": kid} if kid else {})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Path:
    folder = tmp_path_factory.mktemp("authorizers")
    (folder / "app.py").write_text(FUNCTION)
    (folder / "guard.py").write_text(GUARD)
    return write_template(folder, folder, TEMPLATE.replace("ISSUER", issuer.url))


@pytest.fixture(scope="module")
def stub(template: Path) -> Iterator[Stub]:
    records: list[Record] = []
    with LocalGateway(template, concurrency=2, observe=records.append) as gateway:
        yield Stub(gateway, records)


def send(
    stub: Stub, api: str, path: str, token: str | None = None, *, header: str = "Authorization", **more: Any
) -> Reply:
    headers = [("Content-Type", "text/plain"), *([(header, token)] if token is not None else [])]
    return stub.request(api, path=path, headers=headers + more.pop("headers", []), **more)


def caller(reply: Reply) -> Any:
    """What the function was told of its caller."""
    assert reply.status == 200, reply.body
    return reply.json["requestContext"]["authorizer"]


def asked(stub: Stub) -> int:
    """How often the authorizer's function was called."""
    return sum(getattr(each, "text", "").startswith("asked") for each in stub.records)


# What an authorizer is asked


def test_a_token_authorizer_gets_the_token_and_the_arn(stub: Stub) -> None:
    told = caller(send(stub, "Rest", "/token?a=1", "allow", header="x-token", method="PUT"))
    assert json.loads(told["event"]) == {
        "type": "TOKEN",
        "methodArn": f"{REST_ARN}/PUT/token",
        "authorizationToken": "allow",
    }


def test_a_request_authorizer_gets_the_request_without_its_body(stub: Stub) -> None:
    reply = send(stub, "Rest", "/request/7?a=1&a=2", "allow", body="secret", headers=[("X-CaSe", "é")])
    event, told = reply.json, caller(reply)
    got = json.loads(told["event"])
    assert got.keys() == (event.keys() - {"body", "isBase64Encoded"}) | {"type", "methodArn"}
    assert (got["type"], got["methodArn"]) == ("REQUEST", f"{REST_ARN}/POST/request/7")
    assert got["pathParameters"] == {"id": "7"}
    assert (got["queryStringParameters"], got["multiValueQueryStringParameters"]) == ({"a": "2"}, {"a": ["1", "2"]})
    assert got["stageVariables"] == {}
    assert got["headers"] == event["headers"]
    assert got["multiValueHeaders"] == event["multiValueHeaders"]
    assert got["requestContext"].keys() == event["requestContext"].keys() - {"authorizer"}
    assert got["requestContext"]["requestId"] == event["requestContext"]["requestId"]
    assert got["requestContext"]["resourcePath"] == "/request/{id}"
    assert "secret" not in told["event"]


def test_an_authorizer_of_payload_2_0_gets_route_arn_and_identity(stub: Stub) -> None:
    reply = send(stub, "Http", "/policy/7?tenant=a", "allow", body="secret")
    got = json.loads(caller(reply)["lambda"]["event"])
    assert got.keys() == {
        *("version", "type", "routeArn", "identitySource", "routeKey", "rawPath", "rawQueryString"),
        *("headers", "queryStringParameters", "pathParameters", "requestContext"),
    }
    assert (got["version"], got["type"]) == ("2.0", "REQUEST")
    assert got["routeArn"] == "arn:aws:execute-api:us-east-1:123456789012:Http/prod/POST/policy/7"
    assert got["identitySource"] == ["allow", "a"]
    assert (got["rawPath"], got["pathParameters"]) == ("/prod/policy/7", {"id": "7"})
    assert got["requestContext"]["http"]["method"] == "POST"


def test_an_authorizer_of_payload_1_0_of_an_http_api(stub: Stub) -> None:
    got = json.loads(caller(send(stub, "Http", "/old", "allow"))["lambda"]["event"])
    assert (got["version"], got["type"]) == ("1.0", "REQUEST")
    assert got["methodArn"] == "arn:aws:execute-api:us-east-1:123456789012:Http/prod/POST/old"
    assert got["identitySource"] == got["authorizationToken"] == "allow"
    assert (got["httpMethod"], got["queryStringParameters"], got["pathParameters"]) == ("POST", {}, {})
    assert "body" not in got


# What the function is told


def test_context_values_are_texts_in_events_of_a_rest_api(stub: Stub) -> None:
    told = caller(send(stub, "Rest", "/always", "allow"))
    assert isinstance(told.pop("integrationLatency"), int)
    del told["event"], told["asked"]
    assert told == {
        "number": "1",
        "half": "0.5",
        "yes": "true",
        "null": None,
        "challenge": 'Bearer scope="x"',
        "principalId": "ada",
    }


def test_context_values_keep_their_types_in_payload_2_0(stub: Stub) -> None:
    assert caller(send(stub, "Http", "/simple", "yes"))["lambda"]["list"] == [1, {"a": True}]
    told = caller(send(stub, "Http", "/policy/1?tenant=a", "allow"))["lambda"]
    assert (told["number"], told["yes"]) == (1, True)


def test_without_a_context_payload_2_0_has_null(stub: Stub) -> None:
    for path, answer in (
        ("/simple", {"isAuthorized": True}),
        (
            "/policy/1?tenant=a",
            {
                "principalId": "ada",
                "policyDocument": {
                    "Statement": [{"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": "*"}],
                },
            },
        ),
    ):
        assert caller(send(stub, "Http", path, f"answer {json.dumps(answer)}")) == {"lambda": None}


def test_a_route_without_an_authorizer_tells_nothing(stub: Stub) -> None:
    before = asked(stub)
    for api in ("Rest", "Http"):
        reply = send(stub, api, "/open", "allow")
        assert reply.status == 200
        assert "authorizer" not in reply.json["requestContext"]
    assert asked(stub) == before


# Who is refused


@pytest.mark.parametrize(
    ("api", "path", "token", "header"),
    [
        ("Rest", "/request/1", None, "Authorization"),
        ("Rest", "/request/1", "", "Authorization"),
        ("Rest", "/two", "allow", "Authorization"),
        ("Rest", "/two?tenant=", "allow", "Authorization"),
        ("Rest", "/token", None, "X-Token"),
        ("Rest", "/token", "allow", "Authorization"),
        ("Rest", "/token", "allow1", "X-Token"),
        ("Rest", "/token", "1allow", "X-Token"),
        ("Http", "/simple", None, "Authorization"),
        ("Http", "/policy/1", "allow", "Authorization"),
        ("Http", "/old", "", "Authorization"),
    ],
)
def test_without_an_identity_nobody_is_asked(stub: Stub, api: str, path: str, token: str | None, header: str) -> None:
    before = asked(stub)
    reply = send(stub, api, path, token, header=header)
    assert (reply.status, reply.json) == (401, UNAUTHORIZED)
    assert reply.headers["www-authenticate"] is None
    assert str(stub.problem(reply)).startswith("no identity for ")
    assert asked(stub) == before


def test_a_rest_api_that_keeps_no_answers_asks_without_an_identity(stub: Stub) -> None:
    before = asked(stub)
    assert send(stub, "Rest", "/always").status == 200
    assert asked(stub) == before + 1


def test_the_exception_unauthorized_is_401_of_a_rest_api_only(stub: Stub) -> None:
    reply = send(stub, "Rest", "/always", "raise Unauthorized")
    assert (reply.status, reply.json) == (401, UNAUTHORIZED)
    reply = send(stub, "Http", "/simple", "raise Unauthorized")
    assert (reply.status, reply.json) == (500, {"message": "Internal Server Error"})


STATEMENT = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": "*"}


def policy(*statements: object, **more: object) -> str:
    """The command that makes the authorizer answer this."""
    answer = {"principalId": "ada", "policyDocument": {"Version": "2012-10-17", "Statement": statements}, **more}
    return f"answer {json.dumps(answer)}"


@pytest.mark.parametrize(
    "token",
    [
        "raise Unauthorized: expired",
        "raise no",
        "sleep 5",
        "answer null",
        "answer {}",
        'answer "Unauthorized"',
        policy(),
        policy(STATEMENT, context={"deep": {"a": 1}}),
        policy(STATEMENT, context={"deep": ["a"]}),
        policy(STATEMENT, context="a"),
        policy(STATEMENT | {"Effect": "allow"}),
        policy(STATEMENT | {"Resource": []}),
        policy(STATEMENT | {"Condition": {}}),
        policy("a"),
    ],
)
def test_an_authorizer_that_fails_is_500(stub: Stub, token: str) -> None:
    reply = send(stub, "Rest", "/always", token)
    expected = (403, DENIED) if token == policy() else (500, {"message": None})
    assert (reply.status, reply.json) == expected
    assert stub.call(reply).environment is None
    assert stub.problem(reply)


@pytest.mark.parametrize("token", ["raise no", "answer {}", 'answer {"isAuthorized": "true"}', policy(STATEMENT)])
def test_a_simple_authorizer_that_fails_is_500(stub: Stub, token: str) -> None:
    reply = send(stub, "Http", "/simple", token)
    assert (reply.status, reply.json) == (500, {"message": "Internal Server Error"})


ALL_REST = "arn:aws:execute-api:*:*:*"


@pytest.mark.parametrize(
    ("token", "denied"),
    [
        (policy(STATEMENT), None),
        (policy(STATEMENT | {"Action": ["s3:*", "Execute-API:*"], "Resource": ["x", f"{REST_ARN}/POST/alway?"]}), None),
        (policy(STATEMENT | {"Resource": f"{REST_ARN}/*/always"}), None),
        (policy(STATEMENT | {"Resource": ALL_REST}), None),
        (policy(STATEMENT | {"Action": "execute-api:Manage"}), DENIED),
        (policy(STATEMENT | {"Resource": f"{REST_ARN}/GET/*"}), DENIED),
        (policy(STATEMENT | {"Resource": f"{REST_ARN}/POST/alway"}), DENIED),
        (policy(STATEMENT | {"Resource": f"{REST_ARN.replace('/dev', '/prod')}/*"}), DENIED),
        (policy(STATEMENT, STATEMENT | {"Effect": "Deny", "Resource": f"{REST_ARN}/POST/*"}), DENIED_EXPLICITLY),
        (policy(STATEMENT, STATEMENT | {"Effect": "Deny", "Resource": f"{REST_ARN}/GET/*"}), None),
        ("deny", DENIED_EXPLICITLY),
    ],
)
def test_a_policy_is_evaluated(stub: Stub, token: str, denied: object) -> None:
    reply = send(stub, "Rest", "/always", token)
    assert reply.status == (403 if denied else 200)
    if denied:
        assert reply.json == denied
        assert "does not allow" in str(stub.problem(reply))


@pytest.mark.parametrize(("path", "token"), [("/simple", "no"), ("/policy/1?tenant=a", "deny"), ("/old", "deny")])
def test_an_http_api_calls_it_forbidden(stub: Stub, path: str, token: str) -> None:
    reply = send(stub, "Http", path, token)
    assert (reply.status, reply.json) == (403, {"message": "Forbidden"})


@pytest.mark.parametrize(
    ("api", "path", "status", "body"),
    [
        ("Rest", "/iam", 403, {"message": "Missing Authentication Token"}),
        ("Rest", "/pool", 401, UNAUTHORIZED),
        ("Rest", "/key", 403, {"message": "Forbidden"}),
        ("Http", "/iam", 403, {"message": "Forbidden"}),
        ("FunctionUrl", "/", 403, {"Message": "Forbidden"}),
    ],
)
def test_what_is_not_emulated_refuses_everybody(stub: Stub, api: str, path: str, status: int, body: object) -> None:
    for token in (None, "allow", "AWS4-HMAC-SHA256 Credential=x"):
        reply = send(stub, api, path, token)
        assert (reply.status, reply.json) == (status, body)


def test_what_is_not_emulated_is_named_once(template: Path) -> None:
    named = LocalGateway(template).not_emulated
    for what in (
        "IAM authorization of Rest (such routes refuse everybody)",
        "Cognito authorizers of Rest (such routes refuse everybody)",
        "API keys of Rest (such routes refuse everybody)",
        "IAM authorization of Http (such routes refuse everybody)",
        "the authorization of FunctionUrl",
    ):
        assert named.count(what) == 1
    assert not [each for each in named if "Custom" in each or "GatewayResponse" in each]


# How long an answer is kept


def test_a_policy_is_kept_for_every_route_of_its_authorizer(stub: Stub) -> None:
    token = f"allow {REST_ARN}/GET/request/*"
    before = asked(stub)
    first = caller(send(stub, "Rest", "/request/1", token, method="GET"))
    second = caller(send(stub, "Rest", "/request/2", token, method="GET"))
    assert (first["asked"], first["event"]) == (second["asked"], second["event"])
    assert second["integrationLatency"] == 0
    # The policy is kept, not the decision.
    assert send(stub, "Rest", "/request/1", token, method="POST").status == 403
    assert asked(stub) == before + 1
    assert send(stub, "Rest", "/request/1", f"allow {REST_ARN}/GET/*", method="GET").status == 200
    assert asked(stub) == before + 2


def test_every_identity_source_is_in_the_key(stub: Stub) -> None:
    seen = {
        caller(send(stub, "Rest", path, "allow *", method=method))["asked"]
        for path, method in (("/two?tenant=a", "GET"), ("/two?tenant=b", "GET"), ("/two?tenant=a", "POST"))
        for _ in range(2)
    }
    assert len(seen) == 3


def test_a_header_sent_twice_is_not_taken_for_one_of_them(stub: Stub) -> None:
    assert send(stub, "Rest", "/token", "twice", header="X-Token").status == 200
    reply = send(stub, "Rest", "/token", "twice", header="X-Token", headers=[("X-Token", "twice")])
    assert reply.status == 401


def test_an_authorizer_is_asked_again_after_its_time(stub: Stub) -> None:
    first = caller(send(stub, "Rest", "/short", "allow"))["asked"]
    assert caller(send(stub, "Rest", "/short", "allow"))["asked"] == first
    time.sleep(1.1)
    assert caller(send(stub, "Rest", "/short", "allow"))["asked"] != first


def test_without_a_time_nothing_is_kept(stub: Stub) -> None:
    for api, path in (("Rest", "/always"), ("Http", "/policy/1?tenant=a")):
        tellings = [caller(send(stub, api, path, "allow")) for _ in range(2)]
        first, second = (told.get("lambda", told)["asked"] for told in tellings)
        assert first != second


def test_a_refusal_is_kept_and_a_failure_is_not(stub: Stub) -> None:
    for token, calls in (("deny once", 1), ("raise Unauthorized", 2), ("raise no", 2)):
        before = asked(stub)
        for _ in range(2):
            assert send(stub, "Rest", "/request/1", token).status >= 400
        assert asked(stub) == before + calls


@pytest.mark.anyio
async def test_an_api_gives_up_before_the_authorizer() -> None:
    async def sleep(function: str, event: bytes, trace_id: str) -> Outcome:
        await asyncio.sleep(5)
        raise AssertionError

    authorizer = LambdaAuthorizer("A", "Guard", token=True, sources=(), required=True, ttl=0)
    with pytest.raises(Refused, match=r"no answer of Guard within 0.01 s") as caught:
        await LambdaAuthorizers(sleep, 0.01, rest=True).ask(authorizer, (), {}, "")
    assert caught.value.failure is Failure.AUTHORIZER_TIMEOUT
    assert RestApi.response_types[Failure.AUTHORIZER_TIMEOUT] == "AUTHORIZER_FAILURE"


def test_a_simple_answer_is_kept_for_its_time(stub: Stub) -> None:
    before = asked(stub)
    for _ in range(2):
        assert send(stub, "Http", "/simple", "no more").status == 403
    assert asked(stub) == before + 1


def test_the_times_of_the_template(template: Path) -> None:
    found = {
        route.authorizer.name: route.authorizer.ttl
        for api in load_template(template).apis
        for route in api.routes
        if isinstance(route.authorizer, LambdaAuthorizer)
    }
    assert found == {
        **{"Request": 300, "Two": 300, "Always": 0, "Short": 1, "Token": 300},
        **{"LambdaAuthorizer": 0, "Simple": 300, "Policy": 0, "Old": 0},
    }


# A REST API's own answers


def test_a_gateway_response_has_the_challenge_under_its_own_name(stub: Stub) -> None:
    reply = send(stub, "Custom", "/mcp", "raise Unauthorized")
    assert (reply.status, reply.json) == (401, {"why": "Unauthorized", "is": "UNAUTHORIZED"})
    assert reply.headers["www-authenticate"] == 'Bearer resource_metadata="local"'
    assert reply.headers["x-amzn-remapped-www-authenticate"] is None
    assert reply.headers["x-amzn-RequestId"]
    # The default for all 4XX does not add to one that has its own.
    assert reply.headers["access-control-allow-origin"] is None
    reply = send(stub, "Custom", "/open", body="challenge")
    assert reply.headers["www-authenticate"] is None
    assert reply.headers["x-amzn-remapped-www-authenticate"] == "Bearer"


def test_a_gateway_response_knows_the_request_and_the_context_of_the_authorizer(stub: Stub) -> None:
    reply = send(stub, "Custom", "/mcp", "deny", headers=[("Origin", "https://app.example")])
    assert (reply.status, reply.headers["content-type"]) == (403, "application/problem+json")
    assert reply.json == {"stage": "dev", "number": 1, "none": ""}
    assert reply.headers["www-authenticate"] == 'Bearer scope="x"'
    assert reply.headers["x-origin"] == "https://app.example"
    assert reply.headers["x-none"] is None


def test_a_route_that_streams_asks_too(stub: Stub) -> None:
    assert send(stub, "Custom", "/stream", "raise Unauthorized").status == 401
    assert send(stub, "Custom", "/stream", "deny").status == 403


def test_a_context_cannot_add_headers(stub: Stub) -> None:
    deny = STATEMENT | {"Effect": "Deny"}
    reply = send(stub, "Custom", "/mcp", policy(deny, context={"challenge": "é€\r\nx-evil: 1"}))
    assert reply.headers["www-authenticate"].encode("latin-1").decode() == "é€ x-evil: 1"
    assert reply.headers["x-evil"] is None


@pytest.mark.parametrize(
    ("path", "more", "status", "body"),
    [
        ("/nope", {}, 403, b'{"message":"Missing Authentication Token"}'),
        ("/open", {"body": b"x" * 7_000_000}, 413, b'{"message":"Request Too Long"}'),
        ("/open", {"body": b"x" * 11_000_000}, 413, b"HTTP content length exceeded 10485760 bytes."),
        ("/open", {"headers": [("X-Long", "x" * 11_000)]}, 431, b'{"message":"Request Header Fields Too Large"}'),
        ("/mcp", {"token": "raise no"}, 599, b'{"message":null}'),
        ("/open", {"body": "raise"}, 599, b'{"message":"Internal server error"}'),
    ],
)
def test_the_defaults_are_on_every_other_answer(
    stub: Stub, path: str, more: dict[str, Any], status: int, body: bytes
) -> None:
    reply = send(stub, "Custom", path, **more)
    assert (reply.status, reply.body) == (status, body)
    assert reply.headers["access-control-allow-origin"] == "*"


def test_a_gateway_response_can_be_a_resource(stub: Stub) -> None:
    reply = send(stub, "Custom", "/open", body="sleep")
    assert (reply.status, reply.headers["content-type"]) == (418, "text/plain")
    assert reply.body.decode() == f"Endpoint request timed out at {reply.headers['x-amzn-RequestId']}"
    time.sleep(0.8)  # The function goes on, and its environment is busy.


def test_a_condition_of_the_template_takes_the_authorizer_away(template: Path) -> None:
    for value, authorizer in (("yes", "LambdaAuthorizer"), ("no", None)):
        loaded = load_template(template, {"HasAuth": value})
        [custom] = [api for api in loaded.apis if api.name == "Custom"]
        found = [getattr(route.authorizer, "name", None) for route in custom.routes]
        assert found == [authorizer, authorizer, authorizer, None]


def rest_template(folder: Path, code_dir: Path, body: str) -> Path:
    """A REST API with this in its document."""
    return write_template(
        folder,
        code_dir,
        f"""
Transform: AWS::Serverless-2016-10-31
Resources:
  Rest:
    Type: AWS::Serverless::Api
    Properties:
      StageName: dev
      DefinitionBody:
        info: {{title: x, version: "1"}}
        {body}
        paths:
          /a:
            get:
              security: [{{A: []}}, {{B: []}}]
              x-amazon-apigateway-integration: {{type: aws_proxy, uri: !Sub "arn:x/${{Function.Arn}}/invocations"}}
  Function:
    Type: AWS::Serverless::Function
    Properties: {{CodeUri: CODE, Handler: app.handler, Runtime: python3.11}}
""",
    )


LAMBDA = "{type: apiKey, name: X, in: header, x-amazon-apigateway-authorizer: {type: token, authorizerUri: URI}}"
OURS = LAMBDA.replace("URI", '!Sub "arn:x/${Function.Arn}/invocations"')
OTHERS = LAMBDA.replace("URI", "arn:aws:lambda:us-east-1:210987654321:function:x/invocations")
SIGV4 = "{type: apiKey, name: X, in: header, x-amazon-apigateway-authtype: awsSigv4}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"swagger: '2.0'\n        securityDefinitions: {{A: {OURS}, B: {OURS}}}", "A"),
        (f"openapi: 3.0.1\n        components: {{securitySchemes: {{A: {OURS}, B: {SIGV4}}}}}", Nobody.IAM),
        (f"openapi: 3.0.1\n        components: {{securitySchemes: {{A: {OTHERS}, B: {OURS}}}}}", Nobody.FUNCTION),
    ],
)
def test_the_authorizer_of_a_document(template: Path, tmp_path: Path, body: str, expected: object) -> None:
    [route] = load_template(rest_template(tmp_path, template.parent, body)).api.routes
    if isinstance(route.authorizer, LambdaAuthorizer):
        assert (route.authorizer.name, route.authorizer.sources) == (expected, ("method.request.header.X",))
    else:
        assert route.authorizer is expected


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (f"components: {{securitySchemes: {{A: {OURS}}}}}", "secured by B, which the template does not define"),
        ("components: {securitySchemes: {A: {type: http, scheme: basic}}}", "A in the template is no authorizer"),
    ],
)
def test_a_document_that_cannot_be_secured_is_refused(template: Path, tmp_path: Path, body: str, error: str) -> None:
    with pytest.raises(TemplateError, match=error):
        load_template(rest_template(tmp_path, template.parent, f"openapi: 3.0.1\n        {body}"))


# Tokens of an HTTP API


def test_a_good_token(stub: Stub, issuer: Issuer) -> None:
    claims: dict[str, Any] = {"groups": ["a", "b"], "admin": True, "level": 3, "deep": {"a": [1]}, "scope": "read x"}
    token = issuer.token(**claims)
    sent = jwt.decode(token, options={"verify_signature": False})
    for value in (token, f"Bearer {token}"):
        told = caller(send(stub, "Http", "/jwt", value))
        assert told == {
            "jwt": {
                "claims": {
                    **{"iss": issuer.url, "aud": "mcp", "sub": "ada", "scope": "read x"},
                    **{name: str(sent[name]) for name in ("iat", "nbf", "exp")},
                    **{"groups": "[a b]", "admin": "true", "level": "3", "deep": '{"a":[1]}'},
                },
                "scopes": None,
            }
        }
    assert caller(send(stub, "Http", "/v1/jwt", token)) == told["jwt"]
    assert issuer.fetched == ["/.well-known/openid-configuration", "/keys"]


def test_a_token_for_one_of_the_audience_is_good(stub: Stub, issuer: Issuer) -> None:
    for claims in ({"aud": ["x", "other"]}, {"aud": None, "client_id": "mcp"}):
        assert send(stub, "Http", "/jwt", issuer.token(**claims)).status == 200


def challenge(description: str) -> str:
    return f'Bearer scope="" error="invalid_token" error_description="{description}"'


def test_bad_tokens(stub: Stub, issuer: Issuer) -> None:
    now, bad = int(time.time()), "the token is invalid"
    pem = issuer.documents["/keys"]["keys"][0]["n"]
    for token, description in (
        ("", None),
        ("Bearer x", bad),
        (issuer.token(exp=now - 1), "the token has expired"),
        (issuer.token(exp=None), bad),
        (issuer.token(nbf=now + 60), bad),
        (issuer.token(iat=now + 60), bad),
        (issuer.token(iss="https://elsewhere.example"), bad),
        (issuer.token(iss=None), bad),
        (issuer.token(aud="x"), "the token does not have a valid audience"),
        (issuer.token(aud="x", client_id="mcp"), "the token does not have a valid audience"),
        (issuer.token(aud=None), "the token does not have a valid audience"),
        (issuer.token(key=issuer.stranger), bad),
        (issuer.token(kid=None), bad),
        (issuer.token(kid="two"), bad),
        (issuer.token(key=issuer.curve, kid="curve", algorithm="ES256"), bad),
        (issuer.token(key=pem, algorithm="HS256"), bad),
        (issuer.token(algorithm="none"), bad),
    ):
        reply = send(stub, "Http", "/jwt", token)
        assert (reply.status, reply.json) == (401, UNAUTHORIZED), token
        assert reply.headers["www-authenticate"] == (challenge(description) if description else "Bearer")
    # What is not known is not asked for again at every request.
    assert len(issuer.fetched) == 2


def test_a_route_asks_for_one_of_its_scopes(stub: Stub, issuer: Issuer) -> None:
    for claims, granted in (
        ({"scope": "x write"}, ["x", "write"]),
        ({"scp": ["read"]}, ["read"]),
        ({"scp": "read"}, ["read"]),
    ):
        assert caller(send(stub, "Http", "/scope", issuer.token(**claims)))["jwt"]["scopes"] == granted
    for token in (issuer.token(), issuer.token(scope="reads"), issuer.token(scp=[])):
        reply = send(stub, "Http", "/scope", token)
        assert (reply.status, reply.json) == (403, {"message": "Forbidden"})


def test_an_issuer_that_cannot_be_reached(stub: Stub, issuer: Issuer) -> None:
    reply = send(stub, "Http", f"/lost?token={issuer.token()}")
    assert (reply.status, reply.json) == (401, UNAUTHORIZED)
    assert str(stub.problem(reply)).startswith("no keys of http://127.0.0.1:1")


def test_the_issuer_may_be_given_by_its_discovery_document(template: Path, tmp_path: Path) -> None:
    discovery = "https://issuer.example/x/.well-known/openid-configuration"
    jwt_scheme = f"""{{type: openIdConnect, openIdConnectUrl: "{discovery}", x-amazon-apigateway-authorizer:
          {{type: jwt, jwtConfiguration: {{audience: [a]}}, identitySource: $request.header.X}}}}"""
    body = f"openapi: 3.0.1\n        components: {{securitySchemes: {{A: {jwt_scheme}, B: {jwt_scheme}}}}}"
    [route] = load_template(rest_template(tmp_path, template.parent, body)).api.routes
    assert route.authorizer == JwtAuthorizer("$request.header.X", "https://issuer.example/x", ("a",))
    assert replace(route, authorizer=None) != route
