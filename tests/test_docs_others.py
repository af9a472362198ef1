"""What the page of results says beyond the paper's two rates, and the plan of what that needs."""

import dataclasses
import json

import pytest

import isingformer as isf
from benchmark_scripts import ROOT, first, script, values
from isingformer.study import Store, read_plan
from isingformer.study.record import Cell
from isingformer.study.store import differences
from records import study

LOW, HIGH = [1.0, 1.1, 1.2], [1.3, 1.35, 1.55]  # apart by 0.3, 0.25, 0.35: 0.3 -+ 0.12
OVER_TWO = "Means are over the training samples that all in a row have: 2 in each."
COUNTS = " Counts are over those that the two compared have."


@pytest.fixture(scope="module")
def paper_others():
    return script("paper_others")


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    """A cell is whole with the three replicas that those below have."""
    monkeypatch.setattr(script("paper_goals"), "REPLICAS", 3)


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


def test_a_best_rate_at_the_edge_of_what_was_tried_is_said(paper_others):
    rows = [*TRIALS, trial("dropout", 0.05, 1.1), trial("ising", 0.5, 0.95), trial("dropconnect", 0.9, 0.7)]
    assert paper_others.at_edge(rows) == {
        ("mnist", 300, "dropconnect"): "dropconnect on MNIST, 300: 0.9 is the highest tried",
        ("mnist", 6000, "dropout"): "dropout on MNIST, 6,000: 0.3 is the only one tried",
    }
    assert "0.05 is the lowest" in paper_others.at_edge(TRIALS)["mnist", 300, "dropconnect"]


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
    assert lines[4:6] == [  # of the places that the table has
        "A better rate may lie beyond what was tried. 0.1 is the lowest tried, and the best of dropout on MNIST, 300. "
        "0.05 is the lowest tried, and the best of dropconnect on MNIST, 300. 0.3 is the highest tried, and the best "
        "of ising on MNIST, 300.", ""
    ]  # fmt: skip
    assert lines[-2:] == [
        "| dropout | 1 (1, 0) | 1 (1, 0) | 0 (0, 0) |",  # ECE apart by the same in all: nothing to be sure by
        "| dropconnect | 0 (0, 1) | 0 (0, 0) | 0 (0, 1) |",
    ]
    inside = [trial(method, rate, 2.0) for method in ("dropout", "dropconnect", "ising") for rate in (0.01, 0.9)]
    trials.write_text(json.dumps({"rows": TRIALS + inside}), encoding="utf-8")
    assert paper_others.best([], cells).splitlines() == lines[:4] + lines[6:]
    cells[Cell("mnist", 300, "dropout", 0.1)] = first(cells[Cell("mnist", 300, "dropout", 0.1)], 2)
    lines = paper_others.best([], cells).splitlines()
    assert lines[2:6] == [  # those of the two others over two as well
        "| MNIST, 300 | 0.1: 0.500 / 1.325 / 0.040 | 0.05: 0.695 / 1.100 / 0.041 | 0.3: 0.600 / 1.050 / 0.060 |",
        "", OVER_TWO + COUNTS, "",
    ]  # fmt: skip
    assert lines[-1] == "| dropconnect | 0 (0, 1) | 0 (0, 0) | 0 (0, 1) |"  # of the three that the two have
    words = paper_others.best_counts([], cells).splitlines()
    assert words[0].endswith("each over 2 to 3 training samples:") and words[2:] == lines[-4:]
    del cells[Cell("mnist", 300, "dropconnect", 0.05)]
    assert paper_others.best([], cells) == "Not trained yet.\n"
    assert paper_others.best_counts([], cells) == "No method has been trained at its best rate yet.\n"


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
    assert "In 0 of the 1 cells" in found and "Of the 1 other cells, 1 has both" in found
    assert "trained at the mean of `q`: its NLL is lower than that of both in 1 (1 clearly), and clearly" in found
    assert found.endswith("\n\n| data, images | delta | mean q | dropout, rate: NLL | dropconnect, rate: NLL "
                          "| `ising`, NLL |\n"
                          "| --- | --- | --- | --- | --- | --- |\n"
                          "| MNIST, 6,000 | 0.1 | 0.200 | 0.21: 1.400 | 0.21: 1.400 | 1.220 |\n")  # fmt: skip
    cells = mixed(0.2)
    cells[Cell("mnist", 6000, "dropout", 0.21)] = first(cells[Cell("mnist", 6000, "dropout", 0.21)], 2)
    assert paper_others.matched([], cells).splitlines()[-3:] == [
        "| MNIST, 6,000 | 0.1 | 0.195 | 0.21: 1.325 | 0.21: 1.325 | 1.160 |", "", OVER_TWO + COUNTS
    ]  # fmt: skip
    found = paper_others.matched([], mixed(0.115))  # delta, nearly: what the page has counted before
    assert "In 1 of the 1 cells" in found and "the one above: its NLL is lower than that of both in 0" in found
    assert "than that of either in 1. Of the 0 other cells, none have both" in found and "|" not in found
    found = paper_others.matched([], mixed(0.155))  # as far from the one as from the other
    assert "In 0 of the 1 cells" in found and "Of the 1 other cells, none have both" in found and "|" not in found
    own = {Cell("mnist", 6000, "ising", 0.21): values(0.5, LOW, 0.1, mean_q=0.21)}
    assert "of the 1 cells" in paper_others.matched([], mixed(0.2) | own)  # another delta than the paper's two


