"""Is a map of an image true to the model? Patches are taken away, or brought in, in the order that the map gives.

Axes: N images, P patches in reading order, K + 1 points of a curve.

    deletion    begins with the image; the patches with the highest values are replaced by the baseline first
    insertion   begins with the baseline; the patches with the highest values are brought in first
    area        under the class's probability against the share of patches touched, by trapezoids, in [0, 1]

A map that knows what the class hangs on has a small area of deletion and a large area of insertion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["deletion", "insertion"]


@dataclass(frozen=True)
class Curve:
    """The probability of each image's class while patches are deleted or inserted."""

    shares: Tensor
    """Of the patches that were touched, ``[K + 1]``, from 0 to 1."""
    probability: Tensor
    """``[N, K + 1]``."""

    @property
    def area(self) -> Tensor:
        """Under the curve, by trapezoids, ``[N]``."""
        return torch.trapezoid(self.probability, self.shares, dim=-1)


def order_of(values: Tensor) -> Tensor:
    """Patches from the highest value to the lowest, the first of equals first, ``[N, P]``."""
    return values.argsort(dim=-1, descending=True, stable=True)


def random_order(n: int, patches: int, generator: torch.Generator | None = None) -> Tensor:
    """An order by chance for every image, ``[N, P]``, from a generator (None: torch's default one)."""
    return torch.rand(n, patches, generator=generator).argsort(-1)


def covered(x: Tensor, hidden: Tensor, side: int, baseline: float | Tensor = 0.0) -> Tensor:
    """Images with some patches replaced by the baseline.

    Args:
        x: ``[N, channels, rows, columns]``.
        hidden: which patches, bool ``[N, P]`` in reading order.
        side: of a patch in pixels.
        baseline: a number, or pixels that broadcast with an image.
    """
    grid = hidden.unflatten(-1, (x.shape[-2] // side, x.shape[-1] // side))
    pixels = grid.repeat_interleave(side, -2).repeat_interleave(side, -1).unsqueeze(-3)
    return torch.where(pixels.to(x.device), torch.as_tensor(baseline, dtype=x.dtype, device=x.device), x)


@torch.no_grad()
def curve(
    probabilities: Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    order: Tensor,
    *,
    side: int,
    kind: Kind = "deletion",
    baseline: float | Tensor = 0.0,
    points: int | None = None,
) -> Curve:
    """Delete or insert patches in an order and follow the class's probability.

    Args:
        probabilities: images ``[N, channels, rows, columns]`` to probabilities ``[N, classes]``.
        x: the images.
        target: the class of each, ``[N]``.
        order: of the patches, ``[N, P]``; see `order_of`.
        side: of a patch in pixels.
        kind: ``deletion`` or ``insertion``.
        baseline: what a patch that is not there looks like.
        points: K, equal steps from no patch to all of them; None: one patch at a time.
    """
    if kind not in ("deletion", "insertion"):
        raise ValueError(f"curve: kind must be 'deletion' or 'insertion', got {kind!r}")
    count = order.shape[-1]
    steps = count if points is None else points
    if not 1 <= steps <= count:
        raise ValueError(f"curve: points must be 1 to {count}, the number of patches, or None, got {points}")
    touched_at = torch.linspace(0, count, steps + 1).round().long()
    rank = order.argsort(-1)  # when a patch's turn comes
    found = []
    for touched in touched_at.tolist():
        hidden = rank < touched if kind == "deletion" else rank >= touched
        probs = probabilities(covered(x, hidden, side, baseline))
        found.append(probs.gather(-1, target[:, None].to(probs.device)).squeeze(-1))
    return Curve(touched_at / count, torch.stack(found, -1).float().cpu())
