"""The page of results is true: its tables are those of the trainings that are kept."""

import csv
import dataclasses
import re

import numpy as np
import pytest
from scipy.stats import skew

from benchmark_scripts import ROOT, first, script, values
from isingformer.study import Store, read_plan
from isingformer.study.compare import verdict_list
from isingformer.study.record import Cell, Layer
from isingformer.study.summary import METHOD_ORDER
from records import study

GRID = [ROOT / "results" / name for name in ("paper", "paper-first")]
FOLDERS = [*GRID, *(ROOT / "results" / name for name in ("rates", "control"))]


@pytest.fixture(scope="module")
def paper_results():
    return script("paper_results")


@pytest.fixture(scope="module")
def paper_tables():
    return script("paper_tables")


@pytest.fixture(scope="module")
def paper_goals():
    return script("paper_goals")


@pytest.mark.parametrize(("page", "parts"), [("docs/results.md", 15), ("README.md", 2)])
def test_the_tables_are_those_of_the_results(paper_results, page, parts):
    text = (ROOT / page).read_text(encoding="utf-8")
    made = {*paper_results.PARTS, *paper_results.OTHERS}
    assert sum(f"<!-- {name}:begin -->" in text for name in made) == parts
    assert paper_results.filled(text, *FOLDERS) == text


def test_the_differences_are_those_of_the_results(paper_results, paper_goals):
    _, cells = paper_results.read_all(GRID)
    assert (GRID[0] / "against.csv").read_text(encoding="utf-8") == paper_goals.differences(cells)


def test_the_figures_have_the_methods_that_are_trained(paper_results):
    _, cells = paper_results.read_all(GRID)
    for dataset in {cell.dataset for cell in cells}:
        text = (GRID[0] / "figures" / f"metrics_{dataset}.svg").read_text(encoding="utf-8")
        shown = {method for method in METHOD_ORDER if f">{method}<" in text}
        assert shown == {cell.method for cell in cells if cell.dataset == dataset}