def peer(name, accuracy, seeds=(1, 2, 3), on="test"):
    """The records of a peer's trainings, one a seed."""
    about = {"data": "mnist", "size": 300, "peer": name, "on": on, "nll": 1.0, "ece": 0.1}
    return [about | {"seed": seed, "accuracy": accuracy + 0.01 * place} for place, seed in enumerate(seeds)]


@pytest.fixture
def peers(paper_others, trials, monkeypatch, tmp_path):
    """The lines of the table, of some records and beside some cells."""
    monkeypatch.setattr(paper_others, "PEERS", tmp_path / "peers.json")

    def call(records, cells):
        (tmp_path / "peers.json").write_text(json.dumps({"records": records}), encoding="utf-8")
        return paper_others.peers([], cells).splitlines()

    return call


def test_peers_stand_beside_the_best_delta(peers):
    cells = {
        Cell("mnist", 300, "ising", 0.3): values(0.6, LOW, 0.06),
        Cell("mnist", 300, "ising", 0.1): values(0, 9, 1),
    }
    ensemble, other = peer("ensemble of 5", 0.8), peer("ivon, lr 0.1", 0.1, on="validation")
    head = ["| data, images | `ising` | ensemble of 5 | ivon, lr 0.3 |", "| --- | --- | --- | --- |"]
    assert peers(other + ensemble + peer("ivon, lr 0.3", 0.7), cells) == [
        *head, "| MNIST, 300 | 0.3: 0.600 / 1.100 / 0.060 | 0.810 / 1.000 / 0.100 | 0.710 / 1.000 / 0.100 |"
    ]  # fmt: skip
    assert peers(ensemble + peer("ivon, lr 0.3", 0.7, seeds=(1, 2)), cells) == [
        *head, "| MNIST, 300 | 0.3: 0.600 / 1.050 / 0.060 | 0.805 / 1.000 / 0.100 | 0.705 / 1.000 / 0.100 |", "",
        OVER_TWO,
    ]  # fmt: skip
    assert peers(peer("ensemble of 5", 0.8, seeds=(7, 8, 9)), cells)[2] == (  # on other samples
        "| MNIST, 300 | – | 0.810 / 1.000 / 0.100 |"
    )


