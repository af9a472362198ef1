"""What the data say of single weights.

What pulls a weight's drop probability away from the prior field, its evidence and the slab against the spike; and how
exactly a kept weight is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ising import evidence, slab_cost_beyond, slab_minus_spike
from .pieces import total_of

if TYPE_CHECKING:
    from .ising_rule import IsingRule


class Pull(Mapping[str, Tensor]):
    """What adds to the prior field, computed layer by layer when the sweep asks, so that it is never held whole.

    evidence_weight * evidence, or where `contrast` is set
    contrast * (1 - evidence / mean evidence of all weights)
    """

    def __init__(self, rule: IsingRule) -> None:
        self.rule = rule
        self.mean = self._mean_evidence() if rule.spec.contrast else None
        """Over all weights, ``[*R, 1, 1]``; 0 where nothing was measured."""

    def _evidence(self, name: str, mean: Tensor) -> Tensor:
        rule = self.rule
        return evidence(mean, rule.average.value(name), examples=rule.examples, kind=rule.spec.evidence)

    def _own_mean(self, name: str) -> Tensor:
        return self.rule.parts.own_mean(name).to(self.rule.average.average.dtype)

    def _mean_evidence(self) -> Tensor:
        parts = self.rule.parts
        # An estimate of h may be negative; a weight that is worse than useless is useless here.
        own = [self._evidence(name, self._own_mean(name)).clamp_max(0).sum((-2, -1)) for name in self]
        total = torch.stack(own).sum(0)[..., None, None]
        sizes = {name: math.prod(part.shape[-2:]) for name, part in parts.posteriors.items()}
        weights = torch.stack([size * _measured(self.rule, name) for name, size in sizes.items()]).sum(0)
        return (total_of(total) if parts.pieces else total) / weights.clamp_min(1)

    def __getitem__(self, name: str) -> Tensor:
        rule, spec = self.rule, self.rule.spec
        mean = self._own_mean(name)
        fan_in = rule.parts.posteriors[name].shape[-1]
        pull = self._evidence(name, mean)
        if self.mean is None:
            pull = pull.mul_(spec.weight_of_evidence)
        else:
            known = _measured(rule, name) & (self.mean < 0)
            pull = torch.where(known, spec.contrast * (1 - pull.clamp_max(0) / self.mean), 0.0)
        if spec.spike_slab:
            widths = {
                "noise_sd": spec.noise_sd(fan_in),
                "spike_sd": spec.spike_sd(fan_in),
                "slab_sd": spec.slab_sd(fan_in),
            }
            pull = pull.add_(slab_minus_spike(mean, **widths))
            if spec.laplace_noise:
                noise_sd, slab_sd = widths["noise_sd"], widths["slab_sd"]
                pull = pull.add_(slab_cost_beyond(own_variance(rule, name), noise_sd=noise_sd, slab_sd=slab_sd))
        return pull

    def __iter__(self) -> Iterator[str]:
        return iter(self.rule.parts.posteriors)

    def __len__(self) -> int:
        return len(self.rule.parts.posteriors)


def own_variance(rule: IsingRule, name: str) -> Tensor:
    """v = laplace_noise / (N h + 1 / s2^2) of a layer's kept weights, ``[*R, out, in]``; 0 before h was measured.

    At laplace_noise 1 it is the variance of Laplace's approximation with a diagonal Hessian and the slab as prior.
    """
    average, spec = rule.average, rule.spec
    slab = spec.slab_sd(rule.parts.posteriors[name].shape[-1])
    v = spec.laplace_noise / (rule.examples * average.value(name).clamp_min(0) + 1 / slab**2)
    return torch.where(_measured(rule, name), v, 0.0)


def _measured(rule: IsingRule, name: str) -> Tensor:
    """Whether anything is known of a layer's curvature, ``[*R, 1, 1]``."""
    return rule.average.weight[..., rule.average.numbers[name], None, None] > 0
