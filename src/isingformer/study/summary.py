"""From records to cells: mean and standard deviation over the replicas, pooled reliability and entropy tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..metrics import Bin
from .record import Cell, Entropies, Layer, Record

LABELS = {
    "accuracy": "Accuracy",
    "recall": "Recall",
    "precision": "Precision",
    "f1": "F1",
    "false_positive_rate": "FPR",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "overconfidence": "Confidence minus accuracy",
    "entropy_right": "Entropy of right",
    "entropy_wrong": "Entropy of wrong",
    "epistemic_right": "Epistemic of right",
    "epistemic_wrong": "Epistemic of wrong",
    "error_auroc": "AUROC of errors",
    "error_auroc_epistemic": "AUROC of errors, epistemic",
    "aurc": "AURC",
    "aurc_epistemic": "AURC, epistemic",
    "probable_accuracy": "Accuracy, most probable network",
    "local_accuracy": "Accuracy, fresh noise",
    "local_nll": "NLL, fresh noise",
    "local_ece": "ECE, fresh noise",
    "mean_q": "Mean q",
    "dropped": "Share dropped",
    "train_nll": "Training NLL",
    "seconds": "Seconds",
}
"""What is summarised, and what people call it."""

LOCAL = ("local_accuracy", "local_nll", "local_ece")
"""Those of passes drawn by `local`, where a plan asks for them."""

OF_TRAINING = ("mean_q", "dropped", "train_nll", "seconds")
"""Those that stand in the record itself."""

DERIVED = ("overconfidence",)
"""Those that follow from the reliability table; all others are in the record's `scores`."""

BETTER = {
    **dict.fromkeys(
        (
            "accuracy",
            "recall",
            "precision",
            "f1",
            "error_auroc",
            "error_auroc_epistemic",
            "probable_accuracy",
            "local_accuracy",
        ),
        "higher",
    ),
    **dict.fromkeys(
        ("false_positive_rate", "nll", "brier", "ece", "aurc", "aurc_epistemic", "local_nll", "local_ece"), "lower"
    ),
}
"""Which direction is better; what is not here has none."""

DATASETS = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
}
"""The data sets known by name, in the order of tables and figures, and what people call them."""

METHOD_ORDER = ("plain", "dropout", "dropconnect", "ising", "ising-paper", "ising-paper-obd")
"""The order of methods in tables and figures; others follow by name."""


@dataclass(frozen=True)
class Summary:
    """All replicas of one cell."""

    cell: Cell
    replicas: int
    means: dict[str, float | None]
    """By the names of `LABELS`, over the replicas in which it is defined; None where it is in none."""
    sds: dict[str, float | None]
    """Over the same replicas, with n - 1; None for fewer than two."""
    counts: dict[str, int]
    """In how many replicas it is defined."""
    reliability: tuple[Bin, ...]
    """The predictions of all replicas together."""
    entropies: Entropies
    """Of all replicas together."""
    layers: dict[str, Layer]
    """Means over the replicas."""


def summarise(records: Iterable[Record]) -> dict[Cell, Summary]:
    """One summary a cell, in the order of `cell_order`; the order of the records does not matter."""
    return {cell: _summary(cell, replicas) for cell, replicas in by_cell(records).items()}


def measured(records: Iterable[Record]) -> list[str]:
    """The names of `LABELS` that a table of these records has a column for: of `LOCAL` only what some of them have."""
    there = {name for record in records for name in LOCAL if name in record.scores}
    return [name for name in LABELS if name not in LOCAL or name in there]


