"""Numbers out of rounds: medians with their spread, and ratios within a round."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Summary", "percentile", "ratio", "summary"]


@dataclass(frozen=True)
class Summary:
    """What several rounds have in common.

    Attributes:
        median: half of the rounds are below.
        low: a quarter of the rounds are below.
        high: a quarter of the rounds are above.
    """

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of all values do not exceed, by linear interpolation between neighbours.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summary(values: Sequence[float]) -> Summary:
    """Median and quartiles of one value a round."""
    return Summary(percentile(values, 50), percentile(values, 25), percentile(values, 75))


def ratio(values: Sequence[float], base: Sequence[float]) -> Summary:
    """How many times `base` the values are, round by round: what slowed a whole round down is in both.

    Raises:
        ValueError: they are not of the same rounds.
    """
    return summary([value / other for value, other in zip(values, base, strict=True)])
