"""The legacy function, which keeps the sessions of old clients: Lambda calls `handler(event, context)`."""

from sealane.legacy import create_legacy_mcp_handler
from server import create_server

handler = create_legacy_mcp_handler(create_server)
