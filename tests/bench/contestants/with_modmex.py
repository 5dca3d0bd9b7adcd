"""modmex-lambda as its README has it; BENCH_HTTP_API: behind an HTTP API. Its buffered tools are not async."""
# mypy: ignore-errors
# (It does not see the package.)

import os

from bench_tools import tools
from modmex_lambda import APIGatewayHttpResolver, APIGatewayRestResolver
from modmex_lambda.mcp import MCPServer

app = APIGatewayHttpResolver() if "BENCH_HTTP_API" in os.environ else APIGatewayRestResolver()
server = MCPServer(name="bench", version="1.0.0")
for function in tools():
    server.tool()(function)
app.include_mcp(server, path="/mcp")
handler = app.handler
