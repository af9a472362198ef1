"""The binary files of CIFAR-10 and CIFAR-100.

A record is one label byte (CIFAR-10) or two, coarse then fine (CIFAR-100), and 3,072 pixel bytes: the red, the green
and the blue plane of 32 x 32, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ._reading import check_class_names, require_file, shown
from .dataset import DataError, Images

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_NAME_FILES = {10: "batches.meta.txt", 100: "fine_label_names.txt"}
_PIXELS = 3 * 32 * 32
_LONGEST_NAMES = 1 << 20  # bytes; a longer file holds no names


def read_cifar(files: Sequence[Path], label_bytes: int, classes: int) -> Images:
    """Colour images ``[N, 3, 32, 32]`` from any number of files, one after another.

    Args:
        files: the batches, each with any number of whole records.
        label_bytes: 1, or 2 where the second (the fine label) counts and the first is passed over.
        classes: labels must be 0 to `classes` - 1.

    Raises:
        DataError: for a file that is empty, not whole records, or has a label out of range.
        FileNotFoundError: if a file does not exist.
    """
    if label_bytes not in (1, 2):
        raise ValueError(f"label_bytes is {label_bytes}; expected 1 for CIFAR-10 or 2 for CIFAR-100")
    if not files:
        raise DataError("no CIFAR file was given; expected at least one: check the folder")
    counts = [_count_records(file, label_bytes) for file in files]
    x = np.empty((sum(counts), 3, 32, 32), np.uint8)
    y = np.empty(sum(counts), np.int64)
    start = 0
    for file, count in zip(files, counts, strict=True):
        records = _read_records(file, count, label_bytes)
        y[start : start + count] = _labels(file, records[:, label_bytes - 1], classes)
        x[start : start + count] = records[:, label_bytes:].reshape(-1, 3, 32, 32)
        start += count
    return Images(torch.from_numpy(x), torch.from_numpy(y))


def _count_records(file: Path, label_bytes: int) -> int:
    """How many records a file's size makes."""
    require_file(file)
    size, record = file.stat().st_size, label_bytes + _PIXELS
    if size == 0 or size % record:
        raise DataError(
            f"{shown(file)} has {size:,} bytes; expected a whole number of records of {record:,} bytes, at least one: "
            "it is cut short or another format, get it again"
        )
    return size // record


def _read_records(file: Path, count: int, label_bytes: int) -> np.ndarray:
    """All records, ``[count, label_bytes + 3072]``."""
    record = label_bytes + _PIXELS
    values = np.fromfile(file, np.uint8, count * record)
    if len(values) < count * record:
        raise DataError(f"{shown(file)} became shorter while it was read; expected {count:,} records: read it again")
    return values.reshape(count, record)


def _labels(file: Path, labels: np.ndarray, classes: int) -> np.ndarray:
    """The labels, if all are in range."""
    if labels.max() >= classes:
        record = int((labels >= classes).argmax())
        raise DataError(
            f"{shown(file)} has label {labels[record]} in record {record:,} (counted from 0); expected 0 to "
            f"{classes - 1}: it is damaged or another data set, get it again"
        )
    return labels


def read_class_names(folder: Path, classes: int) -> tuple[str, ...]:
    """The names in ``batches.meta.txt`` (10 classes) or ``fine_label_names.txt`` (100), one a line, blank lines apart.

    Without that file: CIFAR-10's names, which are known, or numbers.
    """
    file = folder / _NAME_FILES[classes] if classes in _NAME_FILES else None
    if file is None or not file.exists():
        return CIFAR10_CLASSES if classes == 10 else tuple(str(number) for number in range(classes))
    require_file(file)
    with open(file, "rb") as stream:
        content = stream.read(_LONGEST_NAMES + 1)
    if len(content) > _LONGEST_NAMES:
        raise DataError(f"{shown(file)} has more than {_LONGEST_NAMES:,} bytes; expected {classes} names: get it again")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{shown(file)} is no UTF-8 text; expected {classes} names: get it again") from None
    names = [line.strip() for line in text.split("\n") if line.strip()]
    if len(names) != classes:
        raise DataError(
            f"{shown(file)} holds {len(names):,} names; expected {classes}, one a line: get it again, or remove it"
        )
    return check_class_names(names, shown(file))
