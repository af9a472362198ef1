"""Parts of a grid, for several machines: every training in exactly one of them, at about the same cost each."""

from __future__ import annotations

import re

from ._checks import whole
from .plan import Plan
from .record import Cell


def parse_shard(text: str) -> tuple[int, int]:
    """``2/4``, the second of four parts, as (2, 4)."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip(), re.ASCII)
    shard = (int(found[1]), int(found[2])) if found else (0, 0)
    return _checked(shard, text)


def _checked(shard: tuple[int, int], given: object) -> tuple[int, int]:
    i, n = shard
    if not (whole(i) and whole(n) and i <= n):
        raise ValueError(f"a shard is i/n with i from 1 to n, as in 2/4, got {given!r}")
    return shard


def shard_of(plan: Plan, shard: tuple[int, int]) -> list[tuple[Cell, int]]:
    """The trainings of the i-th of n parts of a grid. The parts depend on the plan alone, not on what is done.

    All trainings stand in a row, in the order of the plan, each as wide as its cost. The row is cut into n equal
    parts, and a training belongs to the part that its middle lies in: so a part is whole cells but at its ends, and
    costs at most one training more than an n-th.
    """
    i, n = _checked(shard, shard)
    costs = {cell: plan.cost(cell) for cell in plan.cells()}
    total, before, mine = sum(costs.values()) * plan.replicas, 0, []
    for cell, cost in costs.items():
        for replica in range(plan.replicas):
            if (2 * before + cost) * n // (2 * total) == i - 1:
                mine.append((cell, replica))
            before += cost
    return mine
