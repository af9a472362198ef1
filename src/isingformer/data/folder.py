"""A folder of images, one sub-folder a class.

::

    pets/cat/1.png ...          pets/train/cat/1.png ...
    pets/dog/1.png ...          pets/train/dog/1.png ...
                                pets/test/cat/1.png ...
                                pets/test/dog/1.png ...

The folder is split by `read_folder` (left), or holds exactly the sub-folders ``train`` and ``test`` (right). Classes
are the sorted names of their folders. Hidden files and what systems leave about (Thumbs.db and the like) are passed
over, and so are files beside the class folders unless they are images. Links are followed: the folder is the user's.
See `isingformer.data.image` for the formats and what counts as grey or RGB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._holdout import hold_out
from ._reading import MOST_CLASSES, check_class_names, shown
from .dataset import DataError, Dataset, Images
from .image import (
    channels_of,
    check_channels,
    convert,
    decode,
    describe,
    facts,
    find_images,
    is_image_name,
    is_junk,
    read_image,
    to_tensor,
)

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["find_images", "read_folder", "read_image"]

MOST_BYTES = 16 << 30
_PARTS = ("train", "test")


def read_folder(
    folder: Path,
    *,
    resize: int | None = None,
    channels: int | None = None,
    test_share: float = 0.2,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """The images of a folder, uint8.

    Args:
        folder: laid out as at the head of this module.
        resize: scale the shorter side to this many pixels and crop the centre square. Without it all images must have
            the size of the first one.
        channels: make every image grey (1) or RGB (3). Without it all images must be of the first one's kind; with
            `resize` they become RGB if one of them is, else grey.
        test_share: the part of each class that becomes the test set, where the folder does not come split: rounded, at
            least one and at least one left to train on; the only image of a class is trained on. Which ones is drawn
            with seed 0 from the sorted names, so it depends on the names alone.
        progress: called after each image with how many are done and how many there are.

    Raises:
        DataError: for a folder laid out otherwise, or a file in it that is no image or unlike the others.
    """
    _check_arguments(resize, channels, test_share)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"{shown(folder)} {what}; expected a folder with one sub-folder a class: check the path")
    classes, files, labels, trained = _ready_made(folder) if _comes_split(folder) else _split(folder, test_share)
    if resize is not None and channels is None:
        channels = max(channels_of(file) for file in files)
    x = _read_all(files, resize, channels, progress)
    train, test = Images(x[:trained], labels[:trained]), Images(x[trained:], labels[trained:])
    return Dataset(folder.resolve().name, train, test, classes)


def _check_arguments(resize: int | None, channels: int | None, test_share: float) -> None:
    if resize is not None and resize < 1:
        raise ValueError(f"resize is {resize}; expected a number of pixels, 1 or more")
    if not 0 < test_share < 1:
        raise ValueError(f"test_share is {test_share}; expected a number between 0 and 1, such as 0.2")
    if channels is not None:
        check_channels(channels)


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, junk apart, sorted by name: file systems list in any order."""
    return sorted((path for path in folder.iterdir() if not is_junk(path.name)), key=lambda path: path.name)


def _comes_split(folder: Path) -> bool:
    """Whether the folder holds exactly ``train`` and ``test``."""
    return sorted(path.name for path in _entries(folder) if path.is_dir()) == sorted(_PARTS)


def _list_classes(folder: Path) -> dict[str, list[Path]]:
    """The images of each class, in order."""
    entries = _entries(folder)
    for path in entries:
        if not path.is_dir() and is_image_name(path.name):
            raise DataError(
                f"{shown(path)} is an image outside the class folders; expected {shown(folder)} to hold one folder a "
                "class: move it into its class's folder"
            )
    folders = [path for path in entries if path.is_dir()]
    if not 2 <= len(folders) <= MOST_CLASSES:
        raise DataError(
            f"{shown(folder)} holds {len(folders)} class folder{'s' if len(folders) != 1 else ''}; expected at least "
            "two, each with the images of one class: check the path"
        )
    check_class_names([path.name for path in folders], shown(folder))
    return {path.name: _list_images(path) for path in folders}


