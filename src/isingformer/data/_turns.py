"""Processes that want the same file take turns, by locks that the system drops when a process dies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .._files import cannot_write, make_folder
from .._locks import lock


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process works on the folder; where there are no locks, do not wait."""
    make_folder(folder)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # some systems cannot open folders
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            lock(handle, wait=True)
        yield


@contextlib.contextmanager
def own_part(file: Path) -> Iterator[Path]:
    """The part that only this process writes to, for as long as the context lasts; an empty one is not left behind."""
    part = file.with_name(f"{file.name}.part")
    while True:
        try:
            handle = open(part, "ab")  # noqa: SIM115
        except OSError as error:
            raise cannot_write(file, error) from error
        with handle:
            if lock(handle.fileno(), wait=True) != "held":
                _remove_if_empty(part)
                part = file.with_name(f"{file.name}.{os.getpid()}.part")
                part.touch()
            elif not _is_still(handle.fileno(), part):
                continue  # whoever had the lock has renamed or deleted the part: this handle is another file's
            try:
                yield part
            finally:
                _remove_if_empty(part)
            return


def _is_still(handle: int, part: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(part))
    except FileNotFoundError:
        return False


def _remove_if_empty(part: Path) -> None:
    with contextlib.suppress(OSError):
        if part.stat().st_size == 0:
            part.unlink()
