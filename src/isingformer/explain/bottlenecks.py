"""Layers that the coupling over-regularises: the one-way sweep against the exact stationary point of the bound.

The paper's sweep lets a layer's prior follow the layers that read it, but does not charge the readers for it. At the
stationary point they are charged (`ising/two_way.py`), most where few weights are read for many: at a bottleneck. Where
the one-way q is higher than the two-way q, the one-way sweep drops more than the bound asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..ising import stationary_sweep, sweep
from ..methods import Ising, attached_to
from ..methods.ising_rule import IsingRule
from ..methods.pull import Pull
from .table import Table

FLAGGED = 0.05
"""A layer whose mean q is so much higher one-way than two-way is over-regularised."""


@dataclass(frozen=True)
class Bottleneck:
    """One layer's q both ways."""

    layer: str
    shape: tuple[int, int]
    """Out and in."""
    one_way: float
    """mean q of the sweep from the last layer to the first."""
    two_way: float
    """mean q at the stationary point."""
    widest: float
    """The largest |one-way q - two-way q| of a weight."""

    @property
    def excess(self) -> float:
        """one_way - two_way: above 0, the coupling drops more than the bound asks for."""
        return self.one_way - self.two_way

    @property
    def flagged(self) -> bool:
        """Whether the layer is over-regularised by more than `FLAGGED`."""
        return self.excess > FLAGGED


@dataclass(frozen=True)
class Bottlenecks:
    """All layers, from the input to the classes."""

    layers: tuple[Bottleneck, ...]

    def table(self) -> Table:
        """A row a layer."""
        rows = tuple(
            (
                one.layer, f"{one.shape[1]} → {one.shape[0]}", one.one_way, one.two_way, one.excess, one.widest,
                "yes" if one.flagged else "no",
            )
            for one in self.layers
        )  # fmt: skip
        header = (
            "layer",
            "in → out",
            "mean q, one-way",
            "two-way",
            "difference",
            "largest of a weight",
            "over-regularised",
        )
        return Table("Bottlenecks: q of the one-way sweep and at the stationary point", header, rows)


@torch.no_grad()
def bottlenecks(model: nn.Module) -> Bottlenecks:
    """Compare both sweeps on the model's weights and curvature as they are; the model's own q is not touched.

    Args:
        model: attached with `Ising`, after its warm-up.

    Raises:
        ArithmeticError: the stationary point was not found, which a strong coupling without evidence can cause.
    """
    method = attached_to(model)
    if method is None or not isinstance(method.method, Ising):
        what = type(model).__name__ if method is None else f"one with {method.method.name}"
        raise ValueError(
            f"bottlenecks: expected a model with Ising attached, got {what}; only its q follows neighbours"
        )
    if isinstance(method.method.delta, tuple):
        raise ValueError(
            f"bottlenecks: expected a single network, got one with a delta for every replica, {method.method.delta}"
        )
    spec, means, wiring = method.method, method.parts.means(), method.parts.topology.wiring
    assert isinstance(method.rule, IsingRule), "the rule of Ising"
    delta = method.rule.base.at(next(iter(method.parts.posteriors.values())).drop)  # as learned, where it is
    pull = dict(Pull(method.rule))  # what its next sweep would add to the prior field
    one = sweep(means, pull, wiring, delta=delta, coupling=spec.coupling, centred=spec.centred).drop
    two = stationary_sweep(means, pull, wiring, delta=delta, coupling=spec.coupling, centred=spec.centred).drop
    lowest = {name: method.rule.floor(part.node_rate, delta) for name, part in method.parts.posteriors.items()}
    return Bottlenecks(
        tuple(
            _compared(name, one[name].clamp_min(lowest[name]), two[name].clamp_min(lowest[name]))
            for name in method.parts.topology.layers
        )
    )


def _compared(name: str, one: Tensor, two: Tensor) -> Bottleneck:
    shape = (int(one.shape[-2]), int(one.shape[-1]))
    return Bottleneck(name, shape, float(one.mean()), float(two.mean()), float((one - two).abs().max()))
