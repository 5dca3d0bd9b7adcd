"""The stateless function: Lambda calls `handler(event, context)`."""

from server import create_server

from sealane import create_mcp_handler

handler = create_mcp_handler(create_server)
