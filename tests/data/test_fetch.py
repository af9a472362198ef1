"""The files of the named data sets: on disk, from a server on this machine, or missing."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from isingformer.data import SOURCES, DataError, data_folder, fetch, load_data
from isingformer.data.sources import KNOWN_SUMS
from local_server import local_server
from publisher import CIFAR10, CIFAR100, FASHION, FOLDERS, IDX, MNIST, cifar_batch, md5, offered


@pytest.fixture(scope="module")
def published():
    return offered()


@pytest.fixture
def server(monkeypatch, published):
    """A server that publishes them, in place of the real ones."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with local_server() as running:
        running.files.update(published)
        for name, source in list(SOURCES.items()):
            offers = tuple(
                dataclasses.replace(
                    offer, urls=(running.url(f"/{name}/{offer.name}"),), md5=md5(published[f"/{name}/{offer.name}"])
                )
                for offer in source.downloads
            )
            monkeypatch.setitem(SOURCES, name, dataclasses.replace(source, downloads=offers))
        yield running


def pixels(content):
    """The images in an idx file."""
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy())


SHAPES = {"mnist": (30, 1, 28, 10), "fashion-mnist": (30, 1, 28, 10), "cifar10": (100, 3, 32, 10),
          "cifar100": (200, 3, 32, 100)}  # fmt: skip


def fits(name, dataset):
    n, channels, side, classes = SHAPES[name]
    assert dataset.name == name and dataset.train.x.shape == (n, channels, side, side)
    assert len(dataset.classes) == classes


def below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_data_set_is_downloaded_once(server, tmp_path, name):
    told = []
    dataset = load_data(name, data_dir=tmp_path, progress=lambda *seen: told.append(seen))
    fits(name, dataset)
    assert {what for what, *_ in told} == {offer.name for offer in SOURCES[name].downloads}
    folder, asked = SOURCES[name].folder, len(server.requests)
    expected = [f"{n}.gz" for n in IDX] if SOURCES[name].layout == "idx" else FOLDERS[folder]
    assert below(tmp_path) == sorted(f"{folder}/{file}" for file in expected)  # the archive itself is gone
    again = load_data(name, data_dir=tmp_path)
    assert again.fingerprint() == dataset.fingerprint() and len(server.requests) == asked


def test_the_pixels_are_those_of_the_files(server, tmp_path):
    assert torch.equal(load_data("mnist", data_dir=tmp_path).train.x, pixels(MNIST[IDX[0]]))
    assert torch.equal(load_data("fashion-mnist", data_dir=tmp_path).test.x, pixels(FASHION[IDX[2]]))
    batches = b"".join(CIFAR10[f"data_batch_{i}.bin"] for i in range(1, 6))
    found = load_data("cifar10", data_dir=tmp_path).train
    expected = np.frombuffer(batches, np.uint8).reshape(100, 3073)
    assert np.array_equal(found.x.flatten(1).numpy(), expected[:, 1:]) and found.y.tolist() == expected[:, 0].tolist()
    assert load_data("cifar100", data_dir=tmp_path).classes[42] == "thing 42"


@pytest.mark.parametrize(
    ("name", "packed"), [*((name, False) for name in SHAPES), ("mnist", True), ("fashion-mnist", True)]
)
@pytest.mark.parametrize("flat", [False, True])
def test_files_on_disk_are_read_as_they_are(unreachable, lay, name, flat, packed):
    folder = SOURCES[name].folder
    fits(name, load_data(name, data_dir=lay(folder, FOLDERS[folder], flat=flat, packed=packed)))


@pytest.mark.parametrize("download", [True, False])
@pytest.mark.parametrize("place", ["", "cifar-10-batches-bin"])
def test_an_archive_on_disk_is_unpacked_and_stays(unreachable, published, tmp_path, place, download):
    target = tmp_path / place / "cifar-10-binary.tar.gz"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(published["/cifar10/cifar-10-binary.tar.gz"])
    fits("cifar10", load_data("cifar10", data_dir=tmp_path, download=download))
    assert target.is_file() and len(list((tmp_path / "cifar-10-batches-bin").glob("*.bin"))) == 6


def test_unpacking_that_was_interrupted_is_finished(unreachable, published, lay):
    """A process died while it put the files in place: the archive is still there."""
    base = lay("cifar-10-batches-bin", {name: CIFAR10[name] for name in ("data_batch_2.bin", "test_batch.bin")})
    (base / "cifar-10-binary.tar.gz").write_bytes(published["/cifar10/cifar-10-binary.tar.gz"])
    fits("cifar10", load_data("cifar10", data_dir=base))


def test_any_number_of_batches_will_do(unreachable, lay):
    base = lay("cifar-10-batches-bin", {name: CIFAR10[name] for name in ("data_batch_4.bin", "test_batch.bin")})
    assert len(load_data("cifar10", data_dir=base).train) == 20


def test_batches_are_read_in_the_order_of_their_numbers(unreachable, lay):
    files = {f"data_batch_{i}.bin": cifar_batch(i, 1, 1, 1) for i in (1, 2, 10)}
    base = lay("cifar-10-batches-bin", {**files, "test_batch.bin": CIFAR10["test_batch.bin"]})
    expected = np.frombuffer(b"".join(files.values()), np.uint8).reshape(3, 3073)[:, 1:]
    assert np.array_equal(load_data("cifar10", data_dir=base).train.x.flatten(1).numpy(), expected)


