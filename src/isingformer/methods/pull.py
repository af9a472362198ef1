"""What the data say of single weights.

What pulls a weight's drop probability away from the prior field, its evidence and the slab against the spike; and how
exactly a kept weight is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ising import evidence, slab_minus_spike

if TYPE_CHECKING:
    from .ising_rule import IsingRule


class Pull(Mapping[str, Tensor]):
    """What adds to the prior field, computed layer by layer when the sweep asks, so that it is never held whole."""

    def __init__(self, rule: IsingRule) -> None:
        self.rule = rule

    def __getitem__(self, name: str) -> Tensor:
        rule, spec = self.rule, self.rule.spec
        mean = rule.parts.own_mean(name).to(rule.average.average.dtype)
        fan_in = rule.parts.posteriors[name].shape[-1]
        pull = evidence(mean, rule.average.value(name), examples=rule.examples, kind=spec.evidence)
        pull = pull.mul_(spec.weight_of_evidence)
        if spec.spike_slab:
            widths = {
                "noise_sd": spec.noise_sd(fan_in),
                "spike_sd": spec.spike_sd(fan_in),
                "slab_sd": spec.slab_sd(fan_in),
            }
            pull = pull.add_(slab_minus_spike(mean, **widths))
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
    v = spec.laplace_noise / (rule.examples * average.value(name) + 1 / slab**2)
    return torch.where(average.weight[..., average.numbers[name], None, None] > 0, v, 0.0)
