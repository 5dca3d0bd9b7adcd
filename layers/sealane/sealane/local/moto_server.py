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

from moto.dynamodb.models.dynamo_type import LimitedSizeDict
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

_add = LimitedSizeDict.__setitem__


def _set(item: LimitedSizeDict, name: str, value: Any) -> None:
    """Sets an attribute. moto counts the value that is replaced too, and refuses to update items of half the limit."""
    replaced = item.pop(name, None)
    try:
        _add(item, name, value)
    except Exception:
        if replaced is not None:
            dict.__setitem__(item, name, replaced)
        raise


def main() -> None:
    """Serves until standard input ends."""
    LimitedSizeDict.__setitem__ = _set  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
