"""Named files out of a .tar.gz: these and no others, whole or not at all.

A member is written under the last part of its name into one folder, so whatever else an archive holds (absolute paths,
"..", links, devices) can do no harm: it is passed over unread.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO, cast

from .._files import cannot_write, make_folder, renamed
from ._reading import reason, shown
from .dataset import DataError

LARGEST = 2**28  # bytes unpacked; the largest archive we know of has 184 million
CHUNK = 2**20
AGAIN = "delete the archive and get it again"


def extract(archive: Path, folder: Path, members: Collection[str], *, largest: int = LARGEST) -> list[Path]:
    """Write the named members of a .tar.gz into a folder, each under the last part of its name.

    The archive is read to its end, where its checksum is, before the first file appears.

    Args:
        archive: The .tar.gz.
        folder: Where the files go; made if need be.
        members: Their names in the archive, such as ``cifar-100-binary/train.bin``.
        largest: How many bytes the archive may unpack to.

    Returns:
        The files, in the order of `members`.

    Raises:
        DataError: The archive is damaged or too large, a member is missing, there twice or no plain file.
        OSError: The folder cannot be written.
    """
    names = {member: _plain_name(member) for member in members}
    make_folder(folder)
    try:
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-")
    except OSError as error:
        raise cannot_write(folder, error) from error
    with scratch, gzip.open(archive, "rb") as packed:
        _unpack(_Unpacked(archive, cast(IO[bytes], packed), largest), Path(scratch.name), names)
        for name in names.values():
            with renamed(folder / name) as temporary:
                os.replace(Path(scratch.name, name), temporary)
    return [folder / name for name in names.values()]


def _plain_name(member: str) -> str:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or not path.name or "\\" in member:
        raise ValueError(f"cannot extract {member!r}: expected a name such as folder/file, without '..'")
    return path.name


class _Unpacked:
    """The bytes inside a .gz, counted; whatever is wrong with them is a DataError that names the archive."""

    def __init__(self, archive: Path, stream: IO[bytes], largest: int) -> None:
        self.archive, self.stream, self.largest, self.left = archive, stream, largest, largest

    def read(self, size: int) -> bytes:
        try:
            chunk = self.stream.read(size)
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(f"{shown(self.archive)}: damaged ({reason(error)}); {AGAIN}") from None
        self.left -= len(chunk)
        if self.left < 0:
            raise DataError(f"{shown(self.archive)}: unpacks to more than {self.largest:,} bytes; {AGAIN}")
        return chunk


def _unpack(stream: _Unpacked, scratch: Path, names: dict[str, str]) -> None:
    """Write the members to a folder that is thrown away, and read the archive to its end."""
    missing = set(names)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar:
            for member in tar:
                if member.name not in names:
                    continue
                if member.name not in missing:
                    raise DataError(f"{shown(stream.archive)}: {shown(member.name)} is in it twice; {AGAIN}")
                missing.remove(member.name)
                _copy(stream.archive, tar, member, scratch / names[member.name])
    except DataError:
        raise
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise DataError(f"{shown(stream.archive)}: damaged ({reason(error)}); {AGAIN}") from None
    if missing:
        raise DataError(f"{shown(stream.archive)}: there is no {', '.join(sorted(missing))} in it; {AGAIN}")
    while stream.read(CHUNK):  # the tar may end before the gzip does, and only there is the checksum compared
        pass


def _copy(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one member; not a sparse one, which could unpack to any size without any bytes in the archive."""
    source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if source is None:
        raise DataError(
            f"{shown(archive)}: {shown(member.name)} is a link or some other thing; expected a plain file. {AGAIN}"
        )
    try:
        with source, open(target, "wb") as out:
            left = member.size
            while left:
                chunk = source.read(min(CHUNK, left))
                if not chunk:
                    raise DataError(f"{shown(archive)}: {shown(member.name)} ends {left:,} bytes too early; {AGAIN}")
                out.write(chunk)
                left -= len(chunk)
    except OSError as error:
        raise cannot_write(target.parents[1] / target.name, error) from error
