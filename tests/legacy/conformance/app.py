"""The function under the referee: Lambda calls `handler(event, context)`."""

from sealane.legacy import create_legacy_mcp_handler
from server import create_server

# The referee's clients come and go, and nobody tells Lambda: the streams that they leave keep an environment each.
handler = create_legacy_mcp_handler(create_server, listen_seconds=1)
