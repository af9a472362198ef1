"""The posterior of a network's architecture: how likely each of its parts is kept.

Axes: q ``[out, in]``, L blocks, H heads, U hidden units. The keep probability of a group of weights is the mean of
    1 - q over them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..methods import WeightPosterior, attached_to
from ..nn.masked import posteriors
from ..nn.nodes import joint_entropy
from .anatomy import Anatomy, anatomy, matrix_of
from .counts import Counts, CountSpread, count, drawn_counts, filled, probable_masks
from .networks import Networks
from .table import Table, interval_ends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_SAMPLES = 50


@dataclass(frozen=True)
class LayerPosterior:
    """One layer in figures."""

    name: str
    weights: int
    keep: float
    """mean of 1 - q."""
    entropy: float
    """- q log q - (1 - q) log(1 - q) of a mask by itself, the mean over the layer's, in nats; at most log 2."""
    probable: float
    """Share of the weights that the most probable architecture keeps: q < 1/2."""
    surely: float
    """Share of the weights whose credible interval leaves out 0."""


@dataclass(frozen=True)
class Architecture:
    """The posterior over architectures of a model."""

    parts: Anatomy
    drop: Mapping[str, Tensor]
    """q of every layer, from the input to the classes, ``[out, in]``."""
    layers: tuple[LayerPosterior, ...]
    heads: Tensor
    """Keep probability of each head's weights (query, key and value rows, `proj` columns), ``[L, H]``."""
    units: Tensor
    """Keep probability of each hidden unit's weights (row of fc1, column of fc2), ``[L, U]``."""
    pixels: Tensor
    """Keep probability of a patch's pixels in the embedding that all patches share, ``[channels, side, side]``."""
    masks: int
    """How many masks there are: one a weight, or one an input node where a node's weights share it."""
    entropy: float
    """Of all masks together, in nats; at most masks * log 2, and far less where a node's weights go together."""
    full: Counts
    """With nothing dropped."""
    probable: Counts
    """Of the most probable architecture, which keeps the weights with q < 1/2."""
    drawn: CountSpread
    """Of T drawn architectures."""
    masked: tuple[str, ...]
    """Layers that carry a posterior; others are always kept."""
    weights: Mapping[str, WeightPosterior]
    """Of every layer's weights, with `mean`, `sd` and `interval`; those of other layers are what they are for sure."""

    def image_of_pixels(self) -> Tensor:
        """`pixels` laid over the whole image, ``[channels, rows, columns]``."""
        return self.pixels.repeat(1, *self.parts.grid)

    def layer_table(self) -> Table:
        """A row a layer."""
        rows = tuple((one.name, one.weights, one.keep, one.entropy, one.probable, one.surely) for one in self.layers)
        return Table("Layers", ("layer", "weights", "keep", "entropy", "probably kept", "surely not 0"), rows)

    def head_table(self) -> Table:
        """A row a block: the keep probability of each head, and of its hidden units the least, mean and most."""
        header = ("block", *(f"head {h + 1}" for h in range(self.parts.heads)), "units, least", "mean", "most")
        rows = tuple(
            (str(block + 1), *heads.tolist(), float(units.min()), float(units.mean()), float(units.max()))
            for block, (heads, units) in enumerate(zip(self.heads, self.units, strict=True))
        )
        return Table("Heads and hidden units: keep probability", header, rows)

    def weight_table(self, level: float = 0.9) -> Table:
        """A row a layer: the sd of a weight, the mean of all, and the weight with the largest |mean|, with interval."""
        rows = []
        for name, own in self.weights.items():
            out, into = divmod(int(own.mean.abs().argmax()), own.mean.shape[-1])
            strongest = own.at(out, into)
            low, high = (float(end) for end in strongest.interval(level))
            place, keep = f"{into + 1} → {out + 1}", float(1 - strongest.drop)
            rows.append((name, float(own.sd.mean()), place, float(strongest.mean), low, high, keep))
        header = ("layer", "mean sd", "strongest, in → out", "mean", *interval_ends(level), "keep")
        return Table("Weights: their posterior, and the strongest of every layer", header, tuple(rows))

    def count_table(self, level: float = 0.9) -> Table:
        """Weights, heads and multiply-adds: of all, of the most probable architecture, of drawn ones with interval."""
        rows = []
        for what, name in (("weights", "weights"), ("heads", "heads"), ("multiply-adds", "macs")):
            spread = getattr(self.drawn, name)
            low, high = (float(end) for end in spread.interval(level))
            rows.append(
                (what, getattr(self.full, name), getattr(self.probable, name), float(spread.mean), low, high)
            )  # fmt: skip
        title = f"What is active, over {len(self.drawn.weights.samples)} drawn architectures"
        return Table(title, ("what", "in all", "most probable", "drawn, mean", *interval_ends(level)), tuple(rows))

    def plot(self) -> Figure:
        """The whole network as one map; see `network_map.py`."""
        from .network_map import map_figure

        return map_figure(self.parts, self.drop)


