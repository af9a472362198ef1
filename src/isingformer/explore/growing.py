"""One image under more and more drawn networks: what was seen is kept, so that a larger T adds to it.

Axes: T networks, P patches, one image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..explain import Anatomy, Spread
from ..explain.networks import Networks
from ..explain.passes import one_pass
from ..explain.traces import Way
from ..methods import attached_to
from ..methods.measure import model_outputs
from ..nn.masked import in_eval_mode
from ..predict import Prediction
from ..predict.passes import wide


@dataclass(frozen=True)
class Seen:
    """What T networks say of an image."""

    target: int
    """The class that is traced back."""
    prediction: Prediction
    """``samples`` is ``[T, 1, classes]``."""
    rollout: Spread | None
    """Attention through all blocks, ``[T, P]``; None where the model's inside is not known."""
    relevance: Spread | None
    """Of the patches for the class, ``[T, P]``; likewise."""

    def course(self, level: float, points: int = 60) -> list[tuple[int, float, float, float]]:
        """(t, mean, low, high) of the traced class's probability under the first t networks.

        For every t, or for `points` of them from 1 to T.
        """
        own = Spread(self.prediction.samples[:, 0, self.target].cpu())
        total = len(own.samples)
        places = torch.linspace(1, total, min(points, total), dtype=torch.float64).round().long()
        found = []
        for t in places.tolist():
            part = Spread(own.samples[:t])
            low, high = part.interval(level)
            found.append((t, float(part.mean), float(low), float(high)))
        return found


class _Kept(NamedTuple):
    """What is kept of a pass."""

    probs: Tensor
    rollout: Tensor | None = None
    relevance: Tensor | None = None


class Growing:
    """An image under networks 1 ... T. Network t is the same whatever T is asked for, and in whatever order.

    `upto` finds what `explain` and `predict` find for as many samples from a generator that gives the same key.

    Args:
        model: an attached model.
        parts: of a vision transformer; None: predictions alone.
        image: as the model reads it, ``[channels, rows, columns]``.
        key: of the networks' noise.
    """

    def __init__(self, model: nn.Module, parts: Anatomy | None, image: Tensor, key: int) -> None:
        self.model, self.parts, self.x, self.key = model, parts, image[None], key
        self._kept: dict[int, list[_Kept]] = {}  # by the class that was traced back
        self._likely: int | None = None

    def upto(self, samples: int, target: int | None = None) -> Seen:
        """What the first `samples` networks say; `target` None traces back the class they find most probable."""
        # As in `explain`: the class is known after the passes; a guess is nearly always right, else there are new ones.
        traced = target if target is not None else self._guess()
        found = self._passes(samples, traced)
        if target is None:
            likely = int(_prediction(found).classes)
            if likely != traced and self.parts is not None:
                found = self._passes(samples, likely)
            self._likely = traced = likely
        return Seen(
            traced, _prediction(found), _spread([one.rollout for one in found]),
            _spread([one.relevance for one in found]),
        )  # fmt: skip

    def _passes(self, samples: int, target: int) -> list[_Kept]:
        kept = self._kept.setdefault(target if self.parts is not None else 0, [])
        if len(kept) < samples:
            networks = Networks(self.model, samples, self.key)
            kept += networks.each(lambda: self._look(target), first=len(kept))
        return kept[:samples]

    def _look(self, target: int) -> _Kept:
        if self.parts is None:
            method = attached_to(self.model)
            assert method is not None  # a run's model has one
            with torch.no_grad():
                return _Kept(method.parts.likelihood.probabilities(wide(model_outputs(self.model(self.x)))))
        found = one_pass(self.model, self.parts, self.x, torch.tensor([target], device=self.x.device), Way())
        _, rollout, *_ = found.attention
        return _Kept(found.logits.softmax(-1), rollout[0], found.relevance[0][0])

    def _guess(self) -> int:
        """The most probable class so far; before all passes, that of the expected network."""
        if self._likely is None and self.parts is not None:
            with in_eval_mode(self.model), torch.no_grad():
                logits = model_outputs(self.model(self.x))
            self._likely = int(logits.argmax() if logits.shape[-1] > 1 else logits.item() > 0)
        return self._likely or 0


def _prediction(found: list[_Kept]) -> Prediction:
    return Prediction(torch.stack([one.probs for one in found]))


def _spread(found: list[Tensor | None]) -> Spread | None:
    values = [one for one in found if one is not None]
    return Spread(torch.stack(values)) if values else None
