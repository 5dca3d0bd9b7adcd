"""Runs in a process of its own: a handler that answers events as they come.

    python probe.py module.name

An event is a line of JSON on standard input; its answer is one on standard output, `{"answer": …}`, or `{"raised": …}`
with the name of an exception. Before the first event it tells `{}`: the handler is there.
"""

import json
import os
import sys

# Of this folder, which is on the path.
from worker import Context, load  # type: ignore[import-not-found]


def main() -> None:
    """Answer until there are no more events."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    handler = load(sys.argv[1])
    print("{}", file=out, flush=True)
    for line in sys.stdin:
        try:
            told = {"answer": handler(json.loads(line), Context())}
        except Exception as error:
            told = {"raised": type(error).__name__}
        print(json.dumps(told), file=out, flush=True)


if __name__ == "__main__":
    main()
