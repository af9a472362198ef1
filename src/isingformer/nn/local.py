"""The noise of the local reparameterisation as one step, which remembers one tensor instead of four.

Axes: x ``[*R, N, ..., in]``, variance of a weight V ``[*R, out, in]``, noise ``[*R, N, ..., out]``.

    noise = eps sqrt(x^2 V'),  with gradient  d eps / (2 sqrt(x^2 V'))  to x^2 V'
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..curvature.linear import plain_linear

SMALLEST_VARIANCE = 1e-20
"""Below it the square root's slope explodes; a variance that small is none."""
LEAST_IN_HALF = 6e-8
"""The same for float16, which has no smaller number but 0."""


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    # Where a function returns what a cast left as it was, torch 2.11's compiler loses the gradient that comes back.
    return value if value.dtype == dtype else value.to(dtype)  # under a GPU's autocast rsqrt gives float32


class _LocalNoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, variance: Tensor, eps: Tensor) -> Tensor:
        total = plain_linear(x.square(), variance, None)
        bound = LEAST_IN_HALF if total.dtype == torch.float16 else SMALLEST_VARIANCE
        at_least = total.clamp_min(bound)
        by_sd = at_least.rsqrt() * eps  # one cheap instruction on a GPU, unlike a root and a quotient
        ctx.save_for_backward(x, variance, _cast(torch.where(total > bound, 0.5 * by_sd, 0.0), eps.dtype))
        return _cast(by_sd * at_least, eps.dtype)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "sampling 'local' has no second derivatives: it keeps one tensor instead of what they need; draw with "
                "isf.sampled(model) or sampling='mask', or differentiate the model in eval mode"
            )
        x, variance, slope = ctx.saved_tensors
        reach = d * slope
        grad_x = grad_variance = None
        if ctx.needs_input_grad[0]:
            grad_x = 2 * x * plain_linear(reach, variance.mT, None)
        if ctx.needs_input_grad[1]:
            lead = variance.dim() - 2
            rows = reach.flatten(lead, -2), x.square().flatten(lead, -2)
            grad_variance = torch.matmul(rows[0].mT, rows[1])
        return grad_x, grad_variance, None


def local_noise(x: Tensor, variance: Tensor, eps: Tensor) -> Tensor:
    """eps sqrt(x^2 V'): what independent weights of variance V add to the pre-activations of x.

    Args:
        x: ``[*R, N, ..., in]``.
        variance: V, ``[*R, out, in]``.
        eps: standard normal noise, ``[*R, N, ..., out]``.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:  # which autocast leaves alone
        dtype = torch.get_autocast_dtype(device)
        x, variance = x.to(dtype), variance.to(dtype)
    if x.dtype == torch.float16:  # whose squares are infinite from 256 on, and nothing below 2e-4
        size = _size(x)
        return _LocalNoise.apply(x / size, variance, eps.to(x.dtype)) * size
    return _LocalNoise.apply(x, variance, eps.to(x.dtype))


def _size(x: Tensor) -> Tensor:
    """The power of two at or above the largest entry of a row: to divide by it loses nothing."""
    if not x.numel():
        return x.new_ones(())
    largest = torch.linalg.vector_norm(x.detach(), torch.inf, dim=-1, keepdim=True, dtype=torch.float32)
    return torch.exp2(largest.log2().ceil().clamp(-14, 15)).to(x.dtype)