def test_a_peer_that_is_there_twice_is_an_error(peers):
    with pytest.raises(ValueError, match=r"'ensemble of 5' on MNIST, 300 images twice, .*; take out all but one"):
        peers(peer("ensemble of 5", 0.8) + peer("ensemble of 5", 0.9, seeds=(1, 2)), {})


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


def test_a_plan_grows_with_its_trials_and_a_study_of_it_goes_on(paper_rates, monkeypatch, tmp_path, capsys):
    """A best rate near a mean of q makes that one's training needless, but not once it is planned."""
    monkeypatch.setattr(paper_rates, "read_all", lambda folders: ([], mixed(0.22)))
    monkeypatch.setattr(paper_rates, "PAPER", ROOT / "benchmarks" / "paper.toml")
    target, trials = tmp_path / "rates.toml", tmp_path / "trials.json"
    plans = []
    for rows in ([], [trial("dropout", 0.21, 0.5, size=6000)], [trial("dropout", 0.3, 0.4, size=6000)]):
        trials.write_text(json.dumps({"rows": rows}), encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["paper_rates.py", "kept", str(target), "--trials", str(trials)])
        paper_rates.main()
        plans.append(read_plan(target))
    said = [f"dropout on MNIST, 6,000: {rate} is the only one tried: try rates beyond it" for rate in (0.21, 0.3)]
    assert capsys.readouterr().out.splitlines() == said
    rates = [
        {cell.rate for cell in plan.cells() if (cell.dataset, cell.size, cell.method) == ("mnist", 6000, "dropout")}
        for plan in plans
    ]
    assert rates == [{0.22}, {0.21, 0.22}, {0.21, 0.22, 0.3}]
    assert differences(plans[0], plans[1]) == differences(plans[1], plans[2]) == []
    assert differences(plans[1], plans[0]) != []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gone.json", None, "gone.json is not there"),
        ("other.json", '{"about": 3}', "other.json has no rows"),
        ("text.json", "rates", "text.json has no rows"),
        ("named.json", json.dumps({"rows": [trial("ising, floor 0", 0.1, 1.0)]}), "'ising, floor 0' among those of"),
    ],
)
def test_trials_that_are_none(paper_rates, monkeypatch, tmp_path, capsys, name, text, says):
    monkeypatch.setattr(paper_rates, "read_all", lambda folders: ([], {}))
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(
        "sys.argv", ["paper_rates.py", "kept", str(tmp_path / "plan.toml"), "--trials", str(tmp_path / name)]
    )
    with pytest.raises(SystemExit) as ended:
        paper_rates.main()
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and says in printed and printed.count("\n") == 1
    assert not (tmp_path / "plan.toml").exists()


def test_the_plan_that_is_there_is_what_the_script_makes(paper_rates, paper_others):
    file = ROOT / "benchmarks" / "rates.toml"
    plan, folders = read_plan(file), [ROOT / "results" / name for name in ("paper", "paper-first")]
    assert plan.name == "rates" and not {cell.rate for cell in plan.cells()} & {0.1, 0.5}
    made = paper_rates.plan_of(folders, paper_others.rows_of(paper_others.TRIALS), plan.cells())
    assert made == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["local", "control"])
def test_other_plans_train_on_the_samples_of_the_papers_grid(name):
    plan, paper = (read_plan(ROOT / "benchmarks" / f"{file}.toml") for file in (name, "paper"))
    assert plan.name == name and (plan.recipe, plan.samples) == (paper.recipe, paper.samples)
    assert (plan.replicas, plan.test_seed("mnist")) == (paper.replicas, paper.test_seed("mnist"))
    assert plan.seed_of("cifar10", 5000, 3) == paper.seed_of("cifar10", 5000, 3)
    assert {(c.dataset, c.size) for c in plan.cells()} <= {(c.dataset, c.size) for c in paper.cells()}


