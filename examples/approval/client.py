"""Asks for a payment, as a client whose person says yes.

.venv/bin/python examples/approval/client.py [URL]
"""

import sys

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

ANSWERS: dict[str, str | int | float | bool | list[str] | None] = {"euros": 120, "approve": True}


async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Who would read the question and fill in a form."""
    assert isinstance(params, ElicitRequestFormParams)  # noqa: S101 - the other kind is not declared
    [field] = params.requested_schema["properties"]
    print(f"{params.message} {ANSWERS[field]}")
    return ElicitResult(action="accept", content={field: ANSWERS[field]})


async def main(url: str) -> None:
    """Two questions, one receipt."""
    async with Client(url, elicitation_callback=person) as client:
        done = await client.call_tool("request_payment", {"payee": "Ada", "purpose": "Chairs"})
        print(done.structured_content)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:3000/mcp")
