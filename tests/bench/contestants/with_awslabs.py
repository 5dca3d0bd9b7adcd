"""awslabs.mcp-lambda-handler as its README has it; BENCH_SESSIONS: a table for sessions. Its tools are not async."""
# mypy: ignore-errors
# (It does not see the package.)

import os

from awslabs.mcp_lambda_handler import MCPLambdaHandler
from bench_tools import tools

server = MCPLambdaHandler(name="bench", version="1.0.0", session_store=os.environ.get("BENCH_SESSIONS"))
for function in tools():
    server.tool()(function)
handler = server.handle_request
