"""Wrong input: one line that names it, exit code 2, no traceback, and nothing left behind. See `refused`."""

import os
import shutil

import numpy as np
import pytest
import torch

from isingformer.cli import COMMANDS, in_one_line
from isingformer.cli.common import print_json

WRONG = [
    (["--epochs", "0"], "epochs must be a whole number from 1 on, got 0"),
    (["--epochs", "ten"], "--epochs: invalid int value: 'ten'"),
    (["--lr", "nan"], "lr must be a finite number above 0, got nan"),
    (["--clip", "-1"], "clip must be a finite number above 0"),
    (["--validation", "1.5"], "validation must be a number of images, or a share below 1, got 1.5"),
    (["--validation", "some"], "--validation: invalid number value: 'some'"),
    (["--validation", "9999"], "1,437 images are too few"),
    (["--train-size", "9999"], "1,437 images are too few"),
    (["--batch", "0"], "batch must be a whole number from 1 on, got 0"),
    (["--augment", "spin"], "augment must be 'flip', 'crop', 'flip,crop' or '', got 'spin'"),
    (["--precision", "int8"], "precision must be 'auto', 'float32' or 'bfloat16', got 'int8'"),
    (["--pool", "max"], "pool must be 'class' or 'mean', got 'max'"),
    (["--likelihood", "binary"], "'binary' is for two classes, the data have 10"),
    (["--patience", "2", "--validation", "0"], "validation must be above 0 where patience is given"),
    (["--seed", "-1"], "seed must be a whole number from 0 on, below 2^62, got -1"),
    (["--seed", str(2**70)], "seed must be a whole number from 0 on, below 2^62, got 1180591620717411303424"),
    (["--checkpoint-every", "0"], "--checkpoint-every: expected a whole number from 1 on, got '0'"),
    (["--q-frames", "1"], "q_frames must be 2 or more pictures, or 0 for none, got 1"),
    (["--resize", "0"], "--resize: expected a whole number from 1 on, got '0'"),
    (["--device", "abacus"], "device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got 'abacus'"),
    (["--method", "magic"], "--method: invalid choice: 'magic'"),
    (["--delta", "2"], "delta must be in (0, 1), got 2.0"),
    (["--p", "0.1"], "--p is for dropconnect, dropout; the method is ising"),
    (
        ["--method", "plain", "--delta", "0.1"],
        "--delta is for ising, ising-paper, ising-paper-obd; the method is plain",
    ),
    (["--set", "coupling"], "--set needs NAME=VALUE, got 'coupling'"),
    (["--set", "=2"], "--set needs NAME=VALUE, got '=2'"),
    (["--set", "strength=2"], "ising has no setting 'strength'; it has kl_weight,"),
    (["--set", "coupling=strong"], "ising cannot use coupling='strong'; give a number where one is expected"),
    (["--set", "curvature=none"], "curvature must be one of"),
    (["--set", "two_way=no"], "two_way of ising must be True or False, got 'no'"),
    (["--set", "average=2"], "average must be in [0, 1), got 2"),
    (["--epoch", "3"], "unrecognized arguments: --epoch 3; see isingformer train --help"),
    (["more"], "unrecognized arguments: more; see isingformer train --help"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[" ".join(wrong) for wrong, _ in WRONG])
def test_a_setting_of_train(refused, tiny, tmp_path, wrong, said):
    refused("train", *tiny, "--quiet", "--out", tmp_path / "run", *wrong, names=[said])


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_a_setting_of_the_other_commands(refused, trained, files, name):
    images = files if name == "predict" else []
    for wrong in ("0", "-1", "1.5", "many"):
        refused(name, trained, *images, "--samples", wrong, names=["--samples", f"got {wrong!r}"])
    for wrong in ("-1", str(2**70), "x"):
        refused(name, trained, *images, "--seed", wrong, names=["--seed: expected a whole number from 0 on", wrong])
    refused(name, trained, *images, "--device", "abacus", names=["abacus"])
    refused(name, trained, *images, "--sample", "3", names=["--sample", f"see isingformer {name} --help"])


def test_a_setting_of_predict(refused, trained, files):
    for wrong in ("0", "1", "nan", "half"):
        refused("predict", trained, *files, "--level", wrong, names=["expected a number between 0 and 1", wrong])
    for wrong in ("0", "-1", "nan", "inf"):
        refused("predict", trained, *files, "--temperature", wrong, names=["temperature must be positive", wrong])
    refused("predict", trained, *files, "--json", "--csv", names=["--csv", "--json"])


def test_a_setting_of_evaluate(refused, trained):
    for wrong in ("0", "-3", "half"):
        refused("evaluate", trained, "--test-size", wrong, names=["--test-size", f"got {wrong!r}"])


def test_no_command_or_one_that_does_not_exist(refused):
    refused(names=["COMMAND"])
    refused("trian", names=["'trian'", *COMMANDS])
    refused("evaluate", names=["RUN"])
    refused("predict", "run", names=["IMAGE"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(refused, tiny, trained, files, tmp_path):
    for device in ("cuda", "cuda:1"):
        names = [f"device {device!r} is not here", "use 'cpu'"]
        refused("train", *tiny, "--device", device, "--out", tmp_path / "run", names=names)
        refused("evaluate", trained, "--device", device, names=names)
        refused("predict", trained, *files, "--device", device, names=names)


def test_images_that_are_not_there(refused, trained, files, tmp_path):
    refused("predict", trained, *files, tmp_path / "no.png", names=[tmp_path / "no.png", "does not exist"])
    (tmp_path / "empty").mkdir()
    refused("predict", trained, tmp_path / "empty", names=[tmp_path / "empty", "holds no images"])


def test_image_files_for_a_run_on_numbers(done, refused, files, tiny, tmp_path):
    x, y = np.random.default_rng(0).random((40, 8, 8)), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    line = ["train", *tiny, "--train-size", "20", "--validation", "4", "--data", tmp_path / "a.npz", "--epochs", "1"]
    done(*line, "--quiet", "--no-tensorboard", "--out", tmp_path / "run")
    refused("predict", tmp_path / "run", *files, names=[tmp_path / "run", "float32"])


def test_a_folder_that_is_no_run(refused, files, tmp_path):
    for wrong in (tmp_path / "nowhere", files[0].parent, files[0]):
        for line in (["predict", wrong, *files], ["evaluate", wrong]):
            refused(*line, names=[f"{wrong} is no run"])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (ValueError(), "ValueError"),
        (FileNotFoundError(2, "No such file or directory", "a/b"), "a/b: No such file or directory"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_any_error_is_one_line_that_says_something(error, said):
    assert in_one_line(error) == said


def test_what_json_cannot_hold_is_not_printed(capsys):
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"score": float("nan")})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "line",
    [
        ["train", "--data", "digits", "--out", ""], ["study", "quick", "--out", " "],
        ["explain", "run", "image.png", "--out", ""], ["compress", "run", "--out", ""],
    ],
    ids=lambda line: line[0],
)  # fmt: skip
def test_an_empty_folder_name_is_no_folder(refused, line, tmp_path, monkeypatch):
    """As an unset variable gives it: what it wrote would lie in the current folder, or in a default one."""
    monkeypatch.chdir(tmp_path)
    refused(*line, names=["--out: expected the name of a folder, got an empty one"])


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize("name", ["evaluate", "predict", "explain", "compress", "explore", "report"])
def test_an_empty_name_is_neither_this_folder_nor_every_image_below_it(
    refused, trained, files, tmp_path, monkeypatch, name, empty
):
    """A run in this folder, with images below it, would be asked about images that nobody named."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    images = files[:1] if name in ("predict", "explain") else []
    out = ["--out", tmp_path / "out"] if name in ("explain", "compress") else []
    said = "expected the name of a folder, got an empty one"
    refused(name, empty, *images, *out, names=["STUDY" if name == "report" else "RUN", said])
    if images:
        more = "expected the name of an image or of a folder, got an empty one"
        refused(name, trained, *images, empty, *out, names=["IMAGE", more])
    else:
        refused(name, trained, "--data-dir", empty, *out, names=["--data-dir", said])


def test_other_data_with_an_empty_name_are_not_the_runs_own(refused, trained):
    for line in (
        ["evaluate", trained, "--data", ""],
        ["evaluate", trained, "--ood", ""],
        ["explore", trained, "--data", ""],
    ):
        refused(*line, names=["'' is no .npz file and is no name that is known"])


@pytest.mark.parametrize("line", [["explain", "--samples", "100000000"], ["compress", "--recover", "100000000"]],
                         ids=lambda line: line[0])  # fmt: skip
def test_a_folder_that_cannot_be_is_noticed_before_the_work(refused, trained, files, tmp_path, line):
    (tmp_path / "file").write_text("")
    images = files[:1] if line[0] == "explain" else ["--macs", "0.5"]
    out = tmp_path / "file" / "below"
    refused(line[0], trained, *images, *line[1:], "--out", out, names=[f"cannot make the folder {out}"])


def test_a_folder_whose_name_is_not_utf8_is_noticed_before_the_work(refused, tiny, trained, tmp_path):
    """safetensors would write there, and could not read it again."""
    out = tmp_path / os.fsdecode(b"out\xff")
    for line in (["train", *tiny, "--epochs", "100000000", "--quiet"], ["compress", trained, "--recover", "100000000"]):
        refused(*line, "--out", out, names=["out\\udcff", "is not UTF-8", "choose another"])


def test_a_level_that_is_no_share_is_noticed_before_the_work(refused, trained, files):
    line = ["predict", trained, *files, "--samples", "100000000", "--level", "1.2"]
    refused(*line, names=["--level: expected a number between 0 and 1, got '1.2'"])
