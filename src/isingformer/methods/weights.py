"""The posterior of single weights: a spike at zero and a slab at m, mixed by q."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALVINGS = 60


@dataclass(frozen=True)
class WeightPosterior:
    """q N(0, s^2) + (1 - q) N(m, s^2) of every weight of a layer, ``[*R, out, in]``."""

    location: Tensor
    """m, where a kept weight is centred."""
    drop: Tensor
    """q."""
    noise_sd: float
    """s."""

    @property
    def mean(self) -> Tensor:
        """(1 - q) m."""
        return self.location * (1 - self.drop)

    @property
    def sd(self) -> Tensor:
        """sqrt(s^2 + q (1 - q) m^2)."""
        return (self.noise_sd**2 + self.drop * (1 - self.drop) * self.location.square()).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central credible interval of every weight: its (1 - level) / 2 and (1 + level) / 2 quantiles."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be in (0, 1), got {level}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def quantile(self, p: float) -> Tensor:
        """The smallest w with P(W <= w) >= p, by bisection of the mixture's distribution function."""
        reach = 8 * self.noise_sd + 1e-12
        low = torch.minimum(self.location, torch.zeros_like(self.location)) - reach
        high = torch.maximum(self.location, torch.zeros_like(self.location)) + reach
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self.cdf(middle) < p
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high

    def cdf(self, w: Tensor) -> Tensor:
        """P(W <= w), ``[*R, out, in]``."""
        return self.drop * _normal_cdf(w, self.noise_sd) + (1 - self.drop) * _normal_cdf(
            w - self.location, self.noise_sd
        )


def _normal_cdf(distance: Tensor, sd: float) -> Tensor:
    if sd == 0:
        return (distance >= 0).to(distance.dtype)
    return 0.5 * (1 + torch.erf(distance / (sd * math.sqrt(2))))