def test_every_training_is_one_of_its_plan(paper_results):
    seeds, samples = set(), set()
    for folder, name in zip(FOLDERS[:3], ("paper", "paper", "rates"), strict=True):
        plan = read_plan(ROOT / "benchmarks" / f"{name}.toml")
        about, cells = paper_results.read(folder)
        assert set(cells) <= set(plan.cells()) and about["planned"] == plan.trainings
        numbers = [len(values["nll"]) for values in cells.values()]
        assert max(numbers) == (plan.replicas if folder in GRID else 5)
        assert sum(made["trainings"] for made in about["made"]) == about["trainings"] == sum(numbers)
        with open(folder / "replicas.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert all(values["replica"] == list(range(len(values["nll"]))) for values in cells.values())  # the first ones
        seeds |= {(row["dataset"], row["size"], row["replica"], row["seed"]) for row in rows}
        samples |= {(row["dataset"], row["size"], row["replica"]) for row in rows}
    assert len(seeds) == len(samples) == 120  # every method and rate saw the same training samples


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


def test_means_beside_the_papers_numbers(paper_results, paper_tables, kept):
    records, folder = kept
    about, cells = paper_results.read(folder)
    assert about["trainings"] == len(records)
    own = [r.scores["accuracy"] for r in records if r.cell.name == "mnist_300_dropout_0.1"]
    (line,) = re.findall(r"\| MNIST, 300 \| 0.1 \|.*", paper_tables.accuracies(about, {
        cell: values for cell, values in cells.items() if (cell.dataset, cell.size) == ("mnist", 300)
    }))  # fmt: skip
    assert line.split(" | ")[2] == f"{np.mean(own):.3f} / 0.489"


def test_a_claim_is_counted_over_its_own_cells(paper_results, kept):
    records, folder = kept
    about, cells = paper_results.read(folder)
    found = paper_results.claims(about, cells)
    rows = dict(re.findall(r"^\| (.*?) \| (\d+ of \d+) \(\d+\) \|$", found, re.M))
    assert rows["dropout is overconfident on CIFAR with few images"].endswith("of 4")  # sizes 250 and 300, two rates
    (of_ising,) = re.findall(r"^\| its ECE on CIFAR with few images .*? \| (.*) \|$", found, re.M)
    assert re.fullmatch(r"\d of 2 \(\d\) \| – \| –", of_ising)  # `ising-paper` alone, 250 images, two rates

    def gap(record):
        bins = record.scores["reliability"]
        return sum(b["count"] * (b["confidence"] - b["accuracy"]) for b in bins if b["count"])

    names = {r.cell.name for r in records if r.cell.method == "dropout"}
    over = sum(sum(gap(r) for r in records if r.cell.name == name) > 0 for name in names)
    assert rows["dropout is overconfident"] == f"{over} of {len(names)}"


@pytest.mark.parametrize(
    ("missing", "compared"),
    [
        (lambda record: record.cell.size == 5000 and record.replica == 3, True),
        (lambda record: record.cell.size == 250 and record.cell.method == "dropout" and record.replica == 0, True),
        (lambda record: record.replica > 0, True),
        (lambda record: (record.cell.method == "dropout") is (record.replica < 2), False),  # other samples
        (lambda record: record.cell.method != "ising", False),
        (lambda record: record.cell.method == "ising", False),
    ],
)
def test_a_page_can_be_made_while_a_study_is_under_way(paper_results, tmp_path, missing, compared):
    plan = dataclasses.replace(read_plan(ROOT / "benchmarks" / "paper.toml"), replicas=4)
    store = Store.open(tmp_path / "study", plan)
    for record in study(datasets=("cifar10",), sizes=(250, 5000), methods=("dropout", "dropconnect", "ising")):
        if not missing(record):
            store.add(record)
    paper_results.keep(tmp_path / "study", tmp_path / "kept")
    made = [
        paper_results.filled((ROOT / page).read_text(encoding="utf-8"), tmp_path / "kept")
        for page in ("docs/results.md", "README.md")
    ]
    parts = [
        re.search(f"<!-- {name}:begin -->(.*?)<!-- {name}:end -->", text, re.S)[1]
        for name, text in zip(("goals", "versus", "summary"), (made[0], *made), strict=True)
    ]
    assert all(("nothing to compare yet" in part) is not compared for part in parts)


def test_what_is_kept_can_be_taken_up_again_on_another_machine(paper_results, kept, tmp_path):
    records, folder = kept
    paper_results.restore(folder, tmp_path / "again")
    first, again = Store(tmp_path / "study"), Store(tmp_path / "again")
    assert again.records() == first.records() and len(again.records()) == len(records)
    assert again.plan == first.plan and again.jobs(again.plan) == first.jobs(first.plan)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    paper_results.keep(tmp_path / "again", folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before  # the same bytes, gzip's too
    (folder / paper_results.RECORDS).unlink()
    with pytest.raises(ValueError, match="kept without its records"):
        paper_results.restore(folder, tmp_path / "third")
    with pytest.raises(ValueError, match=r"has no about\.json; give a folder that `keep` wrote"):
        paper_results.restore(tmp_path / "nowhere", tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_a_cell_is_taken_from_the_first_folder_that_has_it(paper_results, paper_tables, kept, tmp_path):
    records, folder = kept
    plan = dataclasses.replace(read_plan(ROOT / "benchmarks" / "paper.toml"), replicas=4)
    store = Store.open(tmp_path / "newer", plan)
    newer = [
        dataclasses.replace(record, scores={**record.scores, "nll": 7.0})
        for record in study(datasets=("mnist",), sizes=(300,), methods=("dropout", "ising"))
    ]
    for record in newer:
        store.add(record)
    paper_results.keep(tmp_path / "newer", tmp_path / "kept newer")
    _, before = paper_results.read(folder)
    abouts, cells = paper_results.read_all([tmp_path / "kept newer", folder])
    assert set(cells) == set(before) | {record.cell for record in newer}
    for cell, own in cells.items():
        assert (set(own["nll"]) == {7.0}) is ((cell.dataset, cell.size, cell.method) in {
            ("mnist", 300, "dropout"), ("mnist", 300, "ising")
        })  # fmt: skip
    planned = 4 * len(read_plan(ROOT / "benchmarks" / "paper.toml").cells())
    assert paper_tables.where(abouts, cells).startswith(
        f"{sum(len(v['nll']) for v in cells.values())} of the grid's {planned} trainings, of "
    )
    taken = newer + [record for record in records if record.cell not in {own.cell for own in newer}]
    wanted = [found.text for found in verdict_list(taken) if found.b.startswith("paper") or "the paper" in found.text]
    assert paper_tables.spoken(abouts, cells).splitlines() == [f"- {line}" for line in wanted] and len(wanted) > 3


def three(dropout, dropconnect, ising, size=300, rate=0.1):
    """The cells of the three methods in one place of the grid."""
    found = {"dropout": dropout, "dropconnect": dropconnect, "ising": ising}
    return {Cell("mnist", size, method, rate): own for method, own in found.items()}


@pytest.fixture
def grid():
    """Three places. In the first all is better, NLL clearly so; in the second NLL is clearly worse than one rival's."""
    low, high = [1.0, 1.1, 1.2], [1.3, 1.35, 1.55]  # apart by 0.3, 0.25, 0.35: 0.3 -+ 0.12
    first = three(values([0.5, 0.52, 0.54], high, 0.04), values(0.3, high, 0.06), values(0.6, low, 0.03))
    # dropout, the better one, has 0.52 (0.02); ising is below it by less, and above the paper's 0.289
    second = three(
        values([0.5, 0.52, 0.54], low, 0.04),
        values(0.3, 2.0, 0.06),
        values([0.51, 0.5, 0.52], high, 0.01),
        rate=0.5,
    )
    # apart in ECE by 0.3, -0.1, 0.4: 0.2 -+ 0.66; in accuracy too far below, and below the paper's 0.849
    third = three(
        values(0.9, low, [1.0, 1.1, 1.2]), values(0.3, low, 9.0), values(0.8, 0.9, [1.3, 1.0, 1.6]),
        6000, 0.5,
    )  # fmt: skip
    return {**first, **second, **third}


def test_goals_are_counted_by_rate_means_and_intervals(paper_goals, grid):
    found = paper_goals.goals([], grid)
    assert found.splitlines()[:8] == [
        "| `ising` against dropout and dropconnect | at 0.1: of 1 | at 0.5: of 2 | at both: of 3 | "
        "at 0.5, from 5,000 images on: of 1 |",
        "| --- | --- | --- | --- | --- |",
        "| NLL lower than that of both | 1 (1, 0) | 1 (0, 1) | 2 (1, 1) | 1 (0, 0) |",
        "| ECE lower than that of both | 1 (0, 0) | 1 (0, 0) | 2 (0, 0) | 0 (0, 0) |",
        "| both NLL and ECE lower | 1 (0) | 0 (0) | 1 (0) | 0 (0) |",
        "| accuracy higher than that of both | 1 (0, 0) | 0 (0, 0) | 1 (0, 0) | 0 (0, 0) |",
        "| accuracy higher than the better one's, or within one of its standard deviations below | 1 | 1 | 2 | 0 |",
        "| Brier score lower than that of both | 1 (1, 0) | 1 (0, 1) | 2 (1, 1) | 1 (0, 0) |",
    ]
    assert "In 2 of 3 cells the accuracy of `ising` is above" in found
    assert "that of dropconnect in 1 and that of dropout in 3" in found
    assert "yet" in paper_goals.goals([], {cell: own for cell, own in grid.items() if cell.method != "ising"})


def test_cells_are_paired_by_their_seeds(paper_goals):
    one, other = Cell("mnist", 300, "ising", 0.1), Cell("mnist", 300, "dropout", 0.1)
    cells = {
        one: {"seed": [7, 8, 9, 10], "nll": [1.0, 2.0, None, 5.0]},
        other: {"seed": [9, 8, 7], "nll": [0.0, 2.5, 1.1]},  # in another order, one missing, one not defined
    }
    average, low, high = paper_goals.difference(cells, one, other, "nll")
    assert average == pytest.approx(-0.3) and low < -0.3 < high  # of -0.1 and -0.5
    assert paper_goals.standing(cells, one, other, "nll") == (True, False)
    assert paper_goals.standing(cells, other, one, "nll") == (False, False)


def test_rows_are_over_the_samples_that_all_their_cells_have(paper_goals):
    """Two here, by the seeds and not by their place."""
    cells = three(
        values([0.1, 0.5, 0.7], 1.0, 0.1), values(0.2, 1.0, 0.1),
        values([0.5, 0.7, 0.9], [1.0, 2.0, 9.0], 0.1, dropped=[0.2, 0.4, 0.9], probable_accuracy=[0.3, 0.5, 0.1]),
        size=6000,
    )  # fmt: skip
    dropout, dropconnect, ising = cells
    assert paper_goals.near(cells, ising, [dropout, dropconnect])  # 0.7 beside 0.433 (0.306)
    cells[ising]["seed"] = [3, 2, 4]
    own = paper_goals.paired(cells, dropout, dropconnect, ising)
    assert [own[cell]["seed"] for cell in own] == [[2, 3], [2, 3], [3, 2]]
    assert (own[ising]["nll"], own[dropout]["accuracy"]) == ([1.0, 2.0], [0.5, 0.7])
    assert paper_goals.near(cells, ising, [dropout, dropconnect])  # 0.6 beside 0.6
    cells[ising]["accuracy"] = [0.4, 0.4, 0.9]
    assert not paper_goals.near(cells, ising, [dropout, dropconnect])  # 0.4 beside 0.6 (0.141)
    row, _, said = paper_goals.zeros([], cells).splitlines()[2:]
    assert row == "| MNIST, 6,000 | 0.1 | 0.300 | 0.400 | 0.400 | 0.600 | 0.200 |"
    assert said.endswith(": 2 in each.")
    plan = read_plan(ROOT / "benchmarks" / "paper.toml").to_json()
    assert "| **0.600** / **1.000** / **0.100** |" in paper_goals.summary([{"plan": plan}], cells)
    cells[ising]["seed"] = [7, 8, 9]
    assert paper_goals.zeros([], cells) == "Nothing of `ising` has been trained yet.\n"


def test_how_many_samples_the_rows_are_over_is_said_where_they_are_not_ten(paper_goals):
    def rows(*numbers):
        return [{Cell("mnist", 300, "ising", 0.1): {"seed": list(range(number))}} for number in numbers]

    assert paper_goals.over(rows(10, 10)) == "" == paper_goals.over([])
    assert paper_goals.over(rows(5, 5)).endswith(" have: 5 in each.\n")
    assert paper_goals.over(rows(10, 5, 3, 10)).endswith(" have: 3 in 1 of 4 rows, 5 in 1, 10 in 2.\n")
    assert paper_goals.over(rows(5), counted=True).endswith(
        "5 in each. Counts are over those that the two compared have.\n"
    )


def test_an_entry_of_fewer_samples_than_others_is_marked(paper_tables):
    """At our number, where the paper's is beside it; not at all where all have as many."""
    cells = {
        cell: {**own, "overconfidence": [0.01] * 3}
        for cell, own in three(values(0.5, 1.0, 0.1), values(0.6, 1.0, 0.1), values(0.7, 1.0, 0.1)).items()
    }
    cells[Cell("mnist", 300, "ising", 0.1)] = first(cells[Cell("mnist", 300, "ising", 0.1)], 2)
    note = ["", "In brackets, the number of training samples where it is not 3."]
    assert paper_tables.accuracies([], cells).splitlines()[2:] == [
        "| MNIST, 300 | 0.1 | 0.500 / 0.489 | 0.600 / 0.549 | 0.700 (2) / 0.466 |", *note
    ]  # fmt: skip
    assert paper_tables.calibrations([], cells).splitlines()[2:] == [
        "| MNIST, 300 | 0.1 | 1.000 / 0.100 / +0.010 | 1.000 / 0.100 / +0.010 | 1.000 / 0.100 / +0.010 (2) |", *note
    ]  # fmt: skip
    alike = {cell: first(own, 2) for cell, own in cells.items()}
    assert not any("(" in table([], alike) for table in (paper_tables.accuracies, paper_tables.calibrations))


def test_differences_are_written_with_their_intervals(paper_goals, grid):
    rows = list(csv.DictReader(paper_goals.differences(grid).splitlines()))
    assert len(rows) == 3 * 3 * 2  # places, scores, rivals
    (row,) = (r for r in rows if (r["size"], r["rate"], r["score"], r["rival"]) == ("300", "0.1", "nll", "dropout"))
    assert float(row["mean"]) == pytest.approx(-0.3) and float(row["high"]) == pytest.approx(-0.3 + 0.12421, abs=1e-4)
    assert (row["better"], row["clear"]) == ("true", "true")


def test_the_summary_shows_middle_sizes_and_counts_all(paper_goals, grid):
    plan = read_plan(ROOT / "benchmarks" / "paper.toml").to_json()
    found = paper_goals.summary([{"plan": plan}], grid)
    rows = found.splitlines()[2:3]
    assert rows == [
        "| MNIST, 6,000 | 0.5 | **0.900** / 1.100 / **1.100** | 0.300 / 1.100 / 9.000 | 0.800 / **0.900** / 1.300 |"
    ]
    assert "In the 3 cells of dataset, size and rate trained so far, of 24," in found
    assert "the lowest NLL in 1 of 1 at 0.1 (1 clearly) and 1 of 2 at 0.5 (0 clearly), the highest accuracy in" in found
    assert "clearly better in 1 by NLL, in 0 by ECE and in 0 by accuracy. Clearly: the 95%" in found


def test_zeros_stand_beside_both_accuracies(paper_goals):
    ising = values(0.8, 1.0, 0.1, dropped=0.4, probable_accuracy=0.7)
    rivals = {
        Cell("mnist", 300, rival, 0.1): values(accuracy, 1.0, 0.1)
        for rival, accuracy in (("dropout", 0.5), ("dropconnect", 0.6))
    }
    row, _, said = paper_goals.zeros([], rivals | {Cell("mnist", 300, "ising", 0.5): ising}).splitlines()[2:]
    assert row == "| MNIST, 300 | 0.5 | 0.400 | 0.700 | 0.800 | 0.500 | 0.600 |"
    assert said == "Means are over the training samples that all in a row have: 3 in each."


def test_q_is_shown_from_the_patches_to_the_head(paper_tables):
    places = {"q of head": [0.9], "q of block 10": [0.3], "q of embed": [0.1], "q of block 2": [0.2, 0.4]}
    found = paper_tables.depth(
        [], {Cell("mnist", 6000, "ising", 0.5): places, Cell("mnist", 300, "ising", 0.5): places}
    )
    assert found.splitlines() == [
        "| place | ising 0.5 |", "| --- | --- |", "| embed | 0.100 |", "| block 2 | 0.300 |", "| block 10 | 0.300 |",
        "| head | 0.900 |",
    ]  # fmt: skip


def test_q_is_averaged_over_the_layers_of_a_block(paper_results):
    layers = {
        "embed": 0.1, "blocks.0.attn.qkv": 0.2, "blocks.0.mlp.fc1": 0.4, "blocks.10.mlp.fc1": 0.5, "head": 0.9,
    }  # fmt: skip
    found = paper_results.by_place({name: Layer(q, 0.0, ()) for name, q in layers.items()})
    assert dict(found) == {"embed": [0.1], "block 1": [0.2, 0.4], "block 11": [0.5], "head": [0.9]}


def test_skewness_of_a_histogram_is_that_of_its_values(paper_results):
    edges, counts = [0.0, 1.0, 2.0, 3.0, 4.0], [7, 3, 0, 2]
    values = np.repeat([0.5, 1.5, 2.5, 3.5], counts)
    assert paper_results.skewness(edges, counts) == pytest.approx(skew(values))
    assert paper_results.skewness(edges, [0, 0, 0, 0]) is None is paper_results.skewness(edges, [0, 5, 0, 0])


def test_the_figures_show_every_method_of_a_dataset(paper_results, kept, tmp_path):
    _, cells = paper_results.read(kept[1])
    paper_results.draw(cells, tmp_path / "figures")
    paper_results.draw_overview(cells, tmp_path / "overview.png")
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"metrics_mnist.svg", "metrics_cifar10.svg"}
    text = (tmp_path / "figures" / "metrics_cifar10.svg").read_text(encoding="utf-8")
    assert all(method in text for method in ("dropout", "dropconnect", "ising-paper", "CIFAR-10"))
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")


def test_rates_and_zeros_are_drawn_as_they_are(tmp_path):
    figures = script("paper_figures")
    rows = [
        {"data": data, "size": size, "tried": method, "rate": rate, "nll": size / 1000 + rate}
        for data, size in (("mnist", 300), ("mnist", 6000), ("cifar10", 250))
        for method in ("dropout", "ising") for rate in (0.2, 0.05)
    ]  # fmt: skip
    panels = [axes for axes in figures.rates(rows).axes if axes.lines]
    assert [axes.get_title() for axes in panels] == ["MNIST, 300", "CIFAR-10, 250", "MNIST, 6,000"]
    assert [line.get_xydata().tolist() for line in panels[2].lines] == [[[0.05, 6.05], [0.2, 6.2]]] * 2
    cells = {
        Cell("mnist", 6000, "ising", rate): values(0.9, 0.1, 0.0) | {"dropped": [rate] * 3, "probable_accuracy": found}
        for rate, found in ((0.9, [0.6, 0.7, 0.8]), (0.5, [0.8, 0.9, 1.0]))
    }
    cells |= {
        Cell("mnist", 6000, name, 0.1): values(at, 0.1, 0.0) for name, at in (("dropout", 0.8), ("dropconnect", 0.7))
    }
    (axes,) = figures.zeros(cells).axes
    assert axes.lines[1].get_ydata()[0] == pytest.approx(0.1)  # dropout
    assert axes.lines[2].get_xydata().tolist() == [[0.5, pytest.approx(0.2)], [0.9, pytest.approx(0.0)]]
    del cells[Cell("mnist", 6000, "dropout", 0.1)]
    with pytest.raises(ValueError, match="no ising beside dropout and dropconnect"):
        figures.zeros(cells)
    cells[Cell("mnist", 6000, "dropout", 0.1)] = values(0.8, 0.1, 0.0)
    figures.draw_rates(rows, tmp_path / "rates.png")
    figures.draw_zeros(cells, tmp_path / "zeros.png")
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in ("rates", "zeros"))


def test_a_page_without_marks_or_with_half_of_them_is_an_error(paper_results):
    with pytest.raises(ValueError, match="has no part to fill; put <!-- NAME:begin -->"):
        paper_results.filled("words", *FOLDERS)
    with pytest.raises(ValueError, match="must have <!-- goals:begin --> and <!-- goals:end --> once each"):
        paper_results.filled("<!-- goals:begin -->\n", *FOLDERS)
