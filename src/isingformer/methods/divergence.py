"""KL_W + KL_xi of a whole model, cheap enough for every step.

q is constant between sweeps, so all that changes with m is the slab's pull, sum of (1 - q) m^2 / (2 s2^2). The rest
is a number that is computed when q changes.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ..ising import kl_masks, kl_weights, slab_cost_beyond
from ..nn.masked import weight_of
from .distributed import check_whole
from .method import Method, Parts
from .pieces import total_of


class _SlabPull(torch.autograd.Function):
    """sum over layers l of scale_l * sum over weights of (1 - q) m^2, ``[*R]``.

    All layers at once: a deep model costs a few launches, not a few a layer.
    """

    @staticmethod
    def forward(ctx: Any, drops: list[Tensor], scales: list[float], *means: Tensor) -> Tensor:
        wide = [m.to(q.dtype) for m, q in zip(means, drops, strict=True)]
        ctx.dtypes, ctx.drops, ctx.scales = [m.dtype for m in means], drops, scales
        if means[0].dim() > 2:
            whole, q = _side_by_side(wide), _side_by_side(drops)
            pull = whole * (1 - q) * _by_column(tuple(scales), tuple(m[0].numel() for m in means), q.device, q.dtype)
            ctx.save_for_backward(pull, *means)
            return (pull * whole).sum(1)
        pulls = torch._foreach_addcmul(wide, wide, drops, value=-1.0)  # (1 - q) m
        torch._foreach_mul_(pulls, scales)
        ctx.save_for_backward(*pulls, *means)
        return torch.stack(torch._foreach_norm(torch._foreach_mul(pulls, wide), 1)).sum(0)  # no product is negative

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        double, last = 2 * grad, slice(-len(ctx.scales), None)
        if torch.is_grad_enabled():  # to be differentiated once more
            each = zip(ctx.saved_tensors[last], ctx.drops, ctx.scales, strict=True)
            grads = [double[..., None, None] * (scale * (1 - q) * m) for m, q, scale in each]
        elif grad.dim():
            pull, *means = ctx.saved_tensors
            parts = (pull * double.unsqueeze(1)).split([m[0].numel() for m in means], 1)
            grads = [part.view(m.shape) for part, m in zip(parts, means, strict=True)]
        else:
            grads = list(torch._foreach_mul(ctx.saved_tensors[: last.start], double))
        return None, None, *(g.to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True))


def _side_by_side(layers: list[Tensor]) -> Tensor:
    """``[R, out, in]`` each as columns of one ``[R, P]``: for replicas, which foreach operations cannot tell apart."""
    return torch.cat([layer.flatten(1) for layer in layers], 1)


@functools.lru_cache(maxsize=8)
def _by_column(scales: tuple[float, ...], sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Each layer's scale for all its columns, ``[P]``; kept, since it never changes."""
    return torch.cat([torch.full((size,), scale, dtype=dtype) for scale, size in zip(scales, sizes, strict=True)]).to(
        device
    )


def _widths(method: Method, fan_in: int) -> dict[str, float]:
    return {
        "noise_sd": method.noise_sd(fan_in),
        "spike_sd": method.spike_sd(fan_in),
        "slab_sd": method.slab_sd(fan_in),
    }


@torch.no_grad()
def constant_divergence(parts: Parts, method: Method, *, masks: bool) -> Tensor:
    """All of KL_W + KL_xi that m does not move, summed over weights, ``[*R]``.

    Args:
        parts: the model's layers.
        method: for s, s1, s2.
        masks: whether KL_xi counts (it does not for the comparison methods, whose q is fixed).
    """
    total = []
    for name, part in parts.posteriors.items():
        # kl_weights is linear in q: the layer's sum needs q's sum alone.
        weights = math.prod(part.drop.shape[-2:])
        mean_q = part.drop.sum((-2, -1)) / max(weights, 1)  # a piece may be empty
        widths = _widths(method, part.shape[-1])
        value = weights * kl_weights(torch.zeros_like(mean_q), mean_q, **widths)
        if part.variance is not None:
            more = slab_cost_beyond(part.variance, noise_sd=widths["noise_sd"], slab_sd=widths["slab_sd"])
            value = value + ((1 - part.drop) * more).sum((-2, -1))
        prior = parts.pieces[name].cut(part.prior) if parts.pieces else part.prior
        total.append(value + kl_masks(part.drop, prior).sum((-2, -1)) if masks else value)
    every = torch.stack(total).sum(0)
    return total_of(every) if parts.pieces else every


def slab_pull(parts: Parts, method: Method) -> Tensor:
    """Sum of (1 - q) m^2 / (2 s2^2) over all weights, ``[*R]``, differentiable in m."""
    drops = [part.drop for part in parts.posteriors.values()]
    scales = [0.5 / method.slab_sd(part.shape[-1]) ** 2 for part in parts.posteriors.values()]
    if parts.pieces:
        return total_of(
            _SlabPull.apply(drops, scales, *(parts.pieces[name].of(parts.layers[name]) for name in parts.posteriors))
        )
    means = [check_whole(weight_of(parts.layers[name]), name) for name in parts.posteriors]
    return _SlabPull.apply(drops, scales, *means)
