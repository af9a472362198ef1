"""A study's grid: what the shipped plans say, what is refused and how, and which seeds are shared."""

import itertools
import json
import shutil

import pytest
from hypothesis import given, settings

from isingformer.methods import METHODS, Ising, Plain, named_method
from isingformer.study.plan import NOT_IN_RECIPE, SHIPPED, Plan, StudyData, read_plan
from isingformer.study.record import Cell
from plans import plans

SMALL = """
methods = ["plain", "ising"]
rates = [0.1, 0.5]
replicas = 2

[[datasets]]
source = "digits"
sizes = [50, 100]

[recipe]
epochs = 3
"""


def written(folder, text):
    file = folder / "own.toml"
    file.write_text(text)
    return file


def test_the_papers_protocol():
    plan = read_plan("paper")
    assert plan.trainings == 720 and plan.replicas == 10 and plan.samples == 50
    assert set(plan.methods) == {"dropout", "dropconnect", "ising"} and plan.rates == (0.1, 0.5)
    grey, colour = ((300, 6000, 18000), 6000), ((250, 5000, 15000), 5000)
    assert {data.source: (data.sizes, data.test_images) for data in plan.datasets} == {
        "mnist": grey, "fashion-mnist": grey, "cifar10": colour, "cifar100": colour,
    }  # fmt: skip
    recipe = plan.recipe_for(plan.cells()[0], 0)
    assert recipe.epochs == 50
    for side, channels in ((28, 1), (32, 3)):
        network = recipe.network(size=(side, side), channels=channels, classes=10)
        assert {name: network[name] for name in ("patch", "width", "depth", "heads", "mlp")} == {
            "patch": 4, "width": 128, "depth": 6, "heads": 4, "mlp": 256,
        }  # fmt: skip


def test_the_quick_study_has_every_method():
    plan = read_plan("quick")
    assert plan.methods == ("plain", "dropout", "dropconnect", "ising", "ising-paper", "ising-paper-obd")
    assert plan.labels == ("digits",) and len(plan.datasets[0].sizes) == 2
    assert len(plan.cells()) == 2 * (1 + 5 * 2) and plan.replicas == 3


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_plan_is_a_file_like_any_other(name, tmp_path):
    from isingformer import study

    (source,) = (path for path in study.__path__)
    copy = shutil.copy(f"{source}/plans/{name}.toml", tmp_path / "own.toml")
    assert read_plan(copy) == read_plan(name)


def test_cells_stand_in_the_order_of_the_plan(tmp_path):
    assert read_plan(written(tmp_path, SMALL)).cells() == [
        Cell("digits", size, method, rate)
        for size in (50, 100)
        for method, rate in (("plain", None), ("ising", 0.1), ("ising", 0.5))
    ]


def test_what_a_file_may_leave_out(tmp_path):
    plan = read_plan(written(tmp_path, SMALL))
    assert (plan.name, plan.seed, plan.samples) == ("own", 0, 50)
    data = plan.datasets[0]
    assert (data.label, data.test_images, data.resize) == ("digits", None, None)


