"""New environments for a function whose files have changed; calls that are running finish in the old ones."""

from collections.abc import Callable, Collection
from pathlib import Path

import anyio
from watchfiles import DefaultFilter, awatch

from sealane.local.environment import Pool
from sealane.local.errors import LocalError
from sealane.local.records import Notice, Record
from sealane.local.template import Function


async def reload_on_change(
    functions: Collection[tuple[Function, Pool]], observe: Callable[[Record], None], ended: anyio.Event
) -> None:
    """Watches the folders of functions and of their layers.

    Args:
        functions: functions and the environments of each.
        observe: gets a `Notice` of each reload, and of a function that cannot start any more.
        ended: ends the watch.
    """
    folders = {folder for function, _ in functions for folder in (function.code_dir, *function.layer_dirs)}
    # A function's folder may be the template's, where the virtual environments are made.
    relevant = DefaultFilter(ignore_dirs=(*DefaultFilter.ignore_dirs, ".sealane"))
    async for changes in awatch(*folders, watch_filter=relevant, stop_event=ended):
        changed = sorted({Path(file) for _, file in changes})
        for function, pool in functions:
            mine = [file for file in changed if _belongs_to(file, function)]
            if not mine:
                continue
            observe(Notice(f"{mine[0].name} has changed: new environments for {function.name}"))
            try:
                await pool.renew()
            except LocalError as error:
                observe(Notice(f"{function.name} cannot start: {error}"))


def _belongs_to(file: Path, function: Function) -> bool:
    return any(file.is_relative_to(folder) for folder in (function.code_dir, *function.layer_dirs))
