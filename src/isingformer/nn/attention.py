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
"""Scores of more do not fit on chip."""


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
        return _ShortAttention.apply(qkv)
    q, k, v = qkv.movedim(2, 0).transpose(-2, -3)  # each [N, H, T, C]
    return F.scaled_dot_product_attention(q, k, v).transpose(-2, -3)


def _short(qkv: Tensor) -> bool:
    channels = qkv.shape[-1]
    fits = qkv.shape[1] <= MOST_TOKENS and channels in (16, 32, 64)
    return qkv.device.type == "cuda" and fits and qkv.dtype != torch.float64


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        qkv = qkv.contiguous()
        ctx.save_for_backward(qkv)
        n, tokens, _, heads, channels = qkv.shape
        out = torch.empty((n, tokens, heads, channels), dtype=qkv.dtype, device=qkv.device)
        _forward[(n * heads,)](qkv, out, tokens, heads, channels**-0.5, _padded(tokens), channels, num_warps=4)
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        (qkv,) = ctx.saved_tensors
        d = d.contiguous()
        n, tokens, _, heads, channels = qkv.shape
        grad = torch.empty_like(qkv)
        size = _padded(tokens)
        _backward[(n * heads,)](
            qkv, d, grad, tokens, heads, channels**-0.5, size, channels, num_warps=8 if size > 64 else 4
        )
        return grad


def _padded(tokens: int) -> int:
    """The power of two, from 16 on, that holds so many tokens."""
    return max(16, 1 << (tokens - 1).bit_length())


if triton is not None:

    @triton.jit
    def _scores(q, k, tokens, scale, size: tl.constexpr):  # type: ignore[no-untyped-def]
        """softmax(q k' scale) by rows, [size, size]; columns past the last token are 0."""
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where((tl.arange(0, size) < tokens)[None, :], s, float("-inf"))
        p = tl.exp(s - tl.max(s, 1)[:, None])
        return p / tl.sum(p, 1)[:, None]

    @triton.jit
    def _forward(qkv, out, tokens, heads, scale, size: tl.constexpr, channels: tl.constexpr):  # type: ignore[no-untyped-def]
        n, head = tl.program_id(0) // heads, tl.program_id(0) % heads
        t, c = tl.arange(0, size)[:, None], tl.arange(0, channels)[None, :]
        width = heads * channels
        at = qkv + n.to(tl.int64) * tokens * 3 * width + t * 3 * width + head * channels + c
        there = t < tokens
        q = tl.load(at, there, 0.0)
        k = tl.load(at + width, there, 0.0)
        v = tl.load(at + 2 * width, there, 0.0)
        p = _scores(q, k, tokens, scale, size)
        o = tl.dot(p.to(v.dtype), v, input_precision="ieee")
        tl.store(out + n.to(tl.int64) * tokens * width + t * width + head * channels + c, o.to(q.dtype), there)

    @triton.jit
    def _backward(qkv, d, grad, tokens, heads, scale, size: tl.constexpr, channels: tl.constexpr):  # type: ignore[no-untyped-def]
        n, head = tl.program_id(0) // heads, tl.program_id(0) % heads
        t, c = tl.arange(0, size)[:, None], tl.arange(0, channels)[None, :]
        width = heads * channels
        place = n.to(tl.int64) * tokens * 3 * width + t * 3 * width + head * channels + c
        there = t < tokens
        q = tl.load(qkv + place, there, 0.0)
        k = tl.load(qkv + place + width, there, 0.0)
        v = tl.load(qkv + place + 2 * width, there, 0.0)
        do = tl.load(d + n.to(tl.int64) * tokens * width + t * width + head * channels + c, there, 0.0)
        p = _scores(q, k, tokens, scale, size)
        dv = tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        tl.store(grad + place + 2 * width, dv.to(q.dtype), there)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
        dq = tl.dot(ds, k, input_precision="ieee")
        tl.store(grad + place, dq.to(q.dtype), there)
        dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
        tl.store(grad + place + width, dk.to(q.dtype), there)
