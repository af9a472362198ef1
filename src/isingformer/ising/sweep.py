"""The backward sweep: every drop probability of a network from the last layer to the first, linear in the weights.

Axes as in `field.py`. Layers are named; a `Wiring` says, for every layer, which layers read the nodes it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .field import prior_field


@dataclass(frozen=True)
class Reading:
    """Rows ``rows`` of a layer are read as columns ``columns`` of each of ``readers``, node by node, in order.

    With ``head_size`` the rows do not feed those columns themselves but follow them by head: each row takes the mean
    over its head's columns (query and key rows, which act through their head's value channels).
    """

    rows: slice
    readers: tuple[str, ...]
    columns: slice
    head_size: int | None = None


Wiring = Mapping[str, tuple[Reading, ...]]


class Sweep(NamedTuple):
    """What a sweep found, by layer."""

    drop: dict[str, Tensor]
    """q, ``[..., out, in]``."""
    prior: dict[str, Tensor]
    """The field without evidence, ``[..., out, 1]``."""


def backward_order(wiring: Wiring) -> list[str]:
    """The layers, readers before those they read; an error where layers read each other in a circle."""
    order: list[str] = []
    state: dict[str, str] = {}
    for start in wiring:
        stack = [start]
        while stack:
            name = stack[-1]
            if state.get(name) != "open":
                if state.get(name) == "done":
                    stack.pop()
                    continue
                state[name] = "open"
            waiting = [r for reading in wiring[name] for r in reading.readers if state.get(r) != "done"]
            for reader in waiting:
                if reader not in wiring:
                    raise ValueError(f"layer {name!r} is said to be read by {reader!r}, which is not a masked layer")
                if state.get(reader) == "open":
                    raise ValueError(f"layers {name!r} and {reader!r} read each other in a circle; no backward order")
            if waiting:
                stack.append(waiting[0])
            else:
                state[name] = "done"
                order.append(stack.pop())
    return order


def outgoing(mean: Tensor, drop: Tensor) -> tuple[Tensor, Tensor]:
    """A reader's column sums (sum of m^2 q, sum of m^2) over its rows j'', each ``[..., in]``."""
    strength = mean.square()
    return (strength * drop).sum(-2), strength.sum(-2)


def dropped_share(parts: list[tuple[Tensor, Tensor]], unread: float | Tensor) -> Tensor:
    """sum m^2 q / sum m^2 over all readers of each node, ``[..., nodes]``; `unread` where that is 0 / 0."""
    (dropped, total), *others = parts
    for more_dropped, more_total in others:
        dropped, total = dropped + more_dropped, total + more_total
    return torch.where(total > 0, dropped / total.clamp_min(torch.finfo(total.dtype).tiny), unread)


def unread_share(delta: float | Tensor, *, centred: bool) -> float | Tensor:
    """The neighbours' term of a node that nothing reads, at which it adds nothing to the field."""
    if not centred:
        return 0.0
    return delta.squeeze(-1) if isinstance(delta, Tensor) else delta


def _by_head(share: Tensor, head_size: int) -> Tensor:
    """Each entry replaced by the mean of its head's entries, ``[..., nodes]``."""
    return (
        share.unflatten(-1, (-1, head_size)).mean(-1, keepdim=True).expand(*share.shape[:-1], -1, head_size).flatten(-2)
    )


def neighbours(
    readings: tuple[Reading, ...],
    columns: Mapping[str, tuple[Tensor, Tensor]],
    like: Tensor,
    unread: float | Tensor = 0.0,
) -> Tensor:
    """The neighbours' term of every node a layer writes, ``[..., out, 1]``.

    Args:
        readings: who reads the layer.
        columns: for each reader, its `outgoing` sums.
        like: the layer's mean, for shape and type.
        unread: the term of rows that nothing reads, see `unread_share`.
    """
    term = like.new_zeros(like.shape[:-1]) + unread
    for reading in readings:
        at = reading.columns
        share = dropped_share([(columns[r][0][..., at], columns[r][1][..., at]) for r in reading.readers], unread)
        term[..., reading.rows] = share if reading.head_size is None else _by_head(share, reading.head_size)
    return term.unsqueeze(-1)


@torch.no_grad()
def sweep(
    means: Mapping[str, Tensor],
    pull: Mapping[str, Tensor],
    wiring: Wiring,
    *,
    delta: float | Tensor,
    coupling: float,
    centred: bool = True,
) -> Sweep:
    """q of every weight in one pass from the last layer to the first, one-way, as in the paper.

    Args:
        means: m by layer, ``[..., out, in]``.
        pull: what is added to the prior field by layer, ``[..., out, in]``: evidence_weight * evidence, and the
            slab-minus-spike difference where that is on. Looked up once a layer, so it may compute on demand.
        wiring: who reads whom.
        delta: base rate.
        coupling: weight of the neighbours' term.
        centred: see `prior_field`.
    """
    unread = unread_share(delta, centred=centred)
    columns: dict[str, tuple[Tensor, Tensor]] = {}
    drop: dict[str, Tensor] = {}
    prior: dict[str, Tensor] = {}
    read = {reader for readings in wiring.values() for reading in readings for reader in reading.readers}
    for name in backward_order(wiring):
        mean = means[name]
        share = neighbours(wiring[name], columns, mean, unread)
        prior[name] = prior_field(share, delta=delta, coupling=coupling, centred=centred)
        drop[name] = torch.sigmoid(prior[name] + pull[name])
        if name in read:
            columns[name] = outgoing(mean, drop[name])
    return Sweep(drop, prior)
