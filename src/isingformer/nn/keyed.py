"""Keyed noise on a GPU, a kernel each: what `KeyedNoise` hashes, at the speed of writing it.

Axes: keys ``[*R]``, noise ``[*R, *own]``: R replicas, own the shape of one replica's noise.

Operators of their own. In eager mode the arithmetic would take fifty kernels. Of normals torch's compiler would make
one, fused into whatever reads them, but in a backward pass it would make them anew rather than remember them, which
takes longer than both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without GPU support
    triton = None

UNIFORM_SALT, NORMAL_SALT = 0, 0x9E3779B
BLOCK = 1024
"""Words that one program makes."""


def fits(like: Tensor) -> bool:
    """Whether the kernel makes noise for this device and type; float64 keeps all its digits elsewhere."""
    return triton is not None and like.device.type == "cuda" and like.dtype != torch.float64


@torch.library.custom_op(
    "isingformer::keyed_normal",
    mutates_args=(),
    schema="(Tensor key, Tensor layer, SymInt[] own, ScalarType dtype) -> Tensor",
)
def keyed_normal(key: Tensor, layer: Tensor, own: Sequence[int], dtype: torch.dtype) -> Tensor:
    """N(0, 1) of every replica's stream in this layer.

    Args:
        key: int32 ``[*R]``, on a GPU.
        layer: int32, a single number.
        own: the shape of one replica's noise.
        dtype: float32 or narrower.

    Returns:
        ``[*R, *own]``.
    """
    out = _empty(key, layer, own, dtype)
    count = math.prod(own)
    if count:
        grid = (triton.cdiv((count + 1) // 2, BLOCK), key.numel())
        _fill_normal[grid](key.contiguous(), layer, out, count, NORMAL_SALT, BLOCK)
    return out


@torch.library.custom_op(
    "isingformer::keyed_uniform",
    mutates_args=(),
    schema="(Tensor key, Tensor layer, SymInt[] own, ScalarType dtype) -> Tensor",
)
def keyed_uniform(key: Tensor, layer: Tensor, own: Sequence[int], dtype: torch.dtype) -> Tensor:
    """U[0, 1), likewise."""
    out = _empty(key, layer, own, dtype)
    count = math.prod(own)
    if count:
        grid = (triton.cdiv(count, BLOCK), key.numel())
        _fill_uniform[grid](key.contiguous(), layer, out, count, UNIFORM_SALT, BLOCK)
    return out


@keyed_normal.register_fake
@keyed_uniform.register_fake
def _empty(key: Tensor, layer: Tensor, own: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty((*key.shape, *own), dtype=dtype, device=key.device)


if triton is not None:

    @triton.jit
    def _mixed(word):  # type: ignore[no-untyped-def]
        """`noise._mix` on unsigned words."""
        word = word ^ (word >> 16)
        word = word * 0x7FEB352D
        word = word ^ (word >> 15)
        word = word * 0x846CA68B
        return word ^ (word >> 16)

    @triton.jit
    def _cosine(turn):  # type: ignore[no-untyped-def]
        """`noise._cosine`."""
        t = turn * turn
        value = t * -21.07110562751131 + 58.79049212005253
        value = value * t + -85.27162153428287
        value = value * t + 64.9286574210318
        value = value * t + -19.73898035576394
        return value * t + 0.9999992107823208

    @triton.jit
    def _words(key, layer, place, salt: tl.constexpr):  # type: ignore[no-untyped-def]
        """`KeyedNoise._words` at these places of the replica's stream."""
        own = tl.load(key + tl.program_id(1)).to(tl.uint32) + tl.load(layer).to(tl.uint32) * 0x2545F491
        start = _mixed(own + salt)
        stride = _mixed(start ^ 0x165667B1) | 1
        return _mixed(place.to(tl.uint32) * stride + start)

    @triton.jit
    def _fill_uniform(key, layer, out, count, salt: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """One replica's entries, a block of them."""
        place = tl.program_id(0) * block + tl.arange(0, block)
        word = _words(key, layer, place, salt)
        unit = (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
        out += tl.program_id(1).to(tl.int64) * count
        tl.store(out + place, unit.to(out.dtype.element_ty), place < count)

    @triton.jit
    def _fill_normal(key, layer, out, count, salt: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """One replica's pairs, a block of them: entry p, and p + half."""
        half = (count + 1) // 2
        pair = tl.program_id(0) * block + tl.arange(0, block)
        word = _words(key, layer, pair, salt)
        radius = (word >> 12).to(tl.int32).to(tl.float32) * 9.5367431640625e-07 + 4.76837158203125e-07
        turn = (word & 0xFFF).to(tl.int32).to(tl.float32) * 0.000244140625 - 0.4998779296875
        length = tl.sqrt(-1.3862943611198906 * tl.log2(radius))
        quarter_back = tl.where(turn < -0.25, turn + 0.75, turn - 0.25)
        out += tl.program_id(1).to(tl.int64) * count
        tl.store(out + pair, (length * _cosine(turn)).to(out.dtype.element_ty), pair < half)
        sine = (length * _cosine(quarter_back)).to(out.dtype.element_ty)
        tl.store(out + half + pair, sine, pair < count - half)
