"""MCP messages as documents show them: sent to a server, and compared with what comes back."""

from typing import Any, Final

import httpx2

from tests.events import Answer, Message, legacy, modern

__all__ = ["agrees", "filled", "send"]

ANY: Final = "..."


def send(url: str, message: Message) -> list[Message]:
    """The messages that a server answers one with."""
    params = message.get("params", {})
    headers, _ = (modern if "_meta" in params else legacy)(message["method"], **params)
    response = httpx2.post(url, json=message, headers=headers, timeout=60)
    return Answer(response.status_code, response.headers, response.text, was_base64=False).messages


def agrees(expected: Any, seen: Any) -> bool:
    """Whether a message is as a document shows it."""
    match expected, seen:
        case str(), _ if expected == ANY:
            return True
        case dict(), dict():
            further = expected.get(ANY) == ANY
            names = expected.keys() - ({ANY} if further else set())
            return (names <= seen.keys() if further else names == seen.keys()) and all(
                agrees(expected[name], seen[name]) for name in names
            )
        case list(), list():
            return len(expected) == len(seen) and all(map(agrees, expected, seen))
    return bool(expected == seen and type(expected) is type(seen))


def filled(message: Any, answers: list[Any]) -> Any:
    """A message with what it leaves out: what an earlier answer has under the same name.

    Raises:
        KeyError: none has that.
    """
    match message:
        case dict():
            return {
                name: _found(name, answers) if value == ANY else filled(value, answers)
                for name, value in message.items()
            }
        case list():
            return [filled(each, answers) for each in message]
    return message


def _found(name: str, answers: Any) -> Any:
    match answers:
        case dict() if name in answers:
            return answers[name]
        case dict() | list():
            for each in answers.values() if isinstance(answers, dict) else answers:
                try:
                    return _found(name, each)
                except KeyError:
                    continue
    raise KeyError(f"no answer before has {name!r}")
