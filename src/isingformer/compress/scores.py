"""What a weight is worth, by several measures, and with it what a node is worth: the sum over its weights.

Axes: weights ``[out, in]`` by layer; nodes by kind, ``[nodes]`` (see `Shape.nodes`). More is worth more.

    keep        1 - q                      how likely the weight is there
    evidence    N h m^2 / 2                what the log-likelihood loses without it (Optimal Brain Damage)
    both        (1 - q) N h m^2 / 2        that, if it is there
    magnitude   w^2 / mean of w^2 in its layer             w = m (1 - q), the weight of the expected network
    taylor      mean over batches of |w dL/dw|             first order, on images with labels
    random      uniform in [0, 1) a node, for its cost
    gate        N h / 2 of a gate on the node              the evidence of a node as a whole, on images; see `gates.py`

A node's weights are all that write it and all that read it: of a hidden unit its row of fc1 and its column of fc2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from ..ising import evidence
from ..methods import Attached
from ..nn.masked import expected_network
from .checks import check_posterior_speaks
from .gates import Gates, gate_evidence
from .selection import by_node
from .shape import Shape

Score = Literal["keep", "evidence", "both", "magnitude", "taylor", "random", "gate"]
Weights = dict[str, Tensor]
OF_THE_POSTERIOR = ("keep", "evidence", "both")
"""These need a posterior that has learnt something."""
BATCH = 64
"""Images whose gradients are averaged before `taylor` takes the absolute value."""


def keep(handle: Attached) -> Weights:
    """1 - q of every weight."""
    return {name: 1 - part.drop for name, part in handle.parts.posteriors.items()}


def summed_evidence(handle: Attached) -> Weights:
    """N h m^2 / 2 of every weight, whatever reading of the evidence the method itself uses."""
    means, h = handle.parts.means(), handle.curvature()
    return {name: -evidence(means[name], h[name], examples=handle.examples, kind="obd") for name in means}


def both(handle: Attached) -> Weights:
    """(1 - q) N h m^2 / 2 of every weight."""
    kept, lost = keep(handle), summed_evidence(handle)
    return {name: kept[name] * lost[name] for name in kept}


def magnitude(handle: Attached) -> Weights:
    """The squared expected weights, each layer's in units of its own mean, so that layers can be compared."""
    found = {}
    for name, part in handle.parts.posteriors.items():
        square = part.expected(handle.parts.mean(name)).square().to(part.drop.dtype)
        found[name] = square / square.mean().clamp_min(torch.finfo(square.dtype).tiny)
    return found


def taylor(handle: Attached, images: Tensor, labels: Tensor) -> Weights:
    """|w dL/dw| of every weight, L the mean NLL of a batch of the expected network, averaged over batches.

    Args:
        handle: on the model.
        images: ``[N, C, H, W]`` as the model reads them.
        labels: ``[N]``.
    """
    total: Weights = {}
    with torch.enable_grad(), expected_network(handle.model) as leaves:
        batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
        for x, y in batches:
            loss = handle.parts.likelihood.nll(handle.model(x), y).mean()
            for name, grad in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                part = (grad * leaves[name].detach()).abs() / len(batches)
                total[name] = total[name] + part if name in total else part
    return total


_BY_WEIGHT: dict[str, Callable[[Attached], Weights]] = {
    "keep": keep,
    "evidence": summed_evidence,
    "both": both,
    "magnitude": magnitude,
}


def weight_scores(
    handle: Attached, score: str, *, images: Tensor | None = None, labels: Tensor | None = None
) -> Weights:
    """What every weight is worth, ``[out, in]`` by layer.

    Args:
        handle: on the model.
        score: any of `Score` but ``random`` and ``gate``, which are of nodes.
        images: ``[N, C, H, W]`` as the model reads them; ``taylor`` alone needs them.
        labels: ``[N]``, likewise.
    """
    if score in OF_THE_POSTERIOR:
        check_posterior_speaks("compress", handle, f"score={score!r}")
    if score == "taylor":
        if images is None or labels is None:
            raise ValueError("compress: score='taylor' needs images and labels to take gradients on; give both")
        return taylor(handle, images, labels)
    if score not in _BY_WEIGHT:
        raise ValueError(f"compress: score must be one of {', '.join(get_args(Score))}, got {score!r}")
    return _BY_WEIGHT[score](handle)


def node_scores(
    handle: Attached, shape: Shape, score: str, *, images: Tensor | None = None, labels: Tensor | None = None,
    generator: torch.Generator | None = None, gates: Gates | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """What every node is worth, float64 ``[nodes]`` by kind.

    Args:
        handle: on the model.
        shape: of the model.
        score: any of `Score`.
        images: as `weight_scores` takes them.
        labels: likewise.
        generator: where ``random`` draws from, on the CPU; None: torch's default generator.
        gates: what ``gate`` would measure, where that is known already.
    """
    if score == "gate":
        return dict((gates or node_gates(handle, shape, images)).alone)
    if score != "random":
        return by_node(weight_scores(handle, score, images=images, labels=labels), shape)
    # A node's worth must not be drawn by its cost: what counts later is worth by cost.
    costs = node_costs(shape)
    return {
        kind: torch.rand(size, dtype=torch.float64, generator=generator) * costs[kind]
        for kind, size in shape.nodes().items()
    }


def node_gates(handle: Attached, shape: Shape, images: Tensor | None) -> Gates:
    """What nodes are worth as ``gate`` has it, alone and together; arguments as `node_scores` takes them."""
    if images is None:
        raise ValueError("compress: score='gate' needs images to measure on; give some of the training images")
    return gate_evidence(handle, shape, images)


def node_costs(shape: Shape, *, macs: bool = False) -> dict[str, Tensor]:
    """What every node costs in a compact network: its weights, or its multiply-adds, ``[nodes]`` by kind."""
    if not macs:
        return by_node({name: torch.ones(size) for name, size in shape.layers().items()}, shape)
    shape = shape.compact()
    nodes, each = {**shape.nodes(), "": shape.classes}, {}
    for layer, (kinds, _) in shape.wiring().items():
        uses = [torch.full((nodes[kind], 1), float(n)) for kind, n in zip(kinds, shape.uses(layer), strict=True)]
        each[layer] = torch.cat(uses).expand(shape.layers()[layer])
    found = by_node(each, shape)
    for i in range(len(shape.blocks)):
        for kind in ("qk", "value"):
            found[f"blocks.{i}.{kind}"] += shape.tokens * shape.read(i)
    return found


def dropped_share(handle: Attached, shape: Shape) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(sum of m^2 q, sum of m^2) over the weights of every node, ``[nodes]`` by kind.

    Their quotient is how far a node is dropped, by strength, as the neighbours' term of the method has it.
    """
    strength = {name: mean.square() for name, mean in handle.parts.means().items()}
    dropped = {name: strength[name] * q for name, q in handle.parts.drops().items()}
    return by_node(dropped, shape), by_node(strength, shape)
