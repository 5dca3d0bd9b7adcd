"""The stateless function: Lambda calls `handler(event, context)`."""

import os

from sealane import DynamoDBSubscriptionBus, LegacyFunction, create_mcp_handler, route_by_era
from server import create_server

# Clients that can be told of changes wait, as they connect, for a stream to begin. A gateway that buffers brings that
# with the end of a poll, which is too late for them.
streaming = "AWS_LAMBDA_EXEC_WRAPPER" in os.environ

stateless = create_mcp_handler(create_server, subscriptions=DynamoDBSubscriptionBus() if streaming else None)

# Old clients go to the legacy lane while the template has one; else they are served here, without a session.
handler = route_by_era(stateless, LegacyFunction.configured())
