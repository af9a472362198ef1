r"""The upward term of the bound's exact stationary point (an extension; the paper's sweep is one-way).

The bound charges layer l for q_l against a prior that depends on the q of the layers reading it. Setting the derivative
with respect to a reader's q to zero therefore adds, to the field of W[j'', j'] in the reader,

    - coupling * m^2[j'', j'] / sum_j'' m^2[j'', j'] * sum_j (p[j', j] - q[j', j]),      p = sigmoid(prior field)

summed over all rows j' whose neighbours' term that weight enters. Both directions at once have no one-pass solution:
the sweep is iterated, damped, until it stands still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .divergence import kl_masks
from .field import prior_field
from .sweep import Reading, Sweep, Wiring, backward_order, neighbours, outgoing, sweep, unread_share

ITERATIONS = 500
TOLERANCE = 1e-6
COARSE_TOLERANCE = 1e-5
"""In float32, where the bound cannot be told apart more finely."""
GOOD_ENOUGH = 0.02
"""Strong coupling without evidence creeps towards its end at a bottleneck; a q this close to it is far nearer than that
of the one-way sweep."""
EDGE = 1e-12
"""How close to 0 and 1 the iteration starts."""


def excess(prior: Tensor, drop: Tensor) -> Tensor:
    """sum_j (p[j', j] - q[j', j]) for every node j', ``[..., out]``."""
    return (torch.sigmoid(prior) - drop).sum(-1)


def _to_columns(reading: Reading, over: Tensor) -> Tensor:
    """The rows' `excess` as it reaches the readers' columns: by node, or shared evenly within a head."""
    rows = over[..., reading.rows]
    if reading.head_size is None:
        return rows
    heads = rows.unflatten(-1, (-1, reading.head_size))
    return heads.mean(-1, keepdim=True).expand_as(heads).flatten(-2)


def spread(means: Mapping[str, Tensor], over: Mapping[str, Tensor], wiring: Wiring) -> dict[str, Tensor]:
    """m^2[j'', j'] / sum_j'' m^2[j'', j'] * over[j'] for every weight of every reader, ``[..., out, in]``.

    Args:
        means: m by layer.
        over: a number for every node j' that a layer writes, ``[..., out]``, by layer.
        wiring: who reads whom.
    """
    term = {name: torch.zeros_like(mean) for name, mean in means.items()}
    strength = {name: mean.square().sum(-2) for name, mean in means.items()}
    for name, readings in wiring.items():
        for reading in readings:
            reached = _to_columns(reading, over[name])
            total = torch.stack([strength[r][..., reading.columns] for r in reading.readers]).sum(0)
            scale = torch.where(total > 0, reached / total.clamp_min(torch.finfo(total.dtype).tiny), 0.0)
            for reader in reading.readers:
                columns = means[reader][..., reading.columns]
                term[reader][..., reading.columns] += columns.square() * scale.unsqueeze(-2)
    return term


class _Point(NamedTuple):
    """A place in the iteration, by layer, and what it is worth, by replica."""

    logits: dict[str, Tensor]
    drop: dict[str, Tensor]
    prior: dict[str, Tensor]
    field: dict[str, Tensor]
    bound: Tensor
    """sum of KL_xi - pull q, ``[*R]``."""
    residual: Tensor
    """max |sigmoid(field) - q|, ``[*R]``."""


def stationary_sweep(
    means: Mapping[str, Tensor],
    pull: Mapping[str, Tensor],
    wiring: Wiring,
    *,
    delta: float | Tensor,
    coupling: float,
    centred: bool = True,
    start: Mapping[str, Tensor] | None = None,
) -> Sweep:
    """q at the stationary point of the bound: logit q = prior field + pull + upward term, in every layer at once.

    Steps from logit q towards the field, shorter where the field is stiff, from the one-way sweep (or from `start`).
    field - logit q is minus the bound's gradient in q, so a short enough step lowers the bound: one that does not is
    taken back and halved. Each replica goes its own way. Raises where one does not settle.
    """
    order = backward_order(wiring)
    held = {name: pull[name] for name in order}
    unread = unread_share(delta, centred=centred)
    tolerance = TOLERANCE if next(iter(means.values())).dtype == torch.float64 else COARSE_TOLERANCE

    def at(logits: dict[str, Tensor]) -> _Point:
        drop = {name: torch.sigmoid(value) for name, value in logits.items()}
        columns = {name: outgoing(means[name], drop[name]) for name in order}
        prior = {
            name: prior_field(
                neighbours(wiring[name], columns, means[name], unread), delta=delta, coupling=coupling, centred=centred
            )
            for name in order
        }
        up = spread(means, {name: excess(prior[name], drop[name]) for name in order}, wiring)
        field = {name: prior[name] + held[name] - coupling * up[name] for name in order}
        worth = [(kl_masks(drop[name], prior[name]) - held[name] * drop[name]).sum((-2, -1)) for name in order]
        off = [(torch.sigmoid(field[name]) - drop[name]).abs().amax((-2, -1)) for name in order]
        return _Point(logits, drop, prior, field, torch.stack(worth).sum(0), torch.stack(off).amax(0))

    def stiffness(point: _Point) -> dict[str, Tensor]:
        """How much faster a weight's field moves than its logit: q (1 - q) coupling^2 share sum_j p (1 - p)."""
        p = {name: torch.sigmoid(point.prior[name]) for name in order}
        over = {name: (p[name] * (1 - p[name])).squeeze(-1) * means[name].shape[-1] for name in order}
        slope = spread(means, over, wiring)
        return {name: coupling**2 * point.drop[name] * (1 - point.drop[name]) * slope[name] for name in order}

    if start is None:
        start = sweep(means, held, wiring, delta=delta, coupling=coupling, centred=centred).drop
    here = at({name: torch.logit(start[name], eps=EDGE) for name in order})
    step = torch.ones_like(here.bound)
    for _ in range(ITERATIONS):
        if bool((here.residual < tolerance).all()):
            return Sweep(here.drop, here.prior)
        pace = {name: _per_weight(step) / (1 + stiff) for name, stiff in stiffness(here).items()}
        there = at({name: torch.lerp(here.logits[name], here.field[name], pace[name]) for name in order})
        settled = here.residual < tolerance
        slack = torch.finfo(here.bound.dtype).eps * here.bound.abs()  # near the end only the residual can tell
        level = (there.bound - here.bound).abs() <= 4 * slack
        better = ((there.bound < here.bound - slack) | (level & (there.residual < here.residual))) & ~settled
        step = torch.where(better, (step * 1.5).clamp(max=1.0), step / 2)
        here = at({name: torch.where(_per_weight(better), there.logits[name], here.logits[name]) for name in order})
    if bool((here.residual < GOOD_ENOUGH).all()):
        return Sweep(here.drop, here.prior)
    raise ArithmeticError(
        f"two_way: q still moves by {float(here.residual.max()):.2g} after {ITERATIONS} rounds with coupling "
        f"{coupling}; use a smaller coupling or two_way=False"
    )


def _per_weight(value: Tensor) -> Tensor:
    """``[*R]`` as ``[*R, 1, 1]``."""
    return value[..., None, None]
