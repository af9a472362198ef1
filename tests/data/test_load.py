"""Data by name and by path, and what is in it."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from isingformer.data import SOURCES, DataError, describe, load_data
from isingformer.data.sources import NAMES, known_name
from publisher import CIFAR10, IDX, MNIST, md5


def test_the_environment_names_the_data_folder(unreachable, lay, monkeypatch):
    monkeypatch.setenv("ISINGFORMER_DATA", str(lay("mnist", MNIST)))
    assert len(load_data("MNIST").train) == 30


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("digits", "digits"), ("Fashion_MNIST", "fashion-mnist"), ("FashionMNIST", "fashion-mnist"),
        ("cifar-10", "cifar10"), ("CIFAR100", "cifar100"), ("CIFAR_100", "cifar100"),
        ("cifar", None), ("./mnist", None), ("", None),
    ],
)  # fmt: skip
def test_spellings(text, name):
    assert known_name(text) == name


def test_digits_need_no_files(unreachable):
    digits = load_data("digits")
    assert digits.train.x.shape[1:] == (1, 8, 8) and digits.origin == {"source": "digits"}


@pytest.fixture
def pets(tmp_path):
    for kind, colour in (("cat", (200, 0, 0)), ("dog", (0, 0, 200))):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (12, 9), colour).save(tmp_path / "pets" / kind / f"{i}.png")
    return tmp_path / "pets"


def test_a_folder_of_images(pets, monkeypatch):
    told = []
    dataset = load_data(pets, progress=lambda *seen: told.append(seen))
    assert dataset.classes == ("cat", "dog") and dataset.train.x.shape[1:] == (3, 9, 12)
    assert told[-1] == ("pets", 10, 10)
    small = load_data(str(pets), resize=4, channels=1)
    assert small.train.x.shape[1:] == (1, 4, 4)
    monkeypatch.chdir(pets.parent)
    assert load_data("pets").fingerprint() == dataset.fingerprint()


def test_a_name_comes_before_a_folder(pets, monkeypatch, unreachable):
    pets.rename(pets.parent / "digits")
    monkeypatch.chdir(pets.parent)
    assert load_data("digits").size == (8, 8)
    assert load_data("./digits").size == load_data(Path("digits")).size == (9, 12)


def save_npz(file):
    random = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 20), ("test", 10)):
        arrays[f"x_{part}"] = random.integers(0, 256, (n, 6, 6), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(n) % 2
    np.savez(file, **arrays)


def test_an_npz_file(tmp_path):
    save_npz(tmp_path / "own.npz")
    assert load_data(tmp_path / "own.npz").train.x.shape == (20, 1, 6, 6)
    assert load_data(str(tmp_path / "own.npz"), resize=3, channels=3).test.x.shape == (10, 3, 3, 3)


@pytest.mark.parametrize("source", ["imagenet", "data.tar", "none/at/all", "missing.npz", "", "~nobody/x", "a\0b"])
def test_anything_else_is_answered_with_what_there_is(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.tar").write_bytes(b"")
    with pytest.raises(DataError) as error:
        load_data(source)
    line = str(error.value)
    assert "\n" not in line and repr(source) in line
    assert all(word in line for word in (*NAMES, ".npz", "folder"))


def test_named_data_in_another_size(unreachable, lay):
    base = lay("cifar-10-batches-bin", CIFAR10)
    dataset = load_data("cifar10", data_dir=base, resize=28, channels=1)
    assert dataset.train.x.shape == (100, 1, 28, 28) and dataset.test.x.shape == (10, 1, 28, 28)


def test_the_origin_reads_the_same_data_again(unreachable, lay, pets, tmp_path, monkeypatch):
    base = lay("cifar-10-batches-bin", CIFAR10)
    save_npz(tmp_path / "own.npz")
    monkeypatch.chdir(tmp_path)
    loaded = [
        load_data("cifar-10", data_dir=str(base), resize=8),
        load_data("pets", channels=1),
        load_data(Path("own.npz"), resize=5),
        load_data("digits"),
    ]
    monkeypatch.chdir("/")
    for dataset in loaded:
        again = load_data(**json.loads(json.dumps(dict(dataset.origin))))
        assert again.fingerprint() == dataset.fingerprint() and again.origin == dataset.origin


def test_a_description(unreachable, lay):
    dataset = load_data("mnist", data_dir=lay("mnist", MNIST))
    found = json.loads(json.dumps(describe(dataset)))
    expected = np.frombuffer(MNIST[IDX[0]], np.uint8, offset=16).astype(np.float64)
    assert (found["train"], found["test"], found["channels"], found["height"], found["width"]) == (30, 10, 1, 28, 28)
    assert found["classes"] == list("0123456789") and found["train_counts"] == [3] * 10
    assert found["test_counts"] == [1] * 10 and found["pixels"] == "uint8"
    assert found["mean"] == pytest.approx([expected.mean()]) and found["sd"] == pytest.approx([expected.std()])


def test_the_registry_is_complete():
    for source in SOURCES.values():
        assert source.terms and (len(source.classes) in (0, source.class_count))
        for offer in source.downloads:
            assert re.fullmatch("[0-9a-f]{32}", offer.md5)
            assert offer.urls and all(url.startswith("http") and url.endswith(f"/{offer.name}") for url in offer.urls)
        for need in source.needs:
            assert sum(offer.provides(need) for offer in source.downloads) == 1


@pytest.mark.parametrize(
    ("name", "shape", "test"),
    [("mnist", (60_000, 1, 28, 28), 10_000), ("fashion-mnist", (60_000, 1, 28, 28), 10_000),
     ("cifar10", None, None), ("cifar100", None, None)],
)  # fmt: skip
def test_the_published_data(real_data, unreachable, name, shape, test):
    dataset = load_data(name, data_dir=real_data, download=False)
    counts = describe(dataset)["train_counts"]
    assert len(counts) == len(set(dataset.classes)) == (100 if name == "cifar100" else 10) and min(counts) > 0
    if shape:
        assert dataset.train.x.shape == shape and len(dataset.test) == test
    else:
        assert dataset.train.x.shape[1:] == (3, 32, 32) and len(set(counts)) == 1


def test_the_published_files_have_the_sums_we_expect(real_data):
    for name in ("mnist", "fashion-mnist"):
        for offer in SOURCES[name].downloads:
            content = (real_data / SOURCES[name].folder / offer.name).read_bytes()
            assert (md5(content), md5(gzip.decompress(content))) == (offer.md5, offer.unpacked_md5)
