"""Where the randomness of a sampled pass comes from.

`TorchNoise` draws from torch's default generator of the tensor's device, like `nn.Dropout`: seed it with
`torch.manual_seed`, and gradient checkpointing replays it by itself.

`KeyedNoise` computes noise from keys and positions instead of drawing it (a counter-based generator): entry i of
layer l in stream r is a hash of (key[r], l, i); on a CPU in eager mode (key[r], l) seeds torch's generator instead.
So replicas stacked on a leading axis each have a stream of their own that does not depend on who else is in the
stack, a pass can be repeated for every chunk of a large input, masks can be held while the weight noise changes, and
it all can be compiled and captured; on a GPU kernels of our own make it (`keyed.py`). The keys move only when told to
(`advance`, `set`), so a recomputed pass under gradient checkpointing sees the keys of the pass that came last: run
backward before the next forward.

Both give ``uniform`` in [0, 1) for masks and ``normal`` for weight noise. A shape is ``[*replicas, ...]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from .keyed import (
    MASK_SALT,
    NORMAL_SALT,
    PLACE_STRIDE,
    UNIFORM_SALT,
    WEIGHT_SALT,
    fits,
    keyed_normal,
    keyed_uniform,
    on_gpu,
    words_of_keys,
)  # fmt: skip


class Noise(Protocol):
    """What a masked layer asks for."""

    def uniform(self, shape: Sequence[int], like: Tensor, layer: int | Tensor) -> Tensor:
        """Independent U[0, 1) of that shape, on the device and of the floating type of `like`."""

    def normal(self, shape: Sequence[int], like: Tensor, layer: int | Tensor) -> Tensor:
        """Independent N(0, 1), likewise."""


class TorchNoise:
    """Noise from torch's default generator of the device."""

    def uniform(self, shape: Sequence[int], like: Tensor, layer: int | Tensor) -> Tensor:
        """U[0, 1); `layer` plays no part, the generator moves on by itself."""
        return torch.rand(tuple(shape), dtype=like.dtype, device=like.device)

    def normal(self, shape: Sequence[int], like: Tensor, layer: int | Tensor) -> Tensor:
        """N(0, 1), likewise."""
        return torch.randn(tuple(shape), dtype=like.dtype, device=like.device)


def _mix(word: Tensor) -> Tensor:
    """A bijective avalanche of 32-bit words (xor-shift and multiply rounds); int32 arithmetic wraps."""
    word = word ^ ((word >> 16) & 0xFFFF)
    word = word * 0x7FEB352D
    word = word ^ ((word >> 15) & 0x1FFFF)
    word = word * -2073254261  # 0x846CA68B as a signed word
    return word ^ ((word >> 16) & 0xFFFF)


def _unit(word: Tensor, dtype: torch.dtype) -> Tensor:
    """The top 24 bits as a number in [0, 1)."""
    return ((word >> 8) & 0xFFFFFF).to(dtype) * 2.0**-24


def _cosine(turn: Tensor) -> Tensor:
    """cos(2 pi turn) for |turn| <= 1/2, to 8e-7: a polynomial in turn^2, cheaper than a cosine for any argument."""
    t = turn.square()
    value = t * -21.07110562751131 + 58.79049212005253
    for coefficient in (-85.27162153428287, 64.9286574210318, -19.73898035576394, 0.9999992107823208):
        value = value * t + coefficient
    return value


def _use_cpu_generator(like: Tensor) -> bool:
    return like.device.type == "cpu" and not torch.compiler.is_compiling()


def _as_tensor(layer: int | Tensor, like: Tensor) -> Tensor:
    if isinstance(layer, Tensor):
        return layer.to(like.device)  # where a model was moved by its parameters and buffers alone
    return torch.full((), layer, dtype=torch.int32, device=like.device)


