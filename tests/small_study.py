"""A small study's plan, for tests of its folder."""

from isingformer.study.plan import Plan
from isingformer.study.record import Cell

VALUES = {
    "name": "small",
    "datasets": [
        {"source": "digits", "sizes": [50, 100], "test_images": 30},
        {"source": "/somewhere/leaves.npz", "sizes": [20]},
    ],
    "methods": ["plain", "dropout", "ising"],
    "rates": [0.1, 0.5],
    "replicas": 3,
    "recipe": {"epochs": 2},
}
CELL = Cell("digits", 50, "ising", 0.1)


def planned(**changes):
    return Plan.from_json({**VALUES, **changes})


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def grid(plan):
    return [(cell, replica) for cell in plan.cells() for replica in range(plan.replicas)]
