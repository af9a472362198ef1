"""A user's own arrays in an .npz file, as ``np.savez`` and ``np.savez_compressed`` write it.

============  ==============================================================================================
``x_train``   images ``[N, H, W]`` (grey), ``[N, H, W, C]`` or ``[N, C, H, W]`` with C = 1 to 4; uint8 pixels or
              finite floating-point numbers
``y_train``   class numbers ``[N]`` or ``[N, 1]``, integers from 0
``x_test``    likewise, of the same type and size of image
``y_test``    likewise
``classes``   may be left out: the names of the classes, text ``[K]``
============  ==============================================================================================

Whether channels come first or last is read from the shape only where it leaves no doubt: exactly one of the second
and the last axis is 4 or shorter. Other arrays in the file are passed over.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from ._reading import DEFLATE_RATIO, MOST_CLASSES, check_class_names, fill, reason, require_file, shown
from .dataset import DataError, Dataset, Images, shape_in_words

MOST_BYTES = 8 << 30
_NEEDED = ("x_train", "y_train", "x_test", "y_test")
_NAMES = "classes"
_CHANNELS = range(1, 5)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(file: Path, *, limit: int = MOST_BYTES) -> Dataset:
    """The data set in an .npz file; nothing in it is ever unpickled.

    Without `classes` there are as many classes as the largest label says, called by their numbers. Floating-point
    images become float32. Pixels need not be square.

    Args:
        file: see the head of this module for what it must hold.
        limit: the most bytes that its arrays may unpack to; what they declare is checked before anything is unpacked.

    Raises:
        DataError: for a file that is damaged, too large, or holds something else.
        FileNotFoundError: if there is no such file.
    """
    require_file(file)
    with open(file, "rb") as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                arrays = _read_arrays(archive, file, limit)
            names = [str(name) for name in arrays[_NAMES]] if _NAMES in arrays else None
        except DataError:
            raise
        except Exception as error:  # zipfile and NumPy raise a dozen types for damaged files
            raise DataError(
                f"{shown(file)} cannot be read as .npz ({reason(error)}); expected what np.savez writes: save it again"
            ) from error
    return _dataset(file, arrays, names)


def _read_arrays(archive: zipfile.ZipFile, file: Path, limit: int) -> dict[str, np.ndarray]:
    """The arrays that count, by name."""
    found = [info.filename.removesuffix(".npy") for info in archive.infolist()]
    if missing := [name for name in _NEEDED if name not in found]:
        raise DataError(
            f"{shown(file)} has no {' and no '.join(missing)}, only {shown(', '.join(found)[:200]) or 'nothing'}; "
            f"expected {', '.join(_NEEDED)}: save all four"
        )
    wanted = [name for name in (*_NEEDED, _NAMES) if name in found]
    if twice := [name for name in wanted if found.count(name) > 1]:
        raise DataError(f"{shown(file)} has more than one {twice[0]}; expected one: save it again")
    infos = {name: archive.infolist()[found.index(name)] for name in wanted}
    total = sum(info.file_size for info in infos.values())
    if total > limit:
        raise DataError(
            f"{shown(file)} unpacks to {total:,} bytes; expected at most {limit:,}: store fewer or smaller images"
        )
    return {name: _read_array(archive, info, name, file) for name, info in infos.items()}


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, file: Path) -> np.ndarray:
    """One array, of a type that is right for its name and of exactly the length that its header says."""

    def refuse(found: str) -> NoReturn:
        raise DataError(f"{shown(file)}: {name} {found}: save it again with np.savez or np.savez_compressed")

    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        refuse("is encrypted or compressed in an unusual way; expected stored or deflated")
    if info.file_size > DEFLATE_RATIO * max(info.compress_size, 1):
        refuse(f"declares {info.file_size:,} bytes, more than its {info.compress_size:,} can unpack to")
    with archive.open(info) as stream:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            refuse(f"has a header of version {version}; expected 1.0 or 2.0")
        shape, fortran, dtype = _HEADERS[version](stream)
        _check_type(dtype, name, file)
        if any(length < 0 for length in shape) or math.prod(max(n, 1) for n in shape) * dtype.itemsize > MOST_BYTES:
            refuse(f"has shape {list(shape)[:8]}; expected lengths of at least 0 that fit into memory")
        size = math.prod(shape) * dtype.itemsize
        if stream.tell() + size != info.file_size:
            held = info.file_size - stream.tell()
            refuse(f"has shape {list(shape)} and type {dtype}, {size:,} bytes, yet holds {held:,}; expected them all")
        raw = np.empty(size, np.uint8)
        if fill(stream, raw) < size or stream.read(1):  # the last read also compares the checksum
            refuse(f"does not hold the {size:,} bytes it declares; expected them all")
    return raw.view(dtype).reshape(shape, order="F" if fortran else "C")


def _check_type(dtype: np.dtype, name: str, file: Path) -> None:
    """Refuse types that would have to be guessed at, and object arrays, which would have to be unpickled."""
    if name == _NAMES:
        right, expected = dtype.kind == "U", "text: save np.array(names, dtype=str)"
    elif name.startswith("x"):
        right = dtype == np.uint8 or dtype.kind == "f"
        expected = "uint8 or floating-point: convert it, as with x.astype(np.uint8)"
    else:
        right, expected = dtype.kind in "iu", "integers, the class numbers: convert it, as with y.astype(np.int64)"
    if not right:
        raise DataError(f"{shown(file)}: {name} has type {shown(str(dtype)[:80])}; expected {expected}")


def _dataset(file: Path, arrays: dict[str, np.ndarray], names: list[str] | None) -> Dataset:
    """The arrays put together, once they fit."""
    train, test = (
        Images(x := _images(arrays[f"x_{part}"], f"x_{part}", file), _labels(arrays[f"y_{part}"], f"y_{part}", x, file))
        for part in ("train", "test")
    )
    if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
        found = [f"{shape_in_words(each.x)}, {str(each.x.dtype).removeprefix('torch.')}" for each in (train, test)]
        raise DataError(
            f"{shown(file)}: x_train has images of {found[0]}, x_test of {found[1]}; expected them alike: save them so"
        )
    highest = int(max(train.y.max(), test.y.max()))
    if names is None:
        names = [str(number) for number in range(highest + 1)]
    elif arrays[_NAMES].ndim != 1 or not highest < len(names) <= MOST_CLASSES:
        raise DataError(
            f"{shown(file)}: classes has shape {list(arrays[_NAMES].shape)} and labels reach {highest}; expected one "
            f"name for each class, [{highest + 1}]: add the missing names, or leave classes out"
        )
    if len(names) < 2:
        raise DataError(f"{shown(file)}: every label is 0; expected at least two classes: check y_train and y_test")
    return Dataset(file.stem, train, test, check_class_names(names, f"{shown(file)}, classes"))


def _images(x: np.ndarray, name: str, file: Path) -> Tensor:
    """``[N, C, H, W]``, uint8 or finite float32."""
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise DataError(
            f"{shown(file)}: {name} has shape {list(x.shape)}; expected [N, H, W], [N, H, W, C] or [N, C, H, W], none "
            "of them 0: reshape it"
        )
    if x.ndim == 3:
        x = x[:, None]
    elif (x.shape[1] in _CHANNELS) == (x.shape[3] in _CHANNELS):
        raise DataError(
            f"{shown(file)}: {name} has shape {list(x.shape)}, which does not say which axis holds the channels; "
            "expected either the second or the last, not both, to be 1 to 4 long: save grey images as [N, H, W], pad "
            "very small ones"
        )
    elif x.shape[3] in _CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8:
        with np.errstate(all="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataError(
                f"{shown(file)}: {name} holds NaN, infinity or numbers beyond float32; expected finite numbers"
            )
    return torch.from_numpy(np.ascontiguousarray(x))


def _labels(y: np.ndarray, name: str, x: Tensor, file: Path) -> Tensor:
    """``[N]`` int64, from 0."""
    if y.shape not in ((len(x),), (len(x), 1)):
        raise DataError(
            f"{shown(file)}: {name} has shape {list(y.shape)}; expected [{len(x)}], one label for each image: check "
            "that images and labels belong together"
        )
    lowest, highest = int(y.min()), int(y.max())
    if lowest < 0 or highest >= MOST_CLASSES:
        raise DataError(
            f"{shown(file)}: {name} runs from {lowest} to {highest}; expected class numbers from 0, below "
            f"{MOST_CLASSES:,}: number the classes 0, 1, 2, ..."
        )
    return torch.from_numpy(y.reshape(-1).astype(np.int64))
