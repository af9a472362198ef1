"""Some cells of a grid, by what they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ._checks import several
from .record import Cell


@dataclass(frozen=True, kw_only=True)
class Part:
    """The cells that are of some datasets, sizes, methods and rates; where none is named, of any.

    A method without a rate, such as `plain`, belongs to every rate.
    """

    datasets: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check that what is given are lists with nothing twice."""
        for name, values in vars(self).items():
            object.__setattr__(self, name, several(name, values) if values != () else ())

    def has(self, cell: Cell) -> bool:
        """Whether a cell is of all that is named."""
        return (
            cell.dataset in (self.datasets or [cell.dataset])
            and cell.size in (self.sizes or [cell.size])
            and cell.method in (self.methods or [cell.method])
            and (cell.rate is None or cell.rate in (self.rates or [cell.rate]))
        )

    def checked(self, cells: Sequence[Cell], where: str) -> Part:
        """The same, where among these cells there is all that is named, and a cell of all of it.

        Args:
            cells: the grid.
            where: what an error calls the grid.
        """
        for kind in fields(self):
            what = kind.name.removesuffix("s")
            known: list[Any] = [*dict.fromkeys(getattr(cell, what) for cell in cells)]
            if what in ("size", "rate"):
                known = sorted(value for value in known if value is not None)
            for name in getattr(self, kind.name):
                if name not in known:
                    has = ", ".join(map(str, known)) or "none"
                    raise ValueError(f"{where} has no {what} {name!r}; it has {has}")
        if not any(map(self.has, cells)):
            raise ValueError(
                f"nothing of {where} is of all the datasets, methods, sizes and rates that are named; "
                "name sizes that one of the datasets has"
            )
        return self
