"""Texts of any length in the legacy table: what does not fit into one item is in several."""

import secrets
import time
from typing import Any, Final, NamedTuple

from sealane.state import aws
from sealane.state.table import Item, Table, expiry

__all__ = ["TABLE_VARIABLE", "TextItem", "get_texts", "legacy_table", "put_text"]

TABLE_VARIABLE: Final = "SEALANE_LEGACY_TABLE"
"""Name of the table of sessions. No default."""

_PART: Final = 390_000
"""Bytes; an item has 400 KB, keys and names included.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html"""


class TextItem(NamedTuple):
    """A text, and what else its item has.

    Attributes:
        sort_key: where it is in its partition.
        text: the text; `None` for an item without one.
        item: the item, as DynamoDB has it.
    """

    sort_key: str
    text: str | None
    item: Item


def legacy_table(table: Table | None = None) -> Table:
    """`table`, or the lane's own, which is deleted with it.

    Raises:
        StateNotConfigured: the environment names none.
    """
    return table or Table(aws.setting(TABLE_VARIABLE))


async def put_text(
    table: Table, pk: str, sk: str, text: str | None, *, ttl: float, new: bool = False, **attributes: Any
) -> None:
    """Keep a text under a key.

    Args:
        ttl: how long it is kept, in seconds.
        new: only where there is none yet.
        attributes: further ones of the item.

    Raises:
        AwsRefusal: there is one already.
        StateUnavailable: the table is out of reach.
    """
    kept: dict[str, Any] = {"expires_at": {"N": str(expiry(ttl))}}
    item: dict[str, Any] = {"pk": {"S": pk}, "sk": {"S": sk}, **attributes, **kept}
    if text is not None:
        data = text.encode()
        item["text"] = {"B": data[:_PART]}
        if len(data) > _PART:
            # The parts of two writers are never mixed, and are all there before the first can be seen.
            item["parts"] = {"S": f"{sk}/{secrets.token_hex(4)}"}
            for number, start in enumerate(range(_PART, len(data), _PART)):
                part: dict[str, Any] = {"pk": {"S": pk}, "sk": {"S": f"{item['parts']['S']}/{number:04}"}}
                part |= {"part": {"B": data[start : start + _PART]}, **kept}
                await table.call("put_item", Item=part)
    condition = {"ConditionExpression": "attribute_not_exists(sk)"} if new else {}
    await table.call("put_item", Item=item, **condition)


async def get_texts(table: Table, pk: str, first: str = " ", last: str = "~") -> list[TextItem]:
    """The texts of a partition between two sort keys, in their order, without those that have expired.

    Raises:
        StateUnavailable: the table is out of reach.
    """
    found: list[Item] = []
    parts: dict[str, list[bytes]] = {}
    page: dict[str, Any] = {}
    while True:
        answer = await table.call(
            "query",
            KeyConditionExpression="pk = :pk AND sk BETWEEN :first AND :last",
            ExpressionAttributeValues={":pk": {"S": pk}, ":first": {"S": first}, ":last": {"S": last}},
            ConsistentRead=True,
            **page,
        )
        for item in answer["Items"]:
            if "part" in item:
                parts.setdefault(item["sk"]["S"].rpartition("/")[0], []).append(item["part"]["B"])
            else:
                found.append(item)
        if "LastEvaluatedKey" not in answer:
            break
        page = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
    now = time.time()
    return [TextItem(item["sk"]["S"], _text(item, parts), item) for item in found if int(item["expires_at"]["N"]) > now]


def _text(item: Item, parts: dict[str, list[bytes]]) -> str | None:
    if "text" not in item:
        return None
    data: bytes = item["text"]["B"]
    if "parts" in item:
        data += b"".join(parts.get(item["parts"]["S"], []))
    return data.decode()
