"""DynamoDB and KMS for contestants: moto, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from botocore.session import Session  # type: ignore[import-untyped]

import sealane.local

TABLE = "bench"
REGION = "us-east-1"


@contextmanager
def emulated() -> Iterator[dict[str, str]]:
    """The environment variables that lead to an empty table and a key."""
    program = Path(sealane.local.__file__).with_name("moto_server.py")
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            yield {
                "AWS_ACCESS_KEY_ID": "local",
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_DEFAULT_REGION": REGION,
                "AWS_ENDPOINT_URL": url,
                "AWS_REGION": REGION,
                "AWS_SECRET_ACCESS_KEY": "local",
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "SEALANE_KEY": _fill(url),
                "SEALANE_STACK": "bench",
                "SEALANE_TABLE": TABLE,
            }
        finally:
            server.kill()


def _fill(url: str) -> str:
    """Make the table as the template has it, and a key; returns the key's ARN."""
    session = Session()
    session.set_credentials("local", "local")
    session.create_client("dynamodb", REGION, endpoint_url=url).create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    )
    key: str = session.create_client("kms", REGION, endpoint_url=url).create_key()["KeyMetadata"]["Arn"]
    return key
