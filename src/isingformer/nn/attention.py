"""Self-attention of short sequences, each head in one piece on chip.

Axes: qkv ``[N, T, 3, H, C]``, output ``[N, T, H, C]``: N sequences, T tokens, H heads, C channels of a head.

Attention kernels for long sequences work in tiles, keep statistics of the rows and want queries, keys and values apart.
A small vision transformer has some 65 tokens: all of a head's scores fit on chip, so one program a head reads what
`qkv` wrote and writes what `proj` reads, forward and backward, with nothing in between. Compiled programs on a GPU use
it; everywhere else it is torch's own attention.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without GPU support
    triton = None

MOST_TOKENS = 128
"""Keys and values of more do not fit on chip."""
FORWARD, BACKWARD = (32, 2), (32, 2)
"""Queries taken at a time, and warps that work on them: the fastest of twelve choices on an H200."""


def attention(qkv: Tensor) -> Tensor:
    """softmax(q k' / sqrt(C)) v of every head.

    Args:
        qkv: ``[N, T, 3, H, C]``.

    Returns:
        ``[N, T, H, C]``.
    """
    if triton is not None and torch.compiler.is_compiling() and _short(qkv):
        if torch.is_autocast_enabled("cuda") and qkv.dtype != torch.float64:
            qkv = qkv.to(torch.get_autocast_dtype("cuda"))
        return _short_attention(qkv)
    q, k, v = qkv.movedim(2, 0).transpose(-2, -3)  # each [N, H, T, C]
    return F.scaled_dot_product_attention(q, k, v).transpose(-2, -3)


def _short(qkv: Tensor) -> bool:
    channels = qkv.shape[-1]
    fits = qkv.shape[1] <= MOST_TOKENS and channels in (16, 32, 64)
    return qkv.device.type == "cuda" and fits and qkv.dtype != torch.float64


# Operators of their own, because torch's compiler would launch kernels that it sees inside without telling Triton that
# their tensors are aligned: seven times slower.
@torch.library.custom_op("isingformer::short_attention", mutates_args=(), schema="(Tensor qkv) -> Tensor")
def _short_attention(qkv: Tensor) -> Tensor:
    n, tokens, _, heads, channels = qkv.shape
    out = _empty_output(qkv)
    rows, warps = FORWARD
    _forward[(n * heads,)](
        qkv.contiguous(), out, tokens, heads, channels**-0.5, _padded(tokens), channels, rows, num_warps=warps
    )
    return out


@torch.library.custom_op(
    "isingformer::short_attention_backward", mutates_args=(), schema="(Tensor qkv, Tensor d) -> Tensor"
)
def _short_attention_backward(qkv: Tensor, d: Tensor) -> Tensor:
    n, tokens, _, heads, channels = qkv.shape
    grad = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    rows, warps = BACKWARD
    _backward[(n * heads,)](
        qkv.contiguous(), d.contiguous(), grad, tokens, heads, channels**-0.5, _padded(tokens), channels, rows,
        num_warps=warps,
    )  # fmt: skip
    return grad


@_short_attention.register_fake
def _empty_output(qkv: Tensor) -> Tensor:
    n, tokens, _, heads, channels = qkv.shape
    return torch.empty((n, tokens, heads, channels), dtype=qkv.dtype, device=qkv.device)


@_short_attention_backward.register_fake
def _empty_gradient(qkv: Tensor, d: Tensor) -> Tensor:
    return torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)


def _remember(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, d: Tensor) -> Tensor:
    return _short_attention_backward(ctx.saved_tensors[0], d)


_short_attention.register_autograd(_gradient, setup_context=_remember)


def _padded(tokens: int) -> int:
    """The power of two, from 16 on, that holds so many tokens."""
    return max(16, 1 << (tokens - 1).bit_length())


if triton is not None:

    @triton.jit
    def _scores(q, k, tokens, scale, size: tl.constexpr):  # type: ignore[no-untyped-def]
        """softmax(q k' scale) by rows, [rows, size]; columns past the last token are 0."""
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        s = tl.where((tl.arange(0, size) < tokens)[None, :], s, float("-inf"))
        p = tl.exp2(s - tl.max(s, 1)[:, None])
        return p / tl.sum(p, 1)[:, None]

    @triton.jit
    def _forward(  # type: ignore[no-untyped-def]
        qkv, out, tokens, heads, scale, size: tl.constexpr, channels: tl.constexpr, rows: tl.constexpr
    ):
        """One head of one sequence, a few rows of queries at a time."""
        n, head = tl.program_id(0) // heads, tl.program_id(0) % heads
        c = tl.arange(0, channels)[None, :]
        width = heads * channels
        qkv += n.to(tl.int64) * tokens * 3 * width + head * channels
        out += n.to(tl.int64) * tokens * width + head * channels
        t = tl.arange(0, size)[:, None]
        k = tl.load(qkv + width + t * 3 * width + c, t < tokens, 0.0)
        v = tl.load(qkv + 2 * width + t * 3 * width + c, t < tokens, 0.0)
        for first in range(0, tokens, rows):
            r = first + tl.arange(0, rows)[:, None]
            q = tl.load(qkv + r * 3 * width + c, r < tokens, 0.0)
            p = _scores(q, k, tokens, scale, size)
            o = tl.dot(p.to(v.dtype), v, input_precision="ieee")
            tl.store(out + r * width + c, o.to(v.dtype), r < tokens)

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
        qkv, d, grad, tokens, heads, scale, size: tl.constexpr, channels: tl.constexpr, rows: tl.constexpr
    ):
        """Likewise; the gradients of keys and values add up over the rows."""
        n, head = tl.program_id(0) // heads, tl.program_id(0) % heads
        c = tl.arange(0, channels)[None, :]
        width = heads * channels
        qkv += n.to(tl.int64) * tokens * 3 * width + head * channels
        grad += n.to(tl.int64) * tokens * 3 * width + head * channels
        d += n.to(tl.int64) * tokens * width + head * channels
        t = tl.arange(0, size)[:, None]
        k = tl.load(qkv + width + t * 3 * width + c, t < tokens, 0.0)
        v = tl.load(qkv + 2 * width + t * 3 * width + c, t < tokens, 0.0)
        dk = tl.zeros([size, channels], tl.float32)
        dv = tl.zeros([size, channels], tl.float32)
        for first in range(0, tokens, rows):
            r = first + tl.arange(0, rows)[:, None]
            q = tl.load(qkv + r * 3 * width + c, r < tokens, 0.0)
            do = tl.load(d + r * width + c, r < tokens, 0.0)
            p = _scores(q, k, tokens, scale, size)
            dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
            dq = tl.dot(ds, k, input_precision="ieee")
            tl.store(grad + r * 3 * width + c, dq.to(q.dtype), r < tokens)
            dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        tl.store(grad + width + t * 3 * width + c, dk.to(k.dtype), t < tokens)
        tl.store(grad + 2 * width + t * 3 * width + c, dv.to(k.dtype), t < tokens)