def architecture(
    model: nn.Module, *, samples: int = DEFAULT_SAMPLES, level: float = 0.9, generator: torch.Generator | None = None
) -> Architecture:
    """The posterior over architectures of an attached vision transformer.

    Args:
        model: attached, of a kind that `explain` takes.
        samples: T, how many architectures to draw and count.
        level: of the weights' credible intervals.
        generator: where their seed comes from; None: torch's default generator.
    """
    parts = anatomy(model)
    return architecture_of(Networks.draw(model, samples, generator), parts, level)


@torch.no_grad()
def architecture_of(networks: Networks, parts: Anatomy, level: float) -> Architecture:
    """`architecture` for networks that are drawn already."""
    model, found = networks.model, posteriors(networks.model)
    weights = {name: matrix_of(model, name) for name in parts.layers if name not in found}  # surely kept
    drop = {
        name: (torch.zeros_like(weights[name]) if name in weights else found[name].drop.detach()).cpu().clone()
        for name in parts.layers
    }
    entropies = {
        name: mask_entropy(q[:1] if found[name].tied else q) for name, q in drop.items() if name in found
    }  # a tied mask is one, however many weights follow it
    together = sum(
        float(joint_entropy(q[:1] if found[name].tied else q, found[name].node_rate))
        for name, q in drop.items()
        if name in found
    )
    method = attached_to(model)
    assert method is not None, "networks are drawn from an attached model"
    carried = method.weight_posterior()
    learned = {
        name: carried[name] if name in carried else WeightPosterior(weights[name], torch.zeros_like(weights[name]), 0.0)
        for name in parts.layers
    }
    layers = tuple(
        LayerPosterior(
            name, q.numel(), float(1 - q.mean()), float(entropies[name].mean()) if name in found else 0.0,
            float((q < 0.5).double().mean()), float(surely_not_zero(learned[name], level).double().mean()),
        )
        for name, q in drop.items()
    )  # fmt: skip
    return Architecture(
        parts, drop, layers, head_keep(parts, drop), unit_keep(parts, drop), pixel_keep(parts, drop),
        sum(h.numel() for h in entropies.values()), together,
        count(parts, {name: torch.ones_like(q, dtype=torch.bool) for name, q in drop.items()}),
        count(parts, filled(parts, model, probable_masks(model))), drawn_counts(networks, parts), tuple(found),
        {name: one.cpu() for name, one in learned.items()},
    )  # fmt: skip


def surely_not_zero(weights: WeightPosterior, level: float) -> Tensor:
    """Whether a weight's central credible interval leaves out 0, bool ``[out, in]``.

    That is where P(W <= 0) or P(W >= 0) is below (1 - level) / 2; `weights.interval` finds the ends as well, but by
    bisection.
    """
    zero, mirrored = torch.zeros_like(weights.location), dataclasses.replace(weights, location=-weights.location)
    tail = (1 - level) / 2
    return (weights.cdf(zero) < tail) | (mirrored.cdf(zero) < tail)


def mask_entropy(q: Tensor) -> Tensor:
    """- q log q - (1 - q) log(1 - q) of every mask, in nats."""
    return torch.special.entr(q) + torch.special.entr(1 - q)


def head_keep(parts: Anatomy, drop: Mapping[str, Tensor]) -> Tensor:
    """mean of 1 - q over a head's rows of query, key and value and its columns of `proj`, ``[L, H]``."""
    blocks = []
    for block in parts.blocks:
        rows = [drop[r.layer][r.rows].unflatten(0, (parts.heads, -1)) for r in (block.query, block.key, block.value)]
        columns = drop[block.proj].unflatten(1, (parts.heads, -1)).transpose(0, 1)
        blocks.append(1 - torch.cat([part.flatten(1) for part in (*rows, columns)], 1).mean(1))
    return torch.stack(blocks)


def unit_keep(parts: Anatomy, drop: Mapping[str, Tensor]) -> Tensor:
    """mean of 1 - q over a unit's row of fc1 and its column of fc2, ``[L, U]``."""
    return torch.stack([1 - torch.cat([drop[b.fc1], drop[b.fc2].T], 1).mean(1) for b in parts.blocks])


def pixel_keep(parts: Anatomy, drop: Mapping[str, Tensor]) -> Tensor:
    """mean of 1 - q over what the embedding reads from each pixel of a patch, ``[channels, side, side]``."""
    return 1 - drop[parts.embed].mean(0).view(parts.channels, parts.patch, parts.patch)
