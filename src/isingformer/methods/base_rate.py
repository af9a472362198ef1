"""delta: as it is given, or learned from examples that are held out of the gradient.

How much noise a network should train with is not written in its training examples: it fits them all the better without.
Examples that the gradient never sees can tell. Two predictions of such an example, by the same T drawn networks but for
all of q a little higher and a little lower,

    d = log p(y | x, logit q - 0.3) - log p(y | x, logit q + 0.3),    p a mean over T = 8 networks,

say whether drop probabilities should fall (d > 0) or rise, and how sure that is:

    logit delta  <-  logit delta - 0.25 tanh(mean d / standard error of the mean)

The next sweep takes q along. In the end delta `settle`s at the mean of logit delta over all moves, later ones weighing
more: move number t weighs t.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..nn.masked import drawing, in_eval_mode
from ..nn.noise import KeyedNoise
from ..nn.posterior import Posterior
from .distributed import add_up
from .measure import model_outputs
from .method import Rate, by_replica

if TYPE_CHECKING:
    from .attached import Attached

SHIFT = 0.3
"""Of logit q, up and down."""
PASSES = 8
STRIDE = 0.25
"""The longest move of logit delta."""
LOWEST, HIGHEST = -5.0, 0.85
"""Where logit delta stays: from 0.007 to 0.7. A network that has learnt nothing yet prefers all noise there is."""
OWN_STREAM = 0x5DEECE66D
"""What a replica's key is changed by, so that these networks are none of those it is trained with."""


class GivenDelta:
    """The base rate as it is given."""

    def __init__(self, delta: Rate) -> None:
        self.delta = delta
        self._known: float | Tensor | None = None

    def at(self, drop: Tensor) -> float | Tensor:
        """delta on the device of q, as it enters the arithmetic of a layer; see `by_replica`."""
        if self._known is None or (isinstance(self._known, Tensor) and self._known.device != drop.device):
            self._known = by_replica(self.delta, drop)  # kept: making it copies from the host, which no graph can
        return self._known

    def take_up(self) -> None:
        """Nothing to do."""

    def take_over(self, other: GivenDelta | LearnedDelta) -> None:
        """Nothing to do."""

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}


class LearnedDelta:
    """The base rate of each replica, and where it has been.

    Args:
        delta: where it begins.
        drop: q of a layer, ``[*R, out, in]``.
    """

    def __init__(self, delta: Rate, drop: Tensor) -> None:
        rate = by_replica(delta, drop)
        shape = (*drop.shape[:-2], 1, 1)
        self.value = (rate if isinstance(rate, Tensor) else drop.new_full((), rate)).expand(shape).clone()
        """delta, ``[*R, 1, 1]``; written in place, since CUDA graphs of a sweep go on reading it."""
        self.logit = torch.logit(self.value.double())
        self.trail = torch.zeros_like(self.logit)
        """Sum over moves t of t logit delta."""
        self.moves = torch.zeros((), dtype=torch.int64)

    def move(self, mean: Tensor, error: Tensor) -> None:
        """One move, by the mean of d and its standard error, each ``[*R]``; none where they are no numbers."""
        how_sure = torch.tanh(mean / error.clamp_min(torch.finfo(error.dtype).tiny)).nan_to_num(0.0)
        self.logit.sub_(STRIDE * how_sure.view_as(self.logit)).clamp_(LOWEST, HIGHEST)
        self.moves += 1
        self.trail += int(self.moves) * self.logit
        self.take_up()

    def settle(self) -> None:
        """Take the mean of all moves."""
        moves = int(self.moves)
        if moves:
            self.logit.copy_(2 * self.trail / (moves * (moves + 1)))
            self.take_up()

    def take_up(self) -> None:
        """Make `value` what `logit` says."""
        self.value.copy_(torch.sigmoid(self.logit))

    def take_over(self, other: GivenDelta | LearnedDelta) -> None:
        """Become what another has learnt."""
        for mine, theirs in zip(self.tensors().values(), other.tensors().values(), strict=True):
            mine.copy_(theirs)
        self.take_up()

    def at(self, drop: Tensor) -> Tensor:
        """delta on the device of q, ``[*R, 1, 1]``."""
        if self.value.device != drop.device:
            self.value, self.logit, self.trail = (t.to(drop.device) for t in (self.value, self.logit, self.trail))
        return self.value

    def tensors(self) -> dict[str, Tensor]:
        """Live."""
        return {"delta.logit": self.logit, "delta.trail": self.trail, "delta.moves": self.moves}


