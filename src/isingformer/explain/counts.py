"""What is left of a network under a mask: weights, heads, multiply-adds; and their distribution over drawn masks.

Axes: a mask is bool ``[out, in]``, True where the weight is kept; T drawn networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..nn.masked import posteriors
from .anatomy import Anatomy, Rows, matrix_of
from .networks import Networks
from .spread import Spread


@dataclass(frozen=True)
class Counts:
    """Of one architecture."""

    weights: int
    """Kept."""
    heads: int
    """Active: through one of their value channels something gets in and out."""
    macs: int
    """Multiply-adds of one image's pass that kept weights and active heads ask for; biases and norms left out."""


@dataclass(frozen=True)
class CountSpread:
    """Of T drawn architectures, each ``[T]``."""

    weights: Spread
    heads: Spread
    macs: Spread


def count(parts: Anatomy, kept: Mapping[str, Tensor]) -> Counts:
    """Count what a mask leaves.

        macs = sum over layers of kept weights * tokens that pass
             + sum over active heads of tokens^2 * (channels whose query and key rows both keep a weight
                                                    + channels whose value row and `proj` column both keep one)

    Args:
        parts: of the model.
        kept: the mask of every layer, bool ``[out, in]``.
    """
    macs = sum(int(mask.sum()) * parts.tokens_through(name) for name, mask in kept.items())
    heads = 0
    for block in parts.blocks:

        def fed(rows: Rows) -> Tensor:
            return kept[rows.layer][rows.rows].any(1)

        carried = (fed(block.value) & kept[block.proj].any(0)).view(parts.heads, -1).sum(1)
        scored = (fed(block.query) & fed(block.key)).view(parts.heads, -1).sum(1)
        heads += int((carried > 0).sum())
        macs += parts.tokens**2 * int(((carried + scored) * (carried > 0)).sum())
    return Counts(sum(int(mask.sum()) for mask in kept.values()), heads, macs)


def filled(parts: Anatomy, model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks of all layers: those without a posterior keep everything."""
    return {
        name: masks[name] if name in masks else torch.ones_like(matrix_of(model, name), dtype=torch.bool)
        for name in parts.layers
    }


def probable_masks(model: nn.Module) -> dict[str, Tensor]:
    """The most probable architecture by layer: kept where q < 1/2; bool ``[out, in]``."""
    return {name: part.drop < 0.5 for name, part in posteriors(model).items()}


def drawn_masks(networks: Networks, t: int) -> dict[str, Tensor]:
    """The architecture of drawn network t by layer, bool ``[out, in]``."""
    noise = networks.noise()
    noise.set(masks=t, weights=t)
    found = posteriors(networks.model)
    return {name: part.drawn_mask(noise).expand_as(part.drop) for name, part in found.items()}


def drawn_counts(networks: Networks, parts: Anatomy) -> CountSpread:
    """Weights, heads and multiply-adds of every drawn architecture."""
    model = networks.model
    found = [count(parts, filled(parts, model, drawn_masks(networks, t))) for t in range(networks.samples)]

    def spread(name: str) -> Spread:
        return Spread(torch.tensor([getattr(one, name) for one in found], dtype=torch.float64))

    return CountSpread(spread("weights"), spread("heads"), spread("macs"))
