"""A quantity under T drawn networks: its mean, its spread, and what can be told of it for sure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..predict.prediction import central_interval


@dataclass(frozen=True)
class Spread:
    """A quantity of any shape under each of T drawn networks."""

    samples: Tensor
    """``[T, ...]``."""

    @property
    def mean(self) -> Tensor:
        """Over the networks, ``[...]``."""
        return self.samples.mean(0)

    @property
    def sd(self) -> Tensor:
        """sqrt(sum over t of (x_t - mean)^2 / (T - 1)), ``[...]``; 0 where T = 1."""
        if len(self.samples) < 2:
            return torch.zeros_like(self.samples[0])
        return self.samples.std(0)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central credible interval: the (1 - level) / 2 and (1 + level) / 2 quantiles, each ``[...]``."""
        return central_interval(self.samples, level)

    def against(self, reference: float, level: float = 0.9) -> Tensor:
        """Which side of a reference a quantity is on: 1 above, -1 below, 0 where its interval holds the reference.

        int8 ``[...]``. With the uniform share of attention as reference this tells regions that are attended to, or
        left out, under nearly every network from regions about which the networks differ; with 0 it does so for
        relevance.
        """
        low, high = self.interval(level)
        return (low > reference).to(torch.int8) - (high < reference).to(torch.int8)

    def of(self, *place: int | slice) -> Spread:
        """The same of a part: ``spread.of(0)`` is that of the first entry after T."""
        return Spread(self.samples[(slice(None), *place)])
