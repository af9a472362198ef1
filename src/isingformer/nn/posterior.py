"""q(W, xi) of one weight matrix, as a module that computes x W' + b with W expected, or drawn.

Axes: weight and q ``[*R, out, in]``, x ``[*R, N, ..., in]``; R is a leading replica axis or none.

    expected:  W = m (1 - q)
    mask:      W = (1 - xi) m + sqrt(s^2 + (1 - xi) v) eps,   one draw for the whole call
    local:     x W' ~ N(x (m (1 - q))', x^2 (m^2 q (1 - q) + s^2 + (1 - q) v)'),   fresh for every example and token
    local, tied masks (node dropout):  ((1 - xi) x) (m + s eps)',  xi fresh for every example and token

s is one number a layer; v, the variance of kept weights by themselves, is 0 unless a method sets it (`own_variance`).
How weights that read one node are dropped together is in `nodes.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..curvature.linear import Squares, companion, linear, linear_with_squares
from .local import local_noise
from .nodes import node_odds, over_tokens, split, undropped
from .noise import KeyedNoise, Noise

Sampling = Literal["mask", "local"]
SECOND = 1 << 16
"""Added to a layer's number for its second stream of masks; no model has as many layers."""


def _moved(q: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """q after `model.to(...)`: at least float32 even under half() or bfloat16(): a probability of 1e-4 must survive."""
    new = fn(q)
    return new if new.dtype in (torch.float32, torch.float64) else q.to(new.device)


def _moved_number(layer: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    return fn(layer).to(layer.dtype)


def _number(layer: int, like: Tensor) -> Tensor:
    return torch.full((), layer, dtype=torch.int32, device=like.device)


class Posterior(nn.Module):
    """The posterior of one weight: its drop probability q, its noise s, and how a pass uses them.

    It owns no parameter: m stays the layer's ordinary weight. q is a non-persistent buffer, so it moves with the model,
    is copied with it and is kept in step by data-parallel wrappers and weight averaging, while the model's `state_dict`
    keeps its keys.

    Args:
        weight: m, for shape, device and type.
        noise_sd: s.
        sampling: how passes in training mode are drawn.
        noise: the source of randomness, shared by the layers of a model.
        layer: this layer's number, which tells its noise from the others'.
        tied: one mask for all the outgoing weights of an input node (node dropout) instead of one a weight.
        node_rate: up to which rate one number a node decides for the masks of its outgoing weights.
        by_example: whether nodes that `local` drops are dropped for a whole example, all its tokens alike.
        own_variance: whether kept weights have a variance v of their own, 0 to begin with.
    """

    drop: Tensor
    """q, ``[*R, out, in]``, float32 or wider; this process's piece of it where `gather` is set."""
    variance: Tensor | None
    """v, likewise; None: 0."""
    prior: Tensor
    """The field without evidence at the last sweep, ``[*R, out, 1]``."""
    layer: Tensor
    """This layer's number. A tensor, so that compiled code is shared by all layers of a shape; no buffer, of which
    weight averaging would make another number."""
    rate: Tensor
    """`node_rate`, a tensor for the same reason."""

    def __init__(
        self,
        weight: Tensor,
        *,
        noise_sd: float,
        sampling: Sampling,
        noise: Noise,
        layer: int,
        tied: bool = False,
        node_rate: float = 0.0,
        by_example: bool = False,
        own_variance: bool = False,
    ) -> None:
        super().__init__()
        if tied and (node_rate or own_variance):
            raise ValueError("tied masks are one a node already, and their weights have no variance of their own")
        wide = torch.promote_types(weight.dtype, torch.float32)
        zeros = torch.zeros(weight.shape, dtype=wide, device=weight.device)
        self.register_buffer("drop", zeros, persistent=False)
        self.register_buffer("variance", zeros.clone() if own_variance else None, persistent=False)
        self.register_buffer("prior", zeros[..., :1].clone(), persistent=False)
        self.noise_sd = noise_sd
        self.sampling = sampling
        self.noise = noise
        self.layer = _number(layer, weight)
        self.register_buffer("rate", zeros.new_zeros(()), persistent=False)
        self.tied, self.by_example = tied, by_example
        self.node_rate = node_rate
        self.forced: Sampling | None = None  # how to draw whatever the mode
        self.companion: Tensor | None = None  # where training passes leave their squared gradients
        self.squares: Squares = "exact"
        self._heard: weakref.ref[Tensor] | None = None
        self.measuring = True  # whether training passes use the companion
        self.stand_in: Tensor | None = None  # a leaf to use for the expected weight
        self.measure_expected = False  # leave squares outside training mode too
        self.shape = tuple(weight.shape)
        self.gather: Callable[[Tensor], Tensor] | None = None  # makes q whole, where `drop` is a piece of it

    @property
    def node_rate(self) -> float:
        """Up to which rate one number a node decides for the masks of its outgoing weights."""
        return self._node_rate

    @node_rate.setter
    def node_rate(self, rate: float) -> None:
        self._node_rate, self.some_by_node, self.all_by_node = rate, rate > 0, rate == 1
        self.rate.fill_(rate)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b, ``[*R, N, ..., out]``."""
        if x.dim() < self.drop.dim():  # one example without its axis, which nn.Linear takes too
            return self.forward(x.unsqueeze(-2), weight, bias).squeeze(-2)
        how = self.forced or (self.sampling if self.training else "expected")
        if how == "expected":
            return self._product(x, self.expected(weight) if self.stand_in is None else self.stand_in, bias)
        if how == "mask":
            return self._product(x, self.draw(weight), bias)
        return self._local_tied(x, weight, bias) if self.tied else self._local(x, weight, bias)

    def whole(self) -> Tensor:
        """q, ``[*R, out, in]``: live, or put together from a piece a process, for which all must ask."""
        return self.drop if self.gather is None else self.gather(self.drop)

    def whole_variance(self) -> Tensor | None:
        """v, likewise."""
        return self.variance if self.gather is None or self.variance is None else self.gather(self.variance)

    def cut(self, piece: Callable[[Tensor], Tensor], gather: Callable[[Tensor], Tensor]) -> None:
        """Keep a piece of q and v alone.

        Args:
            piece: takes it out of the whole.
            gather: makes it whole.
        """
        for name in ("drop", "variance"):
            whole = getattr(self, name)
            if whole is not None:
                self._buffers[name] = piece(whole).clone(memory_format=torch.contiguous_format)
        self.gather = gather
        if self.companion is not None:
            self.companion = self._companion()

    def expected(self, weight: Tensor) -> Tensor:
        """m (1 - q)."""
        return weight * (1 - self.whole()).to(weight.dtype)

    def draw(self, weight: Tensor) -> Tensor:
        """(1 - xi) m + sqrt(s^2 + (1 - xi) v) eps."""
        kept = self.drawn_mask(self.noise)
        return self._with_noise(weight * kept, kept)

    def drawn_mask(self, noise: Noise) -> Tensor:
        """1 - xi, bool ``[*R, out, in]``, or ``[*R, 1, in]`` where masks are tied."""
        q = self.whole()[..., :1, :] if self.tied else self.whole()
        if not self.some_by_node:
            return noise.uniform(q.shape, q, self.layer) >= q
        a, b = split(q, self.rate)
        kept = noise.uniform((*q.shape[:-2], 1, q.shape[-1]), q, self.layer) >= a
        return kept if self.all_by_node else kept & (noise.uniform(q.shape, q, self.layer + SECOND) >= b)

    def _with_noise(self, weight: Tensor, kept: Tensor | None = None) -> Tensor:
        own = self.whole_variance()
        if own is not None and kept is not None:
            sd = (kept * own + self.noise_sd**2).sqrt().to(weight.dtype)
            return weight + sd * self.noise.normal(weight.shape, weight, self.layer)
        if not self.noise_sd:
            return weight
        return weight + self.noise_sd * self.noise.normal(weight.shape, weight, self.layer)

    def _local(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        q = self.whole()
        kept, spread, some, odds = 1 - q, q * (1 - q), x, None
        if self.some_by_node:
            with torch.no_grad():
                odds = node_odds(weight.to(q.dtype), q, self.rate)
            spread = (spread - kept.square() * odds).clamp_min(0)
            some = x * self._kept_nodes(x, odds / (1 + odds))
            kept = kept * (1 + odds)
        mean = self._product(some, weight * kept.to(weight.dtype), bias, odds)
        eps = self.noise.normal(mean.shape, mean, self.layer)
        variance = weight.square() * spread.to(weight.dtype) + self.noise_sd**2
        own = self.whole_variance()
        return mean + local_noise(x, variance if own is None else variance + ((1 - q) * own).to(weight.dtype), eps)

    def _local_tied(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._product(x * self._kept_nodes(x, self.whole()[..., :1, :]), self._with_noise(weight), bias)

    def _kept_nodes(self, x: Tensor, q: Tensor) -> Tensor:
        """Which nodes are kept, of every example and token, or example: bool that meets x, for q ``[*R, 1, in]``."""
        q, examples = over_tokens(q, x), len(self.shape) - 1
        shape = (*x.shape[:examples], *q.shape[examples:]) if self.by_example else x.shape
        return self.noise.uniform(shape, q, self.layer) >= q

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, odds: Tensor | None = None) -> Tensor:
        measured = (self.training and self.measuring) or self.measure_expected
        if torch.is_grad_enabled() and measured and self.companion is not None:
            into = self.companion if odds is None else undropped(self.companion, odds)
            return linear_with_squares(x, weight, bias, into, self.squares)
        return linear(x, weight, bias)

    def measure(self, on: bool, squares: Squares = "exact") -> None:
        """Let training passes leave their squared per-example gradients in a companion, or stop it."""
        self.squares = squares
        self.companion = self._companion() if on else None

    def _companion(self) -> Tensor:
        return companion(self.drop.new_zeros(()).expand(self.shape))

    def on_filled(self, call: Callable[[], None]) -> None:
        """Call this in every backward pass that has filled the companion; asking again for the same one is nothing."""
        # A deep copy or a move makes a new companion, without the hook. A number could be that of one long gone.
        if self.companion is not None and (self._heard is None or self._heard() is not self.companion):
            self.companion.register_post_accumulate_grad_hook(lambda _: call())
            self._heard = weakref.ref(self.companion)

    def __getstate__(self) -> dict[str, Any]:
        # A copy hears of its own companion anew, and weak references cannot be written.
        return {**self.__dict__, "_heard": None}

    def stochastic(self) -> bool:
        """Whether two draws can differ."""
        if self.noise_sd > 0:
            return True
        q, own = self.whole(), self.whole_variance()
        return bool(((q > 0) & (q < 1)).any()) or (own is not None and bool((own * (1 - q) > 0).any()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Posterior:
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = _moved(buffer, fn)
        self.layer = _moved_number(self.layer, fn)
        if self.companion is not None:
            self.companion = self._companion()
        if isinstance(self.noise, KeyedNoise):
            self.noise.to(fn)
        return self

    def extra_repr(self) -> str:
        """What the layer prints of itself."""
        mean = float(self.drop.mean()) if self.drop.numel() else 0.0
        return f"mean q={mean:.3f}, s={self.noise_sd:.3g}, sampling={self.sampling!r}" + (
            ", tied" if self.tied else f", node_rate={self.node_rate}" if self.node_rate else ""
        )


class NodeMask(nn.Module):
    """A mask on the nodes of a tensor that no linear map reads alone: node dropout of the embeddings.

    expected: x (1 - q); mask: one xi a node for the whole call; local: one for every example and token.

    Args:
        drop: q, ``[*R, width]``.
        sampling: how passes in training mode are drawn.
        noise: the source of randomness.
        layer: this mask's number, which tells its noise from the others'.
    """

    drop: Tensor
    layer: Tensor

    def __init__(self, drop: Tensor, *, sampling: Sampling, noise: Noise, layer: int) -> None:
        super().__init__()
        self.register_buffer("drop", drop, persistent=False)
        self.sampling = sampling
        self.noise = noise
        self.layer = _number(layer, drop)
        self.forced: Sampling | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The masked nodes, ``[*R, N, ..., width]``."""
        how = self.forced or (self.sampling if self.training else "expected")
        q = self.drop.view(*self.drop.shape[:-1], *(1 for _ in range(x.dim() - self.drop.dim())), x.shape[-1])
        if how == "expected":
            return x * (1 - q).to(x.dtype)
        return x * (self.noise.uniform(q.shape if how == "mask" else x.shape, q, self.layer) >= q)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NodeMask:
        self._buffers["drop"] = _moved(self.drop, fn)
        self.layer = _moved_number(self.layer, fn)
        if isinstance(self.noise, KeyedNoise):
            self.noise.to(fn)
        return self

    def stochastic(self) -> bool:
        """Whether two draws can differ."""
        return bool(((self.drop > 0) & (self.drop < 1)).any())
