"""Draws the chart: python chart.py RESULTS.json CHART.png. Runs in an environment of its own, with Matplotlib."""
# mypy: ignore-errors
# (It does not see Matplotlib.)

import json
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

PANELS = [
    ("cold, with bytecode", "cold", "ms"),
    ("cold, no bytecode", "cold-bare", "ms"),
    ("warm, one tool (p50)", "warm-p50", "ms"),
    ("warm, 50 tools (p50)", "many-p50", "ms"),
    ("peak memory, cold", "memory", "MB"),
    ("artefact, unzipped", "size", "MB"),
]
COLOURS = {"ours": "#1f6feb", "obvious": "#6e7781"}


def main(source: str, target: str) -> None:
    """Draw one panel a measure, one bar a contestant: the median, and the quartiles as a line."""
    with open(source) as file:
        document = json.load(file)
    measures, titles = document["measures"], document["titles"]
    _, axes = pyplot.subplots(3, 2, figsize=(12, 10), constrained_layout=True)
    for axis, (title, measure, unit) in zip(axes.flat, PANELS, strict=True):
        values = measures.get(measure, {})
        names = [name for name in titles if name in values]
        medians = [statistics.median(values[name]) for name in names]
        spread = [[], []]
        for name, median in zip(names, medians, strict=True):
            low, _, high = (
                statistics.quantiles(values[name], n=4, method="inclusive") if values[name][1:] else [median] * 3
            )
            spread[0].append(max(median - low, 0))
            spread[1].append(max(high - median, 0))
        labels = [titles[name].partition(":")[0] for name in names]
        colours = [COLOURS.get(name, "#afb8c1") for name in names]
        bars = axis.barh(labels, medians, xerr=spread, color=colours, ecolor="#24292f", capsize=3)
        axis.bar_label(bars, [f"{median:.3g}" if median < 100 else f"{median:.0f}" for median in medians], padding=6)
        axis.set_title(f"{title}, {unit}", loc="left")
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
        if unit == "ms" and "cold" not in measure:
            # From microseconds to a fifth of a second.
            axis.set_xscale("log")
            axis.set_xlim(right=max(medians, default=1) * 4)
    pyplot.savefig(target, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
