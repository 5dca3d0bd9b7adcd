"""Runs a document's Python, in a process of its own that `session.py` starts.

Each line of standard input is a JSON object, `{"file", "line", "source"}` for a block or `{"import": path}` for a file
that has been written; each line of standard output is the traceback that came of it, or null.
"""

import ast
import asyncio
import importlib
import inspect
import json
import os
import sys
import traceback
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

_CALLERS = ("__main__", "asyncio", "importlib")


def run(runner: asyncio.Runner, context: Context, block: dict[str, Any], namespace: dict[str, object]) -> None:
    """Runs a block where its document has it, so that tracebacks name the document's lines."""
    source = "\n" * (block["line"] - 1) + block["source"]
    code = compile(source, block["file"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    running = context.run(eval, code, namespace)  # the document's own
    if inspect.iscoroutine(running):
        runner.run(running, context=context)


def import_file(path: Path) -> None:
    """Imports a file as Lambda would, with its folder on the path; what was imported from there before is forgotten."""
    folder = str(path.parent)
    sys.path[:] = [folder, *(each for each in sys.path if each != folder)]
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(folder + os.sep) and name.partition(".")[0] != "sealane":
            del sys.modules[name]
    importlib.invalidate_caches()
    importlib.import_module(path.stem)


def told(error: BaseException) -> str:
    """A traceback without what calls the document's own code."""
    frames = error.__traceback__
    while frames and frames.tb_next and frames.tb_frame.f_globals["__name__"].partition(".")[0] in _CALLERS:
        frames = frames.tb_next
    return "".join(traceback.format_exception(error.with_traceback(frames)))


def main() -> None:
    """Serves until standard input ends."""
    # What blocks print goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    namespace: dict[str, object] = {"__name__": "document"}
    context = copy_context()
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            block = json.loads(line)
            failure = None
            try:
                if "import" in block:
                    import_file(Path(block["import"]))
                else:
                    run(runner, context, block, namespace)
            except (Exception, SystemExit) as error:
                failure = told(error)
            print(json.dumps(failure), file=answers, flush=True)


if __name__ == "__main__":
    main()