def by_cell(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """The records of every cell, sorted by replica; a replica that comes twice is an error."""
    found: dict[Cell, dict[int, Record]] = {}
    for record in records:
        replicas = found.setdefault(record.cell, {})
        if record.replica in replicas:
            raise ValueError(
                f"expected one record a replica, got two of {record.cell.name} replica {record.replica}; "
                "take out one of them"
            )
        replicas[record.replica] = record
    return {cell: [found[cell][number] for number in sorted(found[cell])] for cell in sorted(found, key=cell_order)}


def cell_order(cell: Cell) -> tuple[Any, ...]:
    """A sort key: data set, size, method, rate, as tables and figures have them."""
    rate = -1.0 if cell.rate is None else cell.rate
    return (_place(cell.dataset, tuple(DATASETS)), cell.size, method_order(cell.method), rate)


def method_order(method: str) -> tuple[int, str]:
    """A sort key of methods."""
    return _place(method, METHOD_ORDER)


def check_metric(metric: str) -> None:
    """A ValueError for a name that is not in `LABELS`."""
    if metric not in LABELS:
        raise ValueError(f"metric: expected one of {', '.join(LABELS)}, got {metric!r}")


def value_of(record: Record, metric: str) -> float | None:
    """One number of a record by its name in `LABELS`; None where it is not defined or not finite."""
    check_metric(metric)
    if metric in DERIVED:
        return _overconfidence(record.scores["reliability"])
    value = getattr(record, metric) if metric in OF_TRAINING else record.scores.get(metric)
    return None if value is None or not math.isfinite(value) else float(value)


def _overconfidence(bins: Iterable[Mapping[str, Any]]) -> float | None:
    """Mean confidence minus accuracy: above 0 where predictions are surer than they may be."""
    filled = [found for found in bins if found["count"]]
    total = sum(found["count"] for found in filled)
    gaps = [found["count"] * (found["confidence"] - found["accuracy"]) for found in filled]
    return math.fsum(gaps) / total if total else None


def _place(name: str, known: Sequence[str]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def _summary(cell: Cell, records: list[Record]) -> Summary:
    values = {metric: [v for r in records if (v := value_of(r, metric)) is not None] for metric in LABELS}
    return Summary(
        cell=cell,
        replicas=len(records),
        means={metric: statistics.fmean(found) if found else None for metric, found in values.items()},
        sds={metric: statistics.stdev(found) if len(found) > 1 else None for metric, found in values.items()},
        counts={metric: len(found) for metric, found in values.items()},
        reliability=_pooled_reliability(cell, [record.scores["reliability"] for record in records]),
        entropies=_pooled_entropies(cell, [record.entropies for record in records]),
        layers=_mean_layers(records),
    )


def _pooled_reliability(cell: Cell, tables: list[list[dict[str, Any]]]) -> tuple[Bin, ...]:
    """Counts add up; confidence and accuracy are means over all predictions of the bin."""
    edges = [(b["lower"], b["upper"]) for b in tables[0]]
    if any([(b["lower"], b["upper"]) for b in table] != edges for table in tables):
        raise ValueError(f"{cell.name}: expected the same bins in every replica's reliability table; run it again")
    pooled = []
    for (lower, upper), *bins in zip(edges, *tables, strict=True):
        filled = [b for b in bins if b["count"]]
        count = sum(b["count"] for b in filled)
        means = [math.fsum(b["count"] * b[of] for b in filled) / count if count else None for of in _MEANS]
        pooled.append(Bin(lower, upper, count, means[0], means[1]))
    return tuple(pooled)


_MEANS = ("confidence", "accuracy")


def _pooled_entropies(cell: Cell, histograms: list[Entropies]) -> Entropies:
    edges = histograms[0].edges
    if any(histogram.edges != edges for histogram in histograms):
        raise ValueError(f"{cell.name}: expected the same edges in every replica's entropy histogram; run it again")
    right = tuple(map(sum, zip(*(h.right for h in histograms), strict=True)))
    return Entropies(edges, right, tuple(map(sum, zip(*(h.wrong for h in histograms), strict=True))))


def _mean_layers(records: list[Record]) -> dict[str, Layer]:
    """In the order of the first replica that has them."""
    names = dict.fromkeys(name for record in records for name in record.layers)
    found = {name: [record.layers[name] for record in records if name in record.layers] for name in names}
    return {
        name: Layer(
            mean_q=statistics.fmean(layer.mean_q for layer in layers),
            dropped=statistics.fmean(layer.dropped for layer in layers),
            quantiles=tuple(map(statistics.fmean, zip(*(layer.quantiles for layer in layers), strict=True))),
        )
        for name, layers in found.items()
    }
