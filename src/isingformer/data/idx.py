"""The idx files of MNIST and its relatives, plain or gzipped.

A file is: two zero bytes, a byte for the type (8: unsigned byte), a byte for the number of axes, four bytes (big
endian) for the length of each axis, then the values.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from ._reading import DEFLATE_RATIO, fill, reason, require_file, shown
from .dataset import DataError, Images

MOST_BYTES = 4 << 30
_MOST_AXES = 8
_GZIP = b"\x1f\x8b"
_TYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}


def read_idx(file: Path) -> np.ndarray:
    """The uint8 array in an idx file. Whether it is gzipped is told by its first bytes, not by its name.

    No more is decompressed than the header promises (and one buffer, to see that nothing follows), and a promise of
    more than `MOST_BYTES` is refused.

    Raises:
        DataError: for anything but a whole idx file of unsigned bytes.
        FileNotFoundError: if there is no such file.
    """
    require_file(file)
    with open(file, "rb") as plain:
        packed = plain.read(2) == _GZIP
        plain.seek(0)
        size = os.fstat(plain.fileno()).st_size
        if not packed:
            return _read_array(plain, file, most=size)
        try:
            with gzip.GzipFile(fileobj=plain) as stream:
                return _read_array(stream, file, most=DEFLATE_RATIO * size)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{shown(file)} is a damaged gzip file ({reason(error)}); get it again") from error


def _read_array(stream: io.BufferedIOBase, file: Path, most: int) -> np.ndarray:
    """The array in a stream that cannot hold more than `most` bytes."""
    shape = _read_header(stream, file)
    header, promised = 4 + 4 * len(shape), math.prod(shape)
    words = f"{shown(file)} promises {' x '.join(map(str, shape))} = {promised:,} bytes of data"
    if math.prod(max(length, 1) for length in shape) > MOST_BYTES:  # also where one length of many is 0
        raise DataError(f"{words}; expected at most {MOST_BYTES:,}: its header is damaged, get the file again")
    if header + promised > most:
        raise DataError(f"{words} and holds fewer; expected them all: it is cut short, get the file again")
    values = np.empty(promised, np.uint8)
    found = fill(stream, values)
    if found < promised:
        raise DataError(f"{words} and holds {found:,}; expected them all: it is cut short, get the file again")
    if stream.read(1):  # in a gzip file this also compares the checksum
        raise DataError(f"{words} and holds more; expected nothing after them: it is damaged, get the file again")
    return values.reshape(shape)


def _read_header(stream: io.BufferedIOBase, file: Path) -> tuple[int, ...]:
    """The array's shape."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= _MOST_AXES:
        raise DataError(
            f"{shown(file)} is no idx file: it begins with {magic.hex(' ') or 'nothing'}; expected 00 00 08 and the "
            f"number of axes, 1 to {_MOST_AXES}: check that it is the right file"
        )
    if magic[2] != 0x08:
        raise DataError(
            f"{shown(file)} holds {_TYPES[magic[2]]} values (type code 0x{magic[2]:02x}); expected uint8 (0x08): "
            "convert it, or put the images into an .npz file"
        )
    lengths = stream.read(4 * magic[3])
    if len(lengths) < 4 * magic[3]:
        raise DataError(
            f"{shown(file)} ends in its header, after {4 + len(lengths)} bytes; expected the lengths of {magic[3]} "
            "axes: it is cut short, get the file again"
        )
    return struct.unpack(f">{magic[3]}I", lengths)


def read_idx_images(images_file: Path, labels_file: Path, classes: int) -> Images:
    """Grey images ``[N, 1, H, W]`` from one idx file and their labels, 0 to `classes` - 1, from another."""
    x, y = read_idx(images_file), read_idx(labels_file)
    if x.ndim != 3 or 0 in x.shape:
        raise DataError(
            f"{shown(images_file)} holds an array of shape {list(x.shape)}; expected [images, rows, columns], none of "
            "them 0: check that it is the file with the images"
        )
    if y.shape != x.shape[:1]:
        raise DataError(
            f"{shown(labels_file)} holds labels of shape {list(y.shape)}; expected [{len(x)}], one for each image of "
            f"{shown(images_file)}: check that the two files belong together"
        )
    if y.max() >= classes:
        record = int((y >= classes).argmax())
        raise DataError(
            f"{shown(labels_file)} has label {y[record]} for image {record:,}; expected 0 to {classes - 1}: check "
            "that it is the right file"
        )
    return Images(torch.from_numpy(x)[:, None], torch.from_numpy(y.astype(np.int64)))
