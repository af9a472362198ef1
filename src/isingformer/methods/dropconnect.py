"""Bayesian dropconnect: every weight dropped with the same fixed probability p.

q = p for every weight of every linear layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .method import FixedRule, Method, Parts, Rate, Rule


@dataclass(frozen=True, kw_only=True)
class DropConnect(Method):
    """Every weight is dropped with probability `p`, in training and at prediction.

    Args:
        p: drop probability, in [0, 1); or one a replica of a stacked model.
        kl_weight: weight of the divergence KL_W in `kl()`; None for 0.1.
        weight_noise, slab, spike: s, s2, s1 times sqrt(fan_in); see `Method`.
        sampling: how training passes are drawn, ``local`` (fresh for every example and token) or ``mask``.
    """

    p: Rate = 0.1

    name: ClassVar[str] = "dropconnect"

    def __post_init__(self) -> None:
        """Check every setting."""
        super().__post_init__()
        self._check_rate("p", lambda p: 0 <= p < 1, "in [0, 1)")

    def rule(self, parts: Parts, *, examples: float, steps: int | None) -> Rule:
        """q = p, fixed."""
        return FixedRule(parts, {name: self.p for name in parts.posteriors})
