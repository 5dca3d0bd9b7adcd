"""modmex-lambda behind a REST API, as its README has it. Its buffered tools are not async."""
# mypy: ignore-errors
# (It does not see the package.)

from bench_tools import tools
from modmex_lambda import APIGatewayRestResolver
from modmex_lambda.mcp import MCPServer

app = APIGatewayRestResolver()
server = MCPServer(name="bench", version="1.0.0")
for function in tools():
    server.tool()(function)
app.include_mcp(server, path="/mcp")
handler = app.handler
