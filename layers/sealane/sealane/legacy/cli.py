"""The commands `sealane sessions` and `sealane legacy`: what operators do with the legacy lane until it is gone."""

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NoReturn, TypeVar

import anyio
import typer
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from botocore.session import get_session  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table as Grid

from sealane.legacy.metrics import REQUESTS, REVERSE_REQUESTS, SESSIONS, client_label
from sealane.legacy.sessions import DynamoDBSessionStore, Session, SessionSummary
from sealane.legacy.texts import TABLE_VARIABLE
from sealane.local.errors import LocalError
from sealane.local.terminal import complain, printable
from sealane.policy.principal import Principal
from sealane.state.errors import StateUnavailable
from sealane.state.table import Table

__all__ = ["legacy", "sessions"]

T = TypeVar("T")

sessions = typer.Typer(no_args_is_help=True, help="The sessions of old clients, which the legacy lane keeps.")
legacy = typer.Typer(no_args_is_help=True, help="The legacy lane, and when it can go.")

NAMESPACE: Final = "Sealane"
"""What the template says."""
_HOUR: Final = 3600
_QUERIES: Final = 500
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html"""

Stack = Annotated[str, typer.Option(help="Name of the deployed stack.")]
TableName = Annotated[
    str | None, typer.Option("--table", envvar=TABLE_VARIABLE, help="Table of the sessions; by default the stack's.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the session, as `sealane sessions list` shows it.")]


@legacy.callback()
def _() -> None:
    """More than one command, one day: "status" is not to be left out."""


@sessions.command("list")
def list_sessions(table: TableName = None, stack: Stack = "sealane") -> None:
    """Show every session that is alive."""
    found = _with_store(table, stack, DynamoDBSessionStore.list)
    if not found:
        _print("There is no session.")
        return
    grid = _grid("session", "client", "revision", "principal", "opened", "last used", "ends")
    for each in sorted(found, key=lambda each: each.last_used):
        client = f"{each.client_name} {each.client_version}"
        times = map(_moment, (each.created_at, each.last_used, each.expires_at))
        _row(grid, each.id, client, each.protocol_version, _principal(each.owner), *times)
    Console().print(grid)


@sessions.command()
def show(session_id: Id, table: TableName = None, stack: Stack = "sealane") -> None:
    """Show what is kept of a session, but for what its client has said of itself beyond name and capabilities."""

    async def find(store: DynamoDBSessionStore) -> Session | None:
        summary = await _find(store, session_id)
        return None if summary is None else await store.get(summary.id, summary.owner)

    session = _with_store(table, stack, find)
    if session is None:
        _complain("there is no such session: `sealane sessions list` shows those that are alive")
    grid = _grid("", "")
    grid.show_header = False
    _row(grid, "session", session.id)
    _row(grid, "client", " ".join(session.client))
    _row(grid, "revision", session.protocol_version)
    _row(grid, "capabilities", _capabilities(session.initialize_params.get("capabilities")))
    _row(grid, "principal", _principal(session.owner))
    _row(grid, "log level", session.log_level or "not set")
    _row(grid, "subscriptions", str(len(session.subscriptions)))
    for name in ("created_at", "last_used", "expires_at"):
        _row(grid, name.replace("_", " "), _moment(getattr(session, name)))
    Console().print(grid)


@sessions.command()
def end(session_id: Id, table: TableName = None, stack: Stack = "sealane") -> None:
    """End a session everywhere, with the calls that run in it. Its client has to initialize again."""

    async def find_and_end(store: DynamoDBSessionStore) -> bool:
        summary = await _find(store, session_id)
        return summary is not None and await store.end(summary.id, summary.owner) is not None

    if not _with_store(table, stack, find_and_end):
        _complain("there is no such session: `sealane sessions list` shows those that are alive")
    _print(f"{session_id} has ended.")


@legacy.command()
def status(
    hours: Annotated[int, typer.Option(min=1, max=24 * 60, help="How far to look back.")] = 24,
    stack: Stack = "sealane",
) -> None:
    """Show old and new traffic and the clients behind it, and say whether the lane can be drained, or go."""
    try:
        deployed = _stack(stack)
        if deployed.legacy_function is None:
            _print("There is no legacy lane: LegacyLane is off.")
            if deployed.table is not None:
                _print("The table of its sessions is still there: LegacyTable=delete removes it.")
            return
        traffic = _traffic(deployed, deployed.legacy_function, hours)
        alive = _with_store(deployed.table, stack, DynamoDBSessionStore.list)
    except (LocalError, BotoCoreError, ClientError) as error:
        _complain(" ".join(str(error).split()))
    _print(f"LegacyLane is {deployed.lane}. In the last {_hours(hours)}:")
    grid = _grid("lane", "requests")
    _row(grid, "stateless", f"{traffic.stateless}")
    _row(grid, "legacy", f"{traffic.legacy}")
    Console().print(grid)
    clients = _by_client(traffic, alive)
    if clients:
        grid = _grid("client", "requests", "new sessions", "alive now")
        for name, numbers in clients:
            _row(grid, name, *map(str, numbers))
        Console().print(grid)
    if traffic.reverse_requests:
        kinds = ", ".join(f"{count} {kind}" for kind, count in traffic.reverse_requests.most_common())
        _print(f"Requests that tools sent to clients, which only sessions can: {kinds}.")
    for line in _verdict(deployed, traffic, len(alive), len(clients), hours):
        _print(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """A deployed stack, by its outputs and parameters; `None` for what it has not."""

    name: str
    lane: str
    by_invoke: bool
    stateless_function: str
    legacy_function: str | None
    table: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """What came in, by the functions' and the lane's own metrics."""

    stateless: int
    legacy: int
    requests: Counter[str]
    new_sessions: Counter[str]
    reverse_requests: Counter[str]


def _stack(name: str) -> _Stack:
    """The stack of that name.

    Raises:
        LocalError: there is none, or it is none of ours, or AWS cannot be asked.
    """
    try:
        [found] = get_session().create_client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    except (BotoCoreError, ClientError) as error:
        raise LocalError(f"the stack {name} cannot be read: {' '.join(str(error).split())}") from None
    outputs = {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}
    parameters = {each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", [])}
    if "StatelessFunctionName" not in outputs:
        raise LocalError(f"the stack {name} has no output 'StatelessFunctionName': is it one of template.yaml?")
    return _Stack(
        name=name,
        lane=parameters.get("LegacyLane", "on"),
        by_invoke="LegacyInvokeUrl" not in outputs,
        stateless_function=outputs["StatelessFunctionName"],
        legacy_function=outputs.get("LegacyFunctionName"),
        table=outputs.get("LegacyTableName"),
    )


def _traffic(stack: _Stack, legacy_function: str, hours: int) -> _Traffic:
    """What CloudWatch knows of the last hours.

    Raises:
        BotoCoreError, ClientError: it cannot be asked.
    """
    cloudwatch = get_session().create_client("cloudwatch")
    functions = (stack.stateless_function, legacy_function)
    metrics = [_metric("AWS/Lambda", "Invocations", FunctionName=function) for function in functions]
    for name, dimension in ((REQUESTS, "client"), (SESSIONS, "client"), (REVERSE_REQUESTS, "kind")):
        # Without those that have had no data for two weeks.
        pages = cloudwatch.get_paginator("list_metrics").paginate(
            Namespace=NAMESPACE,
            MetricName=name,
            Dimensions=[{"Name": "service", "Value": stack.name}, {"Name": dimension}],
        )
        metrics += [
            {"Namespace": NAMESPACE, "MetricName": name, "Dimensions": each["Dimensions"]}
            for page in pages
            for each in page["Metrics"]
        ]
    sums = _sums(cloudwatch, metrics, hours)
    counted: dict[str, Counter[str]] = {REQUESTS: Counter(), SESSIONS: Counter(), REVERSE_REQUESTS: Counter()}
    for metric, count in zip(metrics[2:], sums[2:], strict=True):
        [value] = [each["Value"] for each in metric["Dimensions"] if each["Name"] != "service"]
        if count:
            counted[metric["MetricName"]][value] += count
    # Where one function calls the other, each old request is one of both.
    stateless = sums[0] - sums[1] if stack.by_invoke else sums[0]
    return _Traffic(
        stateless=max(stateless, 0),
        legacy=sums[1],
        requests=counted[REQUESTS],
        new_sessions=counted[SESSIONS],
        reverse_requests=counted[REVERSE_REQUESTS],
    )


def _metric(namespace: str, name: str, **dimensions: str) -> dict[str, Any]:
    listed = [{"Name": key, "Value": value} for key, value in dimensions.items()]
    return {"Namespace": namespace, "MetricName": name, "Dimensions": listed}


def _sums(cloudwatch: Any, metrics: list[dict[str, Any]], hours: int) -> list[int]:
    """The sum of each metric over the last hours."""
    now = datetime.now(UTC)
    sums = [0.0] * len(metrics)
    for first in range(0, len(metrics), _QUERIES):
        queries = [
            {"Id": f"m{number}", "MetricStat": {"Metric": metrics[number], "Period": _HOUR, "Stat": "Sum"}}
            for number in range(first, min(first + _QUERIES, len(metrics)))
        ]
        pages = cloudwatch.get_paginator("get_metric_data").paginate(
            MetricDataQueries=queries, StartTime=now - timedelta(hours=hours), EndTime=now
        )
        for page in pages:
            for result in page["MetricDataResults"]:
                sums[int(result["Id"][1:])] += sum(result["Values"])
    return [round(each) for each in sums]


def _by_client(traffic: _Traffic, alive: Iterable[SessionSummary]) -> list[tuple[str, tuple[int, int, int]]]:
    """Requests, new sessions and sessions that are alive, of each client, the busiest first."""
    living = Counter(client_label(each.client_name, each.client_version) for each in alive)
    names = {*traffic.requests, *traffic.new_sessions, *living}
    numbers = {name: (traffic.requests[name], traffic.new_sessions[name], living[name]) for name in names}
    return sorted(numbers.items(), key=lambda item: (item[1], item[0]), reverse=True)


def _verdict(stack: _Stack, traffic: _Traffic, alive: int, clients: int, hours: int) -> list[str]:
    """What to do now, in words."""
    used = traffic.legacy or sum(traffic.requests.values())
    if stack.lane == "drain":
        if alive:
            return [
                f"Not yet safe to switch off: {_many(alive, 'session')} will be cut off. None lives longer than a day."
            ]
        if used:
            return [
                f"Safe to switch off: no session is left. {_many(clients, 'client')} still asked in the last "
                f"{_hours(hours)}; without the lane they are served without a session.",
                "Deploy LegacyLane=off.",
            ]
        return [f"Safe to switch off: no session is left, and nobody asked in the last {_hours(hours)}."]
    if not used and not alive:
        return [
            f"Safe to drain, and to switch off: nobody used it in the last {_hours(hours)}, and no session is left.",
            "Deploy LegacyLane=drain, and later LegacyLane=off.",
        ]
    lines = [f"Not yet safe to drain: {_many(clients, 'client')} used it in the last {_hours(hours)}."]
    if stack.by_invoke and not traffic.reverse_requests:
        lines.append(
            "But no tool sent a request to a client, so LegacyDrainTo=compatibility may be enough for them: "
            "they are then served without a session (and without subscriptions)."
        )
    return lines


async def _find(store: DynamoDBSessionStore, session_id: str) -> SessionSummary | None:
    return next((each for each in await store.list() if each.id == session_id), None)


def _with_store(table: str | None, stack: str, use: Callable[[DynamoDBSessionStore], Coroutine[Any, Any, T]]) -> T:
    try:
        name = table or _stack(stack).table
        if name is None:
            raise LocalError(f"the stack {stack} has no table of sessions: it has no legacy lane")
        return anyio.run(use, DynamoDBSessionStore(Table(name)))
    except (LocalError, StateUnavailable) as error:
        _complain(str(error))


def _complain(text: str) -> NoReturn:
    complain(text)
    raise typer.Exit(1)


def _print(text: str) -> None:
    Console(soft_wrap=True, highlight=False).print(printable(text))


def _grid(*titles: str) -> Grid:
    grid = Grid(box=None)
    for title in titles:
        grid.add_column(title, overflow="fold")
    return grid


def _row(grid: Grid, *cells: str) -> None:
    grid.add_row(*map(printable, cells))


def _principal(owner: Principal | None) -> str:
    return "anyone" if owner is None else " ".join(part for part in owner if part)


def _capabilities(declared: object) -> str:
    """The names of what a client can, such as `elicitation (form, url), roots`."""
    if not isinstance(declared, Mapping):
        return "none"
    names = [
        f"{name} ({', '.join(more)})" if isinstance(more, Mapping) and more else str(name)
        for name, more in declared.items()
    ]
    return ", ".join(names)[:500] or "none"


def _moment(seconds: int) -> str:
    local = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    away = abs(seconds - int(time.time())) // 60
    return f"{local} ({away} min {'from now' if seconds > time.time() else 'ago'})"


def _hours(hours: int) -> str:
    return "hour" if hours == 1 else f"{hours} hours"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
