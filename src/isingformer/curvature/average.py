"""A bias-corrected running mean of curvature over all layers of a model.

Between two folds everything measured is averaged over its examples, h_k = sum of squares / number of examples. A fold
takes it into the running mean, average <- decay * average + (1 - decay) * h_k, read as average / (1 - decay^k).

Axes: R replicas (or none), L layers, W all layers laid end to end, each as its weights and two places for counts (the
layout of a companion, see `linear.py`). One long tensor instead of one a layer keeps the work after a backward pass
at a handful of operations, however deep the model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

COUNTS = 2
"""What follows the weights of a layer: examples and passes."""


class CurvatureAverage:
    """h of every layer, from whatever was measured.

    Args:
        like: tensors ``[*R, out, in]`` that say each layer's shape, device and type.
        decay: what a fold keeps of the past.
        flat: layers whose input has examples and tokens on one axis, so that they count more examples than there are.
    """

    def __init__(self, like: Mapping[str, Tensor], decay: float, flat: Collection[str] = ()) -> None:
        self.decay, self.flat = decay, tuple(name for name in like if name in flat)
        first = next(iter(like.values()))
        replicas = first.shape[:-2]
        self.shapes = {name: tuple(tensor.shape[-2:]) for name, tensor in like.items()}
        self.numbers = {name: number for number, name in enumerate(like)}
        ends = [0, *itertools.accumulate(math.prod(shape) + COUNTS for shape in self.shapes.values())]
        self.spans = {name: slice(*span) for name, span in zip(like, itertools.pairwise(ends), strict=True)}
        self.sums = first.new_zeros(*replicas, ends[-1])  # [*R, W]
        self.average = torch.zeros_like(self.sums)
        self.counts = first.new_zeros(*replicas, len(like))  # examples in the sums, [*R, L]
        self.weight = torch.zeros_like(self.counts)  # 1 - decay^k
        self.news = torch.zeros((), dtype=torch.bool, device=first.device)  # whether the last fold had any
        self.ends = torch.tensor(ends[1:], device=first.device)
        self._is_flat = torch.tensor([name in self.flat for name in like], device=first.device)  # [L]

    def layer(self, flat: Tensor, name: str) -> Tensor:
        """A layer's weights in a ``[*R, W]`` tensor as their matrix ``[*R, out, in]``, live."""
        span = self.spans[name]
        return flat[..., span.start : span.stop - COUNTS].unflatten(-1, self.shapes[name])

    def take_in(
        self,
        filled: Sequence[Tensor | None],
        factor: Tensor,
        terms: float | None,
        agreed: Callable[[Tensor], Tensor] = lambda finite: finite,
    ) -> Tensor:
        """Add the squared gradients that a backward pass left in the companions.

        The pass's loss was `factor` times a mean, so they carry factor^2. The companions have undone a mean over the
        examples that each layer saw; where the mean went over `terms` terms instead, the difference is made up here,
        and so it is for flat layers, by the examples that the others saw. A layer that the model calls K times a pass
        has seen every example K times: the squares of its calls add up, its examples do not.

        Args:
            filled: the companions' gradients in order of layers, ``[*R, out * in + 2]`` each; None: not reached.
            factor: ``[*R]``.
            terms: how many terms the loss was a mean of; None: one an example.
            agreed: what several processes that have a piece of every layer each say of all of them.

        Returns:
            Whether a replica's squares were all finite, ``[*R]``; those of the others are left out.
        """
        spans = self.spans.values()
        parts = [torch.zeros_like(self.sums[..., at]) if g is None else g for g, at in zip(filled, spans, strict=True)]
        fresh = torch.cat(parts, dim=-1)  # [*R, W]
        examples, passes = fresh[..., self.ends - 2], fresh[..., self.ends - 1]  # [*R, L]
        reached = passes > 0
        if terms is not None or self.flat:
            true = self._examples_a_pass(examples, passes) if terms is None else terms
            ratio = true * passes / examples.clamp_min(1)
            for name in self.numbers if terms is not None else self.flat:
                self.layer(fresh, name).mul_(ratio[..., self.numbers[name], None, None].square())
            examples = examples * ratio
        calls = passes / torch.where(reached, passes, torch.inf).amin(-1, keepdim=True)
        examples = torch.where(reached, examples / calls, 0.0)
        fresh.mul_(factor.to(fresh.dtype).square().reciprocal().unsqueeze(-1))
        finite = agreed(fresh.sum(-1).isfinite())
        self.sums.add_(torch.where(finite.unsqueeze(-1), fresh, 0.0))
        self.counts.add_(torch.where(finite.unsqueeze(-1), examples, 0.0))
        return finite

    def _examples_a_pass(self, examples: Tensor, passes: Tensor) -> Tensor:
        """What a pass of each layer should have counted, ``[*R, L]``: a flat one what the fewest of the others did."""
        own = examples / passes.clamp_min(1)
        others = torch.where((passes > 0) & ~self._is_flat, own, torch.inf).amin(-1, keepdim=True)
        return torch.where(self._is_flat & others.isfinite(), others, own)

    def add(self, name: str, mean: Tensor, count: float) -> None:
        """Add a layer's h measured as a mean over `count` terms."""
        self.layer(self.sums, name).add_(mean, alpha=count)
        self.counts[..., self.numbers[name]] += count

    def fold(self) -> None:
        """Move what was taken in since the last fold into the running mean; layers with nothing new stay."""
        keep = torch.where(self.counts > 0, self.decay, 1.0)  # [*R, L]
        gain = (1 - keep) / self.counts.clamp_min(1e-30)
        lengths = torch.diff(self.ends, prepend=self.ends.new_zeros(1))
        self.average.mul_(keep.repeat_interleave(lengths, -1, output_size=self.average.shape[-1]))
        self.average.addcmul_(self.sums, gain.repeat_interleave(lengths, -1, output_size=self.average.shape[-1]))
        self.weight.mul_(keep).add_(1 - keep)
        self.news.copy_((self.counts > 0).any())
        self.sums.zero_()
        self.counts.zero_()

    def value(self, name: str) -> Tensor:
        """h of a layer, ``[*R, out, in]``; zero where nothing was ever measured."""
        return self.layer(self.average, name) / self.weight[..., self.numbers[name], None, None].clamp_min(1e-30)

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
        for name in ("sums", "counts", "average", "weight"):
            setattr(self, name, getattr(self, name).to(like))
        for name in ("ends", "news", "_is_flat"):
            setattr(self, name, getattr(self, name).to(like.device))
        return True