def learned(handle: Attached, what: str) -> LearnedDelta:
    """The base rate of a handle that learns it; an error that says why not, where it does not, or not yet."""
    handle._check_attached(what)
    base, settling = getattr(handle.rule, "base", None), handle.rule.settling
    if not isinstance(base, LearnedDelta):
        raise RuntimeError(f"{what}: only Ising(learn_delta=...) learns its delta; attach with a share above 0")
    if handle.steps < settling:
        raise RuntimeError(
            f"{what}: in the {settling} steps of warm-up and ramp not all of q is in use, so nothing tells how much to "
            "drop; call it later"
        )
    base.at(next(iter(handle.parts.posteriors.values())).drop)
    return base


def never_learned(handle: Attached) -> bool:
    """Whether a handle that was to learn its delta has trained without."""
    base = getattr(handle.rule, "base", None)
    return isinstance(base, LearnedDelta) and handle.steps > 0 and not int(base.moves)


def learn(handle: Attached, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: Tensor) -> None:
    """Move delta once; see `Attached.learn_delta`."""
    base = learned(handle, "learn_delta()")
    d = preference(handle, args, kwargs, targets, place=int(base.moves))
    base.move(*mean_and_error(d, together=handle.rule.together))


@torch.no_grad()
def preference(
    handle: Attached, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: Tensor, *, place: int
) -> Tensor:
    """d of every example, ``[*R, n]``: above 0 where less noise is better.

    Args:
        handle: on the model.
        args: the model's inputs.
        kwargs: those given by name.
        targets: their labels.
        place: of the drawn networks in their stream; another one at every move.
    """
    parts, kind = handle.parts.posteriors, handle.parts.likelihood
    first = next(iter(parts.values())).drop
    replicas = first.shape[:-2]
    keys = handle.noise.keys ^ OWN_STREAM if isinstance(handle.noise, KeyedNoise) else None
    noise = KeyedNoise(torch.zeros(replicas, dtype=torch.int64, device=first.device) if keys is None else keys)
    found = []
    with in_eval_mode(handle.model), drawing(handle.model, "mask", noise):
        for shift in (-SHIFT, SHIFT):
            with _shifted(list(parts.values()), shift):
                passes = []
                for t in range(PASSES):
                    noise.set(masks=place * PASSES + t, weights=place * PASSES + t)
                    outputs = model_outputs(handle.model(*args, **kwargs))
                    passes.append(-kind.nll(outputs.to(first.dtype), targets))
                found.append(torch.logsumexp(torch.stack(passes), 0) - math.log(PASSES))
    return (found[0] - found[1]).flatten(len(replicas))


@contextlib.contextmanager
def _shifted(parts: list[Posterior], shift: float) -> Iterator[None]:
    """Inside, logit q of all weights is higher by so much; q = 0 and 1 stay."""
    before = [part.drop.clone() for part in parts]
    try:
        for part in parts:
            part.drop.copy_(torch.sigmoid(torch.logit(part.drop) + shift))
        yield
    finally:
        for part, q in zip(parts, before, strict=True):
            part.drop.copy_(q)


def mean_and_error(d: Tensor, *, together: bool) -> tuple[Tensor, Tensor]:
    """Mean and its standard error over the last axis, of all processes' examples where they train together."""
    d = d.double()
    sums = torch.stack([d.new_full(d.shape[:-1], d.shape[-1]), d.sum(-1), d.square().sum(-1)])
    if together:
        sums = add_up(sums, "preferences")
    n, mean = sums[0], sums[1] / sums[0]
    return mean, ((sums[2] / n - mean.square()).clamp_min(0) / n).sqrt()
