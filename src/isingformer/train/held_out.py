"""Images held out of the gradient for the first part of a training, to learn delta on; see `methods/base_rate.py`.

For six tenths of the epochs batches are drawn from the other images; then all are trained on. From a tenth of the steps
on, or the end of warm-up and ramp, delta moves some 36 times, until the images come back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..methods import Ising, Method

BEGIN, END = 0.1, 0.6
MOVES = 36
MOST = 256
"""Images that are held out, at most: one number is learned from them, and every other is missed in training."""


@dataclass(frozen=True)
class HeldOut:
    """How many images are held out, and for how many epochs."""

    images: int = 0
    epochs: int = 0

    @classmethod
    def of(cls, method: Method, *, examples: int, epochs: int) -> HeldOut:
        """What a method asks for; none, unless it is an `Ising` that learns its delta."""
        share = method.learn_delta if isinstance(method, Ising) else 0.0
        if not share:
            return cls()
        if share * examples < 2:
            raise ValueError(
                f"learn_delta={share} of {examples} training images holds out fewer than two; take more images, or 0"
            )
        return cls(min(int(share * examples), MOST), max(1, round(END * epochs)))

    def moves(self, *, steps: int, per_epoch: int, settling: int) -> range:
        """After which steps, counted from 0, delta moves."""
        first, end = max(int(BEGIN * steps), settling), self.epochs * per_epoch
        return range(first, end, max(1, (end - first) // MOVES)) if self.images else range(0)

    def rows(self, total: int, seed: int) -> tuple[Tensor, Tensor]:
        """(those held out, the others) of so many images, by their numbers."""
        order = torch.randperm(total, generator=Generator().manual_seed(seed))
        return order[: self.images], order[self.images :]

    def order(self, epoch: int, others: Tensor, *, total: int, needed: int, generator: Generator) -> Tensor:
        """The images of an epoch in their order; those that are left go round where they are too few."""
        if epoch >= self.epochs:
            return torch.randperm(total, generator=generator)
        rounds = -(-needed // len(others))
        return torch.cat([others[torch.randperm(len(others), generator=generator)] for _ in range(rounds)])[:needed]
