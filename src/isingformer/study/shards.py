"""Parts of a grid.

For several machines: every training in exactly one of them, at about the same cost each. Or some datasets, sizes,
methods and rates before the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ._checks import whole
from .plan import Plan
from .record import Cell


class Shard(NamedTuple):
    """The i-th of n parts of a grid, and of that what belongs to some datasets, methods, sizes and rates.

    Where none is named, to all. A method without a rate, such as `plain`, belongs to every rate.
    """

    i: int = 1
    n: int = 1
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()

    def checked(self, plan: Plan) -> Shard:
        """The same, where the plan has all that is named."""
        _check(self.i, self.n, f"{self.i}/{self.n}")
        sizes = sorted({size for data in plan.datasets for size in data.sizes})
        asked: list[tuple[str, Sequence[object], Sequence[object]]] = [
            ("dataset", self.datasets, plan.labels), ("method", self.methods, plan.methods),
            ("size", self.sizes, sizes), ("rate", self.rates, plan.rates),
        ]  # fmt: skip
        for what, named, known in asked:
            for name in named:
                if name not in known:
                    has = ", ".join(map(str, known)) or "none"
                    raise ValueError(f"the plan {plan.name!r} has no {what} {name!r}; it has {has}")
        if not any(map(self.has, plan.cells())):
            raise ValueError(
                f"nothing of the plan {plan.name!r} is of all the datasets, methods, sizes and rates that are named; "
                "name sizes that one of the datasets has"
            )
        return self

    def has(self, cell: Cell) -> bool:
        """Whether a cell is of the datasets, methods, sizes and rates that are named."""
        return (
            cell.dataset in (self.datasets or [cell.dataset])
            and cell.method in (self.methods or [cell.method])
            and cell.size in (self.sizes or [cell.size])
            and (cell.rate is None or cell.rate in (self.rates or [cell.rate]))
        )


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """``2/4``, the second of four parts."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip(), re.ASCII)
    i, n = (int(found[1]), int(found[2])) if found else (0, 0)
    _check(i, n, text)
    return Shard(i, n)


def _check(i: int, n: int, given: object) -> None:
    if not (whole(i) and whole(n) and i <= n):
        raise ValueError(f"a shard is i/n with i from 1 to n, as in 2/4, got {given!r}")


def shard_of(plan: Plan, shard: Shard) -> list[tuple[Cell, int]]:
    """The trainings of a part of a grid. The parts depend on the plan alone, not on what is done.

    All trainings stand in a row, in the order of the plan, each as wide as its cost. The row is cut into n equal
    parts, and a training belongs to the part that its middle lies in: so a part is whole cells but at its ends, and
    costs at most one training more than an n-th.
    """
    shard = Shard(*shard).checked(plan)
    costs = {cell: plan.cost(cell) for cell in plan.cells()}
    total, before, mine = sum(costs.values()) * plan.replicas, 0, []
    for cell, cost in costs.items():
        for replica in range(plan.replicas):
            if (2 * before + cost) * shard.n // (2 * total) == shard.i - 1:
                mine.append((cell, replica))
            before += cost
    return [(cell, replica) for cell, replica in mine if shard.has(cell)]
