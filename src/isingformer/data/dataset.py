"""What every reader returns: images and labels, as they are in the files.

Axes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class DataError(ValueError):
    """Data that cannot be used: one line that names the file, what was found, what was expected and what to do."""


@dataclass(frozen=True)
class Images:
    """Images with their labels, on the CPU."""

    x: Tensor
    """``[N, C, H, W]``: uint8 pixels 0 to 255, or float32 where an .npz holds numbers of its own."""
    y: Tensor
    """``[N]`` int64, the number of each image's class."""

    def __post_init__(self) -> None:
        """Check that there is a label for every image."""
        if self.x.dim() != 4 or self.y.shape != self.x.shape[:1]:
            raise DataError(
                f"images have shape {list(self.x.shape)} and labels {list(self.y.shape)}; expected [N, C, H, W] and [N]"
            )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Images:
        """The images with these numbers, in this order."""
        return Images(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Dataset:
    """A training and a test set that share their classes."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    """What each class is called; its place is its number."""
    origin: Mapping[str, Any] | None = field(default=None, compare=False)
    """The arguments of `load_data` that read it, so that it can be read again; None for data made in Python."""

    def __post_init__(self) -> None:
        """Check that the two sets and the classes fit together."""
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise DataError(
                f"{self.name}: training images are {shape_in_words(self.train.x)}, test images "
                f"{shape_in_words(self.test.x)}; expected one shape for both"
            )
        for kind, images in (("training", self.train), ("test", self.test)):
            if len(images) and not 0 <= int(images.y.min()) <= int(images.y.max()) < len(self.classes):
                raise DataError(
                    f"{self.name}: {kind} labels run from {int(images.y.min())} to {int(images.y.max())}; expected "
                    f"0 to {len(self.classes) - 1}, for {len(self.classes)} classes"
                )

    @property
    def channels(self) -> int:
        """C."""
        return self.train.x.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return (self.train.x.shape[2], self.train.x.shape[3])

    def fingerprint(self) -> str:
        """A checksum of all pixels and labels, to tell whether two runs saw the same data."""
        digest = hashlib.sha256()
        for part in (self.train.x, self.train.y, self.test.x, self.test.y):
            digest.update(f"{part.dtype}{list(part.shape)}".encode())
            digest.update(part.contiguous().view(torch.uint8).numpy().data if part.numel() else b"")
        return digest.hexdigest()[:16]


def shape_in_words(x: Tensor) -> str:
    """Images' shape for a message: ``28 x 28, 1 channel``."""
    channels, height, width = x.shape[1:]
    return f"{width} x {height}, {channels} channel{'s' if channels != 1 else ''}"
