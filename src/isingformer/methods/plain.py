"""No posterior at all: the reference that the methods are compared with.

q = 0 and s = 0 for every weight of every linear layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..nn.posterior import Sampling
from .method import FixedRule, Method, Parts, Rule


@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    """Ordinary training: nothing is dropped, no weight is uncertain, and all passes of `predict` are the same.

    It makes an ordinary network go through `attach`, `predict`, `save` and the rest like any other.

    Args:
        kl_weight: weight of the pull towards zero, m^2 / (2 s2^2), in `kl()`; 0 by default: weight decay alone.
        weight_noise: 0, and nothing else.
        slab, spike: s2, s1 times sqrt(fan_in); see `Method`.
        sampling: of no consequence.
    """

    kl_weight: float | None = 0.0
    weight_noise: float = 0.0
    sampling: Sampling = "mask"

    name: ClassVar[str] = "plain"

    def __post_init__(self) -> None:
        """Check every setting."""
        super().__post_init__()
        self._check("weight_noise", self.weight_noise, self.weight_noise == 0, "0, since its weights are certain")

    def rule(self, parts: Parts, *, examples: float, steps: int | None) -> Rule:
        """q = 0, fixed."""
        return FixedRule(parts, dict.fromkeys(parts.posteriors, 0.0))
