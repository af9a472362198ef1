"""A bias-corrected running mean of curvature over all layers of a model.

Between two folds everything measured is averaged over its examples, h_k = sum of squares / number of examples. A fold
takes it into the running mean, average <- decay * average + (1 - decay) * h_k, read as average / (1 - decay^k).

Axes: R replicas (or none), W all weights of all layers laid end to end, L layers. One long tensor instead of one a
    layer keeps the work after a backward pass at a handful of operations, however deep the model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor


class CurvatureAverage:
    """h of every layer, from whatever was measured.

    Args:
        like: tensors ``[*R, out, in]`` that say each layer's shape, device and type.
        decay: what a fold keeps of the past.
    """

    def __init__(self, like: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        first = next(iter(like.values()))
        self.replicas = first.shape[:-2]
        self.shapes = {name: tuple(tensor.shape[-2:]) for name, tensor in like.items()}
        self.numbers = {name: number for number, name in enumerate(like)}
        ends = [0, *itertools.accumulate(math.prod(shape) for shape in self.shapes.values())]
        self.spans = {name: slice(*span) for name, span in zip(like, itertools.pairwise(ends), strict=True)}
        self.pending = first.new_zeros(*self.replicas, ends[-1])  # a backward pass's squares, [*R, W]
        self.tally = first.new_zeros(len(like), 2)  # its examples and passes, [L, 2]
        self.sums = torch.zeros_like(self.pending)
        self.counts = first.new_zeros(*self.replicas, len(like))  # [*R, L]
        self.average = torch.zeros_like(self.pending)
        self.weight = torch.zeros_like(self.counts)

    def layer(self, flat: Tensor, name: str) -> Tensor:
        """A layer's part of a ``[*R, W]`` tensor as its matrix ``[*R, out, in]``, live."""
        return flat[..., self.spans[name]].unflatten(-1, self.shapes[name])

    def take_in(self, factor: Tensor, terms: float | None) -> Tensor:
        """Add the squared gradients in `pending`, left by a backward pass, and clear them.

        The pass's loss was `factor` times a mean, so they carry factor^2. The companions have undone a mean over
        examples; where the mean went over `terms` terms instead, the difference is made up here.

        Args:
            factor: ``[*R]``.
            terms: how many terms the loss was a mean of; None: one an example.

        Returns:
            Whether a replica's squares were all finite, ``[*R]``; those of the others are left out.
        """
        ratio = torch.ones_like(self.tally[:, 0])
        if terms is not None:
            ratio = terms * self.tally[:, 1] / self.tally[:, 0].clamp_min(1)
            for name, number in self.numbers.items():
                self.layer(self.pending, name).mul_(ratio[number].square())
        self.pending.mul_(factor.to(self.pending.dtype).square().reciprocal().unsqueeze(-1))
        finite = self.pending.sum(-1).isfinite()
        self.sums.add_(torch.where(finite.unsqueeze(-1), self.pending, 0.0))
        self.counts.add_(torch.where(finite.unsqueeze(-1), self.tally[:, 0] * ratio, 0.0))
        self.drop_pending()
        return finite

    def drop_pending(self) -> None:
        """Forget what a backward pass left."""
        self.pending.zero_()
        self.tally.zero_()

    def add(self, name: str, mean: Tensor, count: float) -> None:
        """Add a layer's h measured as a mean over `count` terms."""
        self.layer(self.sums, name).add_(mean, alpha=count)
        self.counts[..., self.numbers[name]] += count

    def fold(self) -> bool:
        """Move what was taken in since the last fold into the running mean; layers with nothing new stay.

        Returns:
            Whether there was anything new.
        """
        keep = torch.where(self.counts > 0, self.decay, 1.0)  # [*R, L]
        gain = (1 - keep) / self.counts.clamp_min(1e-30)
        for name, number in self.numbers.items():
            here = self.layer(self.average, name)
            here.mul_(keep[..., number, None, None])
            here.addcmul_(self.layer(self.sums, name), gain[..., number, None, None])
        self.weight.mul_(keep).add_(1 - keep)
        news = bool((self.counts > 0).any())
        self.sums.zero_()
        self.counts.zero_()
        return news

    def value(self, name: str) -> Tensor:
        """h of a layer, ``[*R, out, in]``; zero where nothing was ever measured."""
        weight = self.weight[..., self.numbers[name], None, None]
        return self.layer(self.average, name) / torch.where(weight > 0, weight, 1.0)

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, live: writing into them restores it."""
        return {
            "curvature.sums": self.sums,
            "curvature.counts": self.counts,
            "curvature.average": self.average,
            "curvature.weight": self.weight,
        }

    def follow(self, like: Tensor) -> bool:
        """Move to the device and type of `like`, and say whether that changed anything."""
        if (self.sums.device, self.sums.dtype) == (like.device, like.dtype):
            return False
        for name in ("pending", "tally", "sums", "counts", "average", "weight"):
            setattr(self, name, getattr(self, name).to(like))
        return True
