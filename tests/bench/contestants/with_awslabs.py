"""awslabs.mcp-lambda-handler without sessions, as its README has it. Its tools are not async."""
# mypy: ignore-errors
# (It does not see the package.)

from awslabs.mcp_lambda_handler import MCPLambdaHandler
from bench_tools import tools

server = MCPLambdaHandler(name="bench", version="1.0.0")
for function in tools():
    server.tool()(function)
handler = server.handle_request
