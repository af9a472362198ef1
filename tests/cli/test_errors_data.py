"""Data and images that cannot be read: one line that names them, exit code 2, and nothing left behind."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

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
