"""DynamoDB and KMS: a real function that uses boto3, called over HTTP, in environments that share what is stored."""

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from sealane.local import Call, LocalError, LocalGateway, Record
from sealane.local.aws_services import AwsCall, Fault, absent, deny, slow, throttle
from sealane.local.template import load_template

FUNCTION = """
import base64, json, os, time
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

CONFIG = Config(retries={"mode": "standard", "total_max_attempts": 3}, max_pool_connections=20)
CLIENTS = {service: boto3.client(service, config=CONFIG) for service in ("dynamodb", "kms")}


def run(client, method, arguments):
    try:
        answer = getattr(client, method)(**arguments)
    except ClientError as error:
        metadata = error.response["ResponseMetadata"]
        return {
            "error": error.response["Error"]["Code"],
            "message": error.response["Error"]["Message"],
            "status": metadata["HTTPStatusCode"],
            "attempts": metadata["RetryAttempts"] + 1,
        }
    except BotoCoreError as error:
        return {"error": type(error).__name__}
    answer.pop("ResponseMetadata")
    return answer


def handler(event, context):
    body = json.loads(event["body"], object_hook=lambda each: base64.b64decode(each["$"]) if "$" in each else each)
    time.sleep(body.get("sleep", 0))
    client = CLIENTS[body["service"]]
    if "credentials" in body:
        client = boto3.client(body["service"], aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="real")
    method, arguments = body["method"], body["arguments"]
    if method == "environ":
        answer = dict(os.environ)
    elif isinstance(arguments, list):
        with ThreadPoolExecutor(8) as threads:
            answer = list(threads.map(lambda each: run(client, method, each), arguments))
    else:
        answer = run(client, method, arguments)
    return {"statusCode": 200, "body": json.dumps(answer, default=plain)}


def plain(value):
    return {"$": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)
"""

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Expiry: {Type: String, Default: expires_at}
  Archive: {Type: String, Default: "no"}
  Units: {Type: Number, Default: 5}
Conditions:
  HasArchive: !Equals [!Ref Archive, "yes"]
Resources:
  Function:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: RUNTIME
      Handler: app.handler
      CodeUri: .
      Timeout: 20
      Environment:
        Variables:
          TABLE: !Ref Table
          TABLE_ARN: !GetAtt Table.Arn
          KEY: !Ref Key
          KEY_ARN: !GetAtt Key.Arn
          KEY_ID: !GetAtt Key.KeyId
          ALIAS: !Ref Alias
          OTHER_KEY: !Ref OtherKey
          SENTENCE: !Sub "${Key.Arn} opens ${Table}"
          ARCHIVE: !If [HasArchive, !Ref ArchiveTable, none]
          AWS_IGNORE_CONFIGURED_ENDPOINT_URLS: "true"
      Events:
        Any: {Type: Api, Properties: {Path: /call, Method: post}}
  Table:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: data
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions:
        - {AttributeName: pk, AttributeType: S}
        - {AttributeName: sk, AttributeType: S}
        - {AttributeName: owner, AttributeType: S}
        - {AttributeName: size, AttributeType: N}
      KeySchema: [{AttributeName: pk, KeyType: HASH}, {AttributeName: sk, KeyType: RANGE}]
      GlobalSecondaryIndexes:
        - IndexName: by-owner
          KeySchema: [{AttributeName: owner, KeyType: HASH}]
          Projection: {ProjectionType: ALL}
      LocalSecondaryIndexes:
        - IndexName: by-size
          KeySchema: [{AttributeName: pk, KeyType: HASH}, {AttributeName: size, KeyType: RANGE}]
          Projection: {ProjectionType: KEYS_ONLY}
      TimeToLiveSpecification: {AttributeName: !Ref Expiry, Enabled: true}
      SSESpecification: {SSEEnabled: true, SSEType: KMS, KMSMasterKeyId: !GetAtt Key.Arn}
  ArchiveTable:
    Type: AWS::Serverless::SimpleTable
    Condition: HasArchive
    Properties:
      PrimaryKey: {Name: number, Type: Number}
      ProvisionedThroughput: {ReadCapacityUnits: !Ref Units, WriteCapacityUnits: !Ref Units}
  Key:
    Type: AWS::KMS::Key
    Properties: {Description: seals, KeyPolicy: {Version: "2012-10-17", Statement: []}}
  OtherKey:
    Type: AWS::KMS::Key
    Properties: {KeyPolicy: {Version: "2012-10-17", Statement: []}}
  Alias:
    Type: AWS::KMS::Alias
    Properties: {AliasName: alias/seal, TargetKeyId: !GetAtt Key.Arn}
