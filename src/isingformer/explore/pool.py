"""Images to choose from: those held out of a run's training, and test images."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from ..data import Dataset, Images, resized
from ..train import Run


@dataclass(frozen=True)
class Pool:
    """Images that fit a run, with the names of their own classes, which need not be those of the run."""

    name: str
    images: Images
    classes: tuple[str, ...]

    def rows(self, label: int | None = None) -> list[int]:
        """The numbers of all images, or of those with a label."""
        if label is None:
            return list(range(len(self.images)))
        if not 0 <= label < len(self.classes):
            raise ValueError(f"{self.name} has no class {label}; expected 0 to {len(self.classes) - 1}")
        return torch.nonzero(self.images.y == label).flatten().tolist()

    def label(self, index: int) -> str:
        """What an image is said to show."""
        return self.classes[int(self.images.y[index])]


def pools_of(run: Run, other: Dataset | None = None, *, data_dir: str | os.PathLike[str] | None = None) -> list[Pool]:
    """The run's validation and test images, or the test images of other data, scaled to what the run reads.

    A run of data that were made in Python, and are not at hand, has none.

    Args:
        run: whose data are read again.
        other: these data instead.
        data_dir: where the run's data are now, if not where they were.
    """
    if other is not None:
        about = run.about["data"]
        if str(other.test.x.dtype).removeprefix("torch.") != about["pixels"]:
            raise ValueError(
                f"{other.name} has {other.test.x.dtype} pixels; {run.folder} reads {about['pixels']}: give data like "
                "those it was trained on"
            )
        fitted = resized(other.test, tuple(about["size"]), about["channels"])
        return [Pool(f"{other.name}, test", fitted, other.classes)]
    try:
        dataset = run.data(data_dir)
    except ValueError:
        if run.about["data"]["origin"] is None:
            return []
        raise
    found = [Pool("validation", run.validation(data_dir), dataset.classes), Pool("test", dataset.test, dataset.classes)]
    return [pool for pool in found if len(pool.images)]
