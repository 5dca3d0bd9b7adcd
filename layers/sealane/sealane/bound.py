"""A context variable that has a value inside a block: several for each request, where generators would be the cost."""

from contextvars import ContextVar, Token
from typing import Generic, TypeVar

__all__ = ["Bound"]

T = TypeVar("T")


class Bound(Generic[T]):
    """The context manager: `variable` has `value` inside its block, which may be entered once."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)
