"""The function under the referee: Lambda calls `handler(event, context)`.

With `CONFORMANCE_SUBSCRIPTIONS=memory` it also serves `subscriptions/listen`. That bus does not leave its environment,
so it is for targets that stream and have one environment, or for a look at what a shared bus has to do.
"""

import os

from mcp.server.subscriptions import InMemorySubscriptionBus

from sealane import create_mcp_handler
from server import create_server

bus = InMemorySubscriptionBus() if os.environ.get("CONFORMANCE_SUBSCRIPTIONS") == "memory" else None

handler = create_mcp_handler(create_server, subscriptions=bus)
