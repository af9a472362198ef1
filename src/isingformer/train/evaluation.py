"""What a run scores on images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..data import Dataset
from ..metrics import Scores


def check_test_size(size: int | None, *datasets: Dataset | None) -> None:
    """Refuse a sample of more test images than one of the datasets has; None among them is none."""
    for dataset in datasets:
        if size is not None and dataset is not None and not 1 <= size <= len(dataset.test):
            raise ValueError(
                f"test_size must be 1 to {len(dataset.test)}, all the test images of {dataset.name}, got {size}"
            )


@dataclass(frozen=True)
class Outside:
    """How well a run's uncertainty tells its own test images from those of another dataset."""

    data: str
    images: int
    auroc_entropy: float
    auroc_epistemic: float
    mean_entropy: float
    """Of the other dataset's images, in nats."""


@dataclass(frozen=True)
class Evaluation:
    """What a run scores on test images."""

    data: str
    on: str
    """``test`` or ``validation`` images."""
    images: int
    samples: int
    """Passes."""
    scores: Scores
    """With the temperature, where one was fitted."""
    temperature: float | None = None
    untempered: Scores | None = None
    """The scores before tempering."""
    outside: Outside | None = None

    def __str__(self) -> str:
        """What was scored, and the scores, one a line."""
        tempered = "" if self.temperature is None else f", temperature {self.temperature:.3f}"
        return f"{self.images} {self.on} images of {self.data}, {self.samples} passes{tempered}\n{self.scores}"

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "data": self.data,
            "on": self.on,
            "images": self.images,
            "samples": self.samples,
            "scores": self.scores.as_dict(),
            "temperature": self.temperature,
            "untempered": None if self.untempered is None else self.untempered.as_dict(),
            "outside": None if self.outside is None else vars(self.outside),
        }
