"""What calls of the sample's tools cost, in calls to DynamoDB and KMS, is what docs/operations.md says."""

import re
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import ElicitRequestParams, ElicitResult

from sealane.local.testing import ObservedGateway

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "docs/operations.md"
READS = {"GetItem", "Query"}
WRITES = {"PutItem", "UpdateItem", "DeleteItem"}

Units = tuple[int, int, int]
"""Reads and writes of DynamoDB, calls to KMS."""

pytestmark = pytest.mark.anyio


async def accept(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """Say yes, or Bob."""
    [field] = params.requested_schema["properties"]  # type: ignore[union-attr]
    return ElicitResult(action="accept", content={field: "Bob" if field == "recipient" else True})


def documented(streaming: bool) -> dict[str, Units]:
    """The units of each row of the table; where answers stream, changes are published too."""
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", OPERATIONS.read_text("utf-8"), re.M)
    return {
        name: (int(reads), int(published if streaming else writes), int(kms))
        for name, reads, writes, published, kms in rows
    }


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_units_of_each_call(streaming: bool) -> None:
    parameters = {"ResponseStreaming": str(streaming).lower()}
    with ObservedGateway(ROOT / "template.yaml", concurrency=1, parameters=parameters) as gateway:
        assert await units_of_calls(gateway) == documented(streaming)


async def units_of_calls(gateway: ObservedGateway) -> dict[str, Units]:
    """What each call has cost."""
    found: dict[str, Units] = {}
    async with Client(gateway.url, elicitation_callback=accept) as client:

        async def call(row: str, tool: str, **arguments: str) -> dict[str, Any]:
            before = len(gateway.aws.calls())
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result
            made = gateway.aws.calls()[before:]
            operations = [each.operation for each in made if each.service == "dynamodb"]
            assert set(operations) <= READS | WRITES
            reads, writes = (sum(each in kind for each in operations) for kind in (READS, WRITES))
            found[row] = (reads, writes, len(made) - len(operations))
            return result.structured_content or {}

        async def notebook() -> str:
            made: str = (await call("`create_notebook`", "create_notebook", title="Groceries"))["notebook"]
            return made

        kept = await notebook()
        await call("`hello`", "hello")
        await call("`list_notes`", "list_notes", notebook=kept)
        await call("`add_note`", "add_note", notebook=kept, text="Milk")
        await call(
            "`delete_notebook`, with the first question of the day", "delete_notebook", notebook=await notebook()
        )
        await call("`delete_notebook`", "delete_notebook", notebook=await notebook())
        await call("`transfer_notebook`", "transfer_notebook", notebook=kept)
    return found
