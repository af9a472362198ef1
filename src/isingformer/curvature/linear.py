"""A linear map whose backward pass also yields curvature: `fisher`, riding on the training backward.

Axes: x ``[*R, N, ..., in]``, weight ``[*R, out, in]``, bias ``[*R, out]``: R replicas (one leading axis or none), N
examples, then any token axes. d is the gradient that arrives at the output, ``[*R, N, ..., out]``.

    h[j', j] = mean over n of (sum over tokens t of d[n, t, j'] x[n, t, j])^2

is the mean squared per-example gradient with respect to the weight that the pass really used. `expand` squares before
it sums over tokens: cheaper, ranks weights much the same, and is off in scale by a factor that depends on the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Squares = Literal["exact", "expand"]

_CHUNK = {"cpu": 1 << 20}
"""Entries of per-example gradients held at once: what fits the cache on a CPU."""
_CHUNK_ELSEWHERE = 1 << 27


def companion(weight: Tensor) -> Tensor:
    """A leaf that backward passes fill for one weight, ``[*R, out * in + 2]``: it belongs to whoever measures.

    After a backward through `linear_with_squares`, for a loss that is c times a mean over the N examples of the pass,
    its gradient holds c^2 sum over n of (per-example gradient)^2 for every weight, and then N and the number of
    passes. It adds up over passes like any gradient. The leaf itself takes no memory. It must never enter
    `model.parameters()`, an optimiser, gradient clipping or a `state_dict`.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    leaf = torch.zeros((), dtype=dtype, device=weight.device)
    return leaf.expand(*weight.shape[:-2], weight.shape[-2] * weight.shape[-1] + 2).detach().requires_grad_()


def mean_of_squares(filled: Tensor, shape: Sequence[int], terms: int) -> Tensor:
    """h from what passes left in a companion whose loss was a mean over so many terms, per term.

    The companion has undone a mean over the examples that the layer saw, which may be other ones: tokens, or windows.

    Args:
        filled: the companion's gradient, ``[*R, out * in + 2]``.
        shape: of h, ``[*R, out, in]``.
        terms: of the loss.
    """
    squares, examples, passes = filled[..., :-2], filled[..., -2], filled[..., -1]
    scale = (terms * passes / examples.clamp_min(1)).square() / terms
    return (scale.unsqueeze(-1) * squares).view(tuple(shape))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W' + b, each replica with its own W and b where the weight has a replica axis."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    if torch.compiler.is_compiling():
        return _StackedLinear.apply(*_autocast(x, weight, bias))
    return _stacked_linear(x, weight, bias)


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` for use inside functions that bring a backward of their own."""
    return F.linear(x, weight, bias) if weight.dim() == 2 else _stacked_linear(x, weight, bias)


def _stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.flatten(1, -2)
    if bias is None or torch.compiler.is_compiling():
        # Compiled, the sum joins what comes next. A GPU's baddbmm first writes the bias out for every row.
        y = torch.bmm(rows, weight.mT)
        y = y if bias is None else y + bias.unsqueeze(1)
    else:
        y = torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return y.view(*x.shape[:-1], weight.shape[-2])


def _autocast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What autocast would make of them, where autograd sees it: backward then multiplies what forward multiplied."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:  # which autocast leaves alone
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


class _StackedLinear(torch.autograd.Function):
    """`_stacked_linear` with a weight gradient that lies in memory like the weight; torch's own is transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _stacked_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = d.flatten(1, -2)
        grad_x = torch.bmm(rows, weight).view(x.shape) if ctx.needs_input_grad[0] else None
        grad_weight = torch.bmm(rows.mT, x.flatten(1, -2)) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, rows.sum(1) if ctx.needs_input_grad[2] else None


def _sum_and_squares(d: Tensor, x: Tensor, dtype: torch.dtype, kind: Squares) -> tuple[Tensor, Tensor]:
    """Over n: (sum of g_n, sum of g_n^2) with g_n = sum_t d[n, t]' x[n, t].

    Args:
        d: ``[G, N, T, out]``.
        x: ``[G, N, T, in]``.
        dtype: in which squares are taken and sums kept.
        kind: ``exact``, or ``expand`` for the sum over n and t of (d x)^2.

    Returns:
        Two tensors ``[G, out, in]`` of that type.
    """
    groups, examples, tokens, out = d.shape
    if kind == "expand" or tokens == 1 or not examples:
        rows_d, rows_x = d.flatten(1, 2), x.flatten(1, 2)
        squares = torch.bmm(rows_d.to(dtype).square().mT, rows_x.to(dtype).square())
        return torch.bmm(rows_d.mT, rows_x).to(dtype), squares
    limit = _CHUNK.get(d.device.type, _CHUNK_ELSEWHERE)
    chunk = min(examples, max(1, limit // (groups * out * x.shape[-1])))
    total = squares = d.new_zeros((), dtype=dtype)
    for first in range(0, examples, chunk):
        here = slice(first, first + chunk)
        each = torch.matmul(d[:, here].mT, x[:, here])  # [G, n, out, in]
        total = total + each.sum(1, dtype=dtype)
        squares = squares + each.to(dtype).square().sum(1)
    return total, squares


class _LinearWithSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, into: Tensor, kind: Squares) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kind, ctx.dtype = kind, into.dtype
        return plain_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        lead = weight.dim() - 2
        examples = x.shape[lead]

        def grouped(rows: Tensor) -> Tensor:
            whole = rows if lead else rows.unsqueeze(0)
            return whole.reshape(*whole.shape[:2], math.prod(whole.shape[2:-1]), rows.shape[-1])

        d4, x4 = grouped(d), grouped(x)
        total, squares = _sum_and_squares(d4, x4, ctx.dtype, ctx.kind)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = plain_linear(d, weight.mT, None)
        if ctx.needs_input_grad[1]:
            grad_weight = total.view(weight.shape).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = d4.sum((1, 2)).view(weight.shape[:-1]).to(weight.dtype)
        # A mean over N examples put 1/N into d; undoing it here keeps passes of different sizes comparable.
        squares = squares.view(*weight.shape[:-2], -1) * examples**2
        # (N, 1) made on the device: a copy from the host would not fit into a captured graph.
        tally = examples + torch.arange(2, dtype=ctx.dtype, device=d.device) * (1 - examples)
        filled = torch.cat([squares, tally.expand(*squares.shape[:-1], 2)], dim=-1)
        return grad_x, grad_weight, grad_bias, filled, None


def linear_with_squares(
    x: Tensor, weight: Tensor, bias: Tensor | None, into: Tensor, kind: Squares = "exact"
) -> Tensor:
    """`linear`, whose backward also adds this pass's squared per-example gradients to a companion.

    Args:
        x: ``[*R, N, ..., in]``.
        weight: the weight as used, ``[*R, out, in]``.
        bias: ``[*R, out]`` or None.
        into: the companion; see there for what its gradient holds.
        kind: ``exact``, or the approximation ``expand``.
    """
    return _LinearWithSquares.apply(*_autocast(x, weight, bias), into, kind)
