"""A fixed split into training and test images, for data that comes without one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def hold_out(y: Tensor, per_class: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to test on, both ascending, with `per_class[c]` test rows of class c.

    Each class is drawn with a generator of its own, seeded with (seed, c), so that another image in one class leaves
    the others' split alone. NumPy guarantees the stream of RandomState for all versions to come.
    """
    held = torch.zeros(len(y), dtype=torch.bool)
    for label, count in enumerate(per_class):
        rows = (y == label).nonzero().flatten()
        order = np.random.RandomState([seed, label]).permutation(len(rows))
        held[rows[torch.from_numpy(order[:count])]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()
