"""What CloudWatch makes of a deployment: the metrics in what its functions write, and its alarms over them."""

import json
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sealane.local.aws_services import AwsCall
from sealane.local.records import Call
from tests.template.translation import Translated, is_counted_as_kms_failure

TOPIC: Final = "arn:aws:sns:us-east-1:123456789012:alarms"
_COMPARISONS: Final = {
    "GreaterThanThreshold": operator.gt,
    "GreaterThanOrEqualToThreshold": operator.ge,
}


@dataclass(frozen=True)
class Point:
    """What is reported of one metric at one time.

    Attributes:
        namespace: the metric's namespace.
        metric: its name.
        dimensions: its dimensions, by name.
        values: the values.
    """

    namespace: str
    metric: str
    dimensions: Mapping[str, str]
    values: tuple[float, ...]


def embedded(line: Mapping[str, Any]) -> Iterator[Point]:
    """The metrics in a line of a log: one for each set of dimensions.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
    """
    for directive in line.get("_aws", {}).get("CloudWatchMetrics", ()):
        for names in directive["Dimensions"]:
            dimensions = {name: line[name] for name in names}
            for metric in directive["Metrics"]:
                value = line[metric["Name"]]
                values = tuple(value) if isinstance(value, list) else (value,)
                yield Point(directive["Namespace"], metric["Name"], dimensions, values)


class Watched:
    """The template's alarms and its metric filter.

    Args:
        parameters: parameters of the template that are not to be the defaults.

    Attributes:
        table: name of the table that the stateless function uses.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        translated = Translated({"AlarmTopic": TOPIC, **parameters})
        functions: dict[str, Any] = dict(translated.of_type("AWS::Lambda::Function"))
        self.table: str = functions["StatelessFunction"]["Environment"]["Variables"]["SEALANE_TABLE"]
        self._stage = {name: str(translated.resolve({"Ref": name})) for name in ("AWS::StackName", "StageName")}
        self._function = translated.name("StatelessFunction")
        self._alarms: dict[str, Any] = dict(translated.of_type("AWS::CloudWatch::Alarm"))
        [(_, self._filter)] = translated.of_type("AWS::Logs::MetricFilter")

    def of_log(self, texts: Iterable[str]) -> list[Point]:
        """The metrics in a log: embedded ones, and what the metric filter counts."""
        points: list[Point] = []
        for line in filter(None, map(as_json, texts)):
            points += embedded(line)
            if is_counted_as_kms_failure(line.get("message", "")):
                points += self._filtered(line)
        return points

    def of_aws(self, calls: Iterable[Call], throttled: Iterable[AwsCall]) -> list[Point]:
        """What AWS itself reports.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-metrics-and-dimensions.html
        https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
        https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/metrics-dimensions.html

        Args:
            calls: HTTP requests; those with a problem are invocations that have failed.
            throttled: calls that DynamoDB has turned away.
        """
        stage = {"ApiName": self._stage["AWS::StackName"], "Stage": self._stage["StageName"]}
        function, table = {"FunctionName": self._function}, {"TableName": self.table}
        points: list[Point] = []
        for call in calls:
            points.append(Point("AWS/ApiGateway", "5XXError", stage, (call.status >= 500,)))
            points.append(Point("AWS/Lambda", "Errors", function, (call.problem is not None,)))
        for each in throttled:
            kind = "Read" if each.operation in ("GetItem", "Query") else "Write"
            points.append(Point("AWS/DynamoDB", f"{kind}ThrottleEvents", table, (1,)))
        return points

    def _filtered(self, line: Mapping[str, Any]) -> Iterator[Point]:
        """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-properties-logs-metricfilter-metrictransformation.html"""
        transformations: Any = self._filter["MetricTransformations"]
        for each in transformations:
            dimensions = {pair["Key"]: line[pair["Value"].removeprefix("$.")] for pair in each["Dimensions"]}
            yield Point(each["MetricNamespace"], each["MetricName"], dimensions, (float(each["MetricValue"]),))

    def breached(self, points: Sequence[Point]) -> set[str]:
        """Names of the alarms whose query is beyond its threshold in a period with these points."""
        return {name for name, alarm in self._alarms.items() if _is_breached(alarm, points)}


def as_json(text: str) -> dict[str, Any]:
    """A line of a log as JSON; empty for another one, in which neither metrics nor filters find anything."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _is_breached(alarm: Mapping[str, Any], points: Sequence[Point]) -> bool:
    if "Metrics" in alarm:
        value = _expression(alarm["Metrics"], points)
    else:
        value = _statistic(alarm, alarm.get("Statistic") or alarm["ExtendedStatistic"], points)
    # No data is no breach: TreatMissingData.
    return bool(_COMPARISONS[alarm["ComparisonOperator"]](value, float(alarm["Threshold"])))


def _expression(queries: Iterable[Mapping[str, Any]], points: Sequence[Point]) -> float:
    """Metric math, as far as the template uses it; its operators are those of Python.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/using-metric-math.html
    """
    names: dict[str, Any] = {
        "IF": lambda condition, then, otherwise: then if condition else otherwise,
        "FILL": lambda series, value: value if math.isnan(series) else series,
    }
    expression = ""
    for query in queries:
        if "Expression" in query:
            expression = query["Expression"]
        else:
            names[query["Id"]] = _statistic(query["MetricStat"]["Metric"], query["MetricStat"]["Stat"], points)
    return float(eval(expression, {"__builtins__": {}}, names))  # noqa: S307 - our template's own


def _statistic(metric: Mapping[str, Any], statistic: str, points: Sequence[Point]) -> float:
    """A statistic of all values of a metric, not a number where there are none."""
    dimensions = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
    wanted = (metric["Namespace"], metric["MetricName"], dimensions)
    values = sorted(
        value
        for point in points
        if (point.namespace, point.metric, point.dimensions) == wanted
        for value in point.values
    )
    if not values:
        return math.nan
    match statistic:
        case "Sum":
            return math.fsum(values)
        case "Average":
            return math.fsum(values) / len(values)
        case "p99":
            return values[math.ceil(0.99 * len(values)) - 1]
    raise NotImplementedError(statistic)
