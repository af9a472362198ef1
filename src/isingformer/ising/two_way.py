r"""The upward term of the bound's exact stationary point (an extension; the paper's sweep is one-way).

The bound charges layer l for q_l against a prior that depends on the q of the layers reading it. Setting the derivative
with respect to a reader's q to zero therefore adds, to the field of W[j'', j'] in the reader,

    - coupling * m^2[j'', j'] / sum_j'' m^2[j'', j'] * sum_j (p[j', j] - q[j', j]),      p = sigmoid(prior field)

summed over all rows j' whose neighbours' term that weight enters. Both directions at once have no one-pass solution:
the sweep is iterated, damped, until it stands still.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .field import prior_field
from .sweep import Reading, Sweep, Wiring, backward_order, neighbours, outgoing, sweep

ITERATIONS = 500
TOLERANCE = 1e-6
SMALLEST_STEP = 1e-3


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


def upward(
    means: Mapping[str, Tensor], over: Mapping[str, Tensor], wiring: Wiring, *, coupling: float
) -> dict[str, Tensor]:
    """The upward term of every layer's field, ``[..., out, in]``; zero for layers that read no masked layer.

    Args:
        means: m by layer.
        over: `excess` by layer.
        wiring: who reads whom.
        coupling: weight of the neighbours' term.
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
                term[reader][..., reading.columns] -= coupling * columns.square() * scale.unsqueeze(-2)
    return term


def _round(
    means: Mapping[str, Tensor],
    pull: Mapping[str, Tensor],
    wiring: Wiring,
    order: list[str],
    drop: Mapping[str, Tensor],
    *,
    delta: float | Tensor,
    coupling: float,
    centred: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(prior field, whole field) of every layer at the given q."""
    columns = {name: outgoing(means[name], drop[name]) for name in order}
    prior = {
        name: prior_field(
            neighbours(wiring[name], columns, means[name]), delta=delta, coupling=coupling, centred=centred
        )
        for name in order
    }
    up = upward(means, {name: excess(prior[name], drop[name]) for name in order}, wiring, coupling=coupling)
    return prior, {name: prior[name] + pull[name] + up[name] for name in order}


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

    A damped fixed point in logit space from the one-way sweep (or from `start`); the step halves whenever the residual
    max |sigmoid(field(q)) - q| grows. Raises where it does not settle.
    """
    order = backward_order(wiring)
    if start is None:
        start = sweep(means, pull, wiring, delta=delta, coupling=coupling, centred=centred).drop
    logits = {name: torch.logit(start[name], eps=1e-7) for name in order}
    step, last = 1.0, float("inf")
    for _ in range(ITERATIONS):
        drop = {name: torch.sigmoid(value) for name, value in logits.items()}
        prior, field = _round(means, pull, wiring, order, drop, delta=delta, coupling=coupling, centred=centred)
        residual = max(float((torch.sigmoid(field[name]) - drop[name]).abs().max()) for name in order)
        if residual < TOLERANCE:
            return Sweep(drop, prior)
        step = max(step / 2, SMALLEST_STEP) if residual > last else min(step * 1.1, 1.0)
        last = residual
        logits = {name: torch.lerp(logits[name], field[name], step) for name in order}
    raise ArithmeticError(
        f"two_way: q still moves by {last:.2g} after {ITERATIONS} rounds with coupling {coupling}; "
        "use a smaller coupling or two_way=False"
    )
