"""What the SDK's documentation and Mangum's lead to: server and application made for every request."""

import os
import uuid
from typing import Any

import boto3  # type: ignore[import-untyped]
from bench_tools import tools
from mangum import Mangum
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings

dynamodb = boto3.client("dynamodb")
kms = boto3.client("kms")


def keep(text: str) -> str:
    """Keep a text for a minute."""
    item = {"pk": {"S": "bench"}, "sk": {"S": uuid.uuid4().hex}, "text": {"S": text}}
    dynamodb.put_item(TableName=os.environ["SEALANE_TABLE"], Item=item)
    return f"Kept {text}."


def make_server() -> MCPServer[Any]:
    """A server for one request: its session manager runs once only."""
    server: MCPServer[Any] = MCPServer("bench")
    for function in [*tools(), *([keep] if "BENCH_KEEP" in os.environ else [])]:
        server.tool()(function)
    if "BENCH_ASK" in os.environ:
        from asking import greeter

        server.tool()(greeter(Context))
    return server


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Answer one event."""
    app = make_server().streamable_http_app(
        stateless_http=True,
        json_response=True,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return Mangum(app)(event, context)
