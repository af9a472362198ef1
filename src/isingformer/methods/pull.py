"""What the data say of single weights.

What pulls a weight's drop probability away from the prior field, its evidence and the slab against the spike; and how
exactly a kept weight is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ising import evidence, logit, slab_cost_beyond, slab_minus_spike
from .pieces import total_of

if TYPE_CHECKING:
    from .ising_rule import IsingRule


NEXT_TO_NOTHING = 1e-9
"""Of the mean evidence: less than that counts as that much, so that every weight has a logarithm."""
LEAST_SPREAD = 1e-3
"""Of log e: weights that differ by less, by rounding, do not differ."""
FARTHEST = 6.0
"""Standard deviations: no weight is farther out."""


class Pull(Mapping[str, Tensor]):
    """What adds to the prior field, computed layer by layer when the sweep asks, so that it is never held whole.

    evidence_weight * evidence, or with a contrast c

        logit(delta) (sqrt(1 + pi c^2 / 8) - 1) - c z,    z = (log e - mean of log e) / sd of log e,

    e the evidence with its sign turned, mean and sd over all weights of the network. Were z a standard normal number,
    the mean of q over the weights would be delta, to a percent, for any c.
    """

    def __init__(self, rule: IsingRule) -> None:
        self.rule = rule
        self.middle = self.spread = self.tiny = torch.zeros(())
        """Mean and sd of log e, ``[*R, 1, 1]``, and the least e that counts; unused where there is no contrast."""
        if rule.spec.contrast:
            self._weigh()

    def _evidence(self, name: str, mean: Tensor) -> Tensor:
        rule = self.rule
        return evidence(mean, rule.average.value(name), examples=rule.examples, kind=rule.spec.evidence)

    def _own_mean(self, name: str) -> Tensor:
        return self.rule.parts.own_mean(name).to(self.rule.average.average.dtype)

    def _log(self, name: str) -> Tensor:
        # An estimate of h may be negative; a weight that is worse than useless is useless here.
        worth = self._evidence(name, self._own_mean(name)).neg_().clamp_min_(0)
        return worth.add_(self.tiny).clamp_min_(torch.finfo(worth.dtype).tiny).log_()

    def _weigh(self) -> None:
        self.tiny = -NEXT_TO_NOTHING * self._mean(lambda name: self._evidence(name, self._own_mean(name)).clamp_max_(0))
        self.middle = self._mean(self._log)
        self.spread = self._mean(lambda name: self._log(name).sub_(self.middle).square_()).sqrt()

    def _mean(self, of: Callable[[str], Tensor]) -> Tensor:
        """Over the weights of all layers that something is known of, ``[*R, 1, 1]``; 0 where there are none."""
        parts, known = self.rule.parts, {name: _measured(self.rule, name) for name in self}
        own = [torch.where(known[name], of(name).sum((-2, -1), keepdim=True), 0.0) for name in self]
        sizes = {name: math.prod(part.shape[-2:]) for name, part in parts.posteriors.items()}
        weights = torch.stack([size * known[name] for name, size in sizes.items()]).sum(0)
        total = torch.stack(own).sum(0)
        return (total_of(total) if parts.pieces else total) / weights.clamp_min(1)

    def _by_weight(self, name: str, mean: Tensor) -> Tensor:
        return self._evidence(name, mean).mul_(self.rule.spec.weight_of_evidence)

    def _by_contrast(self, name: str) -> Tensor:
        c, rule = self.rule.spec.contrast or 0.0, self.rule
        log = self._log(name)
        z = log.sub_(self.middle).div_(self.spread.clamp_min(LEAST_SPREAD)).clamp_(-FARTHEST, FARTHEST)
        rest = logit(rule.base.at(z)) * (math.sqrt(1 + math.pi * c**2 / 8) - 1)
        return torch.where(_measured(rule, name) & (self.tiny > 0), rest - c * z, 0.0)

    def __getitem__(self, name: str) -> Tensor:
        rule, spec = self.rule, self.rule.spec
        mean = self._own_mean(name)
        fan_in = rule.parts.posteriors[name].shape[-1]
        pull = self._by_contrast(name) if spec.contrast else self._by_weight(name, mean)
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
