"""The posterior of a network, carried over to what remains of it.

Of every weight that stays, q and the running mean of h stay as they were, of every row the prior field, and of every
layer s and node_rate, though its fan-in is smaller now. The divergence's slab and spike follow the new fan-in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..curvature.likelihood import Likelihood
from ..ising import Reading
from ..methods import Attached, Method
from ..methods.ising_rule import IsingRule
from ..methods.method import Parts
from ..nn.masked import put_on, weight_of
from ..nn.noise import KeyedNoise, Noise
from ..nn.posterior import NodeMask, Posterior
from ..topology import Topology
from .compact import CompactViT
from .selection import Selection
from .shape import RESIDUAL, Shape


def compact_topology(shape: Shape, everywhere: bool = False) -> Topology:
    """Who reads whom in a `CompactViT`: as in a `ViT`, but query and key rows get no neighbours' term.

    Theirs is the mean of their head's value rows, which needs as many of one as of the other. A layer that writes to
    the residual stream is read by the next one that is not a constant.

    Args:
        shape: of the network.
        everywhere: whether `Dropout` masks the inputs of all layers and no embeddings, as in models that are no `ViT`.
    """
    names = list(shape.wiring())
    wiring: dict[str, tuple[Reading, ...]] = {}
    for place, (name, (rows, _)) in enumerate(shape.wiring().items()):
        total = shape.layers()[name][0]
        if name == "head":
            wiring[name] = ()
        elif name.endswith("qkv"):
            values = shape.nodes()[rows[-1]]
            reader = name.removesuffix("qkv") + "proj"
            wiring[name] = (Reading(slice(total - values, total), (reader,), slice(0, values)),)
        else:
            wiring[name] = (Reading(slice(0, total), (names[place + 1],), slice(0, total)),)
    if everywhere:
        return Topology(tuple(names), wiring, tuple(names), {})
    inside = tuple(name for name in names if name.startswith("blocks."))
    embeddings = {"embedded": ("embed.weight", "embed.bias", "class_token", "position")}
    return Topology(tuple(names), wiring, inside, embeddings)


def put_method_on(
    compact: CompactViT,
    method: Method,
    *,
    examples: float,
    steps: int | None,
    likelihood: Likelihood,
    noise: Noise,
    noise_sd: Mapping[str, float],
    node_rate: Mapping[str, float] | None = None,
    everywhere: bool = False,
) -> Attached:
    """What `attach` does, for a network whose topology and noise are known.

    Args:
        compact: without a method.
        method: the settings.
        examples: N.
        steps: how many training steps were planned.
        likelihood: what the outputs mean.
        noise: the source of randomness.
        noise_sd: s of every layer.
        node_rate: of every layer; None: what the method gives a layer of its fan-in.
        everywhere: see `compact_topology`.
    """
    method = method.settled(examples)
    topology = compact_topology(compact.shape, everywhere)
    layers = {name: compact.get_submodule(name) for name in topology.layers}
    parts = Parts(compact, layers, {}, {}, topology, likelihood)
    for number, (name, layer) in enumerate(layers.items()):
        weight = weight_of(layer)
        parts.posteriors[name] = Posterior(
            weight, noise_sd=noise_sd[name], sampling=method.sampling, noise=noise, layer=number,
            tied=method.node_dropout(name, topology),
            node_rate=method.shared_rate(weight.shape[-1]) if node_rate is None else node_rate[name],
            by_example=method.by_example, own_variance=method.own_variance,
        )  # fmt: skip
        put_on(layer, parts.posteriors[name])
    rate = method.embedding_drop()
    if rate is not None and not everywhere:
        q = torch.full_like(parts.posteriors["embed"].drop[:, 0], rate)
        parts.node_masks["embedded"] = NodeMask(q, sampling=method.sampling, noise=noise, layer=len(layers))
        put_on(compact.embedded, parts.node_masks["embedded"])
    return Attached(parts, method, examples=examples, steps=steps, noise=noise)


def own_noise(handle: Attached) -> Noise:
    """The noise for a copy: keys of its own where the model has keys."""
    return KeyedNoise(handle.noise.keys) if isinstance(handle.noise, KeyedNoise) else handle.noise


def masks_everywhere(handle: Attached) -> bool:
    """See `compact_topology`."""
    return not handle.parts.topology.embeddings


def carry(
    handle: Attached, compact: CompactViT, selection: Selection, made_of: Mapping[str, Sequence[str]] | None = None
) -> Attached:
    """Put the method of a network onto what remains of it, with all it has learnt.

    Args:
        handle: of the network before.
        compact: the selected nodes, with m as its weights.
        selection: which nodes these are.
        made_of: the layers of the network before that each of `selection.shape` consists of, row by row; None: the one
            of its own name.
    """
    old = handle.parts.posteriors
    made_of = made_of or {name: (name,) for name in old}
    before = {name: [old[own] for own in theirs] for name, theirs in made_of.items()}
    fresh = put_method_on(
        compact, handle.method, examples=handle.examples, steps=handle.planned_steps,
        likelihood=handle.parts.likelihood, noise=own_noise(handle), everywhere=masks_everywhere(handle),
        noise_sd={name: parts[0].noise_sd for name, parts in before.items()},
        node_rate={name: parts[0].node_rate for name, parts in before.items()},
    )  # fmt: skip
    for name, part in fresh.parts.posteriors.items():
        rows, columns = selection.rows(name), selection.columns(name)
        part.drop.copy_(_taken([one.drop for one in before[name]], rows, columns))
        if part.variance is not None:
            own = [one.variance for one in before[name] if one.variance is not None]
            part.variance.copy_(_taken(own, rows, columns))
        part.prior.copy_(_taken([one.prior for one in before[name]], rows, torch.ones(1, dtype=torch.bool)))
    for name, mask in fresh.parts.node_masks.items():
        kept = selection.keep[RESIDUAL].to(mask.drop.device)
        mask.drop.copy_(handle.parts.node_masks[name].drop[kept])
    if isinstance(handle.rule, IsingRule) and isinstance(fresh.rule, IsingRule):
        _carry_curvature(handle.rule, fresh.rule, selection, made_of)
    fresh.steps = handle.steps
    fresh.rule.resume(fresh.steps)
    return fresh


def _carry_curvature(
    old: IsingRule, new: IsingRule, selection: Selection, made_of: Mapping[str, Sequence[str]]
) -> None:
    """The running mean of h, without what was measured since its last fold, and delta where it was learnt."""
    mean = new.average
    mean.follow(next(iter(new.parts.posteriors.values())).drop)
    for name in new.parts.posteriors:
        weight = old.average.weight[old.average.numbers[made_of[name][0]]]
        mean.weight[mean.numbers[name]] = weight
        h = _taken([old.average.value(own) for own in made_of[name]], selection.rows(name), selection.columns(name))
        mean.layer(mean.average, name).copy_(h * weight)
    new.base.take_over(old.base)


def _taken(parts: Sequence[Tensor], rows: Tensor, columns: Tensor) -> Tensor:
    """Some rows and columns of the matrix that parts make below each other."""
    matrix = torch.cat(list(parts))
    return matrix[rows.to(matrix.device)][:, columns.to(matrix.device)]
