"""`isingformer data`: which data sets there are, and what is in one."""

import json
import re

import numpy as np
import pytest

from isingformer.data import SOURCES, describe, load_data
from publisher import CIFAR10, MNIST, lay_out

COUNTS = {"mnist": (60_000, 10_000), "fashion-mnist": (60_000, 10_000)}


@pytest.fixture
def base(tmp_path):
    """A data folder with two of the four."""
    lay_out(tmp_path / "data", "mnist", MNIST, packed=True)
    return lay_out(tmp_path / "data", "cifar-10-batches-bin", CIFAR10)


def test_the_list_says_what_is_here(done, base):
    rows = json.loads(done("data", "--data-dir", base, "--json"))
    assert [row["name"] for row in rows] == ["digits", *SOURCES]
    assert [row["name"] for row in rows if row["here"]] == ["digits", "mnist", "cifar10"]
    assert all(row["terms"] for row in rows)
    lines = done("data", "--data-dir", base).splitlines()
    for line, row in zip(lines, rows, strict=True):
        assert re.match(rf"{row['name']} +{row['classes']} classes  ", line)
        assert line.endswith(row["where"])
    assert f"in {base}" in lines[1] and "`isingformer data fashion-mnist` fetches it" in lines[2]


def test_the_data_folder_may_come_from_the_environment(done, base, monkeypatch):
    monkeypatch.setenv("ISINGFORMER_DATA", str(base))
    assert done("data") == done("data", "--data-dir", base)


def test_json_is_what_python_describes(done, base):
    for name in ("digits", "mnist", "cifar10"):
        found = json.loads(done("data", name, "--data-dir", base, "--offline", "--json"))
        assert found == describe(load_data(name, data_dir=base, download=False))
    assert (found["train"], found["test"], found["channels"], found["width"]) == (100, 10, 3, 32)


def test_a_description_in_words(done, base):
    said = done("data", "mnist", "--data-dir", base, "--offline").splitlines()
    assert said[0] == "mnist: 30 training and 10 test images, 28 x 28, 1 channel, uint8"
    pixels = np.frombuffer(MNIST["train-images-idx3-ubyte"][16:], np.uint8)
    assert said[1] == f"mean {pixels.mean():.2f}; sd {pixels.std():.2f} (training images, by channel)"
    assert [line.split() for line in said[2:12]] == [[str(n), "3", "training,", "1", "test"] for n in range(10)]
    assert "LeCun" in said[12]


def test_a_folder_of_images(done, write_folder, tmp_path):
    grey, colour = np.zeros((5, 6, 9), np.uint8), np.full((5, 12, 12, 3), 255, np.uint8)
    folder = write_folder(tmp_path / "photos", cat=grey, dog=colour)
    found = json.loads(done("data", folder, "--resize", "4", "--json"))
    assert (found["name"], found["classes"]) == ("photos", ["cat", "dog"])
    assert (found["width"], found["height"], found["channels"]) == (4, 4, 3)
    assert (found["train_counts"], found["test_counts"]) == ([4, 4], [1, 1])
    assert found["mean"] == pytest.approx([127.5] * 3)
    assert "photos: 8 training and 2 test images, 4 x 4, 3 channels, uint8" in done("data", folder, "--resize", "4")


def test_a_file_of_arrays_need_not_be_square(done, tmp_path):
    x, y = np.random.default_rng(0).random((6, 5, 7)), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=np.array(["no", "yes"]))
    said = done("data", tmp_path / "a.npz")
    assert said.startswith("a: 6 training and 6 test images, 7 x 5, 1 channel, float32\n")
    assert f"mean {x.mean():.2f}; sd {x.std():.2f}" in said


@pytest.mark.parametrize("name", COUNTS)
def test_the_published_data(done, real_data, name):
    found = json.loads(done("data", name, "--data-dir", real_data, "--offline", "--json"))
    assert (found["train"], found["test"]) == COUNTS[name]
    assert (found["width"], found["height"], found["channels"]) == (28, 28, 1)
    assert found["test_counts"] == ([1000] * 10 if name == "fashion-mnist" else found["test_counts"])
    assert sum(found["train_counts"]) == found["train"]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_published_colour_images(done, real_data, name):
    found = json.loads(done("data", name, "--data-dir", real_data, "--offline", "--json"))
    assert (found["width"], found["height"], found["channels"]) == (32, 32, 3)
    assert len(set(found["test_counts"])) == 1  # both are balanced, whole or as a subset
    assert len(found["classes"]) == {"cifar10": 10, "cifar100": 100}[name]
    assert min(found["mean"]) > 100 and max(found["mean"]) < 140
