"""Files that are whole or not there: written to a temporary name, brought to the disk, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

SAVE_AGAIN = "save it again"
"""The remedy of whoever has what a file should hold; a room that knows another one passes that down."""


@contextlib.contextmanager
def renamed(file: Path) -> Iterator[Path]:
    """A temporary name to write to, put in place only when the writing has succeeded and reached the disk.

    Whenever the process dies, `file` is what it was before or what was written, never a part. A failed write leaves no
    temporary file and raises an OSError that names `file`.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, file)
        _sync_folder(file.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError | SafetensorError):
            raise cannot_write(file, error) from error
        raise


def temporary_files(folder: Path) -> list[Path]:
    """What processes that died while they wrote have left in a folder: our temporary files, and safetensors' own."""
    ours = re.compile(r"\.(run\.json|history\.csv|isingformer\.json|.+\.safetensors)\.\d+\.part|\.tmp[A-Za-z0-9]{6}")
    return [file for file in folder.iterdir() if ours.fullmatch(file.name) and file.is_file()]


def cannot_write(file: Path, error: Exception) -> OSError:
    """The error of a write that failed, in one line that says what to do."""
    why = getattr(error, "strerror", None) or str(error)
    return OSError(f"cannot write {file}: {why}; nothing of it was left behind. Free some space, or choose a folder "
                   "that can be written")  # fmt: skip


def _sync_folder(folder: Path) -> None:
    """Bring a rename itself to the disk; on systems that cannot open folders there is nothing to do."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def ready_folder(folder: Path) -> Iterator[Path]:
    """A folder for what is about to be computed, made before any work is done in vain, and gone again where that fails.

    What was there stays, and so does what the failed work has left.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    try:
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"cannot write into {folder}; choose a folder that can be written")
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()  # which takes empty folders alone
        raise


def make_folder(folder: Path) -> Path:
    """A folder that exists, made where it did not; one line that names the obstacle where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        blocker = next((path for path in (folder, *folder.parents) if path.is_symlink() or path.exists()), folder)
        kind = "a link that leads nowhere" if blocker.is_symlink() and not blocker.exists() else "a file"
        raise NotADirectoryError(
            f"cannot make the folder {folder}: {blocker} is {kind}; choose another folder, or move it away"
        ) from None
    except OSError as error:
        raise OSError(f"cannot make the folder {folder}: {error.strerror}; choose one that can be written") from error
    return folder


def check_utf8(folder: Path) -> None:
    """Refuse a folder whose name is not UTF-8: safetensors writes files there that it cannot read again."""
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(
            f"the name of the folder {str(folder)!a} is not UTF-8, which files of tensors need; choose another"
        ) from None


def write_text(file: Path, text: str) -> None:
    """Write text, whole or not at all."""
    with renamed(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(file: Path, content: bytes) -> None:
    """Write bytes, whole or not at all."""
    with renamed(file) as temporary:
        temporary.write_bytes(content)


def write_json(file: Path, value: Any) -> None:
    """Write plain values as JSON, whole or not at all."""
    write_text(file, json.dumps(value, indent=2) + "\n")


def read_table(file: Path, remedy: str, *, what: str = "") -> dict[str, Any]:
    """What a JSON file holds, which is a table; an error begins with what was to be done and ends with the remedy."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}{file} is damaged ({error}); {remedy}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{what}{file} is damaged (it holds no table); {remedy}")
    return values


def read_index(
    file: Path, remedy: str, *, number: int, needed: Mapping[str, Collection[str]], what: str = "", still: str = ""
) -> dict[str, Any]:
    """The table that says what a folder holds.

    Args:
        file: JSON, with its ``format`` and the version of isingformer that wrote it.
        remedy: for a damaged one.
        number: the format that this version reads.
        needed: parts that it must have, and what must be in each.
        what: was to be done, at the beginning of an error.
        still: a part that is None as long as there is nothing to say in it.
    """
    values = read_table(file, remedy, what=what)
    lacking = [name for name in ("format", "isingformer") if name not in values]
    if not lacking and values["format"] != number:
        raise ValueError(
            f"{what}{file} has format {values['format']}, this version reads {number}; use isingformer "
            f"{values['isingformer']}"
        )
    lacking += [part for part in needed if part not in values]
    for part in (part for part in needed if part in values):
        inside = values[part]
        if not (part == still and inside is None):
            lacking += [f"{part}.{key}" for key in needed[part] if not isinstance(inside, dict) or key not in inside]
    if lacking:
        raise ValueError(f"{what}{file} is damaged (without {', '.join(lacking)}); {remedy}")
    return values


def write_tensors(file: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write named tensors, and notes in the file's header, as safetensors, whole or not at all."""
    # Tied weights share memory, which safetensors refuses: every entry gets its own.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with renamed(file) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(own, temporary, metadata=dict(notes) if notes else None)
        temporary.chmod(mode)  # safetensors makes files that only their owner may read


def read_tensors(
    file: Path, device: str | torch.device = "cpu", *, remedy: str = SAVE_AGAIN
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The named tensors of a safetensors file and its notes; an error about the file ends with the remedy."""
    with _opened(file, device, remedy) as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}, dict(stored.metadata() or {})  # noqa: SIM118


def check_tensors(file: Path, remedy: str) -> None:
    """Raise as `read_tensors` does where a file is missing or cut short, without reading its tensors."""
    with _opened(file, "cpu", remedy):
        pass


@contextlib.contextmanager
def _opened(file: Path, device: str | torch.device, remedy: str) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device=str(device)) as stored:
            yield stored
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is missing; {remedy}") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged ({error}); {remedy}") from None
