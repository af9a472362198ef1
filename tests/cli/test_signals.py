"""Interruptions: Ctrl-C, SIGTERM, SIGKILL, a full disk. The same command goes on, to the same end bit by bit."""

import contextlib
import csv
import json
import os
import resource
import signal

import pytest
import torch
from safetensors import safe_open

import isingformer as isf
from isingformer.cli.train import until_signalled
from isingformer.train import training

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def ends_like(one, other, weights):
    """Whether two runs are the same, but for the time they took and the command."""
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (one / "history.csv").read_text() == (other / "history.csv").read_text()
    ends = [json.loads((run / "run.json").read_text())["finished"] for run in (one, other)]
    return {**ends[0], "seconds": 0} == {**ends[1], "seconds": 0}


@pytest.fixture(scope="module")
def line(tiny):
    """A training of 240 steps: seconds, so that a signal finds it at work."""
    return ["train", *tiny, "--epochs", "60", "--no-tensorboard"]


def test_the_same_command_goes_on_after_every_signal(start, done, refused, weights, files, line, tmp_path):
    """Ctrl-C, then SIGTERM, then SIGKILL, each in its own process in the middle of the training; then to the end."""
    line, run = [*line, "--out", tmp_path / "run"], tmp_path / "run"
    epochs = 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = start(*line)
        said = process.stderr.readline()  # its first epoch is over
        if epochs:
            assert said.startswith("going on after step ")
            said = process.stderr.readline()
        first = int(said.removeprefix("epoch ").split("/")[0])
        assert first == epochs + 1 if number != signal.SIGKILL else first >= epochs  # it went on where the last ended
        process.send_signal(number)
        out, err = process.communicate()
        assert out == ""
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == CODES[number], err
            assert "stopping after this step ...\n" in err
            assert err.endswith(f"stopped; {run} holds a checkpoint: give the same command again to go on\n")
            assert "Traceback" not in err
        assert (run / "checkpoint.safetensors").is_file()
        assert json.loads((run / "run.json").read_text())["finished"] is None
        with open(run / "history.csv", newline="") as file:
            epochs = len(list(csv.DictReader(file)))
        assert 0 < epochs < 60
    refused("predict", run, *files, names=[run, "not finished", "training command again"])
    refused("evaluate", run, names=[run, "not finished"])
    done(*line, "--quiet")
    done(*line, "--quiet", "--out", tmp_path / "whole")
    assert ends_like(run, tmp_path / "whole", weights)
    assert {path.name for path in run.glob(".*")} == {".lock"}


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("step", [1, 6, 8])
def test_a_signal_within_any_step_of_an_epoch(command, done, weights, tiny, at_step, tmp_path, number, step):
    """The first step, the middle of an epoch, the end of one."""
    line = ["train", *tiny, "--quiet", "--no-tensorboard"]
    done(*line, "--out", tmp_path / "whole")
    at_step(step, lambda: os.kill(os.getpid(), number))
    found = command(*line, "--out", tmp_path / "run")
    assert (found.code, found.out) == (CODES[number], "")
    assert found.err.splitlines()[0] == "stopping after this step ..."
    done(*line, "--out", tmp_path / "run")
    assert ends_like(tmp_path / "run", tmp_path / "whole", weights)


def test_a_signal_in_the_last_step_comes_too_late(command, tiny, at_step, tmp_path):
    at_step(12, lambda: os.kill(os.getpid(), signal.SIGINT))
    found = command("train", *tiny, "--quiet", "--no-tensorboard", "--out", tmp_path / "run")
    assert found.code == 0 and "trained ising" in found.out
    assert isf.Run(tmp_path / "run").finished


def test_a_second_signal_does_not_wait_for_the_step(capfd):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), until_signalled() as received:
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal was ignored")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_signal_ends_a_training_at_once_and_it_still_goes_on(command, done, weights, tiny, at_step, tmp_path):
    line = ["train", *tiny, "--quiet", "--no-tensorboard"]
    done(*line, "--out", tmp_path / "whole")

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    at_step(6, twice)
    found = command(*line, "--out", tmp_path / "run")
    assert found.code == 130
    assert found.err.splitlines() == ["stopping after this step ...", "isingformer train: interrupted"]
    done(*line, "--out", tmp_path / "run")
    assert ends_like(tmp_path / "run", tmp_path / "whole", weights)


