"""The field of the variational Ising posterior: q = sigmoid(field).

Axes: a weight matrix is ``[..., out, in]``: row j' is the node that a weight writes, column j the node it reads, and
any leading axes are replicas. Whatever belongs to a node j' is ``[..., out, 1]``. xi = 1 means dropped.

    field = prior field + evidence_weight * evidence   (`methods/pull.py` has what else may stand there)
    prior field, centred = coupling * (neighbours - delta) + logit(delta)
    prior field, printed = coupling * neighbours + logit(delta)
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Evidence = Literal["obd", "curvature", "none"]


def logit(probability: float | Tensor) -> float | Tensor:
    """log(p / (1 - p)), for a number or a tensor."""
    if isinstance(probability, Tensor):
        return torch.logit(probability)
    return math.log(probability) - math.log1p(-probability)


def prior_field(neighbours: Tensor, *, delta: float | Tensor, coupling: float, centred: bool = True) -> Tensor:
    """The field without evidence: what the base rate and the next layers alone say.

    Args:
        neighbours: ``[..., out, 1]``, in [0, 1]: the strength-weighted share of a node's outgoing connections that are
            dropped (`neighbours` in `sweep.py`).
        delta: base rate in (0, 1), a number or broadcastable to `neighbours`.
        coupling: weight of the neighbours' term; the paper has 2.
        centred: subtract delta from `neighbours`, so that a network without evidence rests at q = delta.
    """
    rest = logit(delta) - coupling * delta if centred else logit(delta)
    return neighbours * coupling + rest


def evidence(mean: Tensor, curvature: Tensor, *, examples: float, kind: Evidence = "obd") -> Tensor:
    """Log-likelihood of the data with the weight dropped minus with it kept; below zero for a useful weight.

    ``obd``: -N h m^2 / 2, Optimal Brain Damage. ``curvature``: -N h, as the paper prints it. ``none``: 0.

    Args:
        mean: m, ``[..., out, in]``.
        curvature: h, the second derivative of the negative log-likelihood averaged over examples, shaped like `mean`.
        examples: N, how many terms the log-likelihood sums.
        kind: which of the three readings.
    """
    if kind == "obd":
        return curvature * mean.square() * (-0.5 * examples)
    if kind == "curvature":
        return curvature * -examples
    if kind == "none":
        return torch.zeros_like(mean)
    raise ValueError(f"evidence must be 'obd', 'curvature' or 'none', got {kind!r}")


def slab_minus_spike(mean: Tensor, *, noise_sd: float, spike_sd: float, slab_sd: float) -> Tensor:
    """What a kept weight pays in divergence beyond a dropped one: the extension ``spike_slab``.

    m^2 / (2 s2^2) + log(s2 / s1) + (s^2 / 2) (1 / s2^2 - 1 / s1^2), which is dKL_W/dq with its sign turned, so that
    adding it to the field makes a weight earn its keep against the weight prior too.
    """
    constant = math.log(slab_sd / spike_sd) + noise_sd**2 / 2 * (slab_sd**-2 - spike_sd**-2)
    return mean.square() / (2 * slab_sd**2) + constant
