"""Scores against the size of the training sample: a row a score, a column a drop rate, a line a method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...explain.look import new_figure
from .style import Cells, in_order, legend, look, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORES = {
    "accuracy": "Accuracy ↑",
    "recall": "Recall ↑",
    "precision": "Precision ↑",
    "f1": "F1 ↑",
    "false_positive_rate": "False-positive\nrate ↓",
    "nll": "Negative log\nlikelihood ↓",
    "ece": "Calibration\nerror (ECE) ↓",
}
"""The paper's five, then two that judge the probabilities; the arrow says which way is better."""

CAPTION = (
    "Mean over the replicas, bars one standard deviation either way; the arrow says which way is better. A column is a "
    "drop rate, p or δ; plain has none and stands in each for comparison. Points of a size are moved apart sideways a "
    "little so that their bars can be seen."
)


def rates_of(cells: Cells) -> list[float | None]:
    """The drop rates of the cells; [None] where no cell has one."""
    return [*sorted({cell.rate for cell in cells if cell.rate is not None})] or [None]


def draw(cells: Cells, dataset: str) -> Figure:
    """Of one dataset's cells."""
    rates = rates_of(cells)
    sizes = sorted({cell.size for cell in cells})
    methods = in_order(cell.method for cell in cells)
    width = max(4.2, min(13.0, 0.4 + 3.2 * len(rates)))
    figure = new_figure(width, 10.2)
    panels = figure.subplots(len(SCORES), len(rates), sharex=True, sharey="row", squeeze=False)
    for row, (score, name) in enumerate(SCORES.items()):
        for column, rate in enumerate(rates):
            axes: Axes = panels[row, column]
            for place, method in enumerate(methods):
                line(axes, cells, method, rate, score, 2.4 * (place - (len(methods) - 1) / 2))
            if column == 0:
                axes.set_ylabel(name)
            if row == 0 and rate is not None:
                axes.set_title(f"drop rate {rate:g}")
    size_axis(panels[0, 0], sizes)
    for axes in panels[-1]:
        axes.set_xlabel("training images")
    figure.align_ylabels(panels[:, 0])
    legend(figure, f"{title_of(dataset)}: scores by training size", methods, {}, columns=3 if len(rates) < 3 else 6)
    return figure


def points(cells: Cells, method: str, rate: float | None, score: str) -> list[tuple[int, float, float]]:
    """(size, mean, sd or NaN) along a line; a method without rate belongs to every rate."""
    line = {cell.size: found for cell, found in cells.items() if cell.method == method and cell.rate in (rate, None)}
    return [
        (size, mean, math.nan if (sd := line[size].sds[score]) is None else sd)
        for size in sorted(line)
        if (mean := line[size].means[score]) is not None
    ]


def line(axes: Axes, cells: Cells, method: str, rate: float | None, score: str, aside: float) -> None:
    """One method's line, drawn `aside` points to the right so that bars do not hide each other; the data stay exact."""
    from matplotlib.transforms import ScaledTranslation

    values = points(cells, method, rate, score)
    if not values:
        return
    style = look(method)
    moved = axes.transData + ScaledTranslation(aside / 72, 0, axes.figure.dpi_scale_trans)
    sizes, means, sds = zip(*values, strict=True)
    axes.errorbar(
        sizes, means, yerr=sds,
        color=style.colour, linestyle=style.dash, marker=style.marker, markersize=4.2, linewidth=1.2, elinewidth=0.9,
        transform=moved, label=style.label,
    )  # fmt: skip
    for sign in (-1, 1):  # matplotlib does not look at data that are drawn aside
        axes.update_datalim([(size, mean + sign * (0 if math.isnan(sd) else sd)) for size, mean, sd in values])
    axes.autoscale_view()


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Sizes along a logarithmic axis, each at its own tick."""
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
