"""The program that an environment starts, as Lambda's managed runtimes start theirs: an interpreter and a script.

Nothing is imported from here. `AWS_LAMBDA_EXEC_WRAPPER` gets this command line to change or to replace.
"""

import os
import sys

from awslambdaric.__main__ import main  # type: ignore[import-untyped]

main([sys.argv[0], os.environ["_HANDLER"]])