def derived_keys(keys: Tensor, masks: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """One word a stream at these positions, int32 ``[*replicas]``: (of the masks, of the weight noise)."""
    if on_gpu(keys):
        return words_of_keys(keys, masks, weights)
    base = _mix(_mix(keys.to(torch.int32)) ^ (keys >> 32).to(torch.int32))
    places = masks.to(torch.int32), weights.to(torch.int32)
    salts = MASK_SALT, WEIGHT_SALT
    first, second = (_mix(_mix(base + salt) + place * PLACE_STRIDE) for place, salt in zip(places, salts, strict=True))
    return first, second


class KeyedNoise:
    """Counter-based noise: one key a replica (or a single key), shared by all layers of a model.

    Args:
        keys: int64 ``[*replicas]``; the same key gives the same stream, wherever it stands in a stack.
    """

    stored = True
    """Whether keys and positions are part of what an attached method remembers."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys.to(torch.int64).clone()
        self.position = torch.zeros_like(self.keys)
        self.mask_key = torch.zeros_like(self.keys, dtype=torch.int32)
        self.weight_key = torch.zeros_like(self.mask_key)
        self._rekey()

    def _rekey(self) -> None:
        self.set(self.position, self.position)

    def set(self, masks: Tensor | int, weights: Tensor | int) -> None:
        """Place the mask noise and the weight noise of the next pass at these positions of each stream."""
        places = (torch.as_tensor(place, device=self.keys.device) for place in (masks, weights))
        mask_key, weight_key = derived_keys(self.keys, *places)
        self.mask_key.copy_(mask_key)
        self.weight_key.copy_(weight_key)

    def advance(self) -> None:
        """Move every stream to its next pass."""
        self.position += 1
        self._rekey()

    def to(self, move: Callable[[Tensor], Tensor]) -> None:
        """Apply a device move to the keys; their types stay."""
        for name in ("keys", "position", "mask_key", "weight_key"):
            tensor = getattr(self, name)
            setattr(self, name, move(tensor).to(tensor.dtype))

    def _start(self, key: Tensor, layer: int | Tensor, salt: int) -> Tensor:
        """One 32-bit word a replica: where the stream of this layer begins, int32 ``[*replicas]``."""
        return _mix(key + layer * 0x2545F491 + salt)

    def _words(self, start: Tensor, own: tuple[int, ...]) -> Tensor:
        """One 32-bit word an entry, int32 ``[*replicas, *own]``."""
        index = torch.arange(math.prod(own), dtype=torch.int32, device=start.device).view(own)
        start = start.view(*start.shape, *(1 for _ in own))
        # Streams step through the words in strides of their own, so that no stream is another one shifted.
        return _mix(index * (_mix(start ^ 0x165667B1) | 1) + start)

    def _seeded(self, draw: Callable[..., Tensor], start: Tensor, own: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The same streams from torch's CPU generator, seeded by each replica's word: several times faster there."""
        generator = torch.Generator()
        parts = [draw(own, dtype=dtype, generator=generator.manual_seed(word)) for word in start.flatten().tolist()]
        return parts[0] if start.dim() == 0 else torch.stack(parts).view(*start.shape, *own)

    def uniform(self, shape: Sequence[int], like: Tensor, layer: int | Tensor) -> Tensor:
        """U[0, 1) from the mask keys."""
        own = tuple(shape[self.keys.dim() :])
        if fits(like):
            return keyed_uniform(self.mask_key, _as_tensor(layer, like), own, like.dtype)
        start = self._start(self.mask_key, layer, UNIFORM_SALT)
        if _use_cpu_generator(like):
            return self._seeded(torch.rand, start, own, like.dtype)
        return _unit(self._words(start, own), like.dtype)

    def normal(self, shape: Sequence[int], like: Tensor, layer: int | Tensor) -> Tensor:
        """N(0, 1) from the weight keys; where it is hashed, by Box and Muller from one word a pair of entries.

        The word's upper 20 bits give the radius, its lower 12 the angle, each the middle of its interval: |z| < 5.4.
        Of n entries the first half are the pairs' cosines, the others their sines.
        """
        own = tuple(shape[self.keys.dim() :])
        if fits(like):
            return keyed_normal(self.weight_key, _as_tensor(layer, like), own, like.dtype)
        start = self._start(self.weight_key, layer, NORMAL_SALT)
        if _use_cpu_generator(like):
            return self._seeded(torch.randn, start, own, like.dtype)
        wide = like.dtype if like.dtype == torch.float64 else torch.float32
        count = math.prod(own)
        words = self._words(start, ((count + 1) // 2,))
        radius = ((words >> 12) & 0xFFFFF).to(wide) * 2.0**-20 + 2.0**-21
        turn = (words & 0xFFF).to(wide) * 2.0**-12 + (2.0**-13 - 0.5)
        quarter_back = torch.where(turn < -0.25, turn + 0.75, turn - 0.25)
        length = (-2 * torch.log(radius)).sqrt()
        both = torch.cat([length * _cosine(turn), length * _cosine(quarter_back)], -1)[..., :count]
        return both.to(like.dtype).view(*start.shape, *own)
