"""The paper's numbers, against its tables as they are printed."""

import itertools

import pytest

from isingformer.study.paper import PAPER_METHODS, PAPER_SCORES, paper_number, paper_numbers
from isingformer.study.record import Cell

# copied by hand from the eight tables: accuracy, recall, precision, F1, FPR, each with its sd
PRINTED = {
    ("mnist", 300, 0.1, "dropconnect"): "0.549 0.023 0.541 0.024 0.545 0.027 0.537 0.025 0.050 0.003",
    ("mnist", 6000, 0.5, "dropconnect"): "0.796 0.011 0.790 0.012 0.794 0.014 0.786 0.015 0.023 0.001",
    ("fashion-mnist", 6000, 0.1, "ising"): "0.828 0.005 0.828 0.005 0.827 0.005 0.826 0.005 0.019 0.001",
    ("fashion-mnist", 300, 0.5, "dropout"): "0.547 0.041 0.546 0.040 0.560 0.030 0.528 0.056 0.050 0.005",
    ("cifar10", 5000, 0.1, "dropout"): "0.435 0.016 0.435 0.016 0.443 0.017 0.428 0.019 0.063 0.002",
    ("cifar10", 250, 0.5, "ising"): "0.239 0.014 0.239 0.013 0.232 0.019 0.208 0.018 0.085 0.002",
    ("cifar100", 250, 0.1, "dropout"): "0.016 0.005 0.016 0.005 0.003 0.002 0.003 0.001 0.010 0.000",
    ("cifar100", 15000, 0.5, "ising"): "0.478 0.023 0.477 0.027 0.483 0.025 0.452 0.026 0.005 0.000",
}


@pytest.mark.parametrize("key", PRINTED)
def test_numbers_are_the_printed_ones(key):
    row = paper_numbers()[key]
    found = itertools.chain(*((row.means[score], row.sds[score]) for score in PAPER_SCORES))
    assert list(found) == [float(number) for number in PRINTED[key].split()]


def test_the_grid_is_whole():
    small, large = (300, 6000, 18000), (250, 5000, 15000)
    places = [*itertools.product(("mnist", "fashion-mnist"), small), *itertools.product(("cifar10", "cifar100"), large)]
    methods = ("dropconnect", "dropout", "ising")
    assert set(paper_numbers()) == {(*p, r, m) for p, r, m in itertools.product(places, (0.1, 0.5), methods)}


def test_every_ising_of_ours_stands_beside_the_papers():
    row = paper_numbers()["cifar10", 5000, 0.5, "ising"]
    for method in ("ising", "ising-paper", "ising-paper-obd"):
        assert PAPER_METHODS[method] == "ising"
        assert paper_number(Cell("cifar10", 5000, method, 0.5)) == row
    assert paper_number(Cell("cifar10", 5000, "dropout", 0.5)) == paper_numbers()["cifar10", 5000, 0.5, "dropout"]


@pytest.mark.parametrize(
    "cell",
    [
        Cell("mnist", 300, "plain", None), Cell("mnist", 300, "ising", None), Cell("mnist", 301, "ising", 0.1),
        Cell("mnist", 300, "ising", 0.2), Cell("digits", 300, "ising", 0.1), Cell("mnist", 300, "ivon", 0.1),
    ],
)  # fmt: skip
def test_cells_that_the_paper_has_not(cell):
    assert paper_number(cell) is None


def test_cifar100_at_15000_is_not_comparable():
    doubtful = {key[:2] for key, row in paper_numbers().items() if not row.comparable}
    assert doubtful == {("cifar100", 15000)}
    assert sum(not row.comparable for row in paper_numbers().values()) == 6


def test_what_a_caller_does_to_the_answer_does_not_stay():
    paper_numbers().clear()
    assert len(paper_numbers()) == 72
