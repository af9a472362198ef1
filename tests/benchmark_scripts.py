"""The scripts in benchmarks/ as modules, and cells as they read them."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def script(name):
    """A script as a module; one that imports its neighbours finds them."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def values(accuracy, nll, ece, **more):
    """Of a cell of three replicas; a number stands for three alike, and what is not named goes with accuracy or NLL."""
    others = {"f1": accuracy, "error_auroc": accuracy, "brier": nll, "aurc": nll}
    scores = {"accuracy": accuracy, "nll": nll, "ece": ece, **others, **more}
    which = {"replica": [0, 1, 2], "seed": [1, 2, 3]}
    return which | {name: own if isinstance(own, list) else [own] * 3 for name, own in scores.items()}


def first(own, number):
    """The same cell with its first replicas alone."""
    return {name: found[:number] for name, found in own.items()}
