"""A bias-corrected running mean of curvature, layer by layer.

Axes: squares ``[*R, out, in]``, counts ``[*R]``.

Between two folds everything measured is averaged over its examples, h_k = sum of squares / number of examples. A fold
takes it into the running mean, average <- decay * average + (1 - decay) * h_k, read as average / (1 - decay^k).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class CurvatureAverage:
    """h of every layer, from whatever was measured.

    Args:
        like: tensors that say each layer's shape, device and type.
        decay: what a fold keeps of the past.
    """

    def __init__(self, like: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.sums = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        self.counts = {name: tensor.new_zeros(tensor.shape[:-2]) for name, tensor in like.items()}
        self.average = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        self.weight = {name: tensor.new_zeros(tensor.shape[:-2]) for name, tensor in like.items()}

    def add(self, name: str, squares: Tensor, count: Tensor | float, where: Tensor | None = None) -> None:
        """Take in a layer's sum over `count` examples, for the replicas `where` it counts, ``[*R]`` (None: all)."""
        if where is None:
            self.sums[name].add_(squares)
            self.counts[name].add_(count)
        else:
            self.sums[name].add_(torch.where(where[..., None, None], squares, 0.0))
            self.counts[name].add_(torch.where(where, count, 0.0))

    def fold(self) -> bool:
        """Move what was taken in since the last fold into the running mean; layers with nothing new stay.

        Returns:
            Whether there was anything new.
        """
        news = any(bool((count > 0).any()) for count in self.counts.values())
        for name, total in self.sums.items():
            count = self.counts[name]
            keep = torch.where(count > 0, self.decay, 1.0).to(total.dtype)
            new = total.div_(count.clamp_min(1e-30)[..., None, None])
            self.average[name].mul_(keep[..., None, None]).add_(new.mul_((1 - keep)[..., None, None]))
            self.weight[name].mul_(keep).add_(1 - keep)
            total.zero_()
            count.zero_()
        return news

    def value(self, name: str) -> Tensor:
        """h of a layer, ``[*R, out, in]``; zero where nothing was ever measured."""
        weight = self.weight[name][..., None, None]
        return self.average[name] / torch.where(weight > 0, weight, 1.0)

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, live: writing into them restores it."""
        kinds = {"sum": self.sums, "count": self.counts, "average": self.average, "weight": self.weight}
        return {f"{name}.curvature_{kind}": held[name] for kind, held in kinds.items() for name in held}

    def to(self, like: Mapping[str, Tensor]) -> None:
        """Follow a model that moved to another device or type."""
        for held in (self.sums, self.counts, self.average, self.weight):
            for name, tensor in held.items():
                held[name] = tensor.to(like[name])
