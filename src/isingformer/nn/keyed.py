"""Keyed noise on a GPU, a kernel each: what `KeyedNoise` hashes, at the speed of writing it.

Axes: keys ``[*R]``, noise ``[*R, *own]``: R replicas, own the shape of one replica's noise.

Operators of their own. In eager mode the arithmetic would take fifty kernels. torch's compiler would make one, fused
into whatever reads the noise, but in a backward pass it would make normals anew rather than remember them, which takes
longer than both; and it would take most of its time over these few lines, whose every step uses the last one twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._triton import tl, triton

UNIFORM_SALT, NORMAL_SALT = 0, 0x9E3779B
MASK_SALT, WEIGHT_SALT, PLACE_STRIDE = 0x3C6EF372, 0x1B873593, 0x27D4EB2F
BLOCK = 1024
"""Words that one program makes."""


def on_gpu(tensor: Tensor) -> bool:
    """Whether the kernels can take it."""
    return triton is not None and tensor.device.type == "cuda"


def fits(like: Tensor) -> bool:
    """Whether the kernels make noise for this device and type; float64 keeps all its digits elsewhere."""
    return on_gpu(like) and like.dtype != torch.float64


def words_of_keys(keys: Tensor, masks: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`noise.derived_keys` in one kernel instead of fifty: they are tiny, so that launching is all.

    Args:
        keys: int64 ``[*R]``, on a GPU.
        masks: positions of the masks, a single number or ``[*R]``.
        weights: positions of the weight noise, likewise.

    Returns:
        int32 ``[*R]`` each.
    """
    found = torch.empty((2, *keys.shape), dtype=torch.int32, device=keys.device)
    places = [place.to(torch.int64).expand(keys.shape).contiguous() for place in (masks, weights)]
    salts = MASK_SALT, WEIGHT_SALT, PLACE_STRIDE
    count = keys.numel()
    _derive[(1,)](keys.contiguous(), *places, found, count, *salts, triton.next_power_of_2(max(16, count)))
    return found[0], found[1]


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
    def _derive(  # type: ignore[no-untyped-def]
        keys, masks, weights, out, count,
        mask_salt: tl.constexpr, weight_salt: tl.constexpr, stride: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """All replicas' two words."""
        at = tl.arange(0, block)
        key = tl.load(keys + at, at < count, 0)
        base = _mixed(_mixed(key.to(tl.uint32)) ^ (key >> 32).to(tl.uint32))
        mask = tl.load(masks + at, at < count, 0).to(tl.uint32)
        weight = tl.load(weights + at, at < count, 0).to(tl.uint32)
        first = _mixed(_mixed(base + mask_salt) + mask * stride)
        second = _mixed(_mixed(base + weight_salt) + weight * stride)
        tl.store(out + at, first.to(tl.int32, bitcast=True), at < count)
        tl.store(out + count + at, second.to(tl.int32, bitcast=True), at < count)

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
