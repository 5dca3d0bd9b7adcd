"""moto's server for DynamoDB and KMS, to be run as a program: a process of its own, for moto keeps all in globals.

It writes the port that it listens on (of 127.0.0.1), and ends when its standard input does: with whoever started it,
however that ended. It is run by its path, so that it need not wait for the rest of this package.

It serves one request at a time. DynamoDB's writes are atomic; moto's are not when its threads meet, where a transaction
that fails undoes what another thread wrote (seen with 5.2.5).
"""

import logging
import sys
import threading
from typing import Any

from moto.dynamodb.models.dynamo_type import DynamoType, LimitedSizeDict
from moto.dynamodb.models.table import Table
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

_add = LimitedSizeDict.__setitem__
_query_all = Table.query


def _set(item: LimitedSizeDict, name: str, value: Any) -> None:
    """Sets an attribute. moto counts the value that is replaced too, and refuses to update items of half the limit."""
    replaced = item.pop(name, None)
    try:
        _add(item, name, value)
    except Exception:
        if replaced is not None:
            dict.__setitem__(item, name, replaced)
        raise


def _query(
    table: Table,
    hash_key: DynamoType | None,
    range_comparison: str | None,
    range_objs: list[DynamoType],
    limit: int,
    exclusive_start_key: dict[str, Any],
    scan_index_forward: bool,
    projection_expressions: list[list[str]] | None,
    index_name: str | None = None,
    *more: Any,
    **named: Any,
) -> Any:
    """Answers a query. moto sorts and measures all items of a table for it, which takes seconds when there are many."""
    if index_name is None and hash_key is not None and table.range_key_attr:
        items = list(table.items.get(hash_key, {}).values())
        if range_comparison:
            items = [item for item in items if item.range_key.compare(range_comparison, range_objs)]
        table.all_items = lambda: items  # type: ignore[method-assign]
    page = (limit, exclusive_start_key, scan_index_forward, projection_expressions, index_name)
    try:
        return _query_all(table, hash_key, range_comparison, range_objs, *page, *more, **named)
    finally:
        vars(table).pop("all_items", None)


def main() -> None:
    """Serves until standard input ends."""
    LimitedSizeDict.__setitem__ = _set  # type: ignore[method-assign]
    Table.query = _query  # type: ignore[method-assign, assignment]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