def test_checkpoints_may_come_more_often_than_once_an_epoch(command, tiny, at_step, tmp_path):
    """A process that dies in the third step has lost everything, or with a checkpoint every step that step alone."""

    def die():
        raise KeyboardInterrupt

    for more, kept in (((), False), (("--checkpoint-every", "1"), True)):
        at_step(3, die)
        run = tmp_path / f"run{len(more)}"
        assert command("train", *tiny, "--quiet", "--no-tensorboard", *more, "--out", run).code == 130
        assert (run / "checkpoint.safetensors").exists() == kept
    with safe_open(run / "checkpoint.safetensors", framework="pt") as stored:
        assert json.loads(stored.metadata()["progress"])["step"] == 2


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_ctrl_c_in_the_other_commands_is_a_line_and_code_130(command, trained, files, monkeypatch, name):
    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(isf.Run, "predict", interrupted)
    found = command(name, trained, *(files if name == "predict" else []))
    assert (found.code, found.out, found.err) == (130, "", f"isingformer {name}: interrupted\n")


def test_what_a_killed_process_was_writing_is_removed_by_the_next(done, tiny, tmp_path):
    line = ["train", *tiny, "--quiet", "--no-tensorboard", "--out", tmp_path / "run"]
    (tmp_path / "run").mkdir()
    for name in (".checkpoint.safetensors.1234.part", ".tmpAb3xYz", ".run.json.99.part"):
        (tmp_path / "run" / name).write_bytes(b"half")
    done(*line)
    assert {path.name for path in (tmp_path / "run").glob(".*")} == {".lock"}


def limited(most):
    """To be run in a new process: no file may grow beyond this, as on a disk that is full."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return limit


def fails_to_write(process, file):
    out, err = process.communicate()
    assert process.returncode == 2 and out == ""
    (message,) = [line for line in err.splitlines() if not line.startswith(("epoch ", "going on "))]
    assert message.startswith(f"isingformer train: error: cannot write {file}")
    assert "File too large" in message and "nothing of it was left behind" in message


def test_a_disk_full_at_a_checkpoint(start, command, done, weights, tiny, at_step, tmp_path):
    line, run = ["train", *tiny, "--no-tensorboard"], tmp_path / "run"
    done(*line, "--quiet", "--out", tmp_path / "whole")
    at_step(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert command(*line, "--quiet", "--out", run).code == 130
    before = (run / "checkpoint.safetensors").read_bytes()
    room = len(before) - 1000  # for run.json and history.csv, and for most of a checkpoint
    fails_to_write(start(*line, "--out", run, preexec_fn=limited(room)), run / "checkpoint.safetensors")
    assert (run / "checkpoint.safetensors").read_bytes() == before
    assert {path.name for path in run.iterdir()} == {
        ".lock", "run.json", "history.csv", "q-history.safetensors", "checkpoint.safetensors",
    }  # fmt: skip
    done(*line, "--quiet", "--out", run)
    assert ends_like(run, tmp_path / "whole", weights)


def test_a_disk_full_when_the_model_is_saved(start, command, done, weights, tiny, tmp_path, monkeypatch):
    line, run = ["train", *tiny, "--no-tensorboard"], tmp_path / "run"
    done(*line, "--quiet", "--out", tmp_path / "whole")
    model, posterior = (next((tmp_path / "whole").glob(f"{kind}-*")).stat().st_size for kind in ("model", "posterior"))
    assert model < posterior

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "save", interrupted)
        assert command(*line, "--quiet", "--out", run).code == 130  # every step is done, nothing is saved
    before = (run / "checkpoint.safetensors").read_bytes()
    room = (model + posterior) // 2
    fails_to_write(start(*line, "--out", run, preexec_fn=limited(room)), run / "posterior-")
    assert (run / "checkpoint.safetensors").read_bytes() == before
    assert {path.name for path in run.iterdir()} == {
        ".lock", "run.json", "history.csv", "q-history.safetensors", "checkpoint.safetensors",
    }  # fmt: skip
    done(*line, "--quiet", "--out", run)
    assert ends_like(run, tmp_path / "whole", weights)


def test_two_trainings_into_one_folder_at_once_are_refused(refused, tiny, tmp_path):
    from isingformer.train.folder import RunFolder

    with contextlib.ExitStack() as held:
        held.enter_context(RunFolder(tmp_path / "run").locked())
        refused("train", *tiny, "--out", tmp_path / "run", names=[tmp_path / "run", "another process is training"])
