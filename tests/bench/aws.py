"""DynamoDB and KMS for contestants: moto, in a process of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.session import Session  # type: ignore[import-untyped]

from tests.moto_process import TABLE_DEFINITION, moto_process

TABLE = "bench"
SESSIONS = "bench-sessions"
"""The table of sessions, as awslabs.mcp-lambda-handler has it."""
REGION = "us-east-1"


@contextmanager
def emulated() -> Iterator[dict[str, str]]:
    """The environment variables that lead to empty tables and a key."""
    with moto_process() as url:
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


def _fill(url: str) -> str:
    """Make the table as the template has it, that of sessions, and a key; returns the key's ARN."""
    session = Session()
    session.set_credentials("local", "local")
    dynamodb = session.create_client("dynamodb", REGION, endpoint_url=url)
    dynamodb.create_table(TableName=TABLE, **TABLE_DEFINITION)
    dynamodb.create_table(
        TableName=SESSIONS,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "session_id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "session_id", "KeyType": "HASH"}],
    )
    key: str = session.create_client("kms", REGION, endpoint_url=url).create_key()["KeyMetadata"]["Arn"]
    return key
