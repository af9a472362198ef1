"""Slow references: one weight at a time, no tensors' tricks. Tests and docs compare the fast functions with these.

`sweep_by_loops` computes the paper's one-way sweep. `bound` is the q-dependent part of the objective, so its stationary
point, which `stationary_by_descent` finds by brute force, is what ``two_way=True`` computes. The two differ: the
one-way sweep is not stationary for the bound, because it leaves out the upward term.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .divergence import kl_masks
from .field import prior_field
from .sweep import Wiring, backward_order, neighbours, outgoing, unread_share


def _share_of_node(
    means: Mapping[str, Tensor], drop: Mapping[str, Tensor], readers: tuple[str, ...], column: int, unread: float
) -> float:
    dropped = total = 0.0
    for reader in readers:
        for row in range(means[reader].shape[0]):
            strength = float(means[reader][row, column]) ** 2
            dropped += strength * float(drop[reader][row, column])
            total += strength
    return dropped / total if total > 0 else unread


def _term_of_row(
    means: Mapping[str, Tensor], drop: Mapping[str, Tensor], wiring: Wiring, name: str, row: int, unread: float
) -> float:
    for reading in wiring[name]:
        rows = range(means[name].shape[0])[reading.rows]
        if row not in rows:
            continue
        columns = range(means[reading.readers[0]].shape[1])[reading.columns]
        place = rows.index(row)
        if reading.head_size is None:
            return _share_of_node(means, drop, reading.readers, columns[place], unread)
        first = place // reading.head_size * reading.head_size
        head = columns[first : first + reading.head_size]
        return sum(_share_of_node(means, drop, reading.readers, c, unread) for c in head) / len(head)
    return unread


def sweep_by_loops(
    means: Mapping[str, Tensor],
    pull: Mapping[str, Tensor],
    wiring: Wiring,
    *,
    delta: float,
    coupling: float,
    centred: bool = True,
) -> dict[str, Tensor]:
    """The one-way sweep, weight by weight in Python floats; for matrices without replica axes."""
    drop: dict[str, Tensor] = {}
    for name in backward_order(wiring):
        out, inputs = means[name].shape
        drop[name] = torch.empty_like(means[name])
        for row in range(out):
            term = _term_of_row(means, drop, wiring, name, row, delta if centred else 0.0)
            base = coupling * (term - delta if centred else term) + math.log(delta / (1 - delta))
            for column in range(inputs):
                drop[name][row, column] = 1 / (1 + math.exp(-(base + float(pull[name][row, column]))))
    return drop


def bound(
    means: Mapping[str, Tensor],
    pull: Mapping[str, Tensor],
    wiring: Wiring,
    drop: Mapping[str, Tensor],
    *,
    delta: float,
    coupling: float,
    centred: bool = True,
) -> Tensor:
    """The part of the objective that depends on q: sum over weights of KL_xi - pull * q, to be minimised."""
    columns = {name: outgoing(means[name], drop[name]) for name in means}
    total = torch.zeros((), dtype=next(iter(means.values())).dtype)
    for name in means:
        share = neighbours(wiring[name], columns, means[name], unread_share(delta, centred=centred))
        prior = prior_field(share, delta=delta, coupling=coupling, centred=centred)
        total = total + (kl_masks(drop[name], prior) - pull[name] * drop[name]).sum()
    return total


def stationary_by_descent(
    means: Mapping[str, Tensor],
    pull: Mapping[str, Tensor],
    wiring: Wiring,
    *,
    delta: float,
    coupling: float,
    centred: bool = True,
) -> dict[str, Tensor]:
    """The minimiser of `bound` over the logits of q, by L-BFGS; small networks in float64."""
    logits = {name: torch.zeros_like(mean).requires_grad_() for name, mean in means.items()}
    optimizer = torch.optim.LBFGS(
        logits.values(), max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        drop = {name: torch.sigmoid(value) for name, value in logits.items()}
        value = bound(means, pull, wiring, drop, delta=delta, coupling=coupling, centred=centred)
        value.backward()
        return value

    optimizer.step(closure)
    return {name: torch.sigmoid(value).detach() for name, value in logits.items()}
