"""The page of results is true: its tables are those of the trainings that are kept."""

import csv
import dataclasses
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from isingformer.study import Store, read_plan
from records import study

ROOT = Path(__file__).resolve().parents[1]
KEPT, PAGE = ROOT / "results" / "paper", ROOT / "docs" / "results.md"


@pytest.fixture(scope="module")
def paper_results():
    spec = importlib.util.spec_from_file_location("paper_results", ROOT / "benchmarks" / "paper_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_results(paper_results):
    text = PAGE.read_text(encoding="utf-8")
    assert paper_results.filled(text, KEPT) == text


def test_every_training_is_one_of_the_plan(paper_results):
    about, cells = paper_results.read(KEPT)
    plan = read_plan(ROOT / "benchmarks" / "paper.toml")
    assert set(cells) <= set(plan.cells()) and about["planned"] == plan.trainings
    assert {len(values["nll"]) for values in cells.values()} == {plan.replicas}
    assert sum(made["trainings"] for made in about["made"]) == about["trainings"] == plan.replicas * len(cells)
    with open(KEPT / "replicas.csv", newline="", encoding="utf-8") as file:
        seeds = {(row["dataset"], row["size"], row["replica"], row["seed"]) for row in csv.DictReader(file)}
    samples = {(cell.dataset, cell.size) for cell in cells}
    assert len(seeds) == plan.replicas * len(samples)  # every method and rate saw the same training samples


@pytest.fixture
def kept(paper_results, tmp_path):
    """A grid of made-up records, kept."""
    plan = dataclasses.replace(read_plan(ROOT / "benchmarks" / "paper.toml"), replicas=4)
    store = Store.open(tmp_path / "study", plan)
    records = study(datasets=("mnist", "cifar10"), sizes=(300, 6000), methods=("dropout", "dropconnect"))
    records += study(datasets=("cifar10",), sizes=(250,), methods=("dropout", "dropconnect", "ising-paper"))
    for record in records:
        store.add(record)
    paper_results.keep(tmp_path / "study", tmp_path / "kept")
    return records, tmp_path / "kept"


def test_means_beside_the_papers_numbers(paper_results, kept):
    records, folder = kept
    about, cells = paper_results.read(folder)
    assert about["trainings"] == len(records)
    own = [r.scores["accuracy"] for r in records if r.cell.name == "mnist_300_dropout_0.1"]
    (line,) = re.findall(r"\| MNIST \| 300 \| 0.1 \|.*", paper_results.accuracies(about, {
        cell: values for cell, values in cells.items() if (cell.dataset, cell.size) == ("mnist", 300)
    }))  # fmt: skip
    assert line.split(" | ")[3] == f"{np.mean(own):.3f} ({np.std(own, ddof=1):.3f}) / 0.489 (0.033)"


def test_a_claim_is_counted_over_its_own_cells(paper_results, kept):
    records, folder = kept
    about, cells = paper_results.read(folder)
    rows = dict(re.findall(r"^\| (.*?) \| (\d+ of \d+) cells \|$", paper_results.claims(about, cells), re.M))
    assert rows["dropout is overconfident on CIFAR with few images"].endswith("of 4")  # sizes 250 and 300, two rates
    assert rows["ising-paper has a lower ECE than both others on CIFAR with few images"].endswith("of 2")
    assert not any("ising-paper-obd" in claim for claim in rows)

    def gap(record):
        bins = record.scores["reliability"]
        return sum(b["count"] * (b["confidence"] - b["accuracy"]) for b in bins if b["count"])

    names = {r.cell.name for r in records if r.cell.method == "dropout"}
    over = sum(sum(gap(r) for r in records if r.cell.name == name) > 0 for name in names)
    assert rows["dropout is overconfident"] == f"{over} of {len(names)}"
