"""The whole network as one picture: every layer's keep probabilities, laid out so that the flow can be followed.

Reading goes like a text. The embedding is at the top, then a row a block from left to right, the classifier at the end.
The residual stream is the horizontal axis of every picture, so a channel stands at the same place in all of them; the
vertical axis is what lies between: a patch's pixels, the channels of the heads (query, key, value and `proj` side by
side), the hidden units (fc1 and fc2 side by side), the classes. Layers that write the stream are turned for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .anatomy import Anatomy
from .look import INK, QUIET, bare, colours, new_figure, our_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = 1.15
"""Of a picture's side."""


@dataclass(frozen=True)
class Tile:
    """One layer, or the query, key or value rows of one, in the map."""

    layer: str
    title: str
    rows: slice
    """Which rows of the layer."""
    turned: bool
    """Whether it writes the residual stream, so that its picture is transposed."""
    across: str
    """What the vertical axis is."""

    def of(self, matrix: Tensor) -> Tensor:
        """The tile's part of a layer's ``[out, in]`` matrix, with the residual stream along the columns."""
        part = matrix[self.rows]
        return part.T if self.turned else part


def tiles(parts: Anatomy) -> list[tuple[str, list[Tile]]]:
    """The rows of the map from the input to the classes, each with its name and its tiles from left to right."""
    whole = slice(None)
    found = [("input", [Tile(parts.embed, "embedding", whole, True, "pixels of a patch")])]
    for number, block in enumerate(parts.blocks, start=1):
        heads = [
            Tile(rows.layer, word, rows.rows, False, "channels by head")
            for word, rows in (("query", block.query), ("key", block.key), ("value", block.value))
        ]
        found.append((f"block {number}", [
            *heads, Tile(block.proj, "proj", whole, True, "channels by head"),
            Tile(block.fc1, "fc1", whole, False, "hidden units"), Tile(block.fc2, "fc2", whole, True, "hidden units"),
        ]))  # fmt: skip
    return [*found, ("classes", [Tile(parts.classifier, "classifier", whole, False, "classes")])]


def keep_range(drop: Mapping[str, Tensor]) -> tuple[float, float]:
    """From where to where the colours go: what keep probabilities there are, rounded outwards to tenths."""
    least, most = 1 - max(float(q.max()) for q in drop.values()), 1 - min(float(q.min()) for q in drop.values())
    low, high = math.floor(10 * least + 1e-6) / 10, math.ceil(10 * most - 1e-6) / 10
    return (low, high) if high > low else (max(0.0, low - 0.1), min(1.0, high + 0.1))


def map_figure(parts: Anatomy, drop: Mapping[str, Tensor]) -> Figure:
    """The map as a figure.

    Args:
        parts: of the model.
        drop: q by layer, ``[out, in]``.
    """
    rows, (low, high) = tiles(parts), keep_range(drop)
    with our_settings():
        heights = [0.55, *(1.0 for _ in parts.blocks), 0.55]
        figure = new_figure(6 * INCHES + 1.3, sum(heights) * (INCHES + 0.18) + 0.9, "Keep probability of every weight")
        grid = figure.add_gridspec(len(rows), 6, height_ratios=heights)
        panels = []
        for row, (name, row_tiles) in enumerate(rows):
            first = 5 if name == "classes" else 0
            for column, tile in enumerate(row_tiles, start=first):
                axes = figure.add_subplot(grid[row, column])
                panels.append(axes)
                image = axes.imshow(1 - tile.of(drop[tile.layer]).numpy(), cmap=colours("share"), vmin=low, vmax=high,
                                    aspect="auto")  # fmt: skip
                bare(axes)
                axes.set_title(tile.title, fontsize=7.5, pad=2)
                if column == first:
                    axes.set_ylabel(name, fontweight="bold", color=INK)
                if tile.across == "channels by head":
                    for h in range(1, parts.heads):
                        axes.axhline(h * parts.width / parts.heads - 0.5, color="white", linewidth=0.5)
        figure.text(0.012, 0.008, "→ residual stream      ↓ pixels, channels by head, hidden units, classes",
                    fontsize=7.5, color=QUIET)  # fmt: skip
        bar = figure.colorbar(image, ax=panels, location="right", shrink=0.5, aspect=28, pad=0.02)
        bar.set_label("keep probability 1 − q")
    return figure
