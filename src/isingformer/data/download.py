"""Downloads that go on where they broke off, are checked, and carry their name only when they are whole.

The bytes go to ``NAME.part``, which stays when the connection breaks or the process dies; the next call asks the server
for the rest of it. Two processes that want the same file take turns: the one that holds the lock on ``NAME.part``
writes, the other waits and then finds the file in place. Where the file system has no locks each process writes a part
of its own, named after its number, which is not gone on with.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import cannot_write, make_folder
from ._http import BadPart, Trouble, ask, chunks
from ._reading import shown
from ._turns import own_part
from .dataset import DataError

LARGEST = 2**30  # bytes; four times the largest file we know of, so that a server cannot fill the disk

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and, where the server says it, with how many there will be."""


@dataclass(frozen=True)
class _Job:
    """What all the steps of one download have in common."""

    file: Path
    part: Path
    md5: str
    progress: Progress | None
    timeout: float
    largest: int


def download(
    urls: Sequence[str],
    file: Path,
    *,
    md5: str,
    progress: Progress | None = None,
    timeout: float = 30.0,
    tries: int = 3,
    pause: float = 1.0,
    largest: int = LARGEST,
) -> None:
    """Bring a file here from the first address that delivers it, and check it.

    Args:
        urls: http or https addresses of the same file, tried in this order.
        file: Where it goes. A file that is there and has the right sum is left alone, any other is replaced.
        md5: The sum of its contents.
        progress: Called as the bytes arrive.
        timeout: After how many seconds of silence the connection counts as broken.
        tries: How often one address is asked when the connection breaks; each time for the part still wanted.
        pause: Seconds between two tries.
        largest: How many bytes are accepted.

    Raises:
        ConnectionError: No address delivered; what arrived stays for the next call.
        DataError: What arrived has another sum. It was deleted.
        OSError: The disk is full or the folder cannot be written. Nothing is left.
    """
    for url in urls:
        if not url.lower().startswith(("http://", "https://")):
            raise ValueError(f"cannot download {url}: expected an address that begins with http:// or https://")
    if _has_sum(file, md5):
        return
    make_folder(file.parent)
    with own_part(file) as part:
        if _has_sum(file, md5):  # another process brought it while this one waited
            return
        job = _Job(file, part, md5.lower(), progress, timeout, largest)
        if not _has_sum(part, md5):
            _from_any(urls, job, tries, pause)
        with _disk(job):
            with open(part, "rb") as whole:
                os.fsync(whole.fileno())
            os.replace(part, file)


def md5_of(file: Path) -> str:
    """A file's md5 sum: it tells whether a download is whole, not who made it."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _has_sum(file: Path, md5: str) -> bool:
    return file.is_file() and file.stat().st_size > 0 and md5_of(file) == md5.lower()


def _from_any(urls: Sequence[str], job: _Job, tries: int, pause: float) -> None:
    """Fill the part from the first address that has the right bytes; the error tells what each one did."""
    failures: list[str] = []
    wrong: DataError | None = None
    for url in urls:
        try:
            return _from_one(url, job, tries, pause)
        except DataError as error:  # an address that answers with something else must not hide one that is right
            wrong = error
        except Trouble as trouble:
            failures.append(f"{url}: {trouble}")
    if wrong is not None:
        raise wrong
    raise ConnectionError(f"cannot download {job.file.name}: {'; '.join(failures) or 'no address is known'}")


def _from_one(url: str, job: _Job, tries: int, pause: float) -> None:
    """Fill the part from one address, going on where a broken connection left off."""
    for left in reversed(range(tries)):
        resumed = job.part.stat().st_size > 0
        try:
            _stream(url, job)
        except Trouble as trouble:
            if isinstance(trouble, BadPart):
                _shorten(job)
            if not (trouble.again and left):
                raise
            time.sleep(pause)
            continue
        found = md5_of(job.part)
        if found == job.md5:
            return
        _shorten(job)
        if not (resumed and left):  # the fault may lie in the bytes of an earlier call: try once from the beginning
            raise DataError(
                f"{shown(job.file)}: what {url} sent has md5 {found}; expected {job.md5}. It was deleted; try again "
                f"later, or put the right {job.file.name} there yourself"
            )


def _stream(url: str, job: _Job) -> None:
    """Append what the server sends to the part, after the bytes that are there if it can, else from the beginning."""
    start = job.part.stat().st_size
    with ask(url, start, job.timeout) as answer:
        if answer.status != 206:
            start = 0  # the server sends everything
        elif not str(answer.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
            raise BadPart("sent another part than was asked for", again=True)
        total = None if answer.length is None else start + answer.length
        if total is not None and total > job.largest:
            raise Trouble(f"offers {total:,} bytes, more than the {job.largest:,} accepted", again=False)
        done = start
        with _disk(job):
            out = open(job.part, "r+b", buffering=0)  # noqa: SIM115
        with out:
            with _disk(job):
                out.truncate(start)
                out.seek(start)
            for chunk in chunks(answer, None if total is None else total - start):
                done += len(chunk)
                if done > job.largest:
                    raise BadPart(f"sends more than the {job.largest:,} bytes accepted", again=False)
                with _disk(job):
                    _write(out, chunk)
                if job.progress is not None:
                    job.progress(done, total)
    if total is not None and done < total:
        raise Trouble(f"the connection broke after {done:,} of {total:,} bytes", again=True)


def _write(out: Any, chunk: bytes) -> None:
    """Write all of it: an unbuffered file may take less than it is given."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[out.write(rest) :]


def _shorten(job: _Job) -> None:
    with _disk(job):
        os.truncate(job.part, 0)


@contextlib.contextmanager
def _disk(job: _Job) -> Iterator[None]:
    """What goes wrong inside is the disk's fault: nothing stays, and the error says so in one line."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            job.part.unlink(missing_ok=True)
        raise cannot_write(job.file, error) from error
