"""FastMCP behind Mangum, as its documentation has it for ASGI servers."""
# mypy: ignore-errors
# (It does not see FastMCP.)

from bench_tools import tools
from fastmcp import FastMCP
from mangum import Mangum

server = FastMCP("bench")
for function in tools():
    server.tool(function)
app = server.http_app(stateless_http=True, json_response=True, host_origin_protection=False)
handler = Mangum(app)
