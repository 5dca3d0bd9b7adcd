"""FastMCP behind Mangum, as its documentation has it for ASGI servers."""
# mypy: ignore-errors
# (It does not see FastMCP.)

import os

from bench_tools import tools
from fastmcp import Context, FastMCP
from mangum import Mangum

server = FastMCP("bench")
for function in tools():
    server.tool(function)
if "BENCH_ASK" in os.environ:
    from asking import greeter

    server.tool(greeter(Context))
app = server.http_app(stateless_http=True, json_response=True, host_origin_protection=False)
handler = Mangum(app)
