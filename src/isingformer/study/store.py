"""The folder of a study: its plan, and one file a replica.

| file | what |
| --- | --- |
| plan.json | the grid and all settings; grows where the study is extended |
| records/CELL_rREPLICA.json | a `Record` each, whole or not there, never overwritten |
| data/LABEL.json | the checksum of a dataset, so that no two trainings saw different data |
| claims/NAME.lock | who is at work on what; the system drops a lock when its process ends, however it ends |

Any number of processes, also on several machines that share the folder, may work on it at a time. Where the system has
no file locks, `claim` cannot keep two of them from the same training, but no record is lost or counted twice.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .._files import make_folder, read_table, write_json
from .._locks import State, locked
from .._version import __version__
from .plan import Plan
from .record import FORMAT as RECORD_FORMAT
from .record import Cell, Record
from .shards import WHOLE, Shard, shard_of

FORMAT = 1
_TEMPORARY = re.compile(r"\..+\.json\.\d+\.part")


class Job(NamedTuple):
    """What is to do in a cell."""

    cell: Cell
    replicas: tuple[int, ...]


class Store:
    """A study's folder, to read from and, once `open` has made or checked it, to add to."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)
        self.about = self.path / "plan.json"
        self._records, self._data, self._claims = (self.path / name for name in ("records", "data", "claims"))

    @classmethod
    def open(cls, folder: str | os.PathLike[str], plan: Plan) -> Store:
        """The folder for this plan: made, or taken up where it holds the same study or a part of it.

        Everything that a record depends on must be the same as it was: seed, samples, recipe, datasets, settings. The
        grid may grow, never shrink: see `differences`. What processes that died have left half-written is removed.

        Raises:
            FileExistsError: The folder holds another study.
        """
        store = cls(folder)
        if store.about.is_file():
            _ = store.plan  # raises where it is no study's, before anything is made beside it
        elif (store.path / "run.json").exists():
            raise FileExistsError(f"{store.path} holds a training (run.json); give another --out")
        for needed in (store.path, store._records, store._data, store._claims):
            make_folder(needed)
        with store._writing() as state:
            if state == "held":  # nobody else is writing, so these are nobody's
                for stale in store._temporary_files():
                    stale.unlink(missing_ok=True)
            if not store.about.is_file():
                if store._files():
                    raise FileExistsError(
                        f"{store.path} holds records without the plan.json of a study; give another --out"
                    )
                store._write_plan(plan)
                return store
            there = store.plan
            different = differences(there, plan)
            if different:
                raise FileExistsError(
                    f"{store.path} holds another study ({'; '.join(different)}); give another --out. A study may grow, "
                    "by replicas, datasets, sizes, methods and rates, and all else must stay"
                )
            if there != plan:
                store._write_plan(plan)
        return store

    @property
    def plan(self) -> Plan:
        """What plan.json says."""
        if not self.about.is_file():
            raise FileNotFoundError(
                f"{self.path} is no study (plan.json is missing); give a folder that `isingformer study --out` wrote"
            )
        found = read_table(self.about, "give another --out")
        if "format" not in found:
            raise ValueError(f"{self.about} is not a study's plan; give a folder that `isingformer study --out` wrote")
        if found["format"] != FORMAT:
            raise ValueError(
                f"{self.about} has format {found.get('format')}, this version reads {FORMAT}; use isingformer "
                f"{found.get('isingformer')}"
            )
        try:
            return Plan.from_json(found["plan"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.about} cannot be used ({error}); use isingformer {found.get('isingformer')}, which wrote it, "
                "or give another --out"
            ) from None

    def add(self, record: Record) -> bool:
        """Keep a record, brought to the disk; False where there is one already, which stays as it is."""
        file = self._file(record.cell, record.replica)
        with self._writing():
            if file.exists():
                return False
            write_json(file, record.to_json())
        return True

    def done(self, cell: Cell) -> set[int]:
        """The replicas of a cell that have a record."""
        start, end = f"{cell.name}_r", ".json"
        numbers = (name[len(start) : -len(end)] for name in self._files() if name.startswith(start))
        return {int(number) for number in numbers if re.fullmatch(r"0|[1-9][0-9]*", number)}

    def records(self) -> list[Record]:
        """All records, by cell and replica.

        Raises:
            ValueError: One is damaged: the line says which, and that it may be deleted.
        """
        found = [self._read_record(self._records / name) for name in self._files()]
        return sorted(found, key=lambda r: (r.cell.dataset, r.cell.size, r.cell.method, r.cell.rate or 0.0, r.replica))

    def jobs(self, plan: Plan, shard: Shard = WHOLE) -> list[Job]:
        """What is still to do of a shard, in the order of the plan.

        Whoever claims a job asks `done` again: another process may have done it in the meantime.

        Args:
            plan: the grid.
            shard: a part of the grid.
        """
        there = set(self._files())
        left: dict[Cell, list[int]] = {}
        for cell, replica in shard_of(plan, shard):
            if self._file(cell, replica).name not in there:
                left.setdefault(cell, []).append(replica)
        return [Job(cell, tuple(replicas)) for cell, replicas in left.items()]

    def progress(self, plan: Plan, shard: Shard = WHOLE) -> tuple[int, int]:
        """How many trainings of a plan, or of a shard of it, are done, and how many there are."""
        total = len(shard_of(plan, shard))
        return total - sum(len(job.replicas) for job in self.jobs(plan, shard)), total

    def check_data(self, dataset: str, fingerprint: str) -> None:
        """Note a dataset's checksum, `Dataset.fingerprint()`, or compare it with what was noted.

        Raises:
            ValueError: The data are not those that earlier trainings of this study saw.
        """
        file = self._data / f"{dataset}.json"
        with self._writing():
            if not file.is_file():
                write_json(file, {"fingerprint": fingerprint})
                return
        noted = read_table(file, "delete it").get("fingerprint")
        if noted != fingerprint:
            raise ValueError(
                f"the data {dataset!r} have changed since {self.path} was begun (checksum {fingerprint}, then "
                f"{noted}); put them back, or give another --out"
            )

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Whether this process alone may work on something; if so, until the context ends or the process does."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
            raise ValueError(f"a claim's name must be 1 to 200 letters, digits, '.', '_' or '-', got {name!r}")
        with locked(self._claims / f"{name}.lock", wait=False) as state:
            yield state != "taken"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[State]:
        """One process writes at a time; the others wait."""
        with locked(self._claims / ".writing.lock", wait=True) as state:
            yield state

    def _write_plan(self, plan: Plan) -> None:
        write_json(self.about, {"format": FORMAT, "isingformer": __version__, "plan": plan.to_json()})

    def _file(self, cell: Cell, replica: int) -> Path:
        return self._records / f"{cell.name}_r{replica}.json"

    def _files(self) -> list[str]:
        """Names of the records."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(n for n in os.listdir(self._records) if n.endswith(".json") and not n.startswith("."))
        return []

    def _temporary_files(self) -> list[Path]:
        folders = (self.path, self._records, self._data)
        return [file for folder in folders for file in folder.iterdir() if _TEMPORARY.fullmatch(file.name)]

    def _read_record(self, file: Path) -> Record:
        fix = "delete it and give the study's command again: this training alone is done anew"
        values = read_table(file, fix)
        if values.get("format") != RECORD_FORMAT:
            raise ValueError(f"{file} has format {values.get('format')}, this version reads {RECORD_FORMAT}; {fix}")
        try:
            record = Record.from_json(values)
            place = self._file(record.cell, record.replica)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is damaged ({error!r}); {fix}") from None
        if place != file:
            raise ValueError(f"{file} holds the record of {place.name}; {fix}")
        return record


def differences(there: Plan, here: Plan) -> list[str]:
    """In words, what keeps a study that was begun as `there` from going on as `here`; nothing: it may.

    Everything that a record depends on must be the same: seed, samples, recipe, what a dataset is, a method's settings.
    The grid may grow (replicas, datasets, sizes, methods, rates), so that every cell of `there` is one of `here`.
    """
    found = [_unlike(name, getattr(there, name), getattr(here, name)) for name in ("seed", "samples")]
    found += [_unlike(name, there.recipe.get(name), here.recipe.get(name)) for name in {**there.recipe, **here.recipe}]
    if here.replicas < there.replicas:
        found.append(_unlike("replicas", there.replicas, here.replicas))
    for what, ours, theirs in (
        ("dataset", here.labels, there.labels), ("method", here.methods, there.methods),
        ("rate", here.rates, there.rates),
    ):  # fmt: skip
        found += [f"{what} {one} there, not here" for one in theirs if one not in ours]
    for data in there.datasets:
        now = next((one for one in here.datasets if one.label == data.label), data)
        for name, value in (("source", "place"), ("test_images", "test_images"), ("resize", "resize")):
            found.append(_unlike(f"{name} of {data.label}", getattr(data, value), getattr(now, value)))
        found += [f"size {size} of {data.label} there, not here" for size in data.sizes if size not in now.sizes]
    for method, then in there.settings.items():
        settings = here.settings.get(method, then)
        found += [_unlike(f"{name} of {method}", then.get(name), settings.get(name)) for name in {**then, **settings}]
    found = [line for line in found if line]
    if not found:  # the same grid, of which `only` may leave less
        kept = set(here.cells())
        gone = [cell.name for cell in there.cells() if cell not in kept]
        more = f" and {len(gone) - 1} more cells" if len(gone) > 1 else ""
        found = [f"cell {name} there, not here{more}" for name in gone[:1]]
    return found


def _unlike(what: str, there: object, here: object) -> str:
    return "" if there == here else f"{what} {there} there, {here} here"
