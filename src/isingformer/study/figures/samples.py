"""Sample images of a dataset, by class.

Axes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ...explain.look import new_figure
from .style import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW, MOST = 12, 100
"""Up to so many classes get a column each; no more than so many are shown at all."""
SIDE = 56
"""About the pixels of a tile's side: small images are enlarged in whole steps, so that they stay sharp."""


def draw(images: Tensor, labels: Tensor, classes: Sequence[str], title: str, *, each: int = 3) -> Figure:
    """The first images of each class.

    Args:
        images: ``[N, C, H, W]``, uint8 pixels; other numbers are stretched between their extremes.
        labels: ``[N]``, class numbers.
        classes: what each class is called.
        title: above the figure.
        each: images of a class, where there are at most `FEW` classes; else one.
    """
    count = min(len(classes), MOST)
    columns = count if count <= FEW else 10
    rows = each if count <= FEW else 1
    bands = math.ceil(count / columns)
    tiles = as_pixels(images, [first(labels, k, rows) for k in range(count)])
    _, _, height, width, _ = tiles.shape  # [class, example, H, W, RGBA]
    gap, head = max(2, width // 12), round(0.3 * width)
    band = head + rows * (height + gap)
    canvas = torch.zeros(bands * band, columns * (width + gap) - gap, 4, dtype=torch.uint8)
    tile_width = 6.9 / max(columns, 5)
    scale = tile_width / (width + gap)
    figure = new_figure(columns * tile_width + 0.2, bands * band * scale + 0.3, title)
    axes = figure.subplots()
    longest = max(4, int(tile_width * 72 / 4.1))
    for k in range(count):
        top, left = band * (k // columns) + head, (k % columns) * (width + gap)
        for row, tile in enumerate(tiles[k]):
            y = top + row * (height + gap)
            canvas[y : y + height, left : left + width] = tile
        name = shown(str(classes[k]))
        name = name if len(name) <= longest else name[: longest - 1] + "…"
        axes.text(left + width / 2, top - 0.08 * width, name, ha="center", va="bottom", fontsize=7)
    axes.imshow(canvas.numpy(), interpolation="none")
    axes.set_axis_off()
    return figure


def first(labels: Tensor, number: int, count: int) -> list[int]:
    """Where the first images of a class are; fewer where it has fewer."""
    return (labels.cpu() == number).nonzero()[:count, 0].tolist()


def as_pixels(images: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """The images with these numbers as tiles ``[class, example, H, W, RGBA]``; transparent where one is missing."""
    if images.dim() != 4:
        raise ValueError(f"images: expected [N, C, H, W], got shape {list(images.shape)}")
    most = max(1, max(map(len, rows), default=1))
    picked = images[[row for group in rows for row in group]].detach().cpu()
    if picked.dtype != torch.uint8 and len(picked):
        low, high = float(picked.min()), float(picked.max())
        picked = ((picked.float() - low) * (255 / max(high - low, 1e-12))).round().to(torch.uint8)
    if picked.shape[1] not in (1, 3):
        picked = picked.float().mean(1, keepdim=True).round().to(torch.uint8)
    picked = picked.expand(-1, 3, -1, -1)
    times = max(1, SIDE // max(picked.shape[2:]))
    picked = picked.repeat_interleave(times, 2).repeat_interleave(times, 3)
    opaque = F.pad(picked, (0, 0, 0, 0, 0, 1), value=255).permute(0, 2, 3, 1)
    tiles = torch.zeros(len(rows), most, *opaque.shape[1:], dtype=torch.uint8)
    taken = iter(opaque)
    for k, group in enumerate(rows):
        for place in range(len(group)):
            tiles[k, place] = next(taken)
    return tiles
