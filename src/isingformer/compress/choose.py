"""Which nodes go: candidates in one ranking over all layers, and how many of them a target asks for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .gates import Gates
from .selection import Node, Selection, by_head
from .shape import RESIDUAL, Shape

STRUCTURES = ("units", "channels", "slices", "heads", "layers", "residual")
_OF_ATTENTION = ("channels", "slices", "heads", "layers")
A_SCORE = 20.0
"""Multiply-adds that the softmax of one score takes the time of, about: counts where a head goes whole."""


@dataclass(frozen=True)
class Candidate:
    """Nodes that go together."""

    nodes: tuple[Node, ...]
    worth: float
    """Sum of their scores."""
    cost: float
    """Sum of what they cost, in weights or multiply-adds."""


def checked_structures(structures: Sequence[str]) -> tuple[str, ...]:
    """The structures to choose from, none unknown and attention cut one way."""
    given = (structures,) if isinstance(structures, str) else tuple(structures)
    if not given or set(given) - set(STRUCTURES):
        raise ValueError(f"compress: structures must be some of {', '.join(STRUCTURES)}, got {structures!r}")
    if {"channels", "slices"} <= set(given):
        raise ValueError(f"compress: heads are cut by channels or by slices, not by both, got {structures!r}")
    return given


def kinds_cut(shape: Shape, structures: Sequence[str]) -> list[str]:
    """The kinds of nodes, as `Shape.nodes` names them, that these structures are made of."""
    found = [RESIDUAL] if "residual" in structures else []
    for i in range(len(shape.blocks)):
        found += [f"blocks.{i}.mlp"] if {"units", "layers"} & set(structures) else []
        found += [f"blocks.{i}.qk", f"blocks.{i}.value"] if set(structures) & set(_OF_ATTENTION) else []
    return found


def candidates(
    shape: Shape,
    structures: Sequence[str],
    worth: Mapping[str, Tensor],
    cost: Mapping[str, Tensor],
    gates: Gates | None = None,
    macs: bool = False,
) -> list[Candidate]:
    """Everything that may go, what is worth least for its cost first.

    ``units``: hidden units. ``channels``: value channels and query-key channels, one at a time. ``slices``: of every
    head of a block its least query-key channel, then its second, third ..., and likewise value channels, so that all
    heads keep one width of each sort and attention stays one product. ``heads``: whole heads, beside one of these two
    if both are given. ``layers``: all of an attention or of an MLP. ``residual``: residual channels, all but the one
    that is worth most.

    Args:
        shape: of the network.
        structures: some of these names.
        worth: of every node by kind.
        cost: likewise.
        gates: what nodes are worth together, for `worth` that is of their gates; None: the sum.
        macs: whether costs are multiply-adds; then a head that goes whole saves its softmax too.
    """
    groups: list[tuple[Node, ...]] = []
    saved: dict[int, float] = {}
    for i, block in enumerate(shape.blocks):
        if "units" in structures:
            groups += [((f"blocks.{i}.mlp", unit),) for unit in range(block.mlp)]
        qk, value = _by_worth(f"blocks.{i}.qk", block.qk, worth), _by_worth(f"blocks.{i}.value", block.value, worth)
        if "channels" in structures:
            groups += [(node,) for channels in (*qk, *value) for node in channels]
        if "heads" in structures:
            for own_qk, own_value in zip(qk, value, strict=True):
                saved[len(groups)] = macs * A_SCORE * shape.tokens * shape.compact().read(i)
                groups.append((*own_qk, *own_value))
        if "slices" in structures:
            groups += _slices(qk) + _slices(value)
        if "layers" in structures:
            groups += sublayers(shape, i).values()
    if "residual" in structures:
        best = int(worth[RESIDUAL].argmax())
        groups += [((RESIDUAL, channel),) for channel in range(shape.width) if channel != best]
    numbers = {kind: (worth[kind].tolist(), cost[kind].tolist()) for kind in shape.nodes()}
    found = [
        Candidate(
            nodes,
            sum(numbers[kind][0][n] for kind, n in nodes) if gates is None else gates.together(nodes),
            sum(numbers[kind][1][n] for kind, n in nodes) + saved.get(place, 0.0),
        )
        for place, nodes in enumerate(groups)
    ]
    return sorted(found, key=lambda one: one.worth / one.cost)


def sublayers(shape: Shape, block: int) -> dict[str, tuple[Node, ...]]:
    """All nodes of a block's attention and of its MLP, where it has them: by ``blocks.0.attn``, ``blocks.0.mlp``."""
    nodes = shape.nodes()
    found: dict[str, tuple[Node, ...]] = {}
    for name, kinds in (("attn", ("qk", "value")), ("mlp", ("mlp",))):
        every = [(f"blocks.{block}.{kind}", n) for kind in kinds for n in range(nodes[f"blocks.{block}.{kind}"])]
        found |= {f"blocks.{block}.{name}": tuple(every)} if every else {}
    return found


def _by_worth(kind: str, widths: tuple[int, ...], worth: Mapping[str, Tensor]) -> list[list[Node]]:
    """The channels of every head, the least first."""
    found, start = [], 0
    for part in by_head(worth[kind], widths):
        found.append([(kind, start + int(channel)) for channel in part.argsort(stable=True)])
        start += len(part)
    return found


def _slices(heads: list[list[Node]]) -> list[tuple[Node, ...]]:
    """The k-th of every head together; where heads differ in width, the wider ones lose their least first."""
    levels = itertools.zip_longest(*(reversed(channels) for channels in heads))
    return [tuple(node for node in level if node is not None) for level in levels]


def least_removal(everything: Selection, ranked: Sequence[Candidate], fits: Callable[[Selection], bool]) -> Selection:
    """The selection after the fewest candidates, in order, with which it fits; all must go where even that does not.

    Args:
        everything: to remove from.
        ranked: what may go, in order.
        fits: whether a selection is small enough; once true it stays true.
    """
    low, high = 0, len(ranked)
    while low < high:
        middle = (low + high) // 2
        if fits(everything.without(node for one in ranked[:middle] for node in one.nodes)):
            high = middle
        else:
            low = middle + 1
    return everything.without(node for one in ranked[:low] for node in one.nodes)


def more_dropped_than_kept(
    everything: Selection, ranked: Sequence[Candidate], dropped: Mapping[str, Tensor], strength: Mapping[str, Tensor]
) -> Selection:
    """The selection without what the posterior holds for dropped rather than kept.

        sum m^2 q / sum m^2 > 1/2        over all weights of a candidate's nodes

    Args:
        everything: to remove from.
        ranked: what may go.
        dropped: sum of m^2 q of every node by kind.
        strength: sum of m^2, likewise.
    """

    def total(of: Mapping[str, Tensor], one: Candidate) -> float:
        return float(torch.stack([of[kind][number] for kind, number in one.nodes]).sum())

    gone = [one for one in ranked if total(dropped, one) > total(strength, one) / 2]
    return everything.without(node for one in gone for node in one.nodes)
