"""Interrupted anywhere, a training ends as if it had not been."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

import isingformer as isf
from isingformer.train.checkpoint import read_checkpoint
from isingformer.train.folder import RunFolder
from isingformer.train.loop import adamw, decay_groups
from pictures import corners

RECIPE = isf.Recipe(
    epochs=5, batch=16, width=16, depth=2, heads=2, mlp=16, patch=4, validation=16, augment="flip,crop", patience=4
)
METHOD = isf.Ising(refresh=3, warmup=4)
LEARNED = isf.Ising(refresh=3, warmup=4, learn_delta=0.2)


def train(folder, recipe=RECIPE, method=METHOD, **more):
    return isf.train(corners(), method, recipe, out=folder, progress=False, tensorboard=False, **more)


def outcome(folder):
    """Everything a training leaves, but for how long it took."""
    model = isf.load(folder)
    state = {**model.state_dict(), **{f"method {k}": v for k, v in isf.attached_to(model).state_dict().items()}}
    about = json.loads((folder / "run.json").read_text())["finished"]
    q = folder / "q-history.safetensors"
    pictures = {k: v.tolist() for k, v in load_file(q).items()} if q.exists() else None
    tables = (folder / "history.csv").read_text(), pictures
    return {k: v.tolist() for k, v in state.items()}, {**about, "seconds": None}, *tables


class StopAfter:
    def __init__(self, steps):
        self.left = steps

    def __call__(self):
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize(
    "method",
    [METHOD, isf.Ising(refresh=4, curvature="mc-fisher"), isf.Ising.paper(0.1), isf.Dropout(p=0.1), LEARNED],
    ids=["fisher", "mc-fisher", "paper", "dropout", "learned"],
)
def test_stopped_at_every_few_steps_it_ends_bit_by_bit_the_same(tmp_path, method):
    train(tmp_path / "whole", method=method)
    for _ in range(40):
        run = train(tmp_path / "pieces", method=method, stop=StopAfter(3))
        if run.finished:
            break
    assert outcome(tmp_path / "pieces") == outcome(tmp_path / "whole")


def test_the_model_of_an_unfinished_run_is_refused(tmp_path):
    run = train(tmp_path / "a", stop=StopAfter(3))
    assert not run.finished and repr(run).endswith("ising on corners, unfinished>")
    with pytest.raises(ValueError, match=r"is not finished; give its training command again"):
        run.evaluate()


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    train(tmp_path / "a")
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "a").iterdir()}
    assert train(tmp_path / "a").finished
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "a").iterdir()} == before
    assert not (tmp_path / "a" / "checkpoint.safetensors").exists()


def test_another_training_is_not_overwritten_unless_asked(tmp_path):
    train(tmp_path / "a", stop=StopAfter(3))
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"\(delta 0.1 there, 0.2 here\); give another --out, or --overwrite"):
        train(tmp_path / "a", method=isf.Ising(refresh=3, warmup=4, delta=0.2))
    with pytest.raises(FileExistsError, match=r"epochs 5 there, 6 here"):
        train(tmp_path / "a", dataclasses.replace(RECIPE, epochs=6))
    other = isf.Dataset("corners", corners().train, corners(test=44).test, corners().classes)
    with pytest.raises(FileExistsError, match=r"holds another training \(data corners \w+ there, corners \w+ here\)"):
        isf.train(other, METHOD, RECIPE, out=tmp_path / "a", progress=False, tensorboard=False)
    run = train(tmp_path / "a", method=isf.Dropout(p=0.3), overwrite=True)
    assert run.finished and run.about["method"]["name"] == "dropout"
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"


def test_two_processes_do_not_train_into_one_folder(tmp_path):
    with (
        RunFolder(tmp_path / "a").locked(),
        pytest.raises(BlockingIOError, match=r"another process is training into .*; wait for it, or give another"),
    ):
        train(tmp_path / "a")


def test_a_damaged_checkpoint_is_named(tmp_path):
    train(tmp_path / "a", stop=StopAfter(3))
    file = tmp_path / "a" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"checkpoint.safetensors is damaged"):
        train(tmp_path / "a")


LONG = dataclasses.replace(RECIPE, epochs=60, patience=60)


def spawn(folder):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import torch; torch.set_num_threads(1)\n"
        "from pictures import corners\n"
        "import isingformer as isf\n"
        f"recipe = isf.Recipe(**{LONG.settings()!r})\n"
        "print('ready', flush=True)\n"
        f"isf.train(corners(), isf.Ising(refresh=3, warmup=4), recipe, out={str(folder)!r}, progress=False, "
        "tensorboard=False, checkpoint_every=1)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_killed_at_twenty_random_moments_no_checkpoint_is_lost(tmp_path):
    """A checkpoint is written after every step here, so that most moments lie within a write."""
    train(tmp_path / "whole", LONG)
    folder, steps = tmp_path / "killed", 0
    chance = random.Random(time.time_ns())
    for _ in range(20):
        process = spawn(folder)
        time.sleep(chance.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        done = steps_done(folder)
        assert done >= steps  # never further back than a checkpoint that was there before
        steps = done
    assert steps > 0
    assert train(folder, LONG).finished
    assert outcome(folder) == outcome(tmp_path / "whole")
    assert not list(folder.glob(".*.part"))


def steps_done(folder):
    """Steps in the checkpoint, read as a training reads it; 0 without one."""
    file = folder / "checkpoint.safetensors"
    if not file.exists():
        finished = (folder / "run.json").exists() and json.loads((folder / "run.json").read_text())["finished"]
        return 10**6 if finished else 0
    network = LONG.network(size=corners().size, channels=1, classes=4)
    handle = isf.attach(isf.ViT(**network), METHOD, examples=80, steps=300)
    return read_checkpoint(file, handle, adamw(*decay_groups(handle), 1e-3, 0.05))[0].step


def test_files_that_are_not_a_trainings_own_are_left_alone(tmp_path):
    mine = ("model-00001-of-00002.safetensors", "evaluation-2024.json", "posterior-x.safetensors", ".draft.part")
    (tmp_path / "a" / "tensorboard").mkdir(parents=True)
    for name in (*mine, "tensorboard/mine.txt"):
        (tmp_path / "a" / name).write_text("mine")
    train(tmp_path / "a", dataclasses.replace(RECIPE, epochs=1))
    train(tmp_path / "a", dataclasses.replace(RECIPE, epochs=2), overwrite=True)
    assert all((tmp_path / "a" / name).read_text() == "mine" for name in (*mine, "tensorboard/mine.txt"))


def test_a_saved_model_is_not_replaced_unless_asked(tmp_path):
    model = isf.ViT(**RECIPE.network(size=(8, 8), channels=1, classes=4))
    isf.attach(model, METHOD, examples=10, steps=10)
    isf.save(model, tmp_path / "a")
    with pytest.raises(FileExistsError, match=r"holds a saved model or a checkpoint without the run.json"):
        train(tmp_path / "a")
    isf.load(tmp_path / "a")
    assert train(tmp_path / "a", overwrite=True).finished


def test_a_checkpoint_left_beside_a_finished_run_goes(tmp_path):
    train(tmp_path / "a")
    (tmp_path / "a" / "checkpoint.safetensors").write_bytes(b"left")
    assert train(tmp_path / "a").finished
    assert not (tmp_path / "a" / "checkpoint.safetensors").exists()
