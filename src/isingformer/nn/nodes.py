"""Weights that read one node, dropped together.

Up to a rate, a = min(q, node_rate), one number u_j decides for all weights that read input node j. What is left of each
q, 1 - q = (1 - a)(1 - b), is decided weight by weight:

    xi[j', j] = [u_j < a[j', j]] or [v[j', j] < b[j', j]]

Every weight keeps its own q. At node_rate 0 masks are independent, at 1 those of a node go together as far as their q
allow, and where then all have one q it is node dropout.

With `local` sampling a node is dropped whole, anew for every example, or for every example and token:

    (x k) (m (1 - q) / (1 - a_j))' + what is left of the variance as noise,   k ~ Bernoulli(1 - a_j),  see `node_odds`

a_j is one number for all that read the node, so that with it a weight of small q varies more than by its own mask; none
varies less. No gradient goes through a_j.
"""

from __future__ import annotations

import torch
from torch import Tensor


def split(q: Tensor, node_rate: float | Tensor) -> tuple[Tensor, Tensor]:
    """(a, b): what of q is decided by node, and what by weight, 1 - q = (1 - a)(1 - b)."""
    a = torch.minimum(q, torch.as_tensor(node_rate, dtype=q.dtype, device=q.device))
    return a, torch.where(q > a, 1 - (1 - q) / (1 - a), 0.0)


def joint_entropy(q: Tensor, node_rate: float | Tensor) -> Tensor:
    """The entropy of all masks of a layer together, in nats: the sum over nodes of that of their outgoing weights.

    With r the node rate, t_1 <= ... <= t_m the q of a node's weights that are not above r, b of the others and
    p0 = prod b:

        sum over k of h(t_k - t_(k-1))  +  h(P0)  -  (1 - r)(1 - p0) log(1 - r)  +  (1 - r)(sum of H(b) - h(p0))
        P0 = r - t_m + (1 - r) p0

    with h(p) = - p log p, H(b) = h(b) + h(1 - b), t_0 = 0: u_j is in one of the steps between the t, which the masks of
    those weights tell, or above them all; then the others are all dropped with probability P0, because u_j < r or one
    by one.

    Args:
        q: ``[*R, out, in]``.
        node_rate: up to which rate nodes decide.

    Returns:
        ``[*R]``, float64.
    """
    entr, q = torch.special.entr, q.double()
    rate = torch.as_tensor(node_rate, dtype=q.dtype, device=q.device)
    by_node, free = q <= rate, 1 - rate
    thresholds = torch.where(by_node, q, 0.0).sort(-2).values
    steps = thresholds.diff(dim=-2, prepend=torch.zeros_like(thresholds[..., :1, :]))
    b = torch.where(by_node, 1.0, split(q, rate)[1])  # 1 leaves a weight out of the product and of the sum
    every, single = b.prod(-2), (entr(b) + entr(1 - b)).sum(-2)
    all_others = rate - thresholds[..., -1, :] + free * every
    nodes = entr(steps).sum(-2) + entr(all_others) - torch.special.xlogy(free * (1 - every), free)
    return (nodes + free * (single - entr(every))).sum(-1)


def node_odds(weight: Tensor, q: Tensor, node_rate: float | Tensor) -> Tensor:
    """a_j / (1 - a_j) of dropping input nodes whole, so that what reads a node varies as much as by the masks a.

        sum over j' of (m (1 - q))^2 a / (1 - a)  =  a_j / (1 - a_j)  *  sum over j' of (m (1 - q))^2

    Args:
        weight: m, ``[*R, out, in]``.
        q: likewise.
        node_rate: up to which rate nodes decide.

    Returns:
        ``[*R, 1, in]``; 0 for a node that nothing reads.
    """
    (a, b), square = split(q, node_rate), weight.square() * (1 - q)
    kept = (square * (1 - q)).sum(-2, keepdim=True)
    return (square * (1 - b) * a).sum(-2, keepdim=True) / kept.clamp_min(torch.finfo(kept.dtype).tiny)


def undropped(companion: Tensor, odds: Tensor) -> Tensor:
    """A companion in which the squares of a pass with dropped nodes come out as if none had been dropped, on average.

    A dropped node leaves no square, so those of the others count 1 / (1 - a_j). It is exact for a single token, and
    where all tokens of an example lose the same nodes.

    Args:
        companion: ``[*R, out * in + 2]``, see `curvature.linear`.
        odds: a_j / (1 - a_j), ``[*R, 1, in]``.
    """
    out = (companion.shape[-1] - 2) // odds.shape[-1]
    each = (1 + odds).to(companion.dtype).expand(*odds.shape[:-2], out, -1).flatten(-2)
    return companion * torch.cat([each, torch.ones_like(each[..., :2])], -1)


def over_tokens(nodes: Tensor, x: Tensor) -> Tensor:
    """``[*R, 1, in]`` so that it meets x ``[*R, N, ..., in]``."""
    return nodes.view(*nodes.shape[:-2], *(1 for _ in range(x.dim() - nodes.dim() + 1)), nodes.shape[-1])
