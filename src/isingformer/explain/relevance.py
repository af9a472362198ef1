"""Traceback: what pushes the score of a class, from the patches through heads and hidden units. Gradient times input.

Axes: T networks, N images, P patches, L blocks, H heads, Q query and K key tokens, C channels of a head, U units.

    patch   sum over its pixels of (x - baseline) * dS/dx,    dS/dx the mean on the way from baseline to x
    head    sum over tokens and channels of z * dS/dz,        z what the head hands to `proj`
    unit    sum over tokens of a * dS/da,                     a what the unit hands to the MLP's second layer
    edge    A[i, j] v[j] . dS/dz[i],                          what token i gets from token j through a head

S is the log-odds of the class. Patches add up to S(x) - S(baseline) but for the steps of the mean (`Way` in
`traces.py`). A head's or unit's relevance is, to first order, how much the score falls without it; the edges into a
head add up to the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..nn.vit import patches
from ..predict.passes import wide
from .spread import Spread
from .traces import Trace


@dataclass(frozen=True)
class RelevanceSpread:
    """Relevance under T networks; above 0 speaks for the class, below 0 against it."""

    patches: Spread
    """``[T, N, P]``."""
    heads: Spread
    """``[T, N, L, H]``."""
    units: Spread
    """``[T, N, L, U]``."""

    def regions(self, level: float = 0.9) -> Tensor:
        """1 where a patch speaks for the class under nearly every network, -1 against it, 0 unsure; int8 ``[N, P]``."""
        return self.patches.against(0.0, level)


def patch_relevance(x: Tensor, gradient: Tensor, side: int, baseline: float | Tensor = 0.0) -> Tensor:
    """sum over a patch's pixels of (x - baseline) * gradient: images ``[N, channels, rows, columns]`` to ``[N, P]``."""
    x = wide(x)
    return patches((x - torch.as_tensor(baseline, dtype=x.dtype, device=x.device)) * gradient, side).sum(-1)


def head_relevance(mixed: Tensor, gradient: Tensor) -> Tensor:
    """sum over tokens and channels of z * dS/dz, ``[N, L, H, Q, C]`` to ``[N, L, H]``."""
    return (mixed * gradient).sum((-2, -1))


def unit_relevance(hidden: Tensor, gradient: Tensor) -> Tensor:
    """sum over tokens of a * dS/da, ``[N, L, Q, U]`` to ``[N, L, U]``."""
    return (hidden * gradient).sum(-2)


def edge_relevance(attention: Tensor, values: Tensor, gradient: Tensor) -> Tensor:
    """A[i, j] v[j] . dS/dz[i]: ``[N, L, H, Q, K]``, ``[N, L, H, K, C]``, ``[N, L, H, Q, C]`` to ``[N, L, H, Q, K]``."""
    return attention * (gradient @ values.transpose(-1, -2))


def skip_relevance(stream: Tensor, gradient: Tensor) -> Tensor:
    """x[i] . dS/dy[i], x what enters a block and y what leaves its attention, ``[N, L, Q, D]`` to ``[N, L, Q]``."""
    return (stream * gradient).sum(-1)


def relevance_of(found: Trace, x: Tensor, side: int, baseline: float | Tensor = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Of patches, heads and units in one traced pass: ``[N, P]``, ``[N, L, H]``, ``[N, L, U]``."""
    pulls = found.pulls
    assert pulls is not None, "a trace without a class has no gradients"
    return (
        patch_relevance(x, pulls.pixels, side, baseline),
        head_relevance(found.mixed, pulls.mixed),
        unit_relevance(found.hidden, pulls.hidden),
    )


def relevance_spread(passes: list[tuple[Tensor, Tensor, Tensor]]) -> RelevanceSpread:
    """What `relevance_of` gave for each of T networks."""
    of_patches, of_heads, of_units = (Spread(torch.stack(parts)) for parts in zip(*passes, strict=True))
    return RelevanceSpread(of_patches, of_heads, of_units)
