"""The two divergences of the bound in closed form, weight by weight. Sum them: a mean would not grow with the network.

Symbols as in the docs: q drop probability, m mean, s the weight noise, s1 spike and s2 slab of the prior.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def slab_cost(noise_sd: float, slab_sd: float) -> float:
    """KL(N(m, s^2) || N(0, s2^2)) without its m^2 term: log(s2/s) + s^2/(2 s2^2) - 1/2; 0 for a point mass (s = 0)."""
    return math.log(slab_sd / noise_sd) + noise_sd**2 / (2 * slab_sd**2) - 0.5 if noise_sd > 0 else 0.0


def slab_cost_beyond(variance: Tensor, *, noise_sd: float, slab_sd: float) -> Tensor:
    """What a kept weight's own variance v adds to `slab_cost`: v/(2 s2^2) - log(1 + v/s^2)/2, per weight.

    With s = 0 it is all of log(s2/sqrt(v)) + v/(2 s2^2) - 1/2, and 0 where v is 0 too.
    """
    linear = variance / (2 * slab_sd**2)
    if noise_sd > 0:
        return linear - 0.5 * torch.log1p(variance / noise_sd**2)
    own = linear - 0.5 * torch.log(variance.clamp_min(torch.finfo(variance.dtype).tiny) / slab_sd**2) - 0.5
    return torch.where(variance > 0, own, 0.0)


def spike_cost(noise_sd: float, spike_sd: float) -> float:
    """KL(N(0, s^2) || N(0, s1^2)) = log(s1/s) + s^2/(2 s1^2) - 1/2; 0 for a point mass (s = 0)."""
    return math.log(spike_sd / noise_sd) + noise_sd**2 / (2 * spike_sd**2) - 0.5 if noise_sd > 0 else 0.0


def kl_weights(mean: Tensor, drop: Tensor, *, noise_sd: float, spike_sd: float, slab_sd: float) -> Tensor:
    """KL(q(W|xi) || p(W|xi)) averaged over xi ~ q, per weight.

    (1 - q) [m^2/(2 s2^2) + log(s2/s) + s^2/(2 s2^2) - 1/2] + q [log(s1/s) + s^2/(2 s1^2) - 1/2]

    With s = 0 the weights are a point mass and only (1 - q) m^2/(2 s2^2) is kept: the rest is infinite but constant.
    """
    kept = mean.square() / (2 * slab_sd**2) + slab_cost(noise_sd, slab_sd)
    return (1 - drop) * kept + drop * spike_cost(noise_sd, spike_sd)


def kl_masks(drop: Tensor, prior: Tensor) -> Tensor:
    """KL(Bernoulli(q) || Bernoulli(sigmoid(prior field))), per weight; exact at q = 0 and q = 1.

    q log q + (1 - q) log(1 - q) - q log p - (1 - q) log(1 - p), with log p = logsigmoid(prior).
    """
    # - q log p - (1 - q) log(1 - p) = softplus(prior) - q prior
    return F.softplus(prior) - drop * prior - torch.special.entr(drop) - torch.special.entr(1 - drop)
