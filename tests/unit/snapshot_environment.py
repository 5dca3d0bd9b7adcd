"""An environment of which a snapshot is taken, as a program: JSON on its lines, one for each of `test_snapshot.py`'s.

A fork has the memory of the process that it is made from, and its open sockets, as what is made from a snapshot has.
Unlike that it has no threads, and Python gives it a new seed.
"""

import json
import os
import random
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from snapshot_restore_py import get_after_restore, get_before_snapshot  # type: ignore[import-untyped]

from sealane import ANYONE, Catalog, HandleStore, Keyring, create_mcp_handler
from sealane.state import aws
from tests.events import NO_CONTEXT, answer, make_event, modern

catalog = Catalog()
notes = HandleStore("note")


@catalog.tool()
async def keep() -> str:
    """Keep something."""
    return await notes.create("kept", ttl=60, owner=ANYONE)


@catalog.tool()
async def ask(ctx: Context) -> str | InputRequiredResult:
    """Ask first."""
    if ctx.input_responses:
        return f"opened {ctx.request_state}"
    schema = {"type": "object", "properties": {}}
    question = ElicitRequest(params=ElicitRequestFormParams(message="?", requested_schema=schema))
    return InputRequiredResult(input_requests={"answer": question}, request_state="sealed")


def create_server() -> MCPServer:
    """A fresh server."""
    return catalog.server("restored")


handler = create_mcp_handler(create_server, keyring=Keyring.from_environment())


def call(tool: str, **params: Any) -> Any:
    """What the handler answers to a call."""
    capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
    headers, body = modern("tools/call", client_capabilities=capabilities, name=tool, arguments={}, **params)
    return answer(handler(make_event("rest", headers=headers, body=body), NO_CONTEXT)).json


def open_state(state: str) -> Any:
    """What becomes of a call that is made again with this state."""
    return call("ask", requestState=state, inputResponses={"answer": {"action": "accept", "content": {}}})


def restored(state: str | None, seeded: Any) -> dict[str, Any]:
    """What an environment does that is made from the snapshot, opening `state` where there is one."""
    aws._THREADS = ThreadPoolExecutor(4)  # type: ignore[misc]
    random.setstate(seeded)
    for function, args, kwargs in get_after_restore():
        function(*args, **kwargs)
    if state is not None:
        return {"opened": open_state(state)}
    return {
        "random": random.random(),  # noqa: S311
        "uuid": str(uuid.uuid4()),
        "handle": call("keep")["result"]["content"][0]["text"],
        "state": call("ask")["result"]["requestState"],
    }


def main() -> None:
    """Initialise, take the snapshot, then restore it once for each line of the input: a state, or null."""
    # Whoever wrote the server may have warmed it up.
    first = call("ask")["result"]["requestState"] if "warm" in sys.argv else None
    for function, args, kwargs in reversed(get_before_snapshot()):
        function(*args, **kwargs)
    print(json.dumps({"state": first, "clients": aws._client.cache_info().currsize}), flush=True)
    seeded = random.getstate()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            print(json.dumps(restored(json.loads(line), seeded)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
