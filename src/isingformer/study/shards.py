"""Parts of a grid.

For several machines: every training in exactly one of them, at about the same cost each. Or some datasets, sizes,
methods, rates and replicas before the others.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ._checks import whole
from .part import Part
from .plan import Plan
from .record import Cell


class Shard(NamedTuple):
    """The i-th of n parts of a grid, and of that what belongs to some datasets, methods, sizes and rates.

    Where none is named, to all. A method without a rate, such as `plain`, belongs to every rate. Of each cell the first
    `replicas` alone; None: all.
    """

    i: int = 1
    n: int = 1
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    replicas: int | None = None

    def checked(self, plan: Plan) -> Shard:
        """The same, where the plan has all that is named."""
        _check(self.i, self.n, f"{self.i}/{self.n}")
        if self.replicas is not None and not (whole(self.replicas) and self.replicas <= plan.replicas):
            raise ValueError(
                f"replicas must be a whole number from 1 to {plan.replicas}, which is what the plan {plan.name!r} has, "
                f"got {self.replicas!r}"
            )
        self.part.checked(plan.cells(), f"the plan {plan.name!r}")
        return self

    @property
    def part(self) -> Part:
        """What is named, whichever of the n parts this is."""
        return Part(datasets=self.datasets, methods=self.methods, sizes=self.sizes, rates=self.rates)

    def has(self, cell: Cell) -> bool:
        """Whether a cell is of the datasets, methods, sizes and rates that are named."""
        return self.part.has(cell)


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
    number = plan.replicas if shard.replicas is None else shard.replicas
    return [(cell, replica) for cell, replica in mine if shard.has(cell) and replica < number]
