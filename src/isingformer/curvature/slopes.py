"""How steeply attention's output follows its queries: the dearest sum of the Levenberg-Marquardt recursion.

Axes: N leading axes in one (sequences, heads), t queries, s keys, c and c' channels.

Every output channel of every query has a slope by each of the query's channels, so there are t c c' of them a head: too
many to write down. In torch a loop over c makes them channel by channel. On a GPU a kernel does so on chip, where
torch would write and read some twenty times what the kernel reads once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._triton import pieces, tl, triton

MOST_TOKENS = 128
"""Keys of more do not fit on chip."""
ROWS, WARPS = 32, 4
"""Queries that a program takes."""


def squared_slopes(p: Tensor, k: Tensor, v: Tensor, o: Tensor, mean_key: Tensor, h: Tensor) -> Tensor:
    """sum_c h[t, c] (sum_s p[t, s] v[s, c] (k[s, c'] - k-[t, c']))^2.

    Args:
        p: attention weights ``[..., t, s]``.
        k: keys ``[..., s, c']``.
        v: values ``[..., s, c]``.
        o: outputs p v ``[..., t, c]``.
        mean_key: k- = p k ``[..., t, c']``.
        h: curvature of the outputs ``[..., t, c]``.

    Returns:
        ``[..., t, c']``.
    """
    if _fits(p, k, v):
        return _on_chip(p, k, v, o, mean_key, h)
    found = torch.zeros_like(mean_key)
    for c in range(v.shape[-1]):
        slope = (p * v[..., None, :, c]) @ k - o[..., c, None] * mean_key  # [..., t, c']
        found += h[..., c, None] * slope.square()
    return found


def _fits(p: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel takes them: float32 on a GPU, a short sequence, as many channels as tiles have."""
    sizes = p.shape[-1] <= MOST_TOKENS and k.shape[-1] == v.shape[-1] in (16, 32, 64)
    return triton is not None and p.device.type == "cuda" and p.dtype == torch.float32 and sizes


def _on_chip(p: Tensor, k: Tensor, v: Tensor, o: Tensor, mean_key: Tensor, h: Tensor) -> Tensor:
    queries, tokens = p.shape[-2:]
    found = torch.empty(mean_key.shape, dtype=p.dtype, device=p.device)
    grid = (p.shape[:-2].numel(), triton.cdiv(queries, ROWS))
    _sum_of_squares[grid](
        *(one.contiguous() for one in (p, k, v, o, mean_key, h)), found, queries, tokens, *pieces(tokens), k.shape[-1],
        ROWS, num_warps=WARPS,
    )  # fmt: skip
    return found


if triton is not None:

    @triton.jit
    def _sum_of_squares(  # type: ignore[no-untyped-def]
        p, k, v, o, mean_key, h, found, queries, tokens,
        size: tl.constexpr, tail: tl.constexpr, channels: tl.constexpr, rows: tl.constexpr,
    ):  # fmt: skip
        """A few queries of one head; keys in a piece of `size` and one of `tail`."""
        n = tl.program_id(0).to(tl.int64)
        t = tl.program_id(1) * rows + tl.arange(0, rows)
        s, u, c = tl.arange(0, size), size + tl.arange(0, tail if tail > 0 else 16), tl.arange(0, channels)
        p += n * queries * tokens
        k += n * tokens * channels
        v += n * tokens * channels
        here = n * queries * channels + t * channels
        asked = t < queries
        weights = tl.load(p + t[:, None] * tokens + s[None, :], asked[:, None] & (s < tokens)[None, :], 0.0)
        keys = tl.load(k + s[:, None] * channels + c[None, :], (s < tokens)[:, None], 0.0)
        if tail > 0:
            more_weights = tl.load(p + t[:, None] * tokens + u[None, :], asked[:, None] & (u < tokens)[None, :], 0.0)
            more_keys = tl.load(k + u[:, None] * channels + c[None, :], (u < tokens)[:, None], 0.0)
        mean = tl.load(mean_key + here[:, None] + c[None, :], asked[:, None], 0.0)
        total = tl.zeros([rows, channels], tl.float32)
        for channel in range(0, channels):
            values = tl.load(v + s * channels + channel, s < tokens, 0.0)
            slope = tl.dot(weights * values[None, :], keys, input_precision="tf32x3")
            if tail > 0:
                values = tl.load(v + u * channels + channel, u < tokens, 0.0)
                slope += tl.dot(more_weights * values[None, :], more_keys, input_precision="tf32x3")
            slope -= tl.load(o + here + channel, asked, 0.0)[:, None] * mean
            total += tl.load(h + here + channel, asked, 0.0)[:, None] * slope * slope
        tl.store(found + here[:, None] + c[None, :], total, asked[:, None])