def test_the_control_has_the_noise_of_the_defaults_and_one_q_for_all():
    plan = read_plan(ROOT / "benchmarks" / "control.toml")
    for cell in plan.cells():
        ours, theirs = plan.method_for(cell).settled(cell.size), isf.Ising(delta=cell.rate).settled(cell.size)
        assert ours.node_rate == pytest.approx(theirs.node_rate, rel=0.01) and ours.contrast == 0
        assert (ours.kl_weight, ours.node_width, ours.ramp) == (theirs.kl_weight, theirs.node_width, theirs.ramp)


def by_networks_and_fresh_noise(paper_others, rival, nll, rate=0.1):
    """A cell of the paper's grid, and one that was scored by fresh noise too."""
    cell = Cell("mnist", 300, rival, rate)
    both = values(0.5, HIGH, 0.2, local_accuracy=[0.7] * 3, local_nll=nll, local_ece=[0.1] * 3)
    return {cell: values(0.4, 9.0, 0.9), paper_others.by_fresh_noise(cell): both}


def test_fresh_noise_stands_beside_networks(paper_others):
    """Of the same trainings: not those of the paper's grid, which stay what they are."""
    dropout = by_networks_and_fresh_noise(paper_others, "dropout", LOW)
    dropconnect = by_networks_and_fresh_noise(paper_others, "dropconnect", [2.0] * 3)
    ising = {Cell("mnist", 300, "ising", 0.1): values(0.6, [1.2, 1.25, 1.4], 0.05)}
    cells = dropout | dropconnect | ising
    lines = paper_others.fresh([], cells).splitlines()
    assert lines[0] == "| data, images | rate | dropout | dropconnect | ising |"
    assert lines[2] == (
        "| MNIST, 300 | 0.1 | 0.500 / 1.400 / 0.200 → 0.700 / 1.100 / 0.100 | "
        "0.500 / 1.400 / 0.200 → 0.700 / 2.000 / 0.100 | 0.600 / 1.283 / 0.050 |"
    )
    assert lines[4] == "| `ising` better than (clearly, clearly worse) | cells | accuracy | NLL | ECE |"
    assert lines[6:] == ["| dropout and dropconnect by fresh noise | 1 | 0 (0, 0) | 0 (0, 1) | 1 (0, 0) |"]
    grid = {cell: own for cell, own in cells.items() if "fresh" not in cell.method}
    assert paper_others.same_rate(cells) == paper_others.same_rate(grid) != []
    assert paper_others.fresh([], grid) == "Not trained yet.\n"


def test_fresh_noise_of_one_rival_is_compared_with_that_one(paper_others):
    cells = by_networks_and_fresh_noise(paper_others, "dropout", [1.3, 1.35, 9.0])
    cells |= by_networks_and_fresh_noise(paper_others, "dropout", LOW, rate=0.5)
    cells |= by_networks_and_fresh_noise(paper_others, "dropconnect", HIGH, rate=0.5)
    cells |= {Cell("mnist", 300, "ising", rate): values(0.6, LOW, 0.05) for rate in (0.1, 0.5)}
    (anew,) = (cell for cell in cells if cell.method == "dropout by fresh noise" and cell.rate == 0.1)
    cells[anew] = first(cells[anew], 2)
    lines = paper_others.fresh([], cells).splitlines()
    assert lines[2] == (
        "| MNIST, 300 | 0.1 | 0.500 / 1.325 / 0.200 → 0.700 / 1.325 / 0.100 | – | 0.600 / 1.050 / 0.050 |"
    )
    assert lines[5] == (
        "Means are over the training samples that all in a row have: 2 in 1 of 2 rows, 3 in 1." + COUNTS
    )
    assert lines[-2:] == [
        "| dropout by fresh noise | 1 | 0 (0, 0) | 1 (0, 0) | 1 (0, 0) |",  # NLL lower by 0.3 and 0.25: 0.275 -+ 0.32
        "| dropout and dropconnect by fresh noise | 1 | 0 (0, 0) | 0 (0, 0) | 1 (0, 0) |",
    ]


