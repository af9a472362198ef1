"""`isingformer train` under torchrun: the command as it is, two processes, one run."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import isingformer as isf
from isingformer.cli import main
from isingformer.train.batches import Batches
from isingformer.train.q_history import moments
from pictures import corners

SIZE = [
    "--data", "digits", "--train-size", "300", "--validation", "60", "--width", "16", "--depth", "2", "--mlp", "16",
    "--heads", "2", "--batch", "15", "--augment", "crop", "--no-tensorboard",
]  # fmt: skip
pytestmark = pytest.mark.slow
LONGEST = 90


def torchrun(*arguments):
    """Two processes on a free port of loopback; a batch of 15 gives them 7 and 8 images."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*command, "isingformer", "train", *SIZE, *arguments], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process):
    try:
        output, complaints = process.communicate(timeout=LONGEST)
    finally:
        process.terminate()  # nothing where it has ended; torchrun takes its processes with it
        process.communicate()
    return process.returncode, output, complaints


def rows(folder):
    with open(folder / "history.csv", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_without_noise_two_processes_train_what_one_trains(tmp_path):
    """Nothing random is left but order and augmentation, which processes share; float32, 40 steps of AdamW."""
    noiseless = ["--method", "plain", "--epochs", "2", "--patience", "5", "--quiet"]
    code, output, complaints = ended(torchrun(*noiseless, "--out", str(tmp_path / "two")))
    assert code == 0, complaints
    assert output.count("trained ") == 1  # one of them prints
    assert main(["train", *SIZE, *noiseless, "--out", str(tmp_path / "one")]) == 0
    two, one = isf.load(tmp_path / "two").state_dict(), isf.load(tmp_path / "one").state_dict()
    for name in one.keys() - {
        name for name in one if name.endswith("qkv.bias")
    }:  # the keys' does nothing: all rounding
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-4, msg=name)
    for found, wanted in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        assert found == pytest.approx(wanted, rel=1e-3)
    about = json.loads((tmp_path / "two" / "run.json").read_text())
    assert (about["plan"]["processes"], about["plan"]["batch"]) == (2, 15)


def test_stopped_by_a_signal_it_goes_on_with_the_same_command(tmp_path):
    pieces = tmp_path / "pieces"
    method = ["--epochs", "4", "--set", "refresh=7", "--set", "warmup=3", "--set", "learn_delta=0.2"]
    begun = torchrun(*method, "--out", str(pieces), "--checkpoint-every", "3")
    until = time.monotonic() + LONGEST
    while not (pieces / "checkpoint.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.02)
    begun.send_signal(signal.SIGTERM)
    code, _, complaints = ended(begun)
    assert code != 0
    assert complaints.count("holds a checkpoint: give the same command again to go on") == 1
    code, output, complaints = ended(torchrun(*method, "--out", str(pieces), "--checkpoint-every", "3"))
    assert code == 0, complaints
    assert complaints.count("going on after step") == 1 and "trained ising" in output
    assert not (pieces / "checkpoint.safetensors").exists()
    assert [row["step"] for row in rows(pieces)] == [20, 40, 60, 80]
    found, last = isf.Run(pieces).q_history(), isf.attached_to(isf.load(pieces)).drop_probability()
    assert found.steps.tolist() == sorted(moments(80, 20))  # one process wrote them, each once
    assert int(isf.attached_to(isf.load(pieces)).rule.base.moves) == 32  # steps 8 to 39, each once
    assert found.mean[-1].tolist() == pytest.approx([float(q.mean()) for q in last.values()], abs=1e-6)


def test_a_folder_of_another_training_is_refused_by_all(tmp_path):
    (tmp_path / "checkpoint.safetensors").touch()
    code, output, complaints = ended(torchrun("--epochs", "1", "--out", str(tmp_path)))
    assert code != 0 and output == ""
    assert complaints.count("holds a saved model or a checkpoint without the run.json") == 1
    assert "the first process stopped with an error; see there" in complaints


def test_parts_make_up_the_batch_and_an_image_looks_the_same_whoever_has_it():
    images = corners().train
    settings = {"batch": 15, "mean": torch.zeros(1), "sd": torch.ones(1), "augment": ("flip", "crop"), "seed": 3}
    device = torch.device("cpu")
    whole = Batches(images, **settings, device=device)(4)
    parts = [Batches(images, **settings, device=device, share=(number, 4))(4) for number in range(4)]
    assert [len(y) for _, y in parts] == [3, 4, 4, 4]
    for joined, wanted in zip(map(torch.cat, zip(*parts, strict=True)), whole, strict=True):
        assert torch.equal(joined, wanted)


def test_a_batch_smaller_than_the_number_of_processes_is_refused():
    with pytest.raises(ValueError, match="a batch of 2 images cannot be shared by 3 processes"):
        Batches(
            corners().train, batch=2, mean=torch.zeros(1), sd=torch.ones(1), augment=(), seed=0,
            device=torch.device("cpu"), share=(0, 3),
        )  # fmt: skip