""".replace("RUNTIME", f"python3.{sys.version_info.minor}")
PLAIN_TEMPLATE = f"""
Transform: AWS::Serverless-2016-10-31
Resources:
  Function:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.{sys.version_info.minor}
      Handler: app.handler
      CodeUri: .
      Events:
        Any: {{Type: Api, Properties: {{Path: /call, Method: post}}}}
"""


class Caller:
    """Calls the function above."""

    def __init__(self, gateway: LocalGateway, records: list[Record]) -> None:
        self.gateway = gateway
        self.records = records
        self.environment: int | None = None

    def __call__(self, service: str, method: str, arguments: Any = None, **more: Any) -> Any:
        """One call of boto3; the environment that made it is then in `environment`."""
        self.environment, answer = self.call(service, method, arguments, **more)
        return answer

    def call(self, service: str, method: str, arguments: Any = None, **more: Any) -> tuple[int | None, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", int(self.gateway.base_url.rpartition(":")[2]), timeout=25)
        body = {"service": service, "method": method, "arguments": arguments or {}, **more}
        connection.request(
            "POST", "/call", json.dumps(body, default=lambda each: {"$": base64.b64encode(each).decode()})
        )
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.status == 200, text
        request_id = response.getheader("x-amzn-RequestId")
        call = next(each for each in self.records if isinstance(each, Call) and each.request_id == request_id)
        return call.environment, json.loads(
            text, object_hook=lambda each: base64.b64decode(each["$"]) if "$" in each else each
        )


def item(pk: str, sk: str = "-", **more: Any) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": sk}, **more}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("services")
    (folder / "app.py").write_text(FUNCTION)
    (folder / "template.yaml").write_text(TEMPLATE)
    (folder / "plain.yaml").write_text(PLAIN_TEMPLATE)
    return folder / "template.yaml"


@pytest.fixture(scope="module")
def running(template: Path) -> Iterator[Caller]:
    """A gateway with two environments, which take turns."""
    records: list[Record] = []
    with LocalGateway(template, concurrency=2, observe=records.append) as gateway, ThreadPoolExecutor(2) as threads:
        caller = Caller(gateway, records)
        waiting = [threads.submit(caller.call, "kms", "environ", sleep=0.5) for _ in range(2)]
        assert {each.result()[0] for each in waiting} == {1, 2}
        yield caller


@pytest.fixture
def caller(running: Caller) -> Iterator[Caller]:
    yield running
    running.gateway.aws.restore()


def exists(pid: int) -> bool:
    """Whether a process runs; one that has ended and only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def moto_pids(parent: int) -> set[int]:
    """The processes of moto that this process has started."""
    pids = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if own and b"moto_server.py" in (process / "cmdline").read_bytes():
                pids.add(int(process.name))
    return pids


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def refuses_connections(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


# What the template describes


def test_two_environments_share_a_table(caller: Caller) -> None:
    stored = item("shared", owner={"S": "ada"}, size={"N": "3"}, version={"N": "1"})
    assert caller("dynamodb", "put_item", {"TableName": "data", "Item": stored}) == {}
    writer = caller.environment
    assert caller("dynamodb", "get_item", {"TableName": "data", "Key": item("shared")}) == {"Item": stored}
    assert caller.environment != writer

    update = {
        "TableName": "data",
        "Key": item("shared"),
        "UpdateExpression": "SET version = :next",
        "ConditionExpression": "version = :known",
        "ExpressionAttributeValues": {":known": {"N": "1"}, ":next": {"N": "2"}},
    }
    assert "error" not in caller("dynamodb", "update_item", update)
    lost = caller("dynamodb", "update_item", update)
    assert (lost["error"], lost["status"], lost["attempts"]) == ("ConditionalCheckFailedException", 400, 1)

    for index, condition, value in [
        ("by-owner", "#key = :value", {":value": {"S": "ada"}}),
        ("by-size", "pk = :pk AND #key > :value", {":pk": {"S": "shared"}, ":value": {"N": "2"}}),
    ]:
        key = {"by-owner": "owner", "by-size": "size"}[index]
        query = {
            "TableName": "data",
            "IndexName": index,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": {"#key": key},
            "ExpressionAttributeValues": value,
        }
        assert [each["sk"] for each in caller("dynamodb", "query", query)["Items"]] == [{"S": "-"}]


def test_tables_are_as_the_template_describes_them(caller: Caller) -> None:
    table = caller("dynamodb", "describe_table", {"TableName": "data"})["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    assert [index["IndexName"] for index in table["GlobalSecondaryIndexes"]] == ["by-owner"]
    assert table["LocalSecondaryIndexes"][0]["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    ttl = caller("dynamodb", "describe_time_to_live", {"TableName": "data"})["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires_at"}
    assert caller("dynamodb", "list_tables") == {"TableNames": ["data"]}


def test_two_environments_share_a_key(caller: Caller) -> None:
    environ = caller("kms", "environ")
    context = {"stack": "local", "purpose": "seal"}
    sealed = caller("kms", "encrypt", {"KeyId": "alias/seal", "Plaintext": b"secret", "EncryptionContext": context})
    opening = {"CiphertextBlob": sealed["CiphertextBlob"], "KeyId": environ["KEY_ARN"], "EncryptionContext": context}
    sealer = caller.environment
    assert caller("kms", "decrypt", opening)["Plaintext"] == b"secret"
    assert caller.environment != sealer
    wrong = caller("kms", "decrypt", opening | {"EncryptionContext": {"stack": "other"}})
    assert wrong["error"] == "InvalidCiphertextException"

    for name in ("alias/seal", environ["KEY_ARN"]):
        data_key = caller(
            "kms", "generate_data_key", {"KeyId": name, "KeySpec": "AES_256", "EncryptionContext": context}
        )
        opened = caller("kms", "decrypt", opening | {"CiphertextBlob": data_key["CiphertextBlob"]})
        assert opened["Plaintext"] == data_key["Plaintext"]
        assert opened["KeyId"] == environ["KEY_ARN"]
        wanted = {"KeyId": name, "NumberOfBytes": 32, "EncryptionContext": context}
        blind = caller("kms", "generate_data_key_without_plaintext", wanted)
        assert len(caller("kms", "decrypt", opening | {"CiphertextBlob": blind["CiphertextBlob"]})["Plaintext"]) == 32


def test_references_are_to_what_was_made(caller: Caller) -> None:
    environ = caller("kms", "environ")
    table = caller("dynamodb", "describe_table", {"TableName": environ["TABLE"]})["Table"]
    assert (environ["TABLE"], environ["TABLE_ARN"]) == ("data", table["TableArn"])
    key = caller("kms", "describe_key", {"KeyId": environ["ALIAS"]})["KeyMetadata"]
    assert (environ["KEY"], environ["KEY_ARN"], key["Description"]) == (key["KeyId"], key["Arn"], "seals")
    assert environ["KEY_ID"] == environ["KEY"]
    assert environ["SENTENCE"] == f"{key['Arn']} opens data"
    other = caller("kms", "describe_key", {"KeyId": environ["OTHER_KEY"]})["KeyMetadata"]
    assert other["KeyId"] == environ["OTHER_KEY"] != environ["KEY"]
    assert environ["ARCHIVE"] == "none"
    assert caller.gateway.not_emulated == ()


def test_parameters_and_conditions_apply(template: Path) -> None:
    records: list[Record] = []
    parameters = {"Archive": "yes", "Expiry": "gone_at", "Units": "7"}
    with LocalGateway(template, parameters=parameters, observe=records.append) as gateway:
        caller = Caller(gateway, records)
        archive = caller("kms", "environ")["ARCHIVE"]
        table = caller("dynamodb", "describe_table", {"TableName": archive})["Table"]
        ttl = caller("dynamodb", "describe_time_to_live", {"TableName": "data"})["TimeToLiveDescription"]
    assert table["AttributeDefinitions"] == [{"AttributeName": "number", "AttributeType": "N"}]
    assert table["ProvisionedThroughput"]["WriteCapacityUnits"] == 7
    assert ttl["AttributeName"] == "gone_at"


def test_what_a_table_or_key_cannot_be_here_is_named(template: Path) -> None:
    strange = template.with_name("strange.yaml")
    strange.write_text(
        TEMPLATE.replace("TableName: data", "StreamSpecification: {StreamViewType: NEW_IMAGE}")
        .replace("{Description: seals, ", "{MultiRegion: true, Description: seals, ")
        .replace("TargetKeyId: !GetAtt Key.Arn", "TargetKeyId: 1234abcd-12ab-34cd-56ef-1234567890ab")
    )
    assert load_template(strange).not_emulated == (
        "StreamSpecification of Table",
        "MultiRegion of Key",
        "Alias (an alias of a key that is not in the template)",
    )


def test_writes_are_atomic(caller: Caller) -> None:
    """As on DynamoDB. In moto a transaction that fails undoes what other threads wrote meanwhile."""
    writes = [{"TableName": "data", "Item": item("kept", str(number))} for number in range(100)]
    puts = [{"Put": {"TableName": "data", "Item": item("undone", str(number))}} for number in range(20)]
    missing = {"TableName": "data", "Key": item("nobody"), "ConditionExpression": "attribute_exists(pk)"}
    failing = [{"TransactItems": [*puts, {"ConditionCheck": missing}]}] * 100
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(caller.call, "dynamodb", "put_item", writes)
        undoing = threads.submit(caller.call, "dynamodb", "transact_write_items", failing)
        assert writing.result()[1] == [{}] * 100
        assert {each["error"] for each in undoing.result()[1]} == {"TransactionCanceledException"}
    stored = caller.gateway.aws.client("dynamodb").scan(TableName="data")["Items"]
    assert len([each for each in stored if each["pk"]["S"] == "kept"]) == 100
    assert not [each for each in stored if each["pk"]["S"] == "undone"]


# Calls


def test_calls_are_counted_by_environment(caller: Caller) -> None:
    aws = caller.gateway.aws
    before = len(aws.calls())
    gets = [{"TableName": "data", "Key": item("x")}] * 30
    puts = [{"TableName": "data", "Item": item("x")}] * 20
    with ThreadPoolExecutor(2) as threads:
        getting = threads.submit(caller.call, "dynamodb", "get_item", gets)
        putting = threads.submit(caller.call, "dynamodb", "put_item", puts)
        (getter, _), (putter, _) = getting.result(), putting.result()
    assert getter is not None
    assert putter is not None
    caller("kms", "generate_random", {"NumberOfBytes": 8})
    counted = Counter(aws.calls()[before:])
    assert counted == {
        AwsCall("dynamodb", "GetItem", "Function", getter): 30,
        AwsCall("dynamodb", "PutItem", "Function", putter): 20,
        AwsCall("kms", "GenerateRandom", "Function", caller.environment or 0): 1,
    }
    assert {getter, putter} == {1, 2}


def test_calls_are_found_by_what_they_are(caller: Caller) -> None:
    aws = caller.gateway.aws
    known = len(aws.calls("kms", "GenerateRandom"))
    caller("kms", "generate_random", {"NumberOfBytes": 8})
    made = aws.calls("kms", "GenerateRandom")
    assert len(made) == known + 1
    assert made[-1] == AwsCall("kms", "GenerateRandom", "Function", caller.environment or 0)
    assert aws.calls(operation="GenerateRandom") == made
    assert aws.calls("dynamodb", function="Other") == ()
    assert set(aws.calls(environment=1)) | set(aws.calls(environment=2)) == set(aws.calls())
    aws.client("kms").generate_random(NumberOfBytes=8)
    assert aws.calls("kms", "GenerateRandom") == made


@pytest.mark.parametrize(
    ("service", "operation"), [("s3", None), ("kms", "decrypt"), ("dynamodb", "Decrypt"), (None, "Put")]
)
def test_a_misspelt_name_is_an_error(caller: Caller, service: Any, operation: str | None) -> None:
    with pytest.raises(ValueError, match=r"no service|no operation"):
        caller.gateway.aws.calls(service, operation)
    if service:
        with pytest.raises(ValueError, match=r"no service|no operation"):
            caller.gateway.aws.fault(service, deny, operation)


# Faults

GET = ("dynamodb", "get_item", {"TableName": "data", "Key": item("x")})
RANDOM = ("kms", "generate_random", {"NumberOfBytes": 8})


@pytest.mark.parametrize(
    ("call", "fault", "error", "status", "attempts"),
    [
        (GET, throttle, "ProvisionedThroughputExceededException", 400, 3),
        (RANDOM, throttle, "ThrottlingException", 400, 3),
        (GET, absent, "ServiceUnavailable", 503, 3),
        (RANDOM, absent, "ServiceUnavailable", 503, 3),
        (GET, deny, "AccessDeniedException", 400, 1),
        (RANDOM, deny, "AccessDeniedException", 400, 1),
    ],
)
def test_boto3_meets_a_fault_as_on_aws(
    caller: Caller, call: tuple[Any, str, Any], fault: Fault, error: str, status: int, attempts: int
) -> None:
    aws = caller.gateway.aws
    other = RANDOM if call is GET else GET
    before = len(aws.calls(call[0]))
    with aws.fault(call[0], fault):
        failed = caller(*call)
        assert "error" not in caller(*other)
    assert (failed["error"], failed["status"], failed["attempts"]) == (error, status, attempts)
    assert len(aws.calls(call[0])) == before + attempts
    assert "error" not in caller(*call)


def test_a_fault_of_one_operation_spares_the_others_until_restore(caller: Caller) -> None:
    aws = caller.gateway.aws
    aws.fault("dynamodb", deny, "PutItem")
    put = ("dynamodb", "put_item", {"TableName": "data", "Item": item("y")})
    denied = caller(*put)
    assert denied["error"] == "AccessDeniedException"
    assert "dynamodb:PutItem" in denied["message"]
    assert "error" not in caller(*GET)
    assert "Item" not in aws.client("dynamodb").get_item(TableName="data", Key=item("y"))
    aws.restore()
    assert caller(*put) == {}


def test_a_slow_service_delays_its_own_callers_only(caller: Caller) -> None:
    with caller.gateway.aws.fault("dynamodb", slow(1)), ThreadPoolExecutor(1) as threads:
        started = time.monotonic()
        getting = threads.submit(caller.call, *GET)
        time.sleep(0.1)
        assert "error" not in caller.call(*RANDOM)[1]
        assert time.monotonic() - started < 0.9
        assert "error" not in getting.result()[1]
        assert time.monotonic() - started >= 1


def test_a_fault_of_ones_own(caller: Caller) -> None:
    """boto3 tries a throttled call again: here the second attempt succeeds."""
    attempts: list[AwsCall] = []

    async def once(call: AwsCall) -> Response | None:
        attempts.append(call)
        return await throttle(call) if len(attempts) == 1 else None

    with caller.gateway.aws.fault("kms", once):
        assert "error" not in caller(*RANDOM)
    assert [call.operation for call in attempts] == ["GenerateRandom"] * 2


# One gateway and the next, one emulator and another


def test_two_gateways_at_once_are_separate(caller: Caller, template: Path) -> None:
    records: list[Record] = []
    caller("dynamodb", "put_item", {"TableName": "data", "Item": item("mine")})
    sealed = caller("kms", "encrypt", {"KeyId": "alias/seal", "Plaintext": b"secret"})["CiphertextBlob"]
    before = caller.gateway.aws.calls()
    with LocalGateway(template, observe=records.append) as gateway:
        second = Caller(gateway, records)
        assert second("dynamodb", "get_item", {"TableName": "data", "Key": item("mine")}) == {}
        assert "error" in second("kms", "decrypt", {"CiphertextBlob": sealed})
        assert len(gateway.aws.calls()) == 2
    assert caller.gateway.aws.calls() == before
    assert caller("kms", "decrypt", {"CiphertextBlob": sealed})["Plaintext"] == b"secret"


def test_another_emulator_keeps_what_it_has(caller: Caller, template: Path) -> None:
    environ = caller("kms", "environ")
    caller("dynamodb", "put_item", {"TableName": "data", "Item": item("kept")})
    moto = moto_pids(os.getpid())
    records: list[Record] = []
    url = caller.gateway.aws.endpoint_url
    parameters = {"Archive": "yes"}
    with LocalGateway(template, endpoint_url=url, parameters=parameters, observe=records.append) as gateway:
        assert moto_pids(os.getpid()) == moto
        second = Caller(gateway, records)
        kept = second("dynamodb", "get_item", {"TableName": "data", "Key": item("kept")})
        assert kept == {"Item": item("kept")}
        seen = second("kms", "environ")
        assert [seen[name] for name in ("KEY", "OTHER_KEY")] == [environ[name] for name in ("KEY", "OTHER_KEY")]
        assert set(second("dynamodb", "list_tables")["TableNames"]) == {"ArchiveTable", "data"}
        assert len(gateway.aws.calls()) == 2
        gateway.aws.client("dynamodb").delete_table(TableName="ArchiveTable")
    assert "error" not in caller(*GET)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://dynamodb.eu-central-1.amazonaws.com", "is AWS"),
        ("https://KMS.us-east-1.API.aws.:443/", "is AWS"),
        ("https://dynamodb.cn-north-1.amazonaws.com.cn", "is AWS"),
        ("localhost:8000", "like http://127.0.0.1:8000"),
        ("http://localhost:port", "like http://127.0.0.1:8000"),
        ("", "like http://127.0.0.1:8000"),
    ],
)
def test_what_is_no_emulator_is_refused(template: Path, url: str, reason: str) -> None:
    with pytest.raises(LocalError, match=reason) as refused:
        LocalGateway(template, endpoint_url=url)
    assert "\n" not in str(refused.value)


def test_an_emulator_that_does_not_answer_is_named(template: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(LocalError, match=f"Key cannot be made at {url}: ") as failed,
            LocalGateway(template, endpoint_url=url),
        ):
            pass
    assert "\n" not in str(failed.value)


def test_a_table_that_cannot_be_made_is_named(template: Path) -> None:
    before = moto_pids(os.getpid())
    wrong = template.with_name("wrong.yaml")
    wrong.write_text(
        TEMPLATE.replace("{AttributeName: owner, KeyType: HASH}", "{AttributeName: nobody, KeyType: HASH}")
    )
    with pytest.raises(LocalError, match=r"Table cannot be made at .*ValidationException"), LocalGateway(wrong):
        pass
    assert moto_pids(os.getpid()) == before


def test_an_emulator_that_is_lost_is_said(template: Path) -> None:
    records: list[Record] = []
    before = moto_pids(os.getpid())
    with LocalGateway(template, observe=records.append) as gateway:
        [pid] = moto_pids(os.getpid()) - before
        os.kill(pid, signal.SIGKILL)
        failed = Caller(gateway, records)(*GET)
    assert failed["error"] == "ServiceUnavailable"
    assert failed["message"].startswith("The emulator does not answer: ConnectError(")


def test_real_credentials_reach_no_emulator(caller: Caller) -> None:
    before = caller.gateway.aws.calls()
    refused = caller(*RANDOM, credentials=True)
    assert (refused["error"], refused["status"]) == ("UnrecognizedClientException", 400)
    assert caller.gateway.aws.calls() == before


def test_the_developers_own_configuration_has_no_part(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "real")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    records: list[Record] = []
    with LocalGateway(template, observe=records.append) as gateway:
        caller = Caller(gateway, records)
        assert "error" not in caller(*GET)
        environ = caller("kms", "environ")
    assert environ["AWS_ACCESS_KEY_ID"] == environ["AWS_SECRET_ACCESS_KEY"] == "local"
    assert "AWS_ENDPOINT_URL" not in environ
    assert environ["KEY_ARN"].startswith("arn:aws:kms:us-east-1:")


@pytest.mark.parametrize("token", ["a session's", None])
def test_the_real_aws_gets_the_developers_credentials_and_no_emulator_runs(
    template: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "real")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    else:
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    records: list[Record] = []
    before = moto_pids(os.getpid())
    with LocalGateway(template, endpoint_url="aws", observe=records.append) as gateway:
        assert gateway.aws.endpoint_url is None
        assert moto_pids(os.getpid()) == before
        environ = Caller(gateway, records)("kms", "environ")
    assert (environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"]) == ("AKIDEXAMPLE", "real")
    assert environ["AWS_SESSION_TOKEN"] == (token or "")
    assert environ["AWS_REGION"] == environ["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_KMS"} & environ.keys()


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "no AWS credentials were found"),
        ({"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "real"}, "no AWS region was found"),
    ],
)
def test_the_real_aws_needs_credentials_and_a_region(
    template: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], missing: str
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    nothing = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    for name, value in {**nothing, "AWS_EC2_METADATA_DISABLED": "true", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LocalError, match=missing), LocalGateway(template, endpoint_url="aws"):
        pass


# Start and end


def test_without_tables_and_keys_nothing_starts(template: Path) -> None:
    code = f"""
import http.client, sys
from sealane.local import LocalGateway
with LocalGateway({str(template.with_name("plain.yaml"))!r}) as gateway:
    connection = http.client.HTTPConnection("127.0.0.1", int(gateway.base_url.rpartition(":")[2]))
    connection.request("POST", "/call", '{{"service": "kms", "method": "environ", "arguments": {{}}}}')
    print(connection.getresponse().read().decode())
    print(gateway.aws.endpoint_url, gateway.aws.calls(), sorted({{"moto", "httpx2"}} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    environ, rest = ended.stdout.splitlines()
    assert not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_KMS"} & json.loads(environ).keys()
    assert rest == "None () []"


def test_starts_fast_and_leaves_nothing(template: Path) -> None:
    before = moto_pids(os.getpid())
    for _ in range(3):
        started = time.monotonic()
        with LocalGateway(template) as gateway:
            assert time.monotonic() - started < 15
            [pid] = moto_pids(os.getpid()) - before
            url = gateway.aws.endpoint_url
        assert url is not None
        assert not exists(pid)
        assert refuses_connections(url)
        assert gateway.aws.endpoint_url is None


def test_stops_with_calls_under_way(template: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records: list[Record] = []
    with ThreadPoolExecutor(1) as threads:
        with LocalGateway(template, observe=records.append) as gateway:
            gateway.aws.fault("dynamodb", slow(15))
            waiting = threads.submit(Caller(gateway, records).call, *GET)
            assert eventually(lambda: len(gateway.aws.calls()) == 1)
            started = time.monotonic()
        assert time.monotonic() - started < 2
        assert waiting.exception() is not None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_ends_with_its_emulator(template: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-c", "from sealane.local.cli import app; app()", "run", "--port", "0"]
    process = subprocess.Popen(  # noqa: S603
        command, cwd=template.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stderr
    said = next(line for line in iter(process.stdout.readline, "") if line.startswith("DynamoDB and KMS at "))
    url = said.split()[4].rstrip(",")
    next(line for line in iter(process.stdout.readline, "") if line.startswith("Serving "))
    [pid] = moto_pids(process.pid)
    assert not refuses_connections(url)
    process.send_signal(ending)
    process.wait(3)
    assert eventually(lambda: not exists(pid))
    assert eventually(lambda: refuses_connections(url))
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


def test_run_refuses_aws_in_one_line(template: Path) -> None:
    command = [sys.executable, "-c", "from sealane.local.cli import app; app()", "run", "--port", "0"]
    ended = subprocess.run(  # noqa: S603
        [*command, "--endpoint-url", "https://kms.us-east-1.amazonaws.com"],
        cwd=template.parent,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "sealane: https://kms.us-east-1.amazonaws.com is AWS, and would get dummy credentials: write --endpoint-url aws"
        " to use your own\n"
    )
