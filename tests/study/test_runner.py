"""A study from its plan to its records: in one process, in several, killed and taken up again."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from isingformer.data import load_data, subset
from isingformer.study import Cell, Plan, Shard, Store, StudyData, run_study
from isingformer.study import worker as worker_module
from isingformer.study.scoring import commit
from isingformer.study.stack import Stack

RECIPE = {"epochs": 1, "batch": 16, "width": 8, "depth": 1, "heads": 2, "mlp": 8, "lr": 1e-2}


def small(**changes):
    settings = {
        "name": "small", "datasets": (StudyData(source="digits", sizes=(20, 40), test_images=30),),
        "methods": ("plain", "dropconnect", "ising"), "rates": (0.1, 0.5), "replicas": 2, "samples": 3,
        "recipe": RECIPE,
    }  # fmt: skip
    return Plan(**{**settings, **changes})


def contents(folder):
    """The records but for how long they took and when."""
    found = {}
    for record in Store(folder).records():
        plain = {**record.to_json(), "seconds": None, "made": None}
        found[f"{record.cell.name}_{record.replica}"] = plain
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run in this process."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = run_study(small(), folder, jobs=1, device="cpu", progress=False)
    assert (outcome.done, outcome.total, outcome.failed) == (20, 20, [])
    return folder


def test_passes_with_fresh_noise_are_scored_beside_the_networks(whole, tmp_path):
    """Where the plan asks for them, and nothing else of a record moves."""
    names = ("accuracy", "nll", "ece")
    run_study(small(score_local=True, replicas=1), tmp_path, jobs=1, device="cpu", progress=False)
    before = {(r.cell, r.replica): r for r in Store(whole).records()}
    for record in Store(tmp_path).records():
        twin = before[record.cell, record.replica]
        fresh = {name: record.scores.pop(f"local_{name}") for name in names}
        assert record.scores == twin.scores
        drawn = {name: record.scores[name] for name in names}
        assert (fresh == drawn) is (record.cell.method == "plain")  # whose passes have no noise


def test_there_is_a_record_for_every_replica_of_every_cell(whole):
    plan, records = small(), Store(whole).records()
    assert {(r.cell, r.replica) for r in records} == {(cell, k) for cell in plan.cells() for k in range(2)}
    for record in records:
        assert record.seed == plan.seed_of("digits", record.cell.size, record.replica)
        assert record.samples == 3 and record.test_images == 30 and record.classes == 10
        assert sum(record.entropies.right) + sum(record.entropies.wrong) == 30
        assert sum(record.entropies.right) == round(30 * record.scores["accuracy"])
        assert sum(row["count"] for row in record.scores["reliability"]) == 30
        assert record.steps == record.cell.size // 16
        assert record.made["torch"] == torch.__version__


def test_what_is_recorded_is_what_the_stack_predicts(whole):
    plan, cell = small(), Cell("digits", 40, "ising", 0.1)
    data = load_data("digits")
    stack = Stack(data, plan.method_for(cell), [plan.recipe_for(cell, 1)], device=torch.device("cpu"))
    stack.train()
    images = subset(data.test, 30, seed=plan.test_seed("digits"))
    p = stack.predict(images, 3)
    (record,) = (r for r in Store(whole).records() if r.cell == cell and r.replica == 1)
    nll = -p.probs[0].double().gather(1, images.y[:, None]).log().mean()
    assert record.scores["nll"] == pytest.approx(float(nll), rel=1e-3)
    q = torch.cat([q.flatten() for q in stack.method.drop_probability().values()])
    assert record.mean_q == pytest.approx(float(q.mean()), rel=1e-3)
    assert record.layers["head"].mean_q == pytest.approx(
        float(stack.method.drop_probability()["head"].mean()), rel=1e-3
    )
    assert record.train_nll == pytest.approx(float(stack.nll[0]), rel=1e-3)


def test_called_again_it_does_nothing_and_an_extended_plan_only_the_rest(whole, tmp_path):
    before = {file.name: file.stat().st_mtime_ns for file in (whole / "records").iterdir()}
    assert run_study(small(), whole, jobs=1, progress=False).done == 20
    assert {file.name: file.stat().st_mtime_ns for file in (whole / "records").iterdir()} == before
    run_study(small(replicas=1), tmp_path, jobs=1, device="cpu", progress=False)
    first = contents(tmp_path)
    run_study(small(), tmp_path, jobs=1, device="cpu", progress=False)
    assert first.items() <= contents(tmp_path).items() and len(contents(tmp_path)) == 20


def test_shards_together_are_the_whole(whole, tmp_path):
    for i in (1, 2, 3):
        run_study(small(), tmp_path, shard=Shard(i, 3), jobs=1, device="cpu", progress=False)
    close(contents(tmp_path), contents(whole))


def close(one, other):
    """The same records, but for the last digits: a stack of another size sums in another order."""
    assert one.keys() == other.keys()
    for name in one:
        for score in ("accuracy", "nll", "ece"):
            assert one[name]["scores"][score] == pytest.approx(other[name]["scores"][score], rel=1e-3, abs=0.04)
        assert one[name]["seed"] == other[name]["seed"] and one[name]["layers"].keys() == other[name]["layers"].keys()


def test_several_processes_leave_the_same_records(whole, tmp_path):
    outcome = run_study(small(), tmp_path, jobs=2, device="cpu", progress=False)
    assert outcome.done == 20 and contents(tmp_path) == contents(whole)


def test_out_of_memory_halves_the_stack_and_goes_on(whole, tmp_path, monkeypatch):
    sizes = []

    class Tight(Stack):
        def __init__(self, dataset, method, recipes, **more):
            sizes.append(len(recipes))
            if len(recipes) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            super().__init__(dataset, method, recipes, **more)

    monkeypatch.setattr(worker_module, "Stack", Tight)
    outcome = run_study(small(), tmp_path, jobs=1, device="cpu", progress=False)
    assert outcome.done == 20 and sizes == [2, *[1] * 20]
    assert "out of memory with 2 replicas; going on with stacks of 1" in outcome.said[0]
    close(contents(tmp_path), contents(whole))


def test_the_stack_is_as_large_as_the_memory_allows_and_says_so(tmp_path, monkeypatch):
    sizes = []

    class Counted(Stack):
        def __init__(self, dataset, method, recipes, **more):
            sizes.append(len(recipes))
            super().__init__(dataset, method, recipes, **more)

    plan = small(methods=("plain",), rates=(), replicas=5, datasets=(StudyData(source="digits", sizes=(20,)),))
    recipe, data = plan.recipe_for(plan.cells()[0], 0), load_data("digits")
    need = worker_module.replica_bytes(recipe, 20, data, data.test, plan.samples)
    monkeypatch.setattr(worker_module, "Stack", Counted)
    monkeypatch.setattr(worker_module, "free_bytes", lambda device: int(2.5 * need / worker_module.SHARE_OF_MEMORY))
    outcome = run_study(plan, tmp_path, jobs=1, device="cpu", progress=False)
    assert sizes == [2, 2, 1] and outcome.said == ["digits_20_plain: 5 replicas in stacks of 2, to fit the memory"]


def test_a_training_that_diverges_is_said_and_the_others_are_kept(tmp_path):
    plan = small(methods=("plain", "ising"), rates=(0.1,), recipe={**RECIPE, "epochs": 4, "lr": 1e30, "lr_warmup": 0.0})
    outcome = run_study(plan, tmp_path, jobs=1, device="cpu", progress=False)
    assert outcome.done == 0 and len(outcome.failed) == 8
    assert outcome.failed[0] == "digits_20_plain replica 0: its loss turned NaN or infinite"


def test_a_failed_training_is_not_tried_again_because_others_succeed(tmp_path, monkeypatch):
    class Unlucky(Stack):
        @property
        def diverged(self):
            return [0] if len(self) == 2 else []

    monkeypatch.setattr(worker_module, "Stack", Unlucky)
    plan = small(methods=("plain",), rates=())
    outcome = run_study(plan, tmp_path, jobs=1, device="cpu", progress=False)
    assert (outcome.done, outcome.total) == (2, 4)
    assert [line.split(":")[0] for line in outcome.failed] == ["digits_20_plain replica 0", "digits_40_plain replica 0"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_data_that_changed_are_refused(whole, tmp_path, jobs):
    """In the same words, whichever process finds it."""
    import shutil

    shutil.copytree(whole, tmp_path / "study")
    (next((tmp_path / "study" / "records").glob("*ising*"))).unlink()
    (tmp_path / "study" / "data" / "digits.json").write_text(json.dumps({"fingerprint": "other"}))
    with pytest.raises(ValueError, match="the data 'digits' have changed since"):
        run_study(small(), tmp_path / "study", jobs=jobs, device="cpu", progress=False)


@pytest.fixture
def twelve(tmp_path):
    """Images of 12 pixels a side, of three classes."""
    y, draw = torch.arange(60).numpy() % 3, torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60, 12, 12), dtype=torch.uint8, generator=draw).numpy()
    np.savez(tmp_path / "twelve.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return str(tmp_path / "twelve.npz")


@pytest.mark.parametrize(
    ("second", "changes", "says"),
    [
        ({}, {"recipe": {**RECIPE, "patch": 8}}, "twelve with plain: image_size 12 is not a multiple of patch 8"),
        ({"sizes": (20, 41)}, {}, "twelve has 40 training images, too few for its size 41"),
        ({"test_images": 21}, {}, "twelve has 20 test images, too few for test_images = 21; lower it"),
        (
            {"sizes": (30, 9)}, {"settings": {"ising": {"learn_delta": 0.2}}},
            "twelve with ising: learn_delta=0.2 of 9 training images holds out fewer than two",
        ),
        ({"resize": 7}, {}, "twelve with plain: images are 7 x 7, which only patches of 7 divide"),
    ],
    ids=["patch", "size", "test images", "images held out", "resize"],
)  # fmt: skip
def test_what_cannot_be_trained_is_said_before_anything_is(tmp_path, twelve, second, changes, says):
    """In the second of two datasets, of which the first could be; and the plan, corrected, takes the same folder."""
    good = StudyData(source=twelve, sizes=(20,))
    plan = small(datasets=(small().datasets[0], dataclasses.replace(good, **second)), **changes)
    for jobs in (1, 2):
        with pytest.raises(ValueError) as caught:
            run_study(plan, tmp_path / "study", jobs=jobs, device="cpu", progress=False)
        assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    assert not (tmp_path / "study").exists()
    only = Shard(datasets=("digits",))  # the part of it that can be trained, is
    assert run_study(plan, tmp_path / "study", shard=only, jobs=1, device="cpu", progress=False).done == 20


SCRIPT = """
import sys, json
from isingformer.study import Plan, run_study
if __name__ == "__main__":
    plan = Plan.from_json(json.loads(sys.argv[2]))
    print("ready", flush=True)
    run_study(plan, sys.argv[1], jobs=int(sys.argv[3]), device="cpu", progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_at_random_moments_the_finished_store_is_the_same(whole, tmp_path, jobs):
    chance = random.Random(time.time_ns())
    script = tmp_path / "go.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "study"), json.dumps(small().to_json()), str(jobs)]
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
        process.stdout.readline()
        time.sleep(chance.uniform(0.05, 1.5 if jobs == 1 else 5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if (tmp_path / "study" / "plan.json").exists():
            contents(tmp_path / "study")  # all that is there can be read
    outcome = run_study(small(), tmp_path / "study", jobs=1, device="cpu", progress=False)
    while outcome.done < 20:  # a worker whose parent was killed may still be at a cell
        time.sleep(0.2)
        outcome = run_study(small(), tmp_path / "study", jobs=1, device="cpu", progress=False)
    close(contents(tmp_path / "study"), contents(whole))
    assert not list((tmp_path / "study").rglob("*.part"))


def test_replaying_a_plan_gives_the_same_numbers(whole, tmp_path):
    run_study(small(), tmp_path, jobs=1, device="cpu", progress=False)
    assert contents(tmp_path) == contents(whole)


def test_jobs_must_be_a_number(tmp_path):
    with pytest.raises(ValueError, match="jobs must be a number of processes from 1 on, got 0"):
        run_study(dataclasses.replace(small(), name="other"), tmp_path, jobs=0)


def test_the_commit_is_told_where_this_is_a_checkout(monkeypatch):
    monkeypatch.delenv("ISINGFORMER_COMMIT", raising=False)
    here = os.path.dirname(worker_module.__file__)
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    assert commit() is None if asked.returncode else commit().startswith(asked.stdout.strip()[:7])
    monkeypatch.setenv("ISINGFORMER_COMMIT", "abc")
    assert commit() == "abc"
