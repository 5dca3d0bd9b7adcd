"""What Lambda calls."""

from sealane import create_mcp_handler
from server import create_server

handler = create_mcp_handler(create_server)
