"""The predictive distribution of T passes, with its uncertainty.

Axes: T passes, then whatever the model returns: ``[*R, N, C]`` probabilities, C last. For ``multilabel`` outputs C is
    the labels, and uncertainties are per label.

    total H[E p] = aleatoric E H[p] + epistemic I(y; W, xi)
    epistemic    = architecture I(y; xi) + weights E I(y; W | xi)            on request, by nested sampling
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 8
"""How many steps of their type entropies of equal passes may be apart."""


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution of T passes. Every field is a tensor; entropies are in nats."""

    samples: Tensor
    """Probabilities of each pass, ``[T, ..., C]``; with weight draws, pass t has architecture t // weight_draws."""
    weight_draws: int = 1
    """How many passes share an architecture."""
    per_label: bool = False
    """Whether C counts labels, each yes or no, instead of classes that exclude each other."""

    @property
    def probs(self) -> Tensor:
        """The predictive distribution: the mean over passes, ``[..., C]``."""
        return self.samples.mean(0)

    @property
    def classes(self) -> Tensor:
        """The most probable class, ``[...]``."""
        if self.per_label:
            raise ValueError("classes: multilabel outputs have no single class; threshold probs instead")
        return self.probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """Total uncertainty, H of the mean, ``[...]`` (per label ``[..., C]``)."""
        return self._entropy(self.probs)

    @property
    def aleatoric(self) -> Tensor:
        """The mean entropy of the passes: what stays when the network is known."""
        return self._entropy(self.samples).mean(0)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information between label and network: entropy - aleatoric; 0 where it is less than their rounding."""
        total = self.entropy
        found = total - self.aleatoric
        return found.masked_fill(found <= ROUNDING * torch.finfo(found.dtype).eps * total.clamp_min(1), 0)

    @property
    def architecture(self) -> Tensor:
        """I(y; xi), the part of `epistemic` that is about which connections exist."""
        return (self.entropy - self._entropy(self._by_architecture()).mean(0)).clamp_min(0)

    @property
    def weights(self) -> Tensor:
        """E I(y; W | xi), the part of `epistemic` that is about the weights of a given architecture."""
        return (self._entropy(self._by_architecture()).mean(0) - self.aleatoric).clamp_min(0)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central credible interval of every probability over the passes: (low, high), each ``[..., C]``."""
        return central_interval(self.samples, level)

    def tempered(self, temperature: float) -> Prediction:
        """The same passes with their logits divided by a temperature: above 1 less sure, below 1 surer.

            p^(1/T) / sum over classes of p^(1/T),        per label  odds^(1/T) / (1 + odds^(1/T)),        T temperature

        Every pass is tempered by itself, so the intervals and the split of the uncertainty follow. A probability that
        is stored as exactly 0 (in float32 a logit 103 below the highest, or 87 on some devices) has lost its logit and
        counts as the smallest positive number its dtype can hold; so does 1 - p per label, whose smallest is 6e-8.
        """
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"tempered: temperature must be positive and finite, got {temperature}")
        if temperature == 1:
            return self  # exactly, and zeros stay zeros
        logits = self._logits(torch.promote_types(self.samples.dtype, torch.float32)) / temperature
        samples = logits.sigmoid() if self.per_label else logits.softmax(-1)
        return dataclasses.replace(self, samples=samples.to(self.samples.dtype))

    def to(self, device: torch.device | str) -> Prediction:
        """The same on another device."""
        return dataclasses.replace(self, samples=self.samples.to(device))

    def _by_architecture(self) -> Tensor:
        if self.weight_draws < 2:
            raise ValueError(
                "the split into architecture and weights needs nested sampling: predict(..., weight_draws=5)"
            )
        return self.samples.unflatten(0, (-1, self.weight_draws)).mean(1)

    def _logits(self, dtype: torch.dtype) -> Tensor:
        """log p, per label log(p / (1 - p)), ``[T, ..., C]``; finite whatever p is."""
        finfo = torch.finfo(self.samples.dtype)
        probs = self.samples.to(dtype)
        log_p = probs.log().clamp_min(math.log(finfo.tiny) + math.log(finfo.eps))  # their product, the least above 0
        if not self.per_label:
            return log_p
        return log_p - (-probs).log1p().clamp_min(math.log(finfo.eps / 2))  # the step of the dtype just below 1

    def _entropy(self, probs: Tensor) -> Tensor:
        if self.per_label:
            return torch.special.entr(probs) + torch.special.entr(1 - probs)
        return torch.special.entr(probs).sum(-1)


def central_interval(samples: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The (1 - level) / 2 and (1 + level) / 2 quantiles over the first axis, ``[T, ...]`` to ``[...]`` each."""
    if not 0 < level < 1:
        raise ValueError(f"interval: level must be in (0, 1), got {level}")
    # torch.quantile would do, but refuses more than 2^24 numbers.
    ordered, last = samples.sort(0).values, len(samples) - 1
    return _between(ordered, last * (1 - level) / 2), _between(ordered, last * (1 + level) / 2)


def _between(ordered: Tensor, place: float) -> Tensor:
    """The value at a place between two rows of a sorted tensor, linearly."""
    below = min(int(place), len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below)


def described(x: object) -> str:
    """A tensor by its shape, anything else by its type: for messages."""
    return f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
