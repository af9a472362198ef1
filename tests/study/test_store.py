"""A study's folder: what goes in comes out."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isingformer.study.record import Cell
from isingformer.study.store import Job, Store, differences
from records import made_up
from small_study import CELL, VALUES, grid, planned


@pytest.fixture
def plan():
    return planned()


@pytest.fixture
def store(tmp_path, plan):
    return Store.open(tmp_path / "study", plan)


def test_records_come_back_sorted_and_unchanged(store, plan):
    every = {training: made_up(*training) for training in reversed(grid(plan))}
    assert all(store.add(record) for record in every.values())
    found = Store(store.path).records()
    assert {(record.cell, record.replica): record for record in found} == every
    assert found == sorted(found, key=lambda record: (record.cell, record.replica))
    assert store.plan == plan


def test_a_record_is_never_overwritten(store):
    first = made_up(CELL, 1)
    assert store.add(first) is True
    assert store.add(dataclasses.replace(first, train_nll=9.0)) is False
    assert store.records() == [first] and store.done(CELL) == {1}


def test_what_is_done_and_what_is_to_do(store, plan):
    total = len(grid(plan))
    assert store.progress(plan) == (0, total) and [job.cell for job in store.jobs(plan)] == plan.cells()
    for replica in (0, 2):
        store.add(made_up(CELL, replica))
    assert store.done(CELL) == {0, 2} and store.done(Cell("digits", 50, "ising", 0.5)) == set()
    assert Job(CELL, (1,)) in store.jobs(plan) and store.progress(plan) == (2, total)
    store.add(made_up(CELL, 1))
    assert CELL not in [job.cell for job in store.jobs(plan)]
    store.add(made_up(Cell("other", 50, "ising", 0.1), 0))
    assert store.progress(plan) == (3, total)  # a record that is not of this plan does not count


@settings(deadline=None, max_examples=25)
@given(data=st.data(), n=st.integers(1, 40))
def test_shards_stay_what_they_are_while_records_come_in(tmp_path_factory, data, n):
    plan = planned()
    store = Store.open(tmp_path_factory.mktemp("study"), plan)
    finished = data.draw(st.sets(st.sampled_from(grid(plan)), max_size=8))
    for training in finished:
        store._file(*training).touch()
    parts = [
        {(job.cell, replica) for job in store.jobs(plan, (i, n)) for replica in job.replicas} for i in range(1, n + 1)
    ]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert set().union(*parts) == set(grid(plan)) - finished
    counts = [store.progress(plan, (i, n)) for i in range(1, n + 1)]
    assert tuple(map(sum, zip(*counts, strict=True))) == (len(finished), len(grid(plan)))


def test_a_study_goes_on_where_it_was(store, plan):
    store.add(made_up(CELL, 0))
    before = store.about.read_bytes()
    again = Store.open(store.path, planned(name="other name"))
    assert again.done(CELL) == {0} and again.records() == store.records()
    Store.open(store.path, plan)
    assert store.about.read_bytes() == before


digits, leaves = VALUES["datasets"]
GROWN = {
    "replicas": {"replicas": 5},
    "rates": {"rates": [0.3, 0.1, 0.5]},
    "methods": {"methods": ["ising", "ising-paper", "dropout", "plain"]},
    "sizes": {"datasets": [{**digits, "sizes": [10, 50, 100]}, leaves]},
    "datasets": {"datasets": [{"source": "mnist", "sizes": [9]}, leaves, digits]},
    "moved data": {"datasets": [digits, {**leaves, "source": "/elsewhere/leaves.npz"}]},
}
OTHER = {
    "fewer replicas": ({"replicas": 2}, "replicas 3 there, 2 here"),
    "fewer rates": ({"rates": [0.5]}, "rate 0.1 there, not here"),
    "fewer methods": ({"methods": ["plain", "ising"]}, "method dropout there, not here"),
    "fewer sizes": ({"datasets": [{**digits, "sizes": [50]}, leaves]}, "size 100 of digits there, not here"),
    "fewer datasets": ({"datasets": [digits]}, "dataset leaves there, not here"),
    "seed": ({"seed": 1}, "seed 0 there, 1 here"),
    "samples": ({"samples": 10}, "samples 50 there, 10 here"),
    "recipe": ({"recipe": {"epochs": 2, "clip": 0.5}}, "clip 1.0 there, 0.5 here"),
    "settings": ({"settings": {"ising": {"coupling": 2.0}}}, "coupling of ising 1.0 there, 2.0 here"),
    "test images": (
        {"datasets": [{**digits, "test_images": None}, leaves]},
        "test_images of digits 30 there, None here",
    ),
    "image size": ({"datasets": [{**digits, "resize": 16}, leaves]}, "resize of digits None there, 16 here"),
    "source": (
        {"datasets": [digits, {**leaves, "source": "mnist", "label": "leaves"}]},
        "source of leaves .../leaves.npz there, mnist here",
    ),
}


@pytest.mark.parametrize("case", GROWN)
def test_a_study_may_grow_and_then_not_shrink(case, store, plan):
    store.add(made_up(CELL, 0))
    larger = planned(**GROWN[case])
    assert set(grid(plan)) <= set(grid(larger))
    for cell, replica in grid(plan):  # the rule allows only what leaves these as they were
        assert larger.recipe_for(cell, replica) == plan.recipe_for(cell, replica)
        assert larger.method_for(cell) == plan.method_for(cell)
    grown = Store.open(store.path, larger)
    assert grown.plan == larger and grown.progress(larger) == (1, len(grid(larger)))
    if case != "moved data":
        with pytest.raises(FileExistsError, match="holds another study"):
            Store.open(store.path, plan)


@pytest.mark.parametrize("case", OTHER)
def test_another_study_is_refused_in_one_line_that_says_why(case, store, plan):
    changes, said = OTHER[case]
    before = store.about.read_bytes()
    with pytest.raises(FileExistsError) as caught:
        Store.open(store.path, planned(**changes))
    assert f"{store.path} holds another study ({said}); give another --out" in str(caught.value)
    assert "\n" not in str(caught.value) and store.about.read_bytes() == before
    assert differences(plan, plan) == []


def test_a_study_of_some_cells_grows_to_the_whole_grid_and_not_back(tmp_path, plan):
    some = planned(only=[{"sizes": [50], "methods": ["ising"]}])
    assert 0 < len(some.cells()) < len(plan.cells())
    store = Store.open(tmp_path / "study", some)
    Store.open(store.path, plan)
    (gone, *_) = (cell for cell in plan.cells() if cell not in some.cells())
    with pytest.raises(FileExistsError, match=f"cell {gone.name} there, not here and [0-9]+ more cells"):
        Store.open(store.path, some)


def test_records_without_a_plan_are_not_adopted(store, plan):
    store.add(made_up(CELL, 0))
    store.about.unlink()
    with pytest.raises(FileExistsError, match=r"records without the plan\.json"):
        Store.open(store.path, plan)
    with pytest.raises(FileNotFoundError, match="no study"):
        _ = Store(store.path).plan


def test_a_folder_that_is_no_study_has_no_records(tmp_path):
    assert Store(tmp_path / "none").records() == [] and not (tmp_path / "none").exists()


BAD_PLANS = ("", "{", "[]", "{}", '{"format": 1}', '{"format": 2}', '{"format": 1, "plan": {}}', "[" * 100_000)


@pytest.mark.parametrize("text", BAD_PLANS, ids=range(len(BAD_PLANS)))
def test_a_damaged_plan_is_one_line(text, store, plan):
    store.about.write_text(text)
    with pytest.raises(ValueError) as caught:
        Store.open(store.path, plan)
    assert str(store.about) in str(caught.value) and "\n" not in str(caught.value)


def damaged(values):
    whole = json.dumps(values)
    return {
        "cut": whole[: len(whole) // 2], "empty": "", "no table": "[1]", "no keys": '{"format": 1}',
        "key": json.dumps({**values, "more": 1}), "format": json.dumps({**values, "format": 9}),
        "cell": json.dumps({**values, "cell": 3}), "replica": json.dumps({**values, "replica": 2}),
        "bins": json.dumps({**values, "entropies": []}), "layers": json.dumps({**values, "layers": {"head": 1}}),
    }  # fmt: skip


@pytest.mark.parametrize("case", damaged({}))
def test_a_damaged_record_is_named_and_may_be_deleted(case, store, plan):
    store.add(made_up(CELL, 0))
    store.add(made_up(CELL, 1))
    file = store.path / "records" / f"{CELL.name}_r1.json"
    file.write_text(damaged(json.loads(file.read_text()))[case])
    with pytest.raises(ValueError) as caught:
        store.records()
    assert str(file) in str(caught.value) and "delete it" in str(caught.value) and "\n" not in str(caught.value)
    file.unlink()
    assert store.records() == [made_up(CELL, 0)] and Job(CELL, (1, 2)) in store.jobs(plan)


def test_other_files_among_the_records_are_left_alone(store):
    for name in (".DS_Store", "._a.json", "notes.txt", f".{CELL.name}_r1.json.123.part"):
        (store.path / "records" / name).write_text("x")
    assert store.records() == [] and store.done(CELL) == set()


def test_data_must_stay_the_same(store):
    store.check_data("digits", "abc")
    Store(store.path).check_data("digits", "abc")
    with pytest.raises(ValueError, match=r"'digits' have changed since .*checksum abd, then abc.*another --out"):
        store.check_data("digits", "abd")
    store.check_data("leaves", "abd")


def test_only_one_has_a_claim(store):
    with store.claim("a") as first, Store(store.path).claim("a") as second, store.claim("b") as other:
        assert (first, second, other) == (True, False, True)
    with pytest.raises(KeyError), store.claim("a") as mine:
        raise KeyError(mine)
    with store.claim("a") as mine:
        assert mine
    with pytest.raises(ValueError, match=r"letters, digits.*got '\.\./a'"), store.claim("../a"):
        pass


def test_a_system_without_locks_still_stores(store, plan, monkeypatch):
    monkeypatch.setattr("isingformer._locks.fcntl", None)
    part = store.path / "records" / f".{CELL.name}_r1.json.123.part"
    part.touch()
    store = Store.open(store.path, plan)
    assert part.exists()  # it may be somebody's
    with store.claim("a") as one, store.claim("a") as two:
        assert one and two
    assert store.add(made_up(CELL, 0)) and not store.add(made_up(CELL, 0))


def test_a_store_that_cannot_be_written_is_one_line(tmp_path, plan):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="is a file; choose another folder") as caught:
        Store.open(tmp_path / "file" / "study", plan)
    assert "\n" not in str(caught.value)
