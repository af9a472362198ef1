"""The numbers of the paper's eight result tables (Salem and Kim, arXiv 2511.13221), to stand beside ours."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources

from .record import Cell

PAPER_METHODS = {
    "dropout": "dropout",
    "dropconnect": "dropconnect",
    "ising": "ising",
    "ising-paper": "ising",
    "ising-paper-obd": "ising",
}
"""Which row of the paper stands beside which of our methods: its one Ising beside each of ours."""

PAPER_SCORES = {
    "accuracy": "accuracy",
    "recall": "recall",
    "precision": "precision",
    "f1": "f1",
    "false_positive_rate": "fpr",
}
"""Our names of the scores that the paper prints, and its own."""

NOT_COMPARABLE = {("cifar100", 15000)}
"""Where the paper's training size is in doubt."""

WHY_NOT_COMPARABLE = (
    "the paper's figure labels fit 40,000 training images here, not the 15,000 of its table, and 77% from 15,000 is "
    "not credible for a small ViT without pre-training"
)


@dataclass(frozen=True)
class PaperNumbers:
    """One row of the paper's tables: mean and standard deviation over its ten training samples, by our score names."""

    means: dict[str, float]
    sds: dict[str, float]
    comparable: bool
    """False: shown, but no verdict rests on it."""


@functools.cache
def _rows() -> dict[tuple[str, int, float, str], PaperNumbers]:
    text = resources.files(__package__).joinpath("paper_tables.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        place = (row["dataset"], int(row["train_size"]))
        found[(*place, float(row["rate"]), row["method"])] = PaperNumbers(
            means={ours: float(row[theirs]) for ours, theirs in PAPER_SCORES.items()},
            sds={ours: float(row[f"{theirs}_sd"]) for ours, theirs in PAPER_SCORES.items()},
            comparable=place not in NOT_COMPARABLE,
        )
    return found


def paper_numbers() -> dict[tuple[str, int, float, str], PaperNumbers]:
    """All 72 rows, by (dataset, training size, rate, method); the method is the paper's, one of three."""
    return dict(_rows())


def paper_number(cell: Cell) -> PaperNumbers | None:
    """The row of the paper that stands beside a cell of ours; None where it has none."""
    if cell.rate is None or cell.method not in PAPER_METHODS:
        return None
    return _rows().get((cell.dataset, cell.size, cell.rate, PAPER_METHODS[cell.method]))
