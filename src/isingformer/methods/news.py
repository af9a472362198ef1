"""Whether any gradient since the last refresh was finite, asked without making Python wait for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

PATIENCE = 20
"""Measured backward passes without a finite gradient before that is an error. A loss scaler begins with infinite ones
while it halves its factor, at most 16 times from torch's 65,536 to 1."""


class News:
    """Raises where no gradient has been finite for `PATIENCE` passes and at least a refresh.

    Reading the answer makes Python wait for a GPU, so there it is read at the next refresh, when it is long known.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[Tensor, int]] = []  # of a GPU, to be read at the next refresh
        self._arrived: torch.cuda.Event | None = None
        self._in_vain = 0  # passes since the last finite gradient

    def __reduce__(self) -> tuple[type[News], tuple[()]]:
        """A copy begins anew: events of a GPU cannot be copied."""
        return News, ()

    def check(self, news: Tensor, passes: int) -> None:
        """At a refresh.

        Args:
            news: whether there was anything to take in, a bool.
            passes: backward passes that were to bring some.
        """
        answers = [(news, passes)]
        if news.device.type == "cuda":
            on_host = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(news, non_blocking=True)
            answers, self._answers = self._answers, [(on_host, passes)]
            if self._arrived is not None:
                self._arrived.synchronize()
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        for said, of_passes in answers:
            if not of_passes:
                continue
            self._in_vain = 0 if bool(said) else self._in_vain + of_passes
            if self._in_vain >= PATIENCE:
                raise FloatingPointError(
                    f"no finite gradient in {self._in_vain} backward passes: the loss is NaN or infinite; q is as it "
                    "was before. Look at the learning rate, the inputs and the loss"
                )
