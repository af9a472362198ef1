"""The files of a data set that is known by name: those on disk as they are, the others from their publisher.

A file is looked for in the data set's own folder below the data folder, then in the data folder itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from os import PathLike
from pathlib import Path

from ._reading import shown
from ._turns import turn
from .archive import extract
from .dataset import DataError
from .download import download, md5_of
from .sources import KNOWN_SUMS, SOURCES, Download, Source, file_name, known_name

Progress = Callable[[str, int, int | None], None]
"""Called with what is being brought or read, how much of it is done, and how much there is where that is known."""

Found = dict[str, list[Path]]
"""The files on disk for each name in ``Source.needs``."""


def data_folder(data_dir: str | PathLike[str] | None = None) -> Path:
    """Where data is kept: the given folder, else ISINGFORMER_DATA, else ``isingformer`` in the user's cache."""
    if data_dir is not None:
        return Path(os.path.expanduser(data_dir))
    if named := os.environ.get("ISINGFORMER_DATA"):
        return Path(os.path.expanduser(named))
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "isingformer"


def fetch(name: str, data_dir: str | PathLike[str] | None = None, progress: Progress | None = None) -> Path:
    """Download whatever is missing of a data set, without reading it.

    Args:
        name: ``mnist``, ``fashion-mnist``, ``cifar10`` or ``cifar100``.
        data_dir: The data folder; see `data_folder`.
        progress: Called as the bytes of each file arrive.

    Returns:
        The folder that holds the files.

    Raises:
        DataError: There is no such data set, or what came has the wrong checksum.
        ConnectionError: It cannot be had from here; the line says which files to put where.
        OSError: The folder cannot be written.
    """
    known = known_name(name)
    if known not in SOURCES:
        why = "it comes with scikit-learn" if known else "it is not known"
        raise DataError(f"nothing to download for {name!r}: {why}; expected one of {', '.join(SOURCES)}")
    found = find_files(SOURCES[known], data_folder(data_dir), download_missing=True, progress=progress)
    return next(iter(found.values()))[0].parent


def find_files(source: Source, base: Path, *, download_missing: bool, progress: Progress | None = None) -> Found:
    """The files that a data set is read from, all of them on disk."""
    packed, missing = _packed(source, base), _missing(source, base)
    if packed or (missing and download_missing):
        with turn(base / source.folder):  # two processes must not unpack and remove one archive at the same time
            for archive, members in _packed(source, base):
                extract(archive, base / source.folder, members)
            missing = _missing(source, base)
            if download_missing:
                _get(source, missing, base, progress)
                missing = []
    if missing:
        raise DataError(
            f"{source.name}: {shown(base / source.folder)} lacks {', '.join(missing)}; allow the download, or "
            f"{_by_hand(source, base, missing)}"
        )
    return {need: _files_for(need, source, base) for need in source.needs}


def is_here(source: Source, base: Path) -> bool:
    """Whether a data set is on disk, so that nothing need be downloaded."""
    return not _missing(source, base) or bool(_packed(source, base))


def _missing(source: Source, base: Path) -> list[str]:
    return [need for need in source.needs if not _files_for(need, source, base)]


def _files_for(need: str, source: Source, base: Path) -> list[Path]:
    """The files with one name or pattern, from the first place that has any."""
    endings = ("", ".gz") if source.layout == "idx" else ("",)
    for place in (base / source.folder, base):
        for ending in endings:
            files = [file for file in place.glob(need + ending) if file.is_file()]
            if place == base:
                files = [file for file in files if not _is_anothers(file, source)]
            if files:
                return sorted(files, key=lambda file: (len(file.name), file.name))
    return []


def _is_anothers(file: Path, source: Source) -> bool:
    """Whether a file outside the data set's own folder is another's: MNIST's and Fashion-MNIST's have one name."""
    return source.layout == "idx" and KNOWN_SUMS.get(md5_of(file), source.name) != source.name


def _packed(source: Source, base: Path) -> list[tuple[Path, list[str]]]:
    """Archives on disk, and what of them is not beside them yet.

    A user may have put it there; or a process died after the download, perhaps with some of the files unpacked, which
    is why every member counts here, not only the first that a pattern such as ``data_batch_*.bin`` stands for.
    """
    folder, found = base / source.folder, []
    for wanted in source.downloads:
        lacking = [
            member for member in wanted.members
            if not any((place / file_name(member)).is_file() for place in (folder, base))
        ]  # fmt: skip
        archives = [place / wanted.name for place in (base, folder) if (place / wanted.name).is_file()]
        if archives and lacking:
            found.append((archives[0], lacking))
    return found


def _get(source: Source, missing: Sequence[str], base: Path, progress: Progress | None) -> None:
    """Bring those of the publisher's files that are, or hold, something that is missing."""
    folder = base / source.folder
    for wanted in _wanted(source, missing):
        target = (base if wanted.members else folder) / wanted.name
        told = partial(progress, wanted.name) if progress else None
        try:
            download(wanted.urls, target, md5=wanted.md5, progress=told)
        except ConnectionError as error:
            raise ConnectionError(f"{source.name}: {error}. Go online, or {_by_hand(source, base, missing)}") from error
        if wanted.members:
            present = [need for need in source.needs if need not in missing]
            extract(target, folder, [m for m in wanted.members if not any(fnmatch(file_name(m), n) for n in present)])
            target.unlink()  # it was only a means; one that the user brought stays


def _wanted(source: Source, missing: Sequence[str]) -> list[Download]:
    return [download for download in source.downloads if any(download.provides(need) for need in missing)]


def _by_hand(source: Source, base: Path, missing: Sequence[str]) -> str:
    """What to do without a connection."""
    wanted = _wanted(source, missing)
    place = base if wanted[0].members else base / source.folder
    return (
        f"put {', '.join(download.name for download in wanted)} into {shown(place)} (from "
        f"{wanted[0].urls[0].rpartition('/')[0]}/), or name a folder that has the files: --data-dir (data_dir=...) "
        "or ISINGFORMER_DATA"
    )
