"""The posterior of single weights: a spike at zero and a slab at m, mixed by q."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALVINGS = 60


@dataclass(frozen=True)
class WeightPosterior:
    """q N(0, s^2) + (1 - q) N(m, s^2 + v) of every weight of a layer, ``[*R, out, in]``."""

    location: Tensor
    """m, where a kept weight is centred."""
    drop: Tensor
    """q."""
    noise_sd: float
    """s."""
    own_variance: Tensor | None = None
    """v; None: 0."""

    @property
    def kept_sd(self) -> Tensor | float:
        """sqrt(s^2 + v)."""
        return self.noise_sd if self.own_variance is None else (self.noise_sd**2 + self.own_variance).sqrt()

    @property
    def mean(self) -> Tensor:
        """(1 - q) m."""
        return self.location * (1 - self.drop)

    @property
    def sd(self) -> Tensor:
        """sqrt(s^2 + (1 - q) v + q (1 - q) m^2)."""
        own = 0.0 if self.own_variance is None else self.own_variance
        return (self.noise_sd**2 + (1 - self.drop) * (own + self.drop * self.location.square())).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central credible interval of every weight: its (1 - level) / 2 and (1 + level) / 2 quantiles."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be in (0, 1), got {level}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def quantile(self, p: float) -> Tensor:
        """The smallest w with P(W <= w) >= p, by bisection of the mixture's distribution function."""
        reach = 8 * self.kept_sd + 1e-12
        low = torch.minimum(self.location, torch.zeros_like(self.location)) - reach
        high = torch.maximum(self.location, torch.zeros_like(self.location)) + reach
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self.cdf(middle) < p
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high

    def cdf(self, w: Tensor) -> Tensor:
        """P(W <= w), ``[*R, out, in]``."""
        dropped, kept = _normal_cdf(w, self.noise_sd), _normal_cdf(w - self.location, self.kept_sd)
        return self.drop * dropped + (1 - self.drop) * kept

    def at(self, out: int, into: int) -> WeightPosterior:
        """That of a single weight."""
        own = None if self.own_variance is None else self.own_variance[..., out, into]
        return WeightPosterior(self.location[..., out, into], self.drop[..., out, into], self.noise_sd, own)

    def cpu(self) -> WeightPosterior:
        """A copy on the CPU."""
        own = None if self.own_variance is None else self.own_variance.cpu().clone()
        return WeightPosterior(self.location.cpu().clone(), self.drop.cpu().clone(), self.noise_sd, own)


def _normal_cdf(distance: Tensor, sd: Tensor | float) -> Tensor:
    at_once = (distance >= 0).to(distance.dtype)
    if isinstance(sd, Tensor):
        return torch.where(sd > 0, 0.5 * (1 + torch.erf(distance / (sd * math.sqrt(2)))), at_once)
    return at_once if sd == 0 else 0.5 * (1 + torch.erf(distance / (sd * math.sqrt(2))))
