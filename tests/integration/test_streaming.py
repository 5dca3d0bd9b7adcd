"""Answers that the gateway passes on as they come, from a runtime that streams them."""

import http.client
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sealane.local.testing import ObservedGateway

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Streams:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: .
      Handler: none.handler
      Runtime: python3.13
      Timeout: 3
      Environment: {Variables: {AWS_LAMBDA_EXEC_WRAPPER: /var/task/runtime}}
      FunctionUrlConfig: {AuthType: NONE, InvokeMode: RESPONSE_STREAM}
      Events:
        Rest:
          Type: Api
          Properties: {Path: /mcp, Method: ANY, ResponseTransferMode: RESPONSE_STREAM}
"""
# Lambda's Runtime API as a runtime of one's own uses it.
RUNTIME = """#!{python}
import http.client, json, os, time

api = os.environ["AWS_LAMBDA_RUNTIME_API"]


def request(method, path, body=None, headers={{}}):
    connection = http.client.HTTPConnection(api)
    connection.request(method, "/2018-06-01/runtime/invocation/" + path, body, headers, encode_chunked=body is not None)
    return connection.getresponse()


def chunks(plan):
    yield plan["head"].encode() + b"\\0" * 8
    for piece in plan["pieces"] * plan["times"]:
        time.sleep(plan["pause"])
        yield piece.encode()
    if plan["end"] == "die":
        os._exit(3)


while True:
    following = request("GET", "next")
    request_id = following.getheader("Lambda-Runtime-Aws-Request-Id")
    plan = json.loads(json.loads(following.read())["body"])
    if plan["end"] == "die at once":
        os._exit(3)
    headers = {{"Transfer-Encoding": "chunked", "Content-Type": "application/vnd.awslambda.http-integration-response",
               "Lambda-Runtime-Function-Response-Mode": "streaming"}}
    request("POST", request_id + "/response", chunks(plan), headers).read()
"""
HEAD = {"statusCode": 201, "headers": {"Content-Type": "text/event-stream", "X-Own": "1"}, "cookies": ["a=b"]}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedGateway]:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "template.yaml").write_text(TEMPLATE)
    (folder / "runtime").write_text(RUNTIME.format(python=sys.executable))
    (folder / "runtime").chmod(0o755)
    with ObservedGateway(folder / "template.yaml") as running:
        yield running


def ask(url: str, *pieces: str, head: str = json.dumps(HEAD), pause: float = 0, end: str = "", times: int = 1) -> Any:
    """The response to a request whose function streams these pieces."""
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=15)
    plan = {"pieces": pieces, "head": head, "pause": pause, "end": end, "times": times}
    connection.request("POST", "/mcp", json.dumps(plan), {"Content-Type": "application/json"})
    return connection.getresponse()


@pytest.fixture(params=["rest", "url"])
def url(request: pytest.FixtureRequest, gateway: ObservedGateway) -> str:
    rest, function_url = gateway.urls.values()
    return rest if request.param == "rest" else function_url


def test_pieces_arrive_as_they_are_written(url: str) -> None:
    response = ask(url, "one", "two", "three", pause=0.4)
    assert response.status == 201
    assert response.getheader("Content-Type") == "text/event-stream"
    assert response.getheader("X-Own") == "1"
    assert response.getheader("Set-Cookie") == "a=b"
    arrived = []
    while piece := response.read1():
        arrived.append((piece, time.monotonic()))
    assert [piece for piece, _ in arrived] == [b"one", b"two", b"three"]
    assert arrived[2][1] - arrived[0][1] > 0.5


def test_many_megabytes_pass(url: str) -> None:
    assert len(ask(url, "x" * 1_000_000, times=8).read()) == 8_000_000


def test_a_function_that_dies_half_way_breaks_the_connection_and_only_that_call(
    gateway: ObservedGateway, url: str
) -> None:
    response = ask(url, "begun", end="die")
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        response.read()
    while gateway.calls[-1].request_id != response.getheader("x-amzn-RequestId"):
        time.sleep(0.01)
    assert "Runtime.ExitError" in (gateway.calls[-1].problem or "")
    assert ask(url, "again").read() == b"again"


@pytest.mark.parametrize(
    ("head", "end"),
    [
        ("{}", "die at once"),
        ("[]", ""),
        ("no JSON", ""),
        ('{"statusCode": 7}', ""),
        (json.dumps({"unused": "x" * 17_000}), ""),
    ],
)
def test_what_fails_before_the_body_is_the_apis_own_error(url: str, head: str, end: str) -> None:
    response = ask(url, "lost", head=head, end=end)
    assert response.status == 502
    assert b"lost" not in response.read()


def test_a_client_that_goes_away_leaves_the_environment_sound(gateway: ObservedGateway, url: str) -> None:
    response = ask(url, "one", "two", "three", pause=0.3)
    assert response.read1() == b"one"
    response.close()
    assert ask(url, "again").read() == b"again"
