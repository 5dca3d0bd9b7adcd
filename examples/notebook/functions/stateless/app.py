"""The function that serves MCP: Lambda calls `handler(event, context)`."""

from sealane import DynamoDBSubscriptionBus, create_mcp_handler
from server import create_server

# An HTTP API cannot stream, so listening is a long poll. Five seconds, since some clients wait for its end to connect.
handler = create_mcp_handler(create_server, subscriptions=DynamoDBSubscriptionBus(), listen_seconds=5)
