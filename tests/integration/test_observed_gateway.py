"""What tests of servers get: the fixture `local_gateway` and the records of its run."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sealane.local.testing import ObservedGateway

TEMPLATE = Path(__file__).parents[2] / "template.yaml"
FUNCTION = """
import os, time

def handler(event, context):
    print("asked for", event["body"])
    time.sleep(float(event["body"] or 0))
    return {"statusCode": 200, "body": str(os.getpid())}
"""

Start = Callable[..., ObservedGateway]


@pytest.fixture
def gateway(local_gateway: Start, tmp_path: Path) -> ObservedGateway:
    (tmp_path / "app.py").write_text(FUNCTION)
    return local_gateway(TEMPLATE, concurrency=2, code_dirs={"StatelessFunction": tmp_path})


def post(gateway: ObservedGateway, body: str) -> tuple[str, str]:
    """The answer's body and the gateway's request id."""
    request = urllib.request.Request(gateway.url, body.encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=15) as response:  # noqa: S310
        return response.read().decode(), response.headers["x-amzn-RequestId"]


def test_tells_which_environment_served_each_call_and_what_it_wrote(gateway: ObservedGateway) -> None:
    with ThreadPoolExecutor(2) as pool:
        (one, first), (other, second) = pool.map(lambda body: post(gateway, body), ["0.5", "0.6"])
    environments = [gateway.call(request_id).environment for request_id in (first, second)]
    assert one != other
    assert sorted(number for number in environments if number) == [1, 2]
    for number, body in zip(environments, ["0.5", "0.6"], strict=True):
        assert number is not None
        assert gateway.logs(number) == [f"asked for {body}"]
    with pytest.raises(KeyError):
        gateway.call("no such id")


def test_kills_an_environment(gateway: ObservedGateway) -> None:
    before, _ = post(gateway, "0")
    gateway.kill(1)
    after, request_id = post(gateway, "0")
    assert after != before
    assert gateway.call(request_id).environment == 2
    with pytest.raises(KeyError):
        gateway.kill(1)


def test_kills_an_environment_that_serves(gateway: ObservedGateway) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(post, gateway, "10")
        while not gateway.logs(1):
            pass
        gateway.kill(1)
        with pytest.raises(urllib.error.HTTPError, match="502"):
            call.result()
    assert [(each.status, each.environment) for each in gateway.calls] == [(502, 1)]


def test_a_test_may_choose_who_serves(local_gateway: Start, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FUNCTION)
    code_dirs = {"StatelessFunction": tmp_path}
    gateway = local_gateway(TEMPLATE, concurrency=2, code_dirs=code_dirs, choose=lambda idle: idle[-1])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda body: post(gateway, body), ["0.5", "0.6"]))
    served = {gateway.call(post(gateway, "0")[1]).environment for _ in range(3)}
    assert len(served) == 1


def test_takes_overrides(local_gateway: Start, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "def handler(event, context):\n"
        "    return {'statusCode': 200, 'body': str(context.get_remaining_time_in_millis())}\n"
    )
    gateway = local_gateway(TEMPLATE, parameters={"Timeout": "5"}, code_dirs={"StatelessFunction": tmp_path})
    remaining, _ = post(gateway, "")
    assert 4000 < json.loads(remaining) <= 5000
