"""The data that a run was trained on, found again: where they were, or where they are said to be now."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..data import DataError, Dataset, load_data

ELSEWHERE = "say where they are now with --data-dir (data_dir=), or name other data to evaluate on"


def read_own(
    run: Path, about: Mapping[str, Any], data_dir: str | os.PathLike[str] | None, *, download: bool,
    progress: Callable[[str, int, int | None], None] | None,
) -> Dataset:  # fmt: skip
    """Read a run's data again; whether they are still the same is for `check_same`.

    A dataset with a name is looked for in `data_dir`, where that is given. A folder or .npz is read where it was; only
    where that is gone or has changed is it `data_dir`, which may be there for other data.

    Args:
        run: the run's folder.
        about: what run.json says of the data.
        data_dir: where they are now, if not where they were.
        download: bring what is missing from the publisher.
        progress: called as `load_data` does.
    """
    if about["origin"] is None:
        raise ValueError(f"{run} was trained on data made in Python, {about['name']!r}; give the data to evaluate on")
    origin = dict(about["origin"])
    source = Path(origin.pop("source"))
    if not source.is_absolute():
        place = {} if data_dir is None else {"data_dir": data_dir}
        return load_data(**{**origin, **place}, source=str(source), download=download, progress=progress)
    if data_dir is None:
        if not source.exists():
            raise DataError(f"{str(source)!r} does not exist, and {run} was trained on it; {ELSEWHERE}")
        return load_data(source, **origin, progress=progress)
    if source.exists():
        with contextlib.suppress(DataError):  # what has moved may have left an empty folder
            found = load_data(source, **origin, progress=progress)
            if found.fingerprint() == about["fingerprint"]:
                return found
    try:
        return load_data(data_dir, **origin, progress=progress)
    except DataError as error:
        raise DataError(
            f"the data {about['name']!r} that {run} was trained on are not in {source} as they were, and --data-dir "
            f"(data_dir=) is no place of them: {error}"
        ) from None


def check_same(run: Path, about: Mapping[str, Any], found: Dataset) -> None:
    """Refuse data that are not those of the training any more."""
    now = found.fingerprint()
    if now != about["fingerprint"]:
        source = (found.origin or {}).get("source", "")
        place = f" in {source}" if Path(source).is_absolute() else ""
        raise ValueError(
            f"the data {about['name']!r}{place} have changed since {run} was trained (checksum {now}, then "
            f"{about['fingerprint']}); put them back, {ELSEWHERE}"
        )
