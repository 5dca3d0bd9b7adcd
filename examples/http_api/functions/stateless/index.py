"""The package index: one HTTP client for as long as the environment lives, and what is done when it gets no answer."""

import functools
import os
import time
from typing import Final, TypeVar

import anyio
import httpx2
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, ValidationError

from sealane import logger, seconds_left

__all__ = ["fetch"]

ModelT = TypeVar("ModelT", bound=BaseModel)

PATIENCE: Final = 12.0
"""Seconds that a tool waits for the index at most, with all attempts; less where the invocation has less left."""
ATTEMPT: Final = 4.0
"""Seconds without a byte after which one attempt is over."""
IDLE: Final = 60.0
"""Seconds that a connection is kept for the next call."""
WAITS: Final = (0.2, 1.0)
"""Seconds before the second and the third attempt."""
WORTH_ANOTHER: Final = {500, 502, 503, 504}
"""Statuses that may be another one in a moment. 429 asks for fewer requests, not for more."""
FRESH: Final = 300.0
"""Seconds that an answer is used again."""
KEPT: Final = 64
"""Answers that an environment keeps."""

_answers: dict[str, tuple[float, BaseModel]] = {}
"""Until when, and what, by path. An environment may vanish with it at any time: it saves requests, no more."""


@functools.cache
def client() -> httpx2.AsyncClient:
    """The client of this environment, with its connections.

    Made by the first call: connections belong to the event loop, of which an environment has one, and to no snapshot.
    """
    return httpx2.AsyncClient(
        base_url=os.environ["INDEX_URL"],
        timeout=ATTEMPT,
        limits=httpx2.Limits(keepalive_expiry=IDLE),
        headers={"User-Agent": "sealane-example-http-api/1.0"},
    )


async def fetch(path: str, model: type[ModelT], *, accept: str = "application/json") -> ModelT:
    """A document of the index, from this environment's memory if it is fresh there.

    Args:
        path: of the document, from the index's base URL.
        model: what is taken from its JSON.
        accept: its media type.

    Raises:
        ToolError: there is no such document, or no answer that can be used. The text is for the model, the log has the
            reason.
    """
    until, kept = _answers.get(path, (0.0, None))
    if isinstance(kept, model) and time.time() < until:
        return kept
    try:
        document = model.model_validate_json(await _ask(path, accept))
    except ValidationError:
        raise _failure("an answer that is not as documented") from None
    _answers.pop(path, None)
    if len(_answers) >= KEPT:
        del _answers[next(iter(_answers))]
    _answers[path] = time.time() + FRESH, document
    return document


async def _ask(path: str, accept: str) -> bytes:
    problem = "no answer in time"
    # A tenth is left for the answer that says so.
    with anyio.move_on_after(min(PATIENCE, 0.9 * seconds_left())):
        for wait in (*WAITS, None):
            try:
                answer = await client().get(path, headers={"Accept": accept})
            except httpx2.TransportError as error:
                # Or the connection has died while this environment was frozen: the next attempt has a new one.
                problem = type(error).__name__
            else:
                if answer.status_code == 200:
                    return answer.content
                if answer.status_code == 404:
                    raise ToolError("The index has no such package or version. Check the spelling.")
                problem = f"status {answer.status_code}"
                if answer.status_code not in WORTH_ANOTHER:
                    break
            if wait is not None:
                await anyio.sleep(wait)
    raise _failure(problem)


def _failure(problem: str) -> ToolError:
    logger.warning("the package index did not answer as it should", problem=problem)
    return ToolError(
        "The package index does not answer as it should at the moment. Try again in a minute, or go on without it."
    )
