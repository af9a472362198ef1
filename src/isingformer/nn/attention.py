"""Self-attention of short sequences, each head in one piece on chip.

Axes: qkv ``[N, T, 3, H, C]``, output ``[N, Q, H, C]``: N sequences, T tokens, the first Q of which ask, H heads, C
channels of a head.

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

from .._triton import pieces, tl, triton

MOST_TOKENS = 128
"""Keys and values of more do not fit on chip."""
FORWARD, BACKWARD = (32, 2), (32, 2)
"""Queries taken at a time, and warps that work on them: the fastest of twelve choices on an H200."""


def attention(qkv: Tensor, queries: int | None = None) -> Tensor:
    """softmax(q k' / sqrt(C)) v of every head.

    Args:
        qkv: ``[N, T, 3, H, C]``.
        queries: how many tokens, the first ones, ask. None: all T.

    Returns:
        ``[N, queries, H, C]``.
    """
    if triton is not None and torch.compiler.is_compiling() and _short(qkv):
        if torch.is_autocast_enabled("cuda") and qkv.dtype != torch.float64:
            qkv = qkv.to(torch.get_autocast_dtype("cuda"))
        return _short_attention(qkv, queries or qkv.shape[1])
    q, k, v = qkv.movedim(2, 0).transpose(-2, -3)  # each [N, H, T, C]
    return F.scaled_dot_product_attention(q[:, :, :queries], k, v).transpose(-2, -3)


def _short(qkv: Tensor) -> bool:
    channels = qkv.shape[-1]
    fits = qkv.shape[1] <= MOST_TOKENS and channels in (16, 32, 64)
    return qkv.device.type == "cuda" and fits and qkv.dtype != torch.float64


# Operators of their own, because torch's compiler would launch kernels that it sees inside without telling Triton that
# their tensors are aligned: seven times slower.
@torch.library.custom_op("isingformer::short_attention", mutates_args=(), schema="(Tensor qkv, int queries) -> Tensor")
def _short_attention(qkv: Tensor, queries: int) -> Tensor:
    n, tokens, _, heads, channels = qkv.shape
    out = _empty_output(qkv, queries)
    rows, warps = FORWARD
    _forward[(n * heads,)](
        qkv.contiguous(), out, tokens, queries, heads, channels**-0.5, *pieces(tokens), channels, rows,
        num_warps=warps,
    )  # fmt: skip
    return out


@torch.library.custom_op(
    "isingformer::short_attention_backward", mutates_args=(), schema="(Tensor qkv, Tensor d) -> Tensor"
)
def _short_attention_backward(qkv: Tensor, d: Tensor) -> Tensor:
    n, tokens, _, heads, channels = qkv.shape
    queries = d.shape[1]
    grad = (torch.empty if queries == tokens else torch.zeros)(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    rows, warps = BACKWARD
    _backward[(n * heads,)](
        qkv.contiguous(), d.contiguous(), grad, tokens, queries, heads, channels**-0.5, *pieces(tokens), channels,
        rows, num_warps=warps,
    )  # fmt: skip
    return grad


@_short_attention.register_fake
def _empty_output(qkv: Tensor, queries: int) -> Tensor:
    n, _, _, heads, channels = qkv.shape
    return torch.empty((n, queries, heads, channels), dtype=qkv.dtype, device=qkv.device)


@_short_attention_backward.register_fake
def _empty_gradient(qkv: Tensor, d: Tensor) -> Tensor:
    return torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)


def _remember(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _gradient(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
    return _short_attention_backward(ctx.saved_tensors[0], d), None


_short_attention.register_autograd(_gradient, setup_context=_remember)


if triton is not None:

    @triton.jit
    def _read(at, t, width, c, tokens):  # type: ignore[no-untyped-def]
        """Tokens t of one head, [len(t), channels]; past the last token 0."""
        return tl.load(at + t * 3 * width + c, t < tokens, 0.0)

    @triton.jit
    def _logits(q, k, first, tokens, scale, size: tl.constexpr):  # type: ignore[no-untyped-def]
        """q k' scale in units of log 2, [rows, size], for keys from `first` on; past the last token -inf."""
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        return tl.where((first + tl.arange(0, size) < tokens)[None, :], s, float("-inf"))

    @triton.jit
    def _forward(  # type: ignore[no-untyped-def]
        qkv, out, tokens, queries, heads, scale,
        size: tl.constexpr, tail: tl.constexpr, channels: tl.constexpr, rows: tl.constexpr,
    ):  # fmt: skip
        """One head of one sequence, a few rows of queries at a time; keys in a piece of `size` and one of `tail`."""
        n, head = tl.program_id(0) // heads, tl.program_id(0) % heads
        c = tl.arange(0, channels)[None, :]
        width = heads * channels
        qkv += n.to(tl.int64) * tokens * 3 * width + head * channels
        out += n.to(tl.int64) * queries * width + head * channels
        t = tl.arange(0, size)[:, None]
        k, v = _read(qkv + width, t, width, c, tokens), _read(qkv + 2 * width, t, width, c, tokens)
        if tail > 0:
            u = size + tl.arange(0, tail)[:, None]
            kt, vt = _read(qkv + width, u, width, c, tokens), _read(qkv + 2 * width, u, width, c, tokens)
        for first in range(0, queries, rows):
            r = first + tl.arange(0, rows)[:, None]
            q = _read(qkv, r, width, c, queries)
            s = _logits(q, k, 0, tokens, scale, size)
            top = tl.max(s, 1)
            if tail > 0:
                z = _logits(q, kt, size, tokens, scale, tail)
                top = tl.maximum(top, tl.max(z, 1))
            p = tl.exp2(s - top[:, None])
            total = tl.sum(p, 1)
            o = tl.dot(p.to(v.dtype), v, input_precision="ieee")
            if tail > 0:
                p = tl.exp2(z - top[:, None])
                total += tl.sum(p, 1)
                o += tl.dot(p.to(v.dtype), vt, input_precision="ieee")
            tl.store(out + r * width + c, (o / total[:, None]).to(v.dtype), r < queries)

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
        qkv, d, grad, tokens, queries, heads, scale,
        size: tl.constexpr, tail: tl.constexpr, channels: tl.constexpr, rows: tl.constexpr,
    ):  # fmt: skip
        """Likewise; the gradients of keys and values add up over the rows."""
        n, head = tl.program_id(0) // heads, tl.program_id(0) % heads
        c = tl.arange(0, channels)[None, :]
        width = heads * channels
        qkv += n.to(tl.int64) * tokens * 3 * width + head * channels
        grad += n.to(tl.int64) * tokens * 3 * width + head * channels
        d += n.to(tl.int64) * queries * width + head * channels
        t = tl.arange(0, size)[:, None]
        k, v = _read(qkv + width, t, width, c, tokens), _read(qkv + 2 * width, t, width, c, tokens)
        dk, dv = tl.zeros([size, channels], tl.float32), tl.zeros([size, channels], tl.float32)
        if tail > 0:
            u = size + tl.arange(0, tail)[:, None]
            kt, vt = _read(qkv + width, u, width, c, tokens), _read(qkv + 2 * width, u, width, c, tokens)
            dkt, dvt = tl.zeros([tail, channels], tl.float32), tl.zeros([tail, channels], tl.float32)
        for first in range(0, queries, rows):
            r = first + tl.arange(0, rows)[:, None]
            q = _read(qkv, r, width, c, queries)
            do = tl.load(d + r * width + c, r < queries, 0.0)
            p = _logits(q, k, 0, tokens, scale, size)
            top = tl.max(p, 1)
            if tail > 0:
                z = _logits(q, kt, size, tokens, scale, tail)
                top = tl.maximum(top, tl.max(z, 1))
            p = tl.exp2(p - top[:, None])
            total = tl.sum(p, 1)
            if tail > 0:
                z = tl.exp2(z - top[:, None])
                total += tl.sum(z, 1)
                z = z / total[:, None]
            p = p / total[:, None]
            dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            mean = tl.sum(p * dp, 1)
            if tail > 0:
                dvt += tl.dot(tl.trans(z.to(do.dtype)), do, input_precision="ieee")
                dz = tl.dot(do, tl.trans(vt), input_precision="ieee")
                mean += tl.sum(z * dz, 1)
            ds = (p * (dp - mean[:, None]) * scale).to(q.dtype)
            dq = tl.dot(ds, k, input_precision="ieee")
            dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
            if tail > 0:
                ds = (z * (dz - mean[:, None]) * scale).to(q.dtype)
                dq += tl.dot(ds, kt, input_precision="ieee")
                dkt += tl.dot(tl.trans(ds), q, input_precision="ieee")
            tl.store(grad + r * 3 * width + c, dq.to(q.dtype), r < queries)
        tl.store(grad + width + t * 3 * width + c, dk.to(k.dtype), t < tokens)
        tl.store(grad + 2 * width + t * 3 * width + c, dv.to(k.dtype), t < tokens)
        if tail > 0:
            tl.store(grad + width + u * 3 * width + c, dkt.to(k.dtype), u < tokens)
            tl.store(grad + 2 * width + u * 3 * width + c, dvt.to(k.dtype), u < tokens)
