"""How much of q is in use: a share that rises with the steps done, so that masks do not shock a young network.

share = min(1, step / ramp)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Ramp:
    """The share of q that is in use.

    Args:
        steps: after how many steps it is all; 0: from the beginning.
        like: q of a layer, for type and device.
    """

    def __init__(self, steps: int, like: Tensor) -> None:
        self.steps = steps
        self.share = torch.ones((), dtype=like.dtype, device=like.device)
        """Written in place, since CUDA graphs of a sweep go on reading it."""

    def reach(self, step: int, like: Tensor) -> None:
        """Take the share of a step; q may have moved to another device since."""
        if self.share.device != like.device:
            self.share = self.share.to(like.device)
        self.share.fill_(min(1.0, step / self.steps) if self.steps else 1.0)

    def scale(self, drops: Iterable[Tensor]) -> None:
        """Of each q, as a sweep found it, leave the share in use."""
        if self.steps:
            for q in drops:
                q.mul_(self.share)
