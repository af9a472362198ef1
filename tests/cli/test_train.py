"""`isingformer train`: what it prints, what it writes, when it begins anew."""

import csv
import fcntl
import json
import os
import pty
import re
import struct
import termios

import pytest
import torch

import isingformer as isf
from isingformer.cli import main
from isingformer.data import DataError

SAID = re.compile(
    r"epoch (\d+)/(\d+)  loss ([\d.]+)  acc ([\d.]+)  q ([\d.]+)  dropped ([\d.]+)%  val NLL ([\d.]+)  "
    r"val acc ([\d.]+)  \d+ s"
)


def rows_of(folder):
    with open(folder / "history.csv", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_the_defaults_reach_nine_in_ten_on_the_digits(done, tmp_path):
    """The project's promise for its first command, measured by its second."""
    done("train", "--data", "digits", "--out", tmp_path / "run")
    found = json.loads(done("evaluate", tmp_path / "run", "--json"))
    assert found["images"] == 360
    assert found["scores"]["accuracy"] >= 0.90


def test_it_trains_what_the_python_call_trains(done, weights, tiny, tmp_path):
    done("train", *tiny, "--delta", "0.2", "--seed", "3", "--no-tensorboard", "--out", tmp_path / "a")
    recipe = isf.Recipe(
        train_size=128, validation=64, batch=32, epochs=3, lr=1e-2, width=16, depth=1, heads=2, mlp=16, patch=4, seed=3
    )
    isf.train("digits", isf.Ising(delta=0.2), recipe, out=tmp_path / "b", progress=False, tensorboard=False)
    one, other = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_without_a_terminal_progress_is_a_line_an_epoch_on_stderr(command, tiny, tmp_path):
    found = command("train", *tiny, "--no-tensorboard", "--out", tmp_path / "run")
    lines = found.err.splitlines()
    rows = rows_of(tmp_path / "run")
    assert len(lines) == len(rows) == 3
    for line, row in zip(lines, rows, strict=True):
        epoch, epochs, loss, accuracy, q, dropped, nll, validation = map(float, SAID.fullmatch(line).groups())
        assert (epoch, epochs) == (row["epoch"], 3)
        assert (loss, accuracy, q) == pytest.approx((row["loss"], row["accuracy"], row["mean_q"]), abs=6e-4)
        assert dropped == pytest.approx(100 * row["dropped"], abs=6e-2)
        assert (nll, validation) == pytest.approx((row["validation_nll"], row["validation_accuracy"]), abs=6e-4)
    assert "epoch 1/3" not in found.out


def test_the_summary_says_what_was_trained_and_what_comes_next(done, tiny, tmp_path):
    folder = tmp_path / "a run"
    said = done("train", *tiny, "--no-tensorboard", "--quiet", "--out", folder)
    last = rows_of(folder)[-1]
    assert said.startswith("trained ising on 128 images of digits: 3 epochs in ")
    assert f"mean q {last['mean_q']:.3f}, {last['dropped']:.1%} of the weights" in said
    assert f"validation accuracy {last['validation_accuracy']:.3f}, NLL {last['validation_nll']:.3f}" in said
    assert said.endswith(f"next: isingformer evaluate '{folder}'\n")


def test_quiet_prints_no_progress_also_on_a_terminal(command, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # how rich is told that it has a terminal
    assert command("train", *tiny, "--no-tensorboard", "--quiet", "--out", tmp_path / "a").err == ""
    assert "training" in command("train", *tiny, "--no-tensorboard", "--out", tmp_path / "b").err


def test_quiet_also_reads_quietly(command, write_folder, tiny, tmp_path, monkeypatch, digits):
    images = digits.train.x[:20, 0].numpy()
    folder = write_folder(tmp_path / "photos", cat=images[:10], dog=images[10:])
    short = [*tiny, "--train-size", "12", "--validation", "2", "--batch", "4", "--no-tensorboard", "--data", folder]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert command("train", *short, "--quiet", "--out", tmp_path / "a").err == ""
    assert "photos" in command("train", *short, "--out", tmp_path / "b").err


def test_json_is_the_run_and_nothing_else(command, tiny, tmp_path):
    found = command("train", *tiny, "--no-tensorboard", "--json", "--out", tmp_path / "run")
    assert len(found.err.splitlines()) == 3  # progress stays on stderr
    about = json.loads(found.out)
    assert about.pop("run") == str(tmp_path / "run")
    assert about == json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["recipe"]["epochs"] == 3 and about["finished"]["steps"] == 12


def test_the_run_keeps_the_command_that_made_it(done, tiny, tmp_path):
    done("train", *tiny, "--no-tensorboard", "--quiet", "--out", tmp_path / "a run")
    about = json.loads((tmp_path / "a run" / "run.json").read_text())
    assert about["command"] == f"isingformer train {' '.join(tiny)} --no-tensorboard --quiet --out '{tmp_path}/a run'"


def test_without_out_the_folder_is_named_after_data_method_and_seed(done, tiny, tmp_path):
    done("train", *tiny, "--no-tensorboard", "--quiet", "--method", "dropout", "--seed", "2")
    assert (tmp_path / "runs" / "digits-dropout-2" / "isingformer.json").is_file()


def test_whoever_may_read_one_file_of_a_run_may_read_them_all(trained):
    modes = {path.name: path.stat().st_mode for path in trained.iterdir() if not path.is_dir()}
    assert len(set(modes.values())) == 1, modes


def test_the_same_command_again_leaves_a_finished_run_as_it_is(done, tiny, tmp_path):
    line = ["train", *tiny, "--no-tensorboard", "--quiet", "--out", tmp_path / "run"]
    first = done(*line)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    assert done(*line) == f"already {first}"
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before


def test_a_finished_run_without_the_figures_of_its_last_epoch_is_told_of_too(done, tiny, tmp_path):
    """The first runs kept them under another name."""
    line = ["train", *tiny, "--no-tensorboard", "--quiet", "--out", tmp_path / "run"]
    done(*line)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["finished"]["last"] = about["finished"].pop("figures")
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    first, last = done(*line).splitlines()
    assert first.startswith("already trained ising on 128 images") and last.startswith("next: isingformer evaluate")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--delta", "0.2"], "delta 0.1 there, 0.2 here"),
        (["--epochs", "4"], "epochs 3 there, 4 here"),
        (["--method", "dropout"], "method ising there, dropout here"),
        (["--resize", "4", "--patch", "2"], "data digits"),
    ],
)
def test_another_training_into_the_same_folder_is_refused(done, refused, tiny, tmp_path, more, said):
    line = ["train", *tiny, "--no-tensorboard", "--quiet", "--out", tmp_path / "run"]
    done(*line)
    refused(*line, *more, names=[tmp_path / "run", said, "--overwrite"])


