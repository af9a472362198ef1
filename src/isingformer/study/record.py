"""One record a replica: what was trained, what it scored, and how it was made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

FORMAT = 1


@dataclass(frozen=True, order=True)
class Cell:
    """A place in the grid: all replicas of it differ in their training sample and their seed alone."""

    dataset: str
    size: int
    """Training images."""
    method: str
    """``plain``, ``dropout``, ``dropconnect``, ``ising``, ``ising-paper`` or ``ising-paper-obd``."""
    rate: float | None
    """p of dropout and dropconnect, delta of the ising methods; None for plain."""

    @property
    def name(self) -> str:
        """For files and people: ``fashion-mnist_6000_ising_0.1``."""
        return f"{self.dataset}_{self.size}_{self.method}" + ("" if self.rate is None else f"_{self.rate:g}")


@dataclass(frozen=True)
class Entropies:
    """How many right and wrong predictions have which entropy, in nats."""

    edges: tuple[float, ...]
    """From 0 to log(classes)."""
    right: tuple[int, ...]
    wrong: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """The drop probabilities of a layer's weights."""

    mean_q: float
    dropped: float
    """Share of weights with q > 1/2."""
    quantiles: tuple[float, ...]
    """Of q at 5%, 25%, 50%, 75%, 95%."""


@dataclass(frozen=True)
class Record:
    """What one training of a study left. Plain values only: it goes to JSON and back unchanged."""

    cell: Cell
    replica: int
    seed: int
    """Of the sample, the weights, the order and the noise: the same for every method of a (dataset, size)."""
    scores: dict[str, Any]
    """`metrics.Scores.as_dict()`, the reliability table and risk-coverage points included, and `probable_accuracy`, of
    the most probable network: 0 where q > 1/2, m (1 - q) elsewhere. `summary.LOCAL` where the plan asks for them."""
    entropies: Entropies
    layers: dict[str, Layer]
    mean_q: float
    dropped: float
    train_nll: float
    """Mean over the last epoch."""
    samples: int
    """T."""
    test_images: int
    classes: int
    steps: int
    seconds: float
    """Training time of the stack it was trained in, divided by its replicas."""
    settings: dict[str, Any]
    """Of the method, with numbers for those that follow from the number of examples."""
    recipe: dict[str, Any]
    network: dict[str, Any]
    made: dict[str, Any]
    """Versions, hardware, commit, command, date."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Record:
        """Back from plain values."""
        rest = {name: value for name, value in values.items() if name not in ("format", "cell", "entropies", "layers")}
        bins = {name: tuple(value) for name, value in values["entropies"].items()}
        layers = {
            name: Layer(**{**layer, "quantiles": tuple(layer["quantiles"])}) for name, layer in values["layers"].items()
        }
        return cls(cell=Cell(**values["cell"]), entropies=Entropies(**bins), layers=layers, **rest)
