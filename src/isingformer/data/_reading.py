"""What the readers share: file names in messages, files that must be there, names of classes."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from .dataset import DataError

DEFLATE_RATIO = 1032  # deflate cannot expand by more, so a small file that promises more is damaged or hostile
MOST_CLASSES = 65_536
_CHUNK = 1 << 20
_CONTROL = {"Cc", "Cs", "Zl", "Zp"}  # characters that would break a line or a terminal


def shown(path: Path | str) -> str:
    """A path for a message, on one line whatever characters it has."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def reason(error: BaseException) -> str:
    """An error of another library in one short line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {shown(lines[0][:150])}" if lines else type(error).__name__


def require_file(file: Path) -> None:
    """Refuse what is not there, and what is no regular file: reading a pipe or a device could wait for ever."""
    if file.is_file():
        return
    if file.exists():
        what = "a folder" if file.is_dir() else "no regular file"
        raise DataError(f"{shown(file)} is {what}; expected a file: give the path of the file itself")
    link = " (a link that leads nowhere)" if file.is_symlink() else ""
    raise FileNotFoundError(f"{shown(file)} does not exist{link}; expected a file: check the path, or get it again")


def fill(stream: io.BufferedIOBase | IO[bytes], array: np.ndarray) -> int:
    """Read bytes into a one-dimensional uint8 array until it is full or the stream ends; how many were read."""
    done = 0
    while done < len(array):
        piece = np.frombuffer(stream.read(min(_CHUNK, len(array) - done)), np.uint8)
        if not len(piece):
            break
        array[done : done + len(piece)] = piece
        done += len(piece)
    return done


def check_class_names(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Names of classes that can be told apart and printed on one line."""
    for number, name in enumerate(names):
        if not name.strip():
            raise DataError(f"{where}: class {number} has an empty name; expected a name for every class: fill it in")
        if any(unicodedata.category(character) in _CONTROL for character in name):
            raise DataError(
                f"{where}: class {number} is called {ascii(name)[:80]}; expected a name without control characters: "
                "rename it"
            )
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise DataError(f"{where}: two classes are called {twice!r}; expected different names: rename one")
    return tuple(names)