def test_only_what_is_missing_is_downloaded(server, lay):
    base = lay("mnist", {name: MNIST[name] for name in IDX[:3]})
    fits("mnist", load_data("mnist", data_dir=base))
    assert [path for path, _ in server.requests] == [f"/mnist/{IDX[3]}.gz"]
    base = lay("cifar-10-batches-bin", {"data_batch_1.bin": CIFAR10["data_batch_1.bin"]})
    assert len(load_data("cifar10", data_dir=base).train) == 20  # one batch will do, so no others are added to it
    assert len(load_data("cifar10", data_dir=base).test) == 10


def test_names_of_classes_may_be_missing(unreachable, lay):
    base = lay("cifar-100-binary", {name: CIFAR100[name] for name in ("train.bin", "test.bin")})
    assert load_data("cifar100", data_dir=base).classes[7] == "7"


@pytest.mark.parametrize("present", [(), IDX[:2], IDX[:3]])
def test_what_is_missing_is_named_where_nothing_may_be_downloaded(unreachable, lay, present):
    base = lay("mnist", {name: MNIST[name] for name in present})
    with pytest.raises(DataError) as error:
        load_data("mnist", data_dir=base, download=False)
    line = str(error.value)
    assert str(base / "mnist") in line and "\n" not in line and "ISINGFORMER_DATA" in line
    assert all((f"{name}.gz" in line) == (name not in present) for name in IDX)
    assert below(base) == sorted(f"mnist/{name}" for name in present)


def test_nothing_is_made_where_nothing_may_be_downloaded(unreachable, tmp_path):
    with pytest.raises(
        DataError, match=r"lacks data_batch_\*\.bin, test_batch\.bin.*put cifar-10-binary\.tar\.gz into"
    ):
        load_data("cifar10", data_dir=tmp_path / "none", download=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("name", "files"), [("mnist", [f"{n}.gz" for n in IDX]), ("cifar10", ["cifar-10-binary.tar.gz"])]
)
def test_without_a_connection_the_line_says_which_files_to_put_where(monkeypatch, server, tmp_path, name, files):
    dead = "http://127.0.0.1:9/"  # the discard port: nobody listens
    source = SOURCES[name]
    offers = tuple(dataclasses.replace(offer, urls=(dead + offer.name,)) for offer in source.downloads)
    monkeypatch.setitem(SOURCES, name, dataclasses.replace(source, downloads=offers))
    with pytest.raises(ConnectionError) as error:
        load_data(name, data_dir=tmp_path)
    line = str(error.value)
    assert "\n" not in line and all(file in line for file in files) and dead in line
    place = tmp_path if name == "cifar10" else tmp_path / "mnist"
    assert f"into {place} " in line
    assert below(tmp_path) == []


def test_a_wrong_checksum_is_refused(server, tmp_path):
    server.files[f"/mnist/{IDX[1]}.gz"] = b"<html>moved</html>"
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz.*md5"):
        load_data("mnist", data_dir=tmp_path)
    assert below(tmp_path) == [f"mnist/{IDX[0]}.gz"]


def test_two_at_once_do_not_disturb_each_other(server, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: load_data("cifar10", data_dir=tmp_path).fingerprint(), range(4)))
    assert len(set(found)) == 1
    assert len(server.requests) == 1
    assert len(below(tmp_path)) == 6


def test_files_that_lie_flat_are_not_taken_for_anothers(server, lay, monkeypatch):
    """MNIST and Fashion-MNIST give their files the same names; outside its folder a known file tells whose it is."""
    for content in FASHION.values():
        monkeypatch.setitem(KNOWN_SUMS, md5(content), "fashion-mnist")
    base = lay("", FASHION, flat=True)
    assert torch.equal(load_data("fashion-mnist", data_dir=base, download=False).train.x, pixels(FASHION[IDX[0]]))
    with pytest.raises(DataError, match="mnist lacks"):
        load_data("mnist", data_dir=base, download=False)
    assert torch.equal(load_data("mnist", data_dir=base).train.x, pixels(MNIST[IDX[0]]))


def test_fetch_brings_and_does_not_read(server, tmp_path):
    assert fetch("CIFAR-100", tmp_path) == tmp_path / "cifar-100-binary"
    assert below(tmp_path / "cifar-100-binary") == sorted(CIFAR100)
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(b"damaged")
    assert fetch("cifar100", tmp_path) == tmp_path / "cifar-100-binary"
    assert len(server.requests) == 1


@pytest.mark.parametrize(("name", "why"), [("digits", "comes with scikit-learn"), ("imagenet", "not known")])
def test_fetch_says_what_can_be_fetched(name, why):
    with pytest.raises(DataError, match=f"{name}.*{why}.*mnist, fashion-mnist, cifar10, cifar100"):
        fetch(name)


def test_a_file_where_the_data_folder_should_be(server, tmp_path):
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(NotADirectoryError, match="data is a file"):
        load_data("mnist", data_dir=tmp_path / "data")


def test_where_data_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ISINGFORMER_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data_folder() == tmp_path / ".cache" / "isingformer"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert data_folder() == Path("/caches/isingformer")
    monkeypatch.setenv("ISINGFORMER_DATA", "~/data")
    assert data_folder() == tmp_path / "data"
    assert data_folder("~/mine") == tmp_path / "mine"
    monkeypatch.setenv("ISINGFORMER_DATA", "")
    assert data_folder() == Path("/caches/isingformer")
