"""Trees of an artefact: `built` is there; makes `bare` and `compiled` beside it.

python -m tests.bench.artefacts .bench/obvious …
"""

import compileall
import os
import shutil
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

__all__ = ["make_trees"]


def make_trees(artefact: Path) -> None:
    """Make the tree without bytecode, and the one with bytecode for all.

    Bytecode is not checked against its source (`unchecked-hash`): what is time-stamped does not survive being zipped.
    A module that does not compile, such as one for another Python, has none. A build that leaves no sources has to be
    there once more, as `whole`, with them, for the tree without bytecode.
    """
    built, whole = artefact / "built", artefact / "whole"
    no_bytecode = shutil.ignore_patterns("__pycache__", "*.pyc")
    for tree, origin in {"bare": whole, "compiled": built}.items():
        ignored = None if tree == "compiled" and whole.is_dir() else no_bytecode
        shutil.rmtree(artefact / tree, ignore_errors=True)
        shutil.copytree(
            origin if origin.is_dir() else built, artefact / tree, symlinks=True, ignore=ignored, copy_function=os.link
        )
    compileall.compile_dir(
        artefact / "compiled", quiet=2, workers=0, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        make_trees(Path(argument))
