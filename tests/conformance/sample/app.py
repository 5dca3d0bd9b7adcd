"""The sample function for real clients, which come and go: its streams are short."""

import sys
from pathlib import Path

from sealane import DynamoDBSubscriptionBus, create_mcp_handler

sys.path.append(str(Path(__file__).parents[3] / "functions/stateless"))
from server import create_server

# Inspector opens a stream with each connection, and waits until a buffering gateway delivers the acknowledgement, which
# is when the poll has ended. A function that streams is not told when its client has gone.
handler = create_mcp_handler(create_server, subscriptions=DynamoDBSubscriptionBus(), listen_seconds=4)
