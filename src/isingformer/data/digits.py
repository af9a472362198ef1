"""Handwritten digits of 8 x 8 pixels that scikit-learn brings along: no download, good for a first try."""

from __future__ import annotations

import numpy as np
import torch

from ._holdout import hold_out
from .dataset import Dataset, Images

_TEST_IMAGES = 36  # of each digit, a fifth of them all


def read_digits() -> Dataset:
    """The 1,797 digits, 8 x 8 grey: 1,437 to train on and 360 to test on, 36 of each digit.

    scikit-learn stores brightness v = 0 to 16; a pixel is round(255 v / 16). The split is fixed (seed 0).
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.from_numpy(np.rint(digits.images * 255 / 16).astype(np.uint8))[:, None]
    everything = Images(x, torch.from_numpy(digits.target.astype(np.int64)))
    train, test = hold_out(everything.y, [_TEST_IMAGES] * 10)
    return Dataset("digits", everything.take(train), everything.take(test), tuple(str(name) for name in range(10)))
