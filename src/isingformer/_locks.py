"""Locks between processes, which the system drops when a process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

from ._files import cannot_write

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

State = Literal["held", "taken", "no locks"]
_open: set[IO[bytes]] = set()
"""The lock files of this process."""


@contextlib.contextmanager
def locked(file: Path, *, wait: bool) -> Iterator[State]:
    """Hold a lock while the context lasts, if it can be had; `wait` until it can. The file stays for others."""
    try:
        handle = open(file, "ab")  # noqa: SIM115
    except OSError as error:
        raise cannot_write(file, error) from error
    _open.add(handle)
    try:
        yield lock(handle.fileno(), wait=wait)
    finally:
        _open.discard(handle)
        handle.close()


def lock(handle: int, *, wait: bool) -> State:
    """Take the lock of an open file or folder until it is closed, if it can be had; `wait` until it can."""
    if fcntl is None:
        return "no locks"
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return "taken"
    except OSError:  # some network file systems
        return "no locks"
    return "held"


def _let_go() -> None:
    """In a forked child, which would otherwise keep its parent's locks when that has died."""
    while _open:
        _open.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
