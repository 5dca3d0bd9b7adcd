"""moto's server for DynamoDB and KMS, to be run as a program: a process of its own, for moto keeps all in globals.

It writes the port that it listens on (of 127.0.0.1), and ends when its standard input does: with whoever started it,
however that ended. It is run by its path, so that it need not wait for the rest of this package.

It serves one request at a time. DynamoDB's writes are atomic; moto's are not when its threads meet, where a transaction
that fails undoes what another thread wrote (seen with 5.2.5).
"""

import logging
import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


def main() -> None:
    """Serves until standard input ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