def test_overwrite_begins_anew_and_removes_only_what_was_the_runs(done, weights, tiny, tmp_path):
    line = ["train", *tiny, "--quiet", "--out", tmp_path / "run"]
    done(*line)
    first = weights(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    done(*line, "--overwrite", "--no-tensorboard", "--seed", "1")
    second = weights(tmp_path / "run")  # which also sees that no file of the first model is left
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert not list((tmp_path / "run").rglob("events.*"))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["seed"] == 1


def test_overwrite_also_replaces_what_is_damaged(done, refused, tiny, tmp_path):
    line = ["train", *tiny, "--no-tensorboard", "--quiet", "--out", tmp_path / "run"]
    done(*line)
    (tmp_path / "run" / "run.json").write_text("{")
    refused(*line, names=[tmp_path / "run" / "run.json", "--overwrite"])
    done(*line, "--overwrite")
    assert isf.Run(tmp_path / "run").finished


def test_a_network_that_cannot_be_built_leaves_no_folder(refused, tiny, tmp_path):
    for wrong, said in ((["--heads", "3"], "heads 3"), (["--patch", "3"], "patch 3"), (["--width", "15"], "width 15")):
        refused("train", *tiny, *wrong, "--out", tmp_path / "run", names=[said])


def test_a_nan_ends_with_code_1_the_step_the_seed_and_advice(command, tiny, tmp_path):
    wild = ["--lr", "1e30", "--clip", "0", "--lr-warmup", "0", "--quiet", "--no-tensorboard"]
    found = command("train", *tiny, *wild, "--out", tmp_path / "run")
    assert found.code == 1 and found.out == ""
    assert re.fullmatch(
        r"isingformer train: error: the (?:loss|weights) turned NaN or infinite at step \d+ of 12 \(batch "
        r"seed \d+, learning rate .+\)\. Try a lower learning rate.*\n",
        found.err,
    )
    assert not {path.name for path in (tmp_path / "run").glob("*.safetensors")} - {"q-history.safetensors"}


def test_an_early_stop_says_which_epoch_was_kept(done, tiny, tmp_path):
    """At a learning rate of 0.3 the validation NLL of some epoch is worse than that of the one before.

    The ramp of q takes 12 of the 40 epochs, and no epoch before its end is kept.
    """
    line = ["train", *tiny, "--epochs", "40", "--lr", "0.3", "--patience", "1", "--quiet", "--no-tensorboard"]
    said = done(*line, "--out", tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    best = min((row for row in rows if row["epoch"] >= 12), key=lambda row: row["validation_nll"])
    assert len(rows) < 40
    assert f"{len(rows)} epochs in" in said and f"stopped early, kept epoch {best['epoch']:.0f}\n" in said


def test_images_of_all_sizes_train_once_resized(done, refused, write_folder, tiny, tmp_path):
    generator = torch.Generator().manual_seed(0)

    def photos(*shape):
        return list(torch.randint(0, 256, (6, *shape), generator=generator, dtype=torch.uint8).numpy())

    folder = write_folder(tmp_path / "photos", cat=photos(20, 30), dog=photos(9, 9, 3))
    line = ["train", *tiny, "--train-size", "6", "--validation", "2", "--quiet", "--no-tensorboard", "--data", folder]
    refused(*line, "--out", tmp_path / "run", names=["--resize", folder])
    done(*line, "--resize", "8", "--out", tmp_path / "run")
    said = done("predict", tmp_path / "run", folder, "--csv", "--samples", "2")  # resized like the training images
    assert len(said.splitlines()) == 1 + 12


def scalars(folder):
    """Every TensorBoard series in a folder as [(step, value), ...]."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check_scalars(folder):
    """They are the history, each epoch once."""
    found, rows = scalars(folder / "tensorboard"), rows_of(folder)
    assert found.keys() == rows[0].keys() - {"epoch", "step"}
    for tag, series in found.items():
        assert [step for step, _ in series] == [row["epoch"] for row in rows]
        assert [value for _, value in series] == pytest.approx([row[tag] for row in rows])  # stored in float32


def test_tensorboard_shows_the_history(done, tiny, tmp_path):
    done("train", *tiny, "--quiet", "--out", tmp_path / "run")
    check_scalars(tmp_path / "run")


def test_tensorboard_shows_an_epoch_once_after_an_interruption(done, command, tiny, tmp_path, monkeypatch):
    """The process dies when the second epoch is in TensorBoard and not yet in the checkpoint, so it comes again."""
    from isingformer.train import loop

    line = ["train", *tiny, "--quiet", "--out", tmp_path / "run"]
    whole, written = loop.write_checkpoint, []

    def dies(file, progress, *more):
        written.append(progress.step)
        if len(written) == 2:
            raise KeyboardInterrupt
        whole(file, progress, *more)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_checkpoint", dies)
        assert command(*line).code == 130
    assert [step for step, _ in scalars(tmp_path / "run" / "tensorboard")["loss"]] == [1, 2]
    done(*line)
    check_scalars(tmp_path / "run")


def test_no_tensorboard_writes_none(done, tiny, tmp_path):
    done("train", *tiny, "--quiet", "--no-tensorboard", "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_it_trains_without_tensorboard_installed(done, tiny, tmp_path, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "tensorboard" else found(name, *more)
    )
    done("train", *tiny, "--quiet", "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_on_a_terminal_a_bar_shows_loss_accuracy_q_and_dropped(start, tiny, tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    process = start(
        "train", *tiny, "--no-tensorboard", "--json", "--out", tmp_path / "run", stderr=theirs,
        env={"TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while piece := read(ours):
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    assert json.loads(process.stdout.read())["finished"]["steps"] == 12
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    last = rows_of(tmp_path / "run")[-1]
    assert re.search(
        rf"training ━+ 12/12 loss {last['loss']:.3f}  acc {last['accuracy']:.3f}  q {last['mean_q']:.3f}  "
        rf"dropped {last['dropped']:.1%}  val NLL {last['validation_nll']:.3f}",
        plain,
    ), plain


def read(handle):
    """What there is; nothing once the other end is closed, which Linux calls an error."""
    try:
        return os.read(handle, 4096)
    except OSError:
        return b""


def test_debug_shows_where_an_error_came_from(tiny, monkeypatch):
    monkeypatch.setenv("ISINGFORMER_DEBUG", "1")
    with pytest.raises(DataError, match="nowhere"):
        main(["train", *tiny, "--data", "nowhere"])


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("ising-paper", isf.Ising.paper(0.1)),
        ("ising-paper-obd", isf.Ising.paper_obd(0.1)),
        ("dropconnect", isf.DropConnect(p=0.1)),
        ("dropout", isf.Dropout(p=0.1)),
        ("plain", isf.Plain()),
    ],
)
def test_every_method_trains_from_the_command_line(done, tiny, tmp_path, name, method):
    folder = tmp_path / "run"
    done("train", *tiny, "--epochs", "1", "--quiet", "--no-tensorboard", "--method", name, "--out", folder)
    assert isf.attached_to(isf.load(folder)).method == method
