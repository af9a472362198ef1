"""The grid of a study as data: datasets x training sizes x methods x rates x replicas, read from TOML.

name = "leaves"                     # default: the file's name
methods = ["dropout", "ising"]      # keys of `isingformer.methods.METHODS`
rates = [0.1, 0.5]                  # p or delta; `plain` has none
replicas = 10                       # training samples of a cell, the same for every method and rate
seed = 0                            # everything random follows from it
samples = 50                        # T
score_local = true                  # score passes with fresh noise for every token too; default: drawn networks alone

[[datasets]]
source = "leaves.npz"               # what `load_data` takes; paths start from the TOML file's folder
label = "leaves"                    # default: the name
sizes = [100, 1000]                 # training images
test_images = 500                   # default: all
resize = 32                         # default: as they are

[recipe]                            # of `isingformer.Recipe`
epochs = 30

[settings.ising]                    # any other settings of a method
coupling = 0.5

[[only]]                            # of the whole grid these cells alone; of what is not named, all
methods = ["dropout"]
rates = [0.5]
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ..data.sources import NAMES, known_name
from ..methods import METHODS, Method, named_method
from ..train import Recipe
from ..train.batches import derived_seed
from ._checks import check, distinct, known_keys, several, whole
from .part import Part
from .record import Cell

Table = TypeVar("Table")

SHIPPED = ("quick", "paper")
MOST_REPLICAS = 10_000
GUESSED_TEST_IMAGES = 1_000
"""What a test set of unknown size counts for in a training's cost."""
_NO_VALIDATION = "a study holds out no validation images"
NOT_IN_RECIPE = {
    "train_size": "the sizes of the datasets say it",
    "seed": "the plan's own seed, outside [recipe], says it",
    "sample_seed": "the plan's own seed, outside [recipe], says it",
    "validation": _NO_VALIDATION,
    "patience": _NO_VALIDATION,
}
"""Settings of a recipe that a study chooses itself, and why."""


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A dataset of a study."""

    source: str
    """A name that `load_data` knows, or a path."""
    sizes: tuple[int, ...]
    """Training images."""
    label: str = ""
    """What cells call it: the name, or the last part of the path, unless given."""
    test_images: int | None = None
    """A fixed sample of the test images, see `Plan.test_seed`; None: all of them."""
    resize: int | None = None

    def __post_init__(self) -> None:
        """Check every value; an error names it and what is allowed."""
        check("source", self.source, isinstance(self.source, str) and self.source != "", "a name or a path")
        if self.label == "":
            path = Path(self.source)
            object.__setattr__(self, "label", path.stem if path.suffix.lower() == ".npz" else path.name)
        fine = isinstance(self.label, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", self.label)
        check("label", self.label, bool(fine), "at most 80 letters, digits, '.', '_' or '-', for names of files")
        object.__setattr__(self, "sizes", several(f"sizes of {self.label}", self.sizes))
        for size in self.sizes:
            check(f"sizes of {self.label}", size, whole(size), "whole numbers from 1 on")
        for name in ("test_images", "resize"):
            value = getattr(self, name)
            check(f"{name} of {self.label}", value, value is None or whole(value), "a whole number from 1 on")

    @property
    def place(self) -> str:
        """The source without the folder it lies in: a study may go on when its data have moved."""
        path = Path(self.source)
        return f".../{path.name}" if path.is_absolute() else self.source


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study's grid and everything that its cells have in common; `recipe` and `settings` are filled with defaults."""

    name: str
    datasets: tuple[StudyData, ...]
    methods: tuple[str, ...]
    rates: tuple[float, ...] = ()
    replicas: int
    seed: int = 0
    samples: int = 50
    score_local: bool = False
    """Whether T passes drawn by `local` are scored too, beside the T networks."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `Recipe`, without those in `NOT_IN_RECIPE`."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of each method, without its rate."""
    only: tuple[Part, ...] = ()
    """Of the whole grid the cells that one of these has; none: all."""

    def __post_init__(self) -> None:
        """Check every value; an error names it and what is allowed."""
        check("name", self.name, isinstance(self.name, str) and self.name != "", "a word")
        fine = whole(self.replicas) and self.replicas <= MOST_REPLICAS
        check("replicas", self.replicas, fine, f"a whole number from 1 to {MOST_REPLICAS:,}")
        check("seed", self.seed, whole(self.seed, 0), "a whole number from 0 on")
        check("samples", self.samples, whole(self.samples), "a whole number from 1 on")
        check("score_local", self.score_local, isinstance(self.score_local, bool), "true or false")
        for name in ("datasets", "methods"):
            object.__setattr__(self, name, several(name, getattr(self, name)))
        distinct("labels of the datasets", [data.label.lower() for data in self.datasets])  # files may ignore case
        for method in self.methods:
            check("methods", method, isinstance(method, str) and method in METHODS, f"some of {', '.join(METHODS)}")
        object.__setattr__(self, "rates", self._checked_rates())
        object.__setattr__(self, "recipe", _filled_recipe(self.recipe))
        object.__setattr__(self, "settings", self._filled_settings())
        object.__setattr__(self, "only", tuple(self.only))
        for part in self.only:
            part.checked(self._grid(), "the whole grid")

    def _checked_rates(self) -> tuple[float, ...]:
        rated = [method for method in self.methods if METHODS[method][1] is not None]
        if not rated:
            check("rates", self.rates, not self.rates, f"left out, since {self.methods[0]} has none")
            return ()
        rates = several("rates", self.rates)
        for rate in rates:
            real = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 1
            fine = real and float(f"{rate:g}") == rate  # which is what names of files keep
            check("rates", rate, fine, "numbers from 0 to 1 of at most six digits")
            for method in rated:
                named_method(method, rate)
        return tuple(float(rate) for rate in rates)

    def _filled_settings(self) -> dict[str, dict[str, Any]]:
        check("settings", self.settings, isinstance(self.settings, Mapping), "a table a method")
        strangers = [method for method in self.settings if method not in self.methods]
        if strangers:
            raise ValueError(
                f"settings of {strangers[0]!r}, which is not among the methods, {', '.join(self.methods)}; add it there"
            )
        filled = {}
        for method in self.methods:
            rated, given = METHODS[method][1], self.settings.get(method, {})
            check(f"settings of {method}", given, isinstance(given, Mapping), "a table")
            made = named_method(method, self.rates[0] if rated else None, given)
            filled[method] = {name: value for name, value in made.settings().items() if name != rated}
        return filled

    def dataset(self, label: str) -> StudyData:
        """The dataset that cells call so."""
        found = [data for data in self.datasets if data.label == label]
        if not found:
            raise ValueError(f"the plan {self.name!r} has no dataset {label!r}; it has {', '.join(self.labels)}")
        return found[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the datasets."""
        return tuple(data.label for data in self.datasets)

    def cells(self) -> list[Cell]:
        """All that is trained: by dataset, size, method, rate, each in the order of the plan."""
        return [cell for cell in self._grid() if not self.only or any(part.has(cell) for part in self.only)]

    def _grid(self) -> list[Cell]:
        return [
            Cell(data.label, size, method, rate)
            for data in self.datasets
            for size in data.sizes
            for method in self.methods
            for rate in (self.rates if METHODS[method][1] else (None,))
        ]

    @property
    def trainings(self) -> int:
        """How many there are: cells times replicas."""
        return len(self.cells()) * self.replicas

    def seed_of(self, dataset: str, size: int, replica: int) -> int:
        """Of a replica's sample, weights, order and noise: the same for every method and rate, unlike any other."""
        return derived_seed(self.seed, "study", dataset, size, replica)

    def test_seed(self, dataset: str) -> int:
        """Of the sample of test images, which all trainings on a dataset share."""
        return derived_seed(self.seed, "study", dataset, "test")

    def recipe_for(self, cell: Cell, replica: int) -> Recipe:
        """How a replica is trained: without validation images, by its own seed."""
        seed = self.seed_of(cell.dataset, cell.size, replica)
        return Recipe(**self.recipe, train_size=cell.size, validation=0, seed=seed, sample_seed=seed)

    def method_for(self, *cells: Cell) -> Method:
        """The cell's method with its rate and its settings; of several cells that differ in their rates, with all."""
        method = cells[0].method
        rates = tuple(cell.rate for cell in cells if cell.rate is not None)
        rate = rates if len(set(rates)) > 1 else next(iter(rates), None)
        return named_method(method, rate, self.settings[method])

    def cost(self, cell: Cell) -> int:
        """About what a training takes, in images through the network: forward and back, then T passes of the test."""
        test = self.dataset(cell.dataset).test_images or GUESSED_TEST_IMAGES
        return 3 * cell.size * int(self.recipe["epochs"]) + self.samples * test

    def to_json(self) -> dict[str, Any]:
        """As plain values, in the form that the TOML file has."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        parts = [{name: named for name, named in part.items() if named} for part in plain.pop("only")]
        if not plain["score_local"]:  # as plans were before there was a choice
            del plain["score_local"]
        return {**plain, "only": parts} if parts else plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Plan:
        """Back from plain values; one line says what is wrong with them."""
        known_keys("the plan", values, cls)
        datasets = _tables("datasets", values["datasets"], StudyData)
        return cls(**{**values, "datasets": datasets, "only": _tables("only", values.get("only", []), Part)})


def read_plan(source: str | os.PathLike[str]) -> Plan:
    """A plan by name, ``quick`` or ``paper``, or from a TOML file.

    Raises:
        ValueError: There is no such plan, or something is wrong with it: one line says where, what, and what to do.
    """
    if source in SHIPPED:
        shipped = resources.files(__package__) / "plans" / f"{source}.toml"
        return Plan.from_json(tomllib.loads(shipped.read_text(encoding="utf-8")))
    path = Path(os.path.expanduser(source))
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}; correct it") from None
    except RecursionError:
        raise ValueError(f"{path} has brackets within brackets beyond what can be read; correct it") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save it as such") from None
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"cannot read the plan {os.fspath(source)!r}: {why}; expected {', '.join(SHIPPED)}, or the path of a .toml "
            "file"
        ) from None
    try:
        for data in values["datasets"] if isinstance(values.get("datasets"), list) else ():
            if isinstance(data, dict) and isinstance(data.get("source"), str):
                data["source"] = _found(data["source"], path.absolute().parent)
        return Plan.from_json({"name": path.stem, **values})
    except (ValueError, OverflowError) as error:  # TOML knows numbers that no float holds
        raise ValueError(f"{path}: {error}") from None


def _tables(name: str, given: Any, kind: type[Table]) -> tuple[Table, ...]:
    """The tables ``[[name]]`` of a plan."""
    found = []
    for table in given if isinstance(given, list) else [given]:
        check(name, table, isinstance(table, Mapping) and table is not given, f"a table [[{name}]] for each")
        known_keys(f"[[{name}]]", table, kind)
        found.append(kind(**table))
    return tuple(found)


def _filled_recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    check("recipe", given, isinstance(given, Mapping), "a table [recipe]")
    for name, why in NOT_IN_RECIPE.items():
        if name in given:
            raise ValueError(f"[recipe] has {name} = {given[name]!r}, but {why}; take it out")
    known_keys("[recipe]", given, Recipe, without=NOT_IN_RECIPE)
    return {name: value for name, value in Recipe(**given).settings().items() if name not in NOT_IN_RECIPE}


def _found(source: str, folder: Path) -> str:
    """A known name in its usual spelling, or an absolute path that is there."""
    name = known_name(source)
    if name is not None:
        return name
    path = Path(os.path.abspath(folder / os.path.expanduser(source)))
    if source and (path.is_dir() or (path.suffix.lower() == ".npz" and path.is_file())):
        return str(path)
    raise ValueError(
        f"dataset {source!r} is no name that is known, and {path} is no folder or .npz file; expected "
        f"{', '.join(NAMES)}, or a path from the folder of the plan"
    )
