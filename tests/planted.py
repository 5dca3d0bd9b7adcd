"""Secrets that tests give to servers, and how they are known in what comes out of a run."""

import re
from typing import Final

PLANTED: Final = "PLANTED-1f83"
"""In headers of all requests, and in arguments, answers, states and tokens of some."""
SECRETS: Final = re.compile(
    rf"""
    {PLANTED}
    | \beyJ[\w-]+\.eyJ[\w-]+\.[\w-]+  # a signed token, RFC 7519
    | \b\d{{5}}-\d+\.v1\.[\w-]+      # a request state under a key of the keyring
    """,
    re.VERBOSE,
)
