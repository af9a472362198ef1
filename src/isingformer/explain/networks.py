"""T networks drawn from a posterior, the same ones whenever they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from ..methods import attached_to
from ..nn.masked import drawing, in_eval_mode, node_masks, posteriors
from ..nn.noise import KeyedNoise

R = TypeVar("R")


@dataclass(frozen=True)
class Networks:
    """T networks drawn from a model's posterior: the same ones whenever they are asked for, for any images.

    They are those that `predict` draws from a generator in the same state.

    Args:
        model: an attached model.
        samples: T.
        key: of their noise; see `Networks.draw`.
    """

    model: nn.Module
    samples: int
    key: int

    @classmethod
    def draw(cls, model: nn.Module, samples: int, generator: torch.Generator | None = None) -> Networks:
        """T networks, their key from a generator (None: torch's default one)."""
        method = attached_to(model)
        if method is None:
            raise ValueError(
                f"explain: this {type(model).__name__} carries no method; attach one first, or load a saved model"
            )
        method.check_whole("explain")
        if samples < 1:
            raise ValueError(f"explain: samples must be 1 or more, got {samples}")
        device = "cpu" if generator is None else generator.device
        return cls(
            getattr(model, "_orig_mod", model), samples,
            int(torch.randint(2**62, (), generator=generator, device=device)),
        )  # fmt: skip

    def noise(self) -> KeyedNoise:
        """Their noise, on the model's device: placed at (t, t) it makes a pass that of network t."""
        q = next(iter(posteriors(self.model).values())).drop
        return KeyedNoise(torch.tensor(self.key, device=q.device))

    def each(self, look: Callable[[], R], first: int = 0) -> list[R]:
        """What `look` finds when the model is network t, for every t from `first` on; the model is as it was after.

        Where no two networks can differ (no masks, no noise), one look stands for all.
        """
        weights, nodes = posteriors(self.model).values(), node_masks(self.model).values()
        differ = any(part.stochastic() for part in weights) or any(mask.stochastic() for mask in nodes)
        noise, found = self.noise(), []
        with in_eval_mode(self.model), drawing(self.model, "mask", noise):
            for t in range(first, self.samples if differ else min(first + 1, self.samples)):
                noise.set(masks=t, weights=t)
                found.append(look())
        return found if differ else found * (self.samples - first)
