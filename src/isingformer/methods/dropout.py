"""Bayesian dropout: nodes dropped with a fixed probability p, in the places of BayesFormer.

    xi[j', j] = xi[j] for all j': one mask an input node, q = p

in the inputs of every linear layer of attention and MLP, and in the embedded tokens. In a model that is not our ViT,
in the inputs of every linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..topology import Topology
from .method import FixedRule, Method, Parts, Rate, Rule, by_replica


@dataclass(frozen=True, kw_only=True)
class Dropout(Method):
    """Nodes are dropped with probability `p`, in training and at prediction. Kept nodes are not scaled up.

    Args:
        p: drop probability, in [0, 1); or one a replica of a stacked model.
        kl_weight: weight of the divergence KL_W in `kl()`; None for 0.1.
        weight_noise, slab, spike: s, s2, s1 times sqrt(fan_in); see `Method`.
        sampling: how training passes are drawn: ``local``, ordinary dropout, fresh for every example and token; or
            ``mask``, one mask a node for the whole batch.
    """

    p: Rate = 0.1

    name: ClassVar[str] = "dropout"

    def __post_init__(self) -> None:
        """Check every setting."""
        super().__post_init__()
        self._check_rate("p", lambda p: 0 <= p < 1, "in [0, 1)")

    def node_dropout(self, layer: str, topology: Topology) -> bool:
        """Masks are tied over a node's outgoing weights in every layer that has masks."""
        return layer in topology.node_layers

    def embedding_drop(self) -> float | None:
        """The embedded tokens' nodes are dropped too."""
        return self.p[0] if isinstance(self.p, tuple) else self.p

    def rule(self, parts: Parts, *, examples: float, steps: int | None) -> Rule:
        """q = p in BayesFormer's places and 0 elsewhere, fixed."""
        inside = parts.topology.node_layers
        rates = by_replica(self.p, next(iter(parts.posteriors.values())).drop)
        for mask in parts.node_masks.values():
            if isinstance(rates, Tensor):  # [R, 1, 1], for nodes [R, width]
                mask.drop.copy_(rates.squeeze(-1))
        return FixedRule(parts, {name: self.p if name in inside else 0.0 for name in parts.posteriors})
