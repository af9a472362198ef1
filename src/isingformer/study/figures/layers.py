"""Drop probability by layer: a panel an ising method, a row a layer, from the input down to the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explain.look import new_figure
from .style import QUIET, Cells, in_order, look, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..record import Layer

CAPTION = (
    "The drop probabilities q of each layer's weights, from the input at the top to the output: the point is their "
    "mean, the broad bar holds the middle half, the thin bar 5% to 95% of the weights (averages of the replicas' "
    "numbers). The dashed line is δ, where q rests without evidence under the centred field of ising; under the "
    "paper's printed field it rests higher."
)


def has_layers(method: str) -> bool:
    """Whether a method has drop probabilities of its own; the others' are the rate, everywhere."""
    return method.startswith("ising")


def draw(cells: Cells, title: str) -> Figure:
    """Of the ising cells of one dataset, size and rate."""
    from matplotlib.ticker import MaxNLocator

    by_method = {cell.method: (cell.rate, summary.layers) for cell, summary in cells.items()}
    methods = in_order(by_method)
    names = list(dict.fromkeys(name for _, layers in by_method.values() for name in layers))
    figure = new_figure(1.9 + 1.75 * max(2, len(methods)), 1.2 + 0.19 * max(4, len(names)), title)
    panels = figure.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False)[0]
    for axes, method in zip(panels, methods, strict=True):
        rate, layers = by_method[method]
        _panel(axes, method, rate, {names.index(name): layer for name, layer in layers.items()})
        axes.set_xlabel("drop probability q")
    panels[0].xaxis.set_major_locator(MaxNLocator(3))
    panels[0].set_yticks(range(len(names)), [shown(name) for name in names])
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    panels[0].set_xlim(0, min(1.02, 1.06 * max(panels[0].get_xlim()[1], 0.05)))
    return figure


def _panel(axes: Axes, method: str, rate: float | None, layers: dict[int, Layer]) -> None:
    style = look(method)
    rows = list(layers)
    quantiles = [layer.quantiles for layer in layers.values()]
    for lower, upper, width, alpha, label in ((0, 4, 2.2, 0.4, "5% to 95%"), (1, 3, 5.2, 0.4, "25% to 75%")):
        axes.hlines(rows, [q[lower] for q in quantiles], [q[upper] for q in quantiles], color=style.colour,
                    linewidth=width, alpha=alpha, label=label)  # fmt: skip
    axes.plot([layer.mean_q for layer in layers.values()], rows, linestyle="none", marker=style.marker, markersize=4.2,
              color=style.colour, label="mean")  # fmt: skip
    if rate is not None:
        axes.axvline(rate, color=QUIET, linewidth=0.8, linestyle=(0, (4, 2)), zorder=0, label="δ")
    axes.set_title(style.label, fontweight="bold", pad=4)
    axes.tick_params(axis="y", length=0)
