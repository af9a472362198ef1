"""A run is a folder: its settings, its history, its model; while it trains also a checkpoint.

| file | what |
| --- | --- |
| run.json | data, method, recipe, network, versions, command; last of all, that it is finished |
| history.csv | a line an epoch |
| q-history.safetensors | how q moved: small pictures of every layer after some steps, where q does move |
| checkpoint.safetensors | while it trains: everything needed to go on |
| isingformer.json, model-*, posterior-* | the trained model, as `load` reads it |
| tensorboard/ | events, where TensorBoard is installed |
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .._files import check_utf8, make_folder, read_index, temporary_files, write_json, write_text
from .._locks import locked
from .._version import __version__
from ..methods.storage import INDEX, check_saved, saved_tensors

FORMAT = 1
SETTINGS = ("data", "method", "recipe")
"""What two trainings must share to be one."""
NEEDED = {
    "data": ("name", "origin", "fingerprint", "classes", "size", "channels", "pixels", "train", "mean", "sd"),
    "method": ("name",),
    "recipe": ("likelihood",),
    "network": ("width", "patch"),
    "finished": ("epochs", "stopped_early", "kept_epoch", "seconds"),
}
"""What run.json must say, whichever version wrote it; `finished` is null until it is."""
COMPRESSED = "compact.json"
"""As the room `compress` calls it."""
TRAIN_AGAIN = "train again with --overwrite"


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.about = self.path / "run.json"
        self.history = self.path / "history.csv"
        self.q_history = self.path / "q-history.safetensors"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.tensorboard = self.path / "tensorboard"

    def read(self) -> dict[str, Any]:
        """What run.json says."""
        if not self.about.is_file():
            raise FileNotFoundError(
                f"{self.path} is no run (run.json is missing); give a folder that `isingformer train --out` wrote"
            )
        return read_index(self.about, TRAIN_AGAIN, number=FORMAT, needed=NEEDED, still="finished")

    def begin(self, about: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any]:
        """Write run.json of a new training, or find that the one here is the same and goes on.

        Raises:
            FileExistsError: the folder holds a training with other settings, or a compressed network.
            FileNotFoundError, ValueError: it is finished, and its model is gone or damaged.
        """
        if self._compressed():
            raise FileExistsError(
                f"{self.path} holds a compressed network, which no training replaces, with --overwrite neither; give "
                "another --out, or remove the folder"
            )
        if not self.about.is_file() and (self.path / "plan.json").exists():
            raise FileExistsError(f"{self.path} holds a study (plan.json); give another --out")
        if overwrite:
            self._clear()
        elif self.about.is_file():
            there = self.read()
            different = differences(there, about)
            if different:
                raise FileExistsError(
                    f"{self.path} holds another training ({'; '.join(different)}); give another --out, or --overwrite "
                    "to begin anew"
                )
            if there["finished"] is not None:
                self.check_model()
                self.checkpoint.unlink(missing_ok=True)  # where the process died just before it did so itself
            return there
        elif self.checkpoint.exists() or (self.path / INDEX).exists():
            raise FileExistsError(
                f"{self.path} holds a saved model or a checkpoint without the run.json of a training; give another "
                "--out, or --overwrite to replace it"
            )
        whole = {"format": FORMAT, **versions(), **about, "finished": None}
        write_json(self.about, whole)
        return whole

    def check_model(self) -> None:
        """Raise where the model of a finished training is missing or damaged: only another training brings it back."""
        if not (self.path / INDEX).is_file():
            raise FileNotFoundError(f"{self.path / INDEX} is missing; {TRAIN_AGAIN}")
        check_saved(self.path, TRAIN_AGAIN)

    def _compressed(self) -> bool:
        """Whether `compress` wrote this; where run.json cannot say, by the file that a network is read from."""
        try:
            return "compressed" in self.read()
        except (OSError, ValueError):
            return (self.path / COMPRESSED).is_file()

    def _clear(self) -> None:
        """Remove what an earlier training left here, and nothing else. Without its run.json the rest is no training."""
        events = self.tensorboard.glob("events.out.tfevents.*")
        index = self.path / INDEX
        tables = (self.history, self.q_history)
        for file in (self.about, self.checkpoint, *tables, index, *saved_tensors(self.path), *events):
            file.unlink(missing_ok=True)

    def write_history(self, rows: list[dict[str, float]]) -> None:
        """The epochs so far as a table."""
        text = io.StringIO()
        if rows:
            table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
        write_text(self.history, text.getvalue())

    def finish(self, about: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
        """Note how the training ended; the model must have been saved before. The checkpoint has served."""
        whole = {**about, "finished": dict(outcome)}
        write_json(self.about, whole)
        self.checkpoint.unlink(missing_ok=True)
        return whole

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process trains into this folder; temporary files of processes that died are removed."""
        check_utf8(self.path)
        make_folder(self.path)
        # Where the system has no file locks, two trainings into one folder are the user's to avoid.
        with locked(self.path / ".lock", wait=False) as state:
            if state == "taken":
                raise BlockingIOError(
                    f"another process is training into {self.path}; wait for it, or give another --out"
                )
            for stale in temporary_files(self.path):
                stale.unlink(missing_ok=True)
            yield


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """In words, where two trainings' settings differ."""
    found = []
    for part in SETTINGS:
        one, other = flat(there[part]), flat(json.loads(json.dumps(here[part])))
        if part == "method" and one["name"] != other["name"]:  # all their settings differ then
            one, other = {"method": one["name"]}, {"method": other["name"]}
        if part == "data":
            one, other = ({"data": f"{d['name']} {d['fingerprint']}"} for d in (one, other))
        for key in [*one, *(key for key in other if key not in one)]:
            if one.get(key) != other.get(key):
                found.append(f"{key} {one.get(key)} there, {other.get(key)} here")
    return found


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """A nested mapping as one level, by the innermost names."""
    level: dict[str, Any] = {}
    for key, value in nested.items():
        level.update(flat(value) if isinstance(value, Mapping) else {key: value})
    return level


def versions() -> dict[str, Any]:
    """What this run is made with."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "isingformer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hardware": gpu or f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
    }