def test_the_control_stands_beside_ising_at_its_rate_and_at_its_mean_of_q(paper_others):
    cells = mixed(0.21) | {
        Cell("mnist", 6000, paper_others.CONTROL, 0.1): values(0.5, LOW, 0.1, mean_q=0.128),
        Cell("mnist", 6000, paper_others.CONTROL, 0.22): values(0.4, HIGH, 0.1, mean_q=0.22),
    }
    lines = paper_others.control([], cells).splitlines()
    assert lines[2] == (
        "| MNIST, 6,000 | 0.1 | 0.21: 0.500 / 1.220 / 0.100 | 0.13: 0.500 / 1.100 / 0.100 | "
        "0.22: 0.400 / 1.400 / 0.100 |"
    )
    assert lines[4] == "| of 1: `ising` better (clearly better, clearly worse) than | accuracy | NLL | ECE |"
    assert lines[6:] == ["| no evidence, the nearest mean q | 1 (0, 0) | 1 (1, 0) | 0 (0, 0) |"]
    at_q = Cell("mnist", 6000, paper_others.CONTROL, 0.22)
    lines = paper_others.control([], cells | {at_q: first(cells[at_q], 2)}).splitlines()
    assert lines[2:5] == [
        "| MNIST, 6,000 | 0.1 | 0.20: 0.500 / 1.160 / 0.100 | 0.13: 0.500 / 1.050 / 0.100 | "
        "0.22: 0.400 / 1.325 / 0.100 |", "", OVER_TWO + COUNTS
    ]  # fmt: skip
    del cells[Cell("mnist", 6000, paper_others.CONTROL, 0.1)]
    assert "| – | 0.22: 0.400 / 1.400" in paper_others.control([], cells)
    assert paper_others.control([], mixed(0.21)) == "Not trained yet.\n"


def test_a_study_without_evidence_is_no_other_ising(tmp_path):
    paper_results = script("paper_results")
    plan = dataclasses.replace(read_plan(ROOT / "benchmarks" / "control.toml"), replicas=4)
    store = Store.open(tmp_path / "study", plan)
    for record in study(datasets=("mnist",), sizes=(6000,), methods=("ising",)):
        store.add(record)
    paper_results.keep(tmp_path / "study", tmp_path / "kept")
    _, cells = paper_results.read(tmp_path / "kept")
    assert {cell.method for cell in cells} == {"ising without evidence"}


def test_a_study_with_fresh_noise_takes_the_place_of_no_cell(tmp_path):
    paper_results = script("paper_results")

    def kept(name, methods, replicas, **local):
        plan = dataclasses.replace(read_plan(ROOT / "benchmarks" / f"{name}.toml"), replicas=4)
        store = Store.open(tmp_path / name, plan)
        for record in study(datasets=("mnist",), sizes=(6000,), methods=methods, replicas=replicas):
            store.add(dataclasses.replace(record, scores={**record.scores, **local}))
        paper_results.keep(tmp_path / name, tmp_path / f"kept {name}")
        return tmp_path / f"kept {name}"

    paper = kept("paper", ("dropout", "dropconnect", "ising"), 4)
    local = kept("local", ("dropout",), 2, local_accuracy=0.5, local_nll=2.0, local_ece=0.1)
    _, grid = paper_results.read(paper)
    abouts, cells = paper_results.read_all([local, paper])
    assert {cell: own for cell, own in cells.items() if cell in grid} == grid == paper_results.of_grid(cells)
    others = set(cells) - set(grid)
    assert {(cell.method, cell.rate) for cell in others} == {("dropout by fresh noise", rate) for rate in (0.1, 0.5)}
    page = "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in ("made", "goals", "accuracy"))
    found = paper_results.filled(page, local, paper)
    assert found == paper_results.filled(page, paper) and "\n24 of the grid's " in found
    found = paper_results.fresh(abouts, cells)
    assert " 0.500 / 2.000 / 0.100 | – | " in found and "\n| dropout by fresh noise | 2 | " in found