def _list_images(folder: Path) -> list[Path]:
    """The images of one class."""
    entries = _entries(folder)
    for path in entries:
        if path.is_dir():
            raise DataError(
                f"{shown(path)} is a folder inside a class folder; expected images only: move its images up, or, for a "
                "split of your own, keep exactly the two folders train and test at the top"
            )
        if path.is_symlink() and not path.exists():
            raise DataError(f"{shown(path)} is a link that leads nowhere; expected an image: remove or mend it")
        if not is_image_name(path.name) or not path.is_file():
            raise DataError(f"{shown(path)} is no image; expected images only in a class folder: move it elsewhere")
    if not entries:
        raise DataError(f"{shown(folder)} is empty; expected the images of a class: add some, or remove the folder")
    return entries


def _number(listed: dict[str, list[Path]]) -> tuple[list[Path], Tensor]:
    """All files, class by class, and their labels."""
    counts = torch.tensor([len(files) for files in listed.values()])
    return [file for files in listed.values() for file in files], torch.arange(len(listed)).repeat_interleave(counts)


def _ready_made(folder: Path) -> tuple[tuple[str, ...], list[Path], Tensor, int]:
    """Classes, files, labels, and how many of the files, the first ones, are for training: as the folders say."""
    train, test = (_list_classes(folder / part) for part in _PARTS)
    if unshared := sorted(set(train) ^ set(test)):
        has, lacks = _PARTS if unshared[0] in train else _PARTS[::-1]
        raise DataError(
            f"{shown(folder)}: {has} has a class {unshared[0]!r} that {lacks} has not; expected the same classes in "
            "both: add or remove its folder"
        )
    (train_files, train_labels), (test_files, test_labels) = _number(train), _number(test)
    return tuple(train), train_files + test_files, torch.cat([train_labels, test_labels]), len(train_files)


def _split(folder: Path, test_share: float) -> tuple[tuple[str, ...], list[Path], Tensor, int]:
    """Likewise, for a folder that must be split."""
    listed = _list_classes(folder)
    files, labels = _number(listed)
    counts = [min(max(round(len(of_class) * test_share), 1), len(of_class) - 1) for of_class in listed.values()]
    if not any(counts):
        raise DataError(
            f"{shown(folder)} has one image in each class; expected at least two in some, to test on one: add more"
        )
    train, test = hold_out(labels, counts)
    order = torch.cat([train, test])
    return tuple(listed), [files[row] for row in order.tolist()], labels[order], len(train)


def _read_all(
    files: Sequence[Path], resize: int | None, channels: int | None, progress: Callable[[int, int], None] | None
) -> Tensor:
    """All images, ``[N, C, H, W]``, decoded one by one into their place."""
    square = None if resize is None else (resize, resize)
    first = _decode(files[0], square, channels)
    size, kind, _ = facts(first)
    x = _allocate([len(files), kind, *size], files[0])
    for row, file in enumerate(files):
        image = _decode(file, square, channels) if row else first
        if facts(image) != facts(first):
            raise DataError(
                f"{shown(file)} is {describe(*facts(image))}; expected {describe(size, kind)} like {shown(files[0])}; "
                "--resize N makes them alike"
            )
        x[row] = to_tensor(image)
        if progress is not None:
            progress(row + 1, len(files))
    return x


def _decode(file: Path, size: tuple[int, int] | None, channels: int | None) -> Image:
    """An image without transparency, converted as asked for."""
    image = decode(file)
    if channels is not None:
        return convert(image, channels, size)
    if facts(image)[2]:
        raise DataError(
            f"{shown(file)} has transparent pixels; expected opaque ones; --resize N lays them on white, or flatten it"
        )
    return image


def _allocate(shape: list[int], first: Path) -> Tensor:
    """Room for all images, if there is any."""
    size = math.prod(shape)
    try:
        if size <= MOST_BYTES:
            return torch.empty(shape, dtype=torch.uint8)
    except RuntimeError:  # how torch says that the memory does not suffice
        pass
    raise DataError(
        f"{shape[0]:,} images of {describe((shape[2], shape[3]), shape[1])} like {shown(first)} take {size:,} bytes, "
        f"more than there is room for (at most {MOST_BYTES:,}); expected smaller or fewer ones; --resize N makes them "
        "smaller"
    )
