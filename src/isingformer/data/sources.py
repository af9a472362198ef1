"""The data sets that are known by name: their files, where these are to be had, and what the classes are called."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from .cifar import CIFAR10_CLASSES


def file_name(member: str) -> str:
    """What a member of an archive is called once it is out: the last part of its name."""
    return member.rpartition("/")[2]


@dataclass(frozen=True)
class Download:
    """A file as its publisher offers it: one of the data set's files, or an archive that holds several."""

    name: str
    md5: str
    urls: tuple[str, ...]
    members: tuple[str, ...] = ()
    """Of an archive, the files to take out of it."""
    unpacked_md5: str = ""
    """Of a .gz, the sum of what is inside, by which an unpacked file is known."""

    def provides(self, need: str) -> bool:
        """Whether this is, or holds, a file of the needed name, perhaps with a ``*``."""
        return self.name == f"{need}.gz" or any(fnmatch(file_name(member), need) for member in self.members)


@dataclass(frozen=True)
class Source:
    """A data set that is known by name."""

    name: str
    folder: str
    """The folder its files lie in, below the data folder."""
    layout: Literal["idx", "cifar"]
    needs: tuple[str, ...]
    """The files it is read from; a ``*`` stands for any number of files, at least one. An idx file may be a .gz."""
    downloads: tuple[Download, ...]
    classes: tuple[str, ...]
    """What the classes are called; empty where a file beside the others says it."""
    class_count: int
    terms: str
    """Its licence and what to cite."""
    label_bytes: int = 1
    """Of a CIFAR file, how many bytes before an image are labels; the last one counts."""


IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_downloads(bases: tuple[str, ...], sums: tuple[tuple[str, str], ...]) -> tuple[Download, ...]:
    """The four .gz files below several addresses; `sums` has each one's md5, packed and unpacked."""
    return tuple(
        Download(f"{name}.gz", packed, tuple(f"{base}{name}.gz" for base in bases), unpacked_md5=unpacked)
        for name, (packed, unpacked) in zip(IDX, sums, strict=True)
    )


MNIST = Source(
    name="mnist",
    folder="mnist",
    layout="idx",
    needs=IDX,
    downloads=_idx_downloads(
        # The publisher's own server has not been reliable for years, so the mirror comes first.
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        (
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
    ),
    classes=tuple("0123456789"),
    class_count=10,
    terms="no licence stated; cite LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to document "
    "recognition",
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    folder="fashion-mnist",
    layout="idx",
    needs=IDX,
    downloads=_idx_downloads(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
            ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
    ),
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    class_count=10,
    terms="MIT licence, Zalando SE; cite Xiao, Rasul and Vollgraf 2017, Fashion-MNIST, arXiv:1708.07747",
)

_KRIZHEVSKY = "no licence stated; cite Krizhevsky 2009, Learning multiple layers of features from tiny images"

CIFAR10 = Source(
    name="cifar10",
    folder="cifar-10-batches-bin",
    layout="cifar",
    needs=("data_batch_*.bin", "test_batch.bin"),
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            (*(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)), "cifar-10-batches-bin/test_batch.bin"),
        ),
    ),
    classes=CIFAR10_CLASSES,
    class_count=10,
    terms=_KRIZHEVSKY,
)

CIFAR100 = Source(
    name="cifar100",
    folder="cifar-100-binary",
    layout="cifar",
    needs=("train.bin", "test.bin"),
    downloads=(
        Download(
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            tuple(f"cifar-100-binary/{name}" for name in ("train.bin", "test.bin", "fine_label_names.txt")),
        ),
    ),
    classes=(),
    class_count=100,
    terms=_KRIZHEVSKY,
    label_bytes=2,
)

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)}
NAMES = ("digits", *SOURCES)
"""The names that stand for a data set; the digits come with scikit-learn and need no files."""

_ALIASES = {"fashionmnist": "fashion-mnist", "cifar-10": "cifar10", "cifar-100": "cifar100"}


def known_name(text: str) -> str | None:
    """The name of a data set, however it is spelled: ``CIFAR-10``, ``fashion_mnist``; None for anything else."""
    plain = text.lower().replace("_", "-")
    plain = _ALIASES.get(plain, plain)
    return plain if plain in NAMES else None


KNOWN_SUMS = {
    md5: source.name
    for source in SOURCES.values()
    for download in source.downloads
    for md5 in (download.md5, download.unpacked_md5)
    if md5
}
"""Whose file it is, by md5: two data sets give their files the same names."""
