"""Thousands of damaged events, always the same ones: whatever comes in, an answer goes out."""

import copy
import json
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from app import handler
from tests.events import NO_CONTEXT, event_names, load_event

MUTANTS_OF_EACH_EVENT: Final = 40

Damage = Callable[[random.Random, Any], Any]
"""Makes another value of a value."""


def retyped(rng: random.Random, value: Any) -> Any:
    return rng.choice([0, -1, 10**300, 1.5, float("inf"), True, False, "", "text", [], [None], [[]], {}, {"": None}])


def truncated(rng: random.Random, value: Any) -> Any:
    if isinstance(value, str | list):
        return value[: rng.randrange(len(value) + 1)]
    if isinstance(value, dict):
        return dict(list(value.items())[: rng.randrange(len(value) + 1)])
    return None


def huge(rng: random.Random, value: Any) -> Any:
    return rng.choice([f"{value}" * 500, "9" * 5000, ["x"] * 1000, {str(i): "x" for i in range(1000)}, deep(500)])


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def wrongly_encoded(rng: random.Random, value: Any) -> Any:
    text = value if isinstance(value, str) else "text"
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + rng.choice(["%", "%ff", "%00", "\0", "\r\n", "\u2028", "é", "ÿ", "\ufeff", "=?base64?!?="])
        + text[at:]
    )


def with_surrogate(rng: random.Random, value: Any) -> Any:
    text = value if isinstance(value, str) else "text"
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(["\ud800", "\udfff", "\udc80"]) + text[at:]


def nothing(rng: random.Random, value: Any) -> Any:
    return None


DAMAGES: Final[list[Damage]] = [nothing, retyped, truncated, huge, wrongly_encoded, with_surrogate]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value, at all depths."""
    keys: Any = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def damage(rng: random.Random, value: Any) -> None:
    """Damage one place of a JSON value: its content, or its name."""
    container, key = rng.choice(list(places(value)) or [(None, None)])
    if container is None:
        return
    chosen = rng.randrange(10)
    if chosen == 0:
        del container[key]
    elif chosen == 1 and isinstance(key, str):
        container[rng.choice([key.upper(), key.title(), f"{key}\ud800", f"{key}\n", "", "é"])] = container.pop(key)
    else:
        container[key] = rng.choice(DAMAGES)(rng, container[key])


def mutant(rng: random.Random, event: dict[str, Any]) -> dict[str, Any]:
    """A copy of `event`, damaged in one to three places, some of them inside the JSON of its body."""
    made = copy.deepcopy(event)
    for _ in range(rng.randint(1, 3)):
        body = made.get("body")
        if rng.random() < 0.3 and isinstance(body, str) and body.startswith("{") and body.endswith("}"):
            try:
                message = json.loads(body)
            except ValueError:
                continue
            damage(rng, message)
            made["body"] = json.dumps(message, ensure_ascii=rng.random() < 0.5)
        elif rng.random() < 0.1 and "isBase64Encoded" in made:
            made["isBase64Encoded"] = not made["isBase64Encoded"]
        else:
            damage(rng, made)
    return made


def faults(result: object) -> list[str]:
    """What Lambda or a gateway would not take in a handler's answer."""
    if not isinstance(result, dict):
        return ["it is no dict"]
    found = []
    status, body = result.get("statusCode"), result.get("body", "")
    if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 599:
        found.append(f"status {status!r}")
    elif status >= 500:
        found.append(f"the event is at fault, not the server: status {status}")
    if not isinstance(body, str):
        found.append("the body is no text")
    for name, value in (result.get("headers") or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            found.append(f"header {name!r}: {value!r}")
    for name, values in (result.get("multiValueHeaders") or {}).items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            found.append(f"multi-value header {name!r}: {values!r}")
    try:
        json.dumps(result, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        found.append(f"it cannot be sent: {error}")
    return found


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log lines: there would be thousands."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", event_names())
def test_a_damaged_event_is_always_answered(name: str) -> None:
    rng = random.Random(0)  # noqa: S311
    event = load_event(name)
    for number in range(MUTANTS_OF_EACH_EVENT):
        damaged = mutant(rng, event)
        try:
            found = faults(handler(damaged, NO_CONTEXT))
        except Exception as error:
            found = [f"it raised {error!r}"]

        assert not found, f"mutant {number} of {name}: {found}\n{json.dumps(damaged)}"
