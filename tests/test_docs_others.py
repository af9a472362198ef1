"""What the page of results says beyond the paper's two rates, and the plan of what that needs."""

import json

import pytest

from benchmark_scripts import ROOT, script, values
from isingformer.study import read_plan
from isingformer.study.record import Cell

LOW, HIGH = [1.0, 1.1, 1.2], [1.3, 1.35, 1.55]  # apart by 0.3, 0.25, 0.35: 0.3 -+ 0.12


@pytest.fixture(scope="module")
def paper_others():
    return script("paper_others")


@pytest.fixture(scope="module")
def paper_rates():
    return script("paper_rates")


def trial(tried, rate, nll, data="mnist", size=300):
    return {"data": data, "size": size, "tried": tried, "rate": rate, "nll": nll}


TRIALS = [
    trial("dropout", 0.2, 1.0), trial("dropout", 0.1, 0.9), trial("dropout", 0.3, 1.2),
    trial("dropconnect", 0.05, 0.8), trial("dropconnect", 0.1, 0.9),
    trial("ising", 0.1, 1.0), trial("ising", 0.3, 0.9),
    trial("dropout", 0.3, 0.1, size=6000),
]  # fmt: skip


def test_the_best_rate_is_that_of_the_lowest_nll(paper_others):
    assert paper_others.best_rates(TRIALS) == {
        ("mnist", 300, "dropout"): 0.1, ("mnist", 300, "dropconnect"): 0.05, ("mnist", 300, "ising"): 0.3,
        ("mnist", 6000, "dropout"): 0.3,
    }  # fmt: skip


@pytest.fixture
def trials(paper_others, monkeypatch, tmp_path):
    file = tmp_path / "trials.json"
    file.write_text(json.dumps({"rows": TRIALS}), encoding="utf-8")
    monkeypatch.setattr(paper_others, "TRIALS", file)
    return file


def test_every_method_at_its_best_rate(paper_others, trials):
    """Where all three are trained there, and by the trials alone: what test images say does not choose."""
    at_best = {
        Cell("mnist", 300, "dropout", 0.1): values([0.5, 0.5, 0.48], HIGH, 0.04),
        Cell("mnist", 300, "dropconnect", 0.05): values([0.7, 0.69, 0.7], [1.0, 1.2, 1.1], [0.04, 0.042, 0.04]),
        Cell("mnist", 300, "ising", 0.3): values(0.6, LOW, 0.06),
    }
    cells = at_best | {
        Cell("mnist", 300, "dropout", 0.2): values(0.9, 0.1, 0.0),
        Cell("mnist", 6000, "dropout", 0.3): values(0.9, 0.1, 0.0),
    }
    lines = paper_others.best([], cells).splitlines()
    assert lines[2:4] == [
        "| MNIST, 300 | 0.1: 0.493 / 1.400 / 0.040 | 0.05: 0.697 / 1.100 / 0.041 | 0.3: 0.600 / 1.100 / 0.060 |", ""
    ]  # fmt: skip
    assert lines[-2:] == [
        "| dropout | 1 (1, 0) | 1 (1, 0) | 0 (0, 0) |",  # ECE apart by the same in all: nothing to be sure by
        "| dropconnect | 0 (0, 1) | 0 (0, 0) | 0 (0, 1) |",
    ]
    del cells[Cell("mnist", 300, "dropconnect", 0.05)]
    assert paper_others.best([], cells) == "Not trained yet.\n"


def mixed(q):
    """`ising` at 0.1 with a mean q, and both others at 0.1 and 0.21."""
    rivals = {
        Cell("mnist", 6000, rival, rate): values(0.5, nll, 0.1)
        for rival in ("dropout", "dropconnect")
        for rate, nll in ((0.1, LOW), (0.21, HIGH))
    }
    return rivals | {
        Cell("mnist", 6000, "ising", 0.1): values(0.5, [1.12, 1.2, 1.34], 0.1, mean_q=[q - 0.01, q, q + 0.01])
    }


