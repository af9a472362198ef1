"""Data by name or by path, and what is in it."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from .cifar import read_cifar, read_class_names
from .dataset import DataError, Dataset, Images
from .digits import read_digits
from .fetch import Found, Progress, data_folder, find_files
from .folder import read_folder
from .idx import read_idx_images
from .npz import read_npz
from .resize import resized
from .sources import NAMES, SOURCES, Source, known_name
from .split import standardise


def load_data(
    source: str | PathLike[str],
    *,
    data_dir: str | PathLike[str] | None = None,
    download: bool = True,
    resize: int | None = None,
    channels: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Read a data set.

    Args:
        source: ``digits``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar100``; or the path of a folder of images
            (see `read_folder`) or of an .npz file (see `read_npz`). A name comes before a folder that is called the
            same; ``./mnist`` is the folder.
        data_dir: Where the files of the named data sets are or go: else ISINGFORMER_DATA, else ~/.cache/isingformer.
            Files that are there are read as they are.
        download: Bring what is missing from the publisher.
        resize: Make the images squares with sides of so many pixels (see `resized`).
        channels: 1 makes them grey, 3 gives them three channels (see `resized`).
        progress: Called with the name of what is being brought or read, how much of it is done, and how much there is
            where that is known.

    Raises:
        DataError: There is no such data, or something is wrong with its contents.
        ConnectionError: It cannot be downloaded; the line says which files to put where.
        OSError: A file cannot be read or written.
    """
    name = known_name(source) if isinstance(source, str) else None
    kept: dict[str, Any] = {"source": name or str(Path(os.path.expanduser(source)).absolute())}
    if name in SOURCES and data_dir is not None:
        kept["data_dir"] = str(data_folder(data_dir).absolute())
    if resize is not None:
        kept["resize"] = resize
    if channels is not None:
        kept["channels"] = channels
    if name is None:
        dataset = _read_path(source, resize, channels, progress)
    elif name == "digits":
        dataset = read_digits()
    else:
        known = SOURCES[name]
        dataset = _read_named(
            known, find_files(known, data_folder(data_dir), download_missing=download, progress=progress)
        )
    return dataclasses.replace(_converted(dataset, resize, channels), origin=kept)


def describe(dataset: Dataset) -> dict[str, Any]:
    """What is in a data set, in plain values that JSON can hold; mean and sd are the training images', by channel."""
    mean, sd = standardise(dataset.train)
    height, width = dataset.size
    return {
        "name": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "channels": dataset.channels,
        "height": height,
        "width": width,
        "pixels": str(dataset.train.x.dtype).removeprefix("torch."),
        "classes": list(dataset.classes),
        "train_counts": _counts(dataset.train, dataset.classes),
        "test_counts": _counts(dataset.test, dataset.classes),
        "mean": mean.tolist(),
        "sd": sd.tolist(),
        "fingerprint": dataset.fingerprint(),
    }


def _counts(images: Images, classes: tuple[str, ...]) -> list[int]:
    return [int(count) for count in torch.bincount(images.y, minlength=len(classes))]


def _converted(dataset: Dataset, resize: int | None, channels: int | None) -> Dataset:
    """A data set with images of another size or kind; the same one where they are so already."""
    train, test = (resized(images, resize, channels) for images in (dataset.train, dataset.test))
    return dataclasses.replace(dataset, train=train, test=test)


def _read_path(
    source: str | PathLike[str], resize: int | None, channels: int | None, progress: Progress | None
) -> Dataset:
    path = Path(os.path.expanduser(source))
    if path.is_dir() and fspath(source):  # "" would be the folder we are in
        told = partial(progress, path.name) if progress else None
        return read_folder(path, resize=resize, channels=channels, progress=told)
    if path.suffix.lower() == ".npz" and path.is_file():
        return read_npz(path)
    what = "is no .npz file" if path.exists() else "does not exist"
    raise DataError(
        f"{fspath(source)!r} {what} and is no name that is known; expected {', '.join(NAMES)}, the path of a folder "
        "with one folder of images a class, or the path of an .npz file"
    )


def _read_named(source: Source, found: Found) -> Dataset:
    n = source.class_count
    if source.layout == "idx":
        files = [found[need][0] for need in source.needs]
        train, test = read_idx_images(files[0], files[1], n), read_idx_images(files[2], files[3], n)
        return Dataset(source.name, train, test, source.classes)
    batches, test_files = (found[need] for need in source.needs)
    train, test = (read_cifar(files, source.label_bytes, n) for files in (batches, test_files))
    return Dataset(source.name, train, test, source.classes or read_class_names(batches[0].parent, n))
