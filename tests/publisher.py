"""Four small data sets in the files and under the names of the published ones."""

import gzip
import io
import struct
import tarfile

import numpy as np

from local_server import md5 as md5

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_files(seed, train=30, test=10):
    """The four idx files of a small data set, unpacked, by name."""
    random, files = np.random.default_rng(seed), {}
    for kind, n in (("train", train), ("t10k", test)):
        images = random.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = np.arange(n, dtype=np.uint8) % 10
        files[f"{kind}-images-idx3-ubyte"] = struct.pack(">IIII", 0x803, n, 28, 28) + images.tobytes()
        files[f"{kind}-labels-idx1-ubyte"] = struct.pack(">II", 0x801, n) + labels.tobytes()
    return files


def cifar_batch(seed, n, classes, label_bytes):
    random = np.random.default_rng(seed)
    labels = np.zeros((n, label_bytes), np.uint8)
    labels[:, -1] = np.arange(n) % classes
    return np.hstack([labels, random.integers(0, 256, (n, 3072), dtype=np.uint8)]).tobytes()


CIFAR10 = {f"data_batch_{i}.bin": cifar_batch(i, 20, 10, 1) for i in range(1, 6)}
CIFAR10["test_batch.bin"] = cifar_batch(9, 10, 10, 1)
CIFAR100 = {"train.bin": cifar_batch(1, 200, 100, 2), "test.bin": cifar_batch(2, 100, 100, 2)}
CIFAR100["fine_label_names.txt"] = "\n".join(f"thing {i}" for i in range(100)).encode() + b"\n"
MNIST, FASHION = idx_files(1), idx_files(2)
FOLDERS = {
    "mnist": MNIST, "fashion-mnist": FASHION, "cifar-10-batches-bin": CIFAR10, "cifar-100-binary": CIFAR100,
}  # fmt: skip


def archive(folder, files):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as out:
        for name, content in {**files, "readme.html": b"<html>"}.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def lay_out(base, folder, files, *, flat=False, packed=False):
    """Write a data set's files below a folder, as they are or as .gz; returns the folder."""
    place = base if flat else base / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return base


def offered():
    """What the publishers offer, by path: ``/mnist/train-images-idx3-ubyte.gz``."""
    found = {f"/{f}/{name}.gz": gzip.compress(FOLDERS[f][name]) for f in ("mnist", "fashion-mnist") for name in IDX}
    found["/cifar10/cifar-10-binary.tar.gz"] = archive("cifar-10-batches-bin", CIFAR10)
    found["/cifar100/cifar-100-binary.tar.gz"] = archive("cifar-100-binary", CIFAR100)
    return found
