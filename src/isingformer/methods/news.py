"""Whether any gradient since the last refresh was finite, asked without making Python wait for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


class News:
    """Raises where all gradients between two refreshes were NaN or infinite.

    Reading the answer makes Python wait for a GPU, so there it is read at the next refresh, when it is long known.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[Tensor, int]] = []  # of a GPU, to be read at the next refresh
        self._arrived: torch.cuda.Event | None = None

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
            if of_passes and not bool(said):
                raise FloatingPointError(
                    f"no finite gradient in {of_passes} backward passes: the loss is NaN or infinite; q is as it was "
                    "before. Look at the learning rate, the inputs and the loss"
                )
