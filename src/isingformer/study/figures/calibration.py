"""How often a confidence is right: the reliability curves of all methods in one plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explain.look import new_figure
from .style import FAINT, QUIET, Cells, in_order, legend, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = (
    "Share of right predictions against the confidence, the probability of the predicted class, in equally wide bins "
    "pooled over the replicas. On the diagonal a model is as often right as it says; below it is overconfident. "
    "Larger points stand for more predictions, points off the line for fewer than ten, which say little; the lower "
    "panel shows how they spread over the bins."
)
FEW = 10
"""Predictions of a bin that the line goes through."""


def draw(cells: Cells, title: str) -> Figure:
    """Of the cells of one dataset, size and rate."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(4.6, 6.1)
    curve, share = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [4.4, 1]})
    curve.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, linestyle=(0, (6, 3)), zorder=1, label="diagonal")
    notes = {}
    by_method = {cell.method: summary for cell, summary in cells.items()}
    for method in in_order(by_method):
        style = look(method)
        table = by_method[method].reliability
        total = max(1, sum(b.count for b in table))
        filled = [b for b in table if b.count]
        joined = [(b.confidence, b.accuracy) for b in filled if b.count >= FEW]
        curve.plot(
            [x for x, _ in joined],
            [y for _, y in joined],
            color=style.colour,
            linestyle=style.dash,
            linewidth=1.3,
            label=style.label,
        )
        curve.scatter([b.confidence for b in filled], [b.accuracy for b in filled],
                      s=[7 + 70 * b.count / total for b in filled], color=style.colour, marker=style.marker,
                      linewidths=0, zorder=3, clip_on=False)  # fmt: skip
        edges = [b.lower for b in table] + [table[-1].upper]
        share.stairs([b.count / total for b in table], edges, color=style.colour, linestyle=style.dash, linewidth=1,
                     label=style.label)  # fmt: skip
        if (ece := by_method[method].means["ece"]) is not None:
            notes[method] = f", ECE {ece:.3f}"
    _words(curve)
    curve.set(xlim=(0, 1), ylim=(0, 1), ylabel="share of right predictions")
    share.set(ylim=(0, None), xlabel="confidence", ylabel="share of\npredictions")
    share.yaxis.set_major_locator(MaxNLocator(2))
    share.grid(visible=False)
    share.yaxis.label.set_color(QUIET)
    figure.align_ylabels([curve, share])
    legend(figure, title, in_order(by_method), notes, columns=2)
    return figure


def _words(axes: Axes) -> None:
    for x, y, text in ((0.03, 0.95, "underconfident"), (0.97, 0.04, "overconfident")):
        axes.text(x, y, text, color=QUIET, fontsize=7.5, style="italic", ha="left" if x < 0.5 else "right")
    axes.fill_between([0, 1], [0, 1], 0, color=FAINT, alpha=0.16, linewidth=0, zorder=0)
