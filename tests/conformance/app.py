"""The function under the referee: Lambda calls `handler(event, context)`."""

import os

from sealane import DynamoDBSubscriptionBus, create_mcp_handler
from server import create_server

# The referee waits 0.8 s for an acknowledgement, which a buffering gateway delivers when the poll has ended, and 1.5 s
# for a change. It leaves live streams open, each of which holds an environment.
LISTEN_SECONDS = 2 if "AWS_LAMBDA_EXEC_WRAPPER" in os.environ else 0.4

handler = create_mcp_handler(create_server, subscriptions=DynamoDBSubscriptionBus(), listen_seconds=LISTEN_SECONDS)
