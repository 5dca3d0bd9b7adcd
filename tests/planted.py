"""The secret that tests give to servers, to be looked for in all that comes out."""

from typing import Final

PLANTED: Final = "PLANTED-1f83"