def test_others_at_the_mean_of_q(paper_others):
    found = paper_others.matched([], mixed(0.2))
    assert "| MNIST, 6,000 | 0.1 | 0.200 | 0.21: 1.400 | 0.21: 1.400 | 1.220 |" in found
    assert (
        "In 1 of the 1 cells" in found and "in 1 of these its NLL is lower than that of both, clearly so in 1" in found
    )
    found = paper_others.matched([], mixed(0.115))
    assert "| 0.115 | 0.1: 1.100 | 0.1: 1.100 | 1.220 |" in found and "in 1 clearly higher than that of one" in found
    assert paper_others.matched([], mixed(0.155)) == "Not trained yet.\n"  # as far from the one as from the other
    own = {Cell("mnist", 6000, "ising", 0.21): values(0.5, LOW, 0.1, mean_q=0.21)}
    assert "In 1 of the 1 cells" in paper_others.matched([], mixed(0.2) | own)  # another delta than the paper's two


def test_peers_stand_beside_the_best_delta(paper_others, trials, monkeypatch, tmp_path):
    def peer(name, accuracy, on="test"):
        return {"data": "mnist", "size": 300, "peer": name, "on": on, "accuracy": accuracy, "nll": 1.0, "ece": 0.1}

    rows = [peer("ivon, lr 0.1", 0.1, on="validation"), peer("ensemble of 5", 0.8), peer("ivon, lr 0.3", 0.7)]
    (tmp_path / "peers.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    monkeypatch.setattr(paper_others, "PEERS", tmp_path / "peers.json")
    cells = {
        Cell("mnist", 300, "ising", 0.3): values(0.6, LOW, 0.06),
        Cell("mnist", 300, "ising", 0.1): values(0, 9, 1),
    }
    assert paper_others.peers([], cells).splitlines() == [
        "| data, images | `ising` | ensemble of 5 | ivon, lr 0.3 |", "| --- | --- | --- | --- |",
        "| MNIST, 300 | 0.3: 0.600 / 1.100 / 0.060 | 0.800 / 1.000 / 0.100 | 0.700 / 1.000 / 0.100 |",
    ]  # fmt: skip


def test_the_plan_has_what_the_grid_lacks(paper_rates, monkeypatch, tmp_path):
    monkeypatch.setattr(paper_rates, "read_all", lambda folders: ([], mixed(0.2) if folders else {}))
    (tmp_path / "rates.toml").write_text(paper_rates.plan_of(["kept"], TRIALS), encoding="utf-8")
    plan, paper = read_plan(tmp_path / "rates.toml"), read_plan(ROOT / "benchmarks" / "paper.toml")
    dense = {(c.dataset, c.size, c.method, c.rate) for c in plan.cells() if c.rate < 0.8}
    assert dense == {
        ("mnist", 300, "dropconnect", 0.05), ("mnist", 300, "ising", 0.3),  # dropout's best is in the paper's grid
        ("mnist", 6000, "dropout", 0.3),
        ("mnist", 6000, "dropout", 0.2), ("mnist", 6000, "dropconnect", 0.2),  # the mean of q
    }  # fmt: skip
    sparse = [cell for cell in plan.cells() if cell.rate >= 0.8]
    assert {cell.method for cell in sparse} == {"ising"} and {cell.size for cell in sparse} == {5000, 6000}
    assert (plan.recipe, plan.datasets, plan.samples) == (paper.recipe, paper.datasets, paper.samples)
    assert plan.seed_of("mnist", 300, 3) == paper.seed_of("mnist", 300, 3)  # the same samples and initial weights


def test_the_mean_of_q_needs_no_training_where_a_rate_is_near(paper_rates, monkeypatch):
    monkeypatch.setattr(paper_rates, "read_all", lambda folders: ([], mixed(0.2)))
    chosen = [trial(rival, 0.2, 0.5, size=6000) for rival in ("dropout", "dropconnect")]
    assert "0.2]" in paper_rates.plan_of(["kept"], chosen) and "0.21" not in paper_rates.plan_of(["kept"], chosen)
    monkeypatch.setattr(paper_rates, "read_all", lambda folders: ([], mixed(0.11)))
    assert "dropout" not in paper_rates.plan_of(["kept"], []).split("only =")[1].split("[[datasets]]")[0]


def test_the_plan_that_is_there_can_be_read():
    plan = read_plan(ROOT / "benchmarks" / "rates.toml")
    assert plan.name == "rates" and not {cell.rate for cell in plan.cells()} & {0.1, 0.5}
