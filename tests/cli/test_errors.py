"""Wrong input: one line that names it, exit code 2, no traceback, and nothing left behind. See `refused`."""

import json
import os
import shutil
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from isingformer.cli import COMMANDS, in_one_line
from isingformer.cli.common import print_json
from publisher import CIFAR10, CIFAR100, MNIST, lay_out

GREY = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)


@pytest.fixture
def unreadable(refused, tiny, tmp_path):
    """A function that gives data to `data` and to `train`, which must both refuse them, and `train` leave no folder."""

    def check(*source, names, resize=()):
        refused("data", *source, "--offline", *resize, names=names)
        more = ["--quiet", "--offline", *resize, "--out", tmp_path / "run"]
        refused("train", *tiny, "--train-size", "4", "--validation", "0", "--data", *source, *more, names=names)

    return check


@pytest.fixture
def named(unreadable, tmp_path):
    """A function that lays out a published data set with one of its files changed."""

    def check(name, folder, files, file, change, *said, packed=False):
        base = lay_out(tmp_path / "data", folder, files, packed=packed)
        path = base / folder / file
        path.write_bytes(change(path.read_bytes()))
        unreadable(name, "--data-dir", base, names=[path, *said])

    return check


def test_a_gz_that_is_cut_short(named):
    for file in ("train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        named("mnist", "mnist", MNIST, file, lambda whole: whole[: len(whole) // 2], "damaged gzip", packed=True)


def test_an_idx_file_that_is_cut_short(named):
    named("mnist", "mnist", MNIST, "train-images-idx3-ubyte", lambda whole: whole[:-1], "cut short")


def test_a_file_that_is_no_idx_file(named):
    named("fashion-mnist", "fashion-mnist", MNIST, "train-labels-idx1-ubyte", lambda whole: b"<html>", "no idx file")


def test_a_cifar_file_that_is_not_whole_records(named):
    named("cifar10", "cifar-10-batches-bin", CIFAR10, "data_batch_2.bin", lambda whole: whole[:-7], "records of 3,073")
    named("cifar100", "cifar-100-binary", CIFAR100, "test.bin", lambda whole: whole + b"x", "records of 3,074")


def test_labels_out_of_range(named):
    named("cifar10", "cifar-10-batches-bin", CIFAR10, "data_batch_3.bin", lambda whole: b"\x0a" + whole[1:], "label 10")
    named("cifar100", "cifar-100-binary", CIFAR100, "train.bin", lambda whole: b"\0\x64" + whole[2:], "label 100")
    named("mnist", "mnist", MNIST, "t10k-labels-idx1-ubyte", lambda whole: whole[:-1] + b"\x0b", "label 11")


def test_offline_without_the_files(unreadable, tmp_path):
    files = ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    unreadable("mnist", "--data-dir", tmp_path / "none", names=[tmp_path / "none" / "mnist", *files])
    lay_out(tmp_path / "some", "mnist", {name: MNIST[name] for name in list(MNIST)[:3]})
    unreadable("mnist", "--data-dir", tmp_path / "some", names=[tmp_path / "some" / "mnist", files[1]])
    unreadable("cifar100", "--data-dir", tmp_path / "some", names=[tmp_path / "some", "cifar-100-binary.tar.gz"])


@pytest.mark.parametrize("name", ["nowhere", "mnits", "", "a.npz", "nowhere/"])
def test_data_that_are_not_known(unreadable, name):
    unreadable(name, names=[repr(name), "digits, mnist, fashion-mnist, cifar10, cifar100"])


def bomb(side):
    """A PNG of some hundred bytes that claims side x side pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def other(size, mode):
    def write(path):
        Image.new(mode, size).save(path)

    return write


BAD_IMAGES = {
    "of 0 bytes": (lambda path: path.write_bytes(b""), "is empty (0 bytes)"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:60]), "damaged or cut short"),
    "no image": (lambda path: path.write_text("hello"), "no image"),
    "of another size": (other((9, 8), "L"), "9 x 8 grey"),
    "of another mode": (other((8, 8), "RGB"), "8 x 8 RGB"),
    "of 16 bits": (other((8, 8), "I;16"), "mode I;16"),
    "a bomb": (lambda path: path.write_bytes(bomb(100_000)), "too large"),
    "a smaller bomb": (lambda path: path.write_bytes(bomb(9_000)), "9000 x 9000, too large"),
}


@pytest.mark.parametrize("kind", BAD_IMAGES)
def test_an_image(unreadable, refused, write_folder, trained, tmp_path, kind):
    """One bad image in a folder of good ones, for `data`, `train` and `predict`."""
    spoil, said = BAD_IMAGES[kind]
    folder = write_folder(tmp_path / "photos", cat=GREY, dog=GREY)
    bad = folder / "dog" / "3.png"
    spoil(bad)
    unreadable(folder, names=[bad, said])
    refused("predict", trained, folder, names=[bad, said])
    refused("predict", trained, bad, names=[bad, said])
    if not kind.startswith("of another"):  # those --resize is for
        unreadable(folder, names=[bad, said], resize=("--resize", "8"))
        refused("predict", trained, folder, "--resize", names=[bad, said])


def test_a_folder_with_a_class_without_images(unreadable, write_folder, tmp_path):
    folder = write_folder(tmp_path / "photos", cat=GREY, dog=GREY, emu=[])
    unreadable(folder, names=[folder / "emu", "is empty"])


def test_a_folder_with_a_single_class(unreadable, write_folder, tmp_path):
    unreadable(write_folder(tmp_path / "photos", cat=GREY), names=[tmp_path / "photos", "1 class folder;"])


def test_an_npz_that_is_damaged_or_lacks_something(unreadable, tmp_path):
    file = tmp_path / "a.npz"
    file.write_bytes(b"junk")
    unreadable(file, names=[file, "cannot be read as .npz"])
    np.savez(file, x_train=GREY, y_train=np.arange(5))
    unreadable(file, names=[file, "has no x_test and no y_test"])


def test_images_that_are_not_square(refused, tiny, tmp_path):
    x, y = np.zeros((40, 8, 6), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    line = ["train", *tiny, "--train-size", "20", "--validation", "4", "--data", tmp_path / "a.npz"]
    refused(*line, "--out", tmp_path / "run", names=["6 x 8", "square", "--resize"])


def test_a_file_where_a_folder_should_be(refused, tiny, tmp_path):
    file = tmp_path / "taken"
    file.write_text("mine")
    for out in (file, file / "run", file / "a" / "b"):
        refused("train", *tiny, "--quiet", "--out", out, names=[f"cannot make the folder {out}: {file} is a file"])


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


@pytest.fixture
def damaged(refused, trained, files, tmp_path):
    """A function that damages a copy of the run; `predict` and `evaluate` must refuse it."""

    def check(damage, *names):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(trained, run)
        damage(run)
        refused("predict", run, *files, names=[run, *names])
        refused("evaluate", run, names=[run, *names])

    return check


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', '{"format": 7}', "\x00"])
def test_a_run_json_that_is_none(damaged, text):
    damaged(lambda run: (run / "run.json").write_text(text), "run.json is damaged")


@pytest.mark.parametrize("name", ["data", "method", "recipe", "network", "finished"])
def test_a_run_json_that_lacks_something(damaged, name):
    def remove(run):
        about = json.loads((run / "run.json").read_text())
        del about[name]
        (run / "run.json").write_text(json.dumps(about))

    damaged(remove, "run.json is damaged", name)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("data", {}, "without data.name, data.origin"),
        ("data", None, "without data.name, data.origin"),
        ("method", {}, "without method.name"),
        ("recipe", [], "without recipe.likelihood"),
        ("network", None, "without network.width, network.patch"),
        ("finished", {}, "without finished.epochs"),
    ],
)
def test_a_run_json_that_lacks_something_within(damaged, name, value, said):
    def change(run):
        about = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**about, name: value}))

    damaged(change, "run.json is damaged", said, "train again with --overwrite")


def test_settings_of_a_newer_version_are_named_where_they_count(done, refused, trained, files, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["recipe"] |= {"momentum": 0.9}
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "isingformer": "9.9"}))
    names = [tmp_path / "run", "settings that this version does not know (momentum)", "use isingformer 9.9"]
    refused("evaluate", tmp_path / "run", "--validation", names=names)
    refused("compress", tmp_path / "run", "--macs", "0.5", "--out", tmp_path / "small", names=names)
    assert done("predict", tmp_path / "run", *files) == done("predict", trained, *files)


def test_a_run_of_another_version(damaged):
    def change(run):
        about = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**about, "format": 99, "isingformer": "9.9"}))

    damaged(change, "format 99", "use isingformer 9.9")


@pytest.mark.parametrize("kind", ["model", "posterior"])
def test_tensors_that_are_damaged_or_missing(damaged, kind):
    def change(how):
        def damage(run):
            (file,) = run.glob(f"{kind}-*.safetensors")
            how(file)

        return damage

    for length in (0, 5, 100, -8):
        damaged(change(lambda file, n=length: file.write_bytes(file.read_bytes()[:n])), f"{kind}-", "is damaged")
    damaged(change(lambda file: file.unlink()), f"{kind}-", "is missing")


def test_a_model_without_its_description(damaged):
    damaged(lambda run: (run / "isingformer.json").unlink(), "isingformer.json is missing")
    for text in ("{", "[]", '{"format": 1}'):
        damaged(lambda run, text=text: (run / "isingformer.json").write_text(text), "isingformer.json", "is damaged")


def test_a_damaged_checkpoint_is_named_and_kept(command, refused, tiny, at_step, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    line = ["train", *tiny, "--quiet", "--no-tensorboard", "--out", tmp_path / "run"]
    at_step(6, interrupt)
    assert command(*line).code == 130
    file = tmp_path / "run" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    refused(*line, names=[file, "is damaged"])


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
