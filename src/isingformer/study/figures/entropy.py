"""Entropy of right and wrong predictions: a panel a method, the right ones upward, the wrong ones downward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...explain.look import new_figure
from ..summary import Summary
from .style import INK, QUIET, Cells, in_order, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = (
    "How unsure the predictions are, pooled over the replicas: right ones upward, wrong ones downward, each as shares "
    "of their own number. Zero is certainty, the right end an even guess. Good uncertainty puts the right ones left "
    "and the wrong ones right. The upright lines are the means."
)


def draw(cells: Cells, title: str) -> Figure:
    """Of the cells of one dataset, size and rate."""
    by_method = {cell.method: summary for cell, summary in cells.items()}
    methods = in_order(by_method)
    columns = min(3, len(methods))
    if len(methods) == 4:
        columns = 2
    rows = math.ceil(len(methods) / columns)
    figure = new_figure(0.5 + 2.35 * columns if columns > 1 else 3.6, 0.75 + 1.75 * rows, title)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    highest = max(_panel(axes, method, by_method[method]) for axes, method in zip(panels.flat, methods, strict=False))
    for axes in panels.flat[len(methods) :]:
        axes.set_visible(False)
    _axes(panels.flat[0], by_method[methods[0]].entropies.edges, highest)
    for row in range(rows):
        panels[row, 0].set_ylabel("wrong  |  right")
    for place, axes in enumerate(panels.flat[: len(methods)]):
        if place + columns >= len(methods):  # the lowest of its column
            axes.set_xlabel("entropy (nats)")
            axes.tick_params(labelbottom=True)
    return figure


def _panel(axes: Axes, method: str, summary: Summary) -> float:
    """Both histograms of a method; returns the highest share."""
    style = look(method)
    found = summary.entropies
    highest = 0.0
    for part, sign, counts in (("right", 1, found.right), ("wrong", -1, found.wrong)):
        total = sum(counts)
        shares = [count / max(1, total) for count in counts]
        highest = max(highest, *shares)
        heights = [sign * share for share in shares]
        axes.stairs(heights, found.edges, fill=True, color=style.colour, linewidth=0, label=part,
                    alpha=0.9 if sign > 0 else 0.45)  # fmt: skip
        axes.stairs(heights, found.edges, color=style.colour, linewidth=0.9, baseline=None)
        mean = summary.means[f"entropy_{part}"]
        note = f"{part}: {total:,}" + ("" if mean is None else f", mean {mean:.2f}")
        axes.text(0.99, 0.985 if sign > 0 else 0.015, note, transform=axes.transAxes, ha="right", fontsize=7,
                  va="top" if sign > 0 else "bottom", color=QUIET)  # fmt: skip
        if mean is not None:
            axes.axvline(
                mean, *((0.5, 0.86) if sign > 0 else (0.14, 0.5)), color=INK, linewidth=1, label=f"mean {part}"
            )
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.set_title(style.label, fontweight="bold", pad=3)
    axes.grid(visible=False)
    return highest


def _axes(axes: Axes, edges: Sequence[float], highest: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    top = 1.32 * highest or 1.0
    axes.set(xlim=(edges[0], edges[-1]), ylim=(-top, top))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):.0%}"))