def test_paths_start_from_the_file_and_labels_from_their_last_part(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    (tmp_path / "leaves.npz").touch()
    text = SMALL.replace('"digits"', '"{}"')
    for source, label in (("images", "images"), ("leaves.npz", "leaves"), (str(tmp_path / "leaves.npz"), "leaves")):
        monkeypatch.chdir("/")
        (data,) = read_plan(written(tmp_path, text.format(source))).datasets
        assert data.label == label and data.source == str(tmp_path / source)
    (data,) = read_plan(written(tmp_path, text.format("CIFAR-10"))).datasets
    assert (data.source, data.label) == ("cifar10", "cifar10")


def test_a_cell_gets_its_method_and_recipe(tmp_path):
    text = SMALL + '\n[settings.ising]\ncoupling = 0.5\nevidence = "none"\n'
    plan = read_plan(written(tmp_path, text))
    assert plan.method_for(Cell("digits", 50, "ising", 0.5)) == Ising(delta=0.5, coupling=0.5, evidence="none")
    assert plan.method_for(Cell("digits", 50, "plain", None)) == Plain()
    recipe = plan.recipe_for(Cell("digits", 50, "ising", 0.5), 1)
    assert (recipe.epochs, recipe.train_size, recipe.validation) == (3, 50, 0)
    assert recipe.seed == recipe.seed_of_sample == plan.seed_of("digits", 50, 1)


@pytest.mark.parametrize("method", METHODS)
def test_settings_filled_with_defaults_are_those_of_the_method(method):
    rate = None if method == "plain" else 0.3
    plan = Plan(
        name="a", datasets=(StudyData(source="digits", sizes=(5,)),), methods=(method,), replicas=1,
        rates=() if rate is None else (0.2, rate),
    )  # fmt: skip
    again = Plan.from_json(plan.to_json())
    assert again.method_for(Cell("digits", 5, method, rate)) == named_method(method, rate)


@settings(deadline=None, max_examples=50)
@given(plans())
def test_a_plan_goes_to_json_and_back(plan):
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan and again.cells() == plan.cells()


@settings(deadline=None, max_examples=50)
@given(plans())
def test_seeds_are_shared_by_methods_and_rates_alone(plan):
    by_sample = {}
    for cell, replica in itertools.product(plan.cells(), range(plan.replicas)):
        recipe = plan.recipe_for(cell, replica)
        assert recipe.seed == recipe.seed_of_sample
        by_sample.setdefault((cell.dataset, cell.size, replica), set()).add(recipe.seed)
    assert all(len(seeds) == 1 for seeds in by_sample.values())
    every = [*(seed for seeds in by_sample.values() for seed in seeds), *map(plan.test_seed, plan.labels)]
    assert len(every) == len(set(every))


def test_another_seed_changes_every_seed_and_the_grid_changes_none():
    values = read_plan("quick").to_json()
    one, other = (Plan.from_json({**values, "seed": seed}) for seed in (0, 1))
    assert not {one.seed_of("digits", 100, r) for r in range(9)} & {other.seed_of("digits", 100, r) for r in range(9)}
    assert one.test_seed("digits") != other.test_seed("digits")
    larger = Plan.from_json({**values, "replicas": 99, "rates": [0.3], "samples": 1, "recipe": {}})
    assert larger.seed_of("digits", 100, 2) == one.seed_of("digits", 100, 2)


def test_some_of_the_grid_alone(tmp_path):
    only = '\n[[only]]\nsizes = [50]\nmethods = ["ising"]\nrates = [0.5]\n\n[[only]]\nsizes = [100]\nrates = [0.1]\n'
    whole, some = (read_plan(written(tmp_path, SMALL + more)) for more in ("", only))
    assert some.cells() == [
        Cell("digits", 50, "ising", 0.5), Cell("digits", 100, "plain", None), Cell("digits", 100, "ising", 0.1)
    ]  # fmt: skip
    assert some.trainings == 6 and some.to_json()["only"][1] == {"sizes": [100], "rates": [0.1]}
    assert "only" not in whole.to_json()  # as plans were before
    assert whole.seed_of("digits", 50, 1) == some.seed_of("digits", 50, 1)


REFUSED = {
    "no such part": ("replicas = 2", "replicas = 2\nonly = [{methods = ['dropout']}]", ["'dropout'", "plain, ising"]),
    "an empty part": ("replicas = 2", "replicas = 2\nonly = [{sizes = []}]", ["sizes", "nothing in it"]),
    "a part that is no table": ("replicas = 2", "replicas = 2\nonly = [3]", ["only", "[[only]]", "3"]),
    "unknown key of a part": ("replicas = 2", "replicas = 2\nonly = [{size = [50]}]", ["'size'", "[[only]]", "sizes"]),
    "no list in a part": ("replicas = 2", "replicas = 2\nonly = [{sizes = 50}]", ["sizes", "a list", "50"]),
    "a strange part": ("replicas = 2", "replicas = 2\nonly = [{sizes = [[50]]}]", ["size", "[50]", "50, 100"]),
    "unknown key": ("replicas = 2", "replica = 2", ["'replica'", "replicas", "samples"]),
    "unknown key of a dataset": ("sizes", "size", ["'size'", "[[datasets]]", "sizes"]),
    "unknown key of the recipe": ("epochs", "epoch", ["'epoch'", "[recipe]", "epochs"]),
    "missing": ("replicas = 2", "", ["no replicas"]),
    "missing sizes": ("sizes = [50, 100]", "", ["[[datasets]]", "no sizes"]),
    "type": ("replicas = 2", 'replicas = "2"', ["replicas", "whole number", "'2'"]),
    "true is no number": ("replicas = 2", "replicas = true", ["replicas", "True"]),
    "none": ("replicas = 2", "replicas = 0", ["replicas", "from 1", "got 0"]),
    "far too many": ("replicas = 2", "replicas = 1_000_000_000", ["10,000"]),
    "a list wanted": ('["plain", "ising"]', '"ising"', ["methods", "a list", "'ising'"]),
    "sizes": ("[50, 100]", "[50, 0]", ["sizes of digits", "got 0"]),
    "dataset": ('"digits"', '"digitz"', ["'digitz'", "digits, mnist", "folder of the plan"]),
    "no dataset": ('"digits"', '""', ["''", "digits, mnist"]),
    "a dataset of another type": ('"digits"', "3", ["source", "got 3"]),
    "no table": ("[[datasets]]", "[datasets]", ["[[datasets]] for each"]),
    "method": ('"ising"', '"izing"', ["'izing'", "ising-paper-obd"]),
    "empty methods": ('["plain", "ising"]', "[]", ["methods", "empty"]),
    "empty rates": ("[0.1, 0.5]", "[]", ["rates", "empty"]),
    "no rates": ("rates = [0.1, 0.5]", "", ["rates", "empty"]),
    "rates of plain": ('["plain", "ising"]', '["plain"]', ["rates", "plain has none"]),
    "empty sizes": ("[50, 100]", "[]", ["sizes of digits", "empty"]),
    "a size twice": ("[50, 100]", "[50, 50]", ["sizes of digits", "50 twice"]),
    "a method twice": ('"plain", "ising"', '"ising", "ising"', ["'ising' twice"]),
    "a rate twice": ("[0.1, 0.5]", "[0.1, 0.10]", ["0.1 twice"]),
    "rate": ("[0.1, 0.5]", "[0.1, 1.0]", ["delta", "(0, 1)", "1.0"]),
    "rate of no number": ("[0.1, 0.5]", "[0.1, nan]", ["rates", "nan"]),
    "rate beyond floats": ("[0.1, 0.5]", f"[1{'0' * 400}]", ["rates", "0 to 1"]),
    "rate with too many digits": ("0.5]", "0.1234567]", ["six digits", "0.1234567"]),
    "recipe": ("epochs = 3", "epochs = 0", ["epochs", "from 1", "got 0"]),
    "recipe beyond floats": ("epochs = 3", f"lr = 1{'0' * 400}", ["float"]),
    "recipe of another type": ("[recipe]\nepochs = 3", "[[recipe]]\nepochs = 3", ["[recipe]"]),
    "settings": ("epochs = 3", "[settings.ising]\ncouplings = 1", ["'couplings'", "coupling"]),
    "settings of the wrong type": ("epochs = 3", "[settings.ising]\ncoupling = 'x'", ["coupling='x'"]),
    "settings without a method": ("epochs = 3", "[settings.dropout]\nslab = 1", ["'dropout'", "plain, ising"]),
    "settings that are no table": ("epochs = 3", "[settings]\nising = 1", ["settings of ising", "got 1"]),
    "the rate as a setting": ("epochs = 3", "[settings.ising]\ndelta = 0.2", ["delta", "given twice"]),
    "label": ("sizes", 'label = "a/b"\nsizes', ["label", "'a/b'", "names of files"]),
    "brackets within brackets": ("[0.1, 0.5]", "[" * 2000 + "]" * 2000, ["brackets", "correct it"]),
    "TOML": ("replicas = 2", "replicas 2", ["no TOML", "line 4"]),
}  # fmt: skip


def refused(source, *said):
    with pytest.raises(ValueError) as caught:
        read_plan(source)
    line = str(caught.value)
    assert "\n" not in line and all(part in line for part in said), line


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_in_one_line_with_the_file(case, tmp_path):
    old, new, said = REFUSED[case]
    assert SMALL.count(old) == 1
    file = written(tmp_path, SMALL.replace(old, new))
    refused(file, str(file), *said)


@pytest.mark.parametrize("name", NOT_IN_RECIPE)
def test_what_a_study_chooses_itself_is_not_in_its_recipe(name, tmp_path):
    refused(written(tmp_path, f"{SMALL}{name} = 1\n"), "[recipe]", f"{name} = 1", NOT_IN_RECIPE[name])


def test_labels_that_a_file_system_may_confuse(tmp_path):
    text = SMALL.replace("[recipe]", '[[datasets]]\nsource = "mnist"\nlabel = "Digits"\nsizes = [1]\n[recipe]')
    refused(written(tmp_path, text), "labels", "'digits' twice")


def test_a_file_that_cannot_be_read(tmp_path):
    refused("fast", "'fast'", "No such file", "quick, paper", ".toml")
    refused(tmp_path, str(tmp_path), "directory")
    refused("~nobody-of-that-name/a.toml", "No such file")
    refused("a\0b", "null")
    (tmp_path / "own.toml").write_bytes(b"name = '\xff'")
    refused(tmp_path / "own.toml", "UTF-8")


def test_a_dataset_that_the_plan_does_not_have():
    with pytest.raises(ValueError, match="'quick' has no dataset 'mnist'; it has digits"):
        read_plan("quick").dataset("mnist")


def test_the_cost_follows_size_and_epochs_and_test_images():
    plan = read_plan("paper")
    small, large = (plan.cost(Cell("mnist", size, "ising", 0.1)) for size in (300, 18000))
    assert large - small == 3 * 50 * 17700 and small == 3 * 50 * 300 + 50 * 6000
