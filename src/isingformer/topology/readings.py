"""From who reads each row, as a trace saw it, to a `Wiring`: rows that are read in order become one `Reading`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ..ising import Reading, Wiring
from .trace import Readers

_Row = tuple[tuple[str, ...], int, int]
"""Readers, the first column they read a row in, and 1; for a row that acts by its head, minus the head's size."""


def wiring_of(
    found: Mapping[str, Readers], rows: Mapping[str, int]
) -> tuple[dict[str, tuple[Reading, ...]], list[str]]:
    """(the wiring, the layers some of whose readers it leaves out).

    Args:
        found: what a trace found.
        rows: how many rows each layer has.
    """
    wiring, unresolved = {}, []
    for name, readers in found.items():
        placed = [_placed(readers, row) for row in range(rows[name])]
        wiring[name] = tuple(sorted((*_runs(placed), *_heads(placed)), key=lambda reading: reading.rows.start))
        covered = sum(reading.rows.stop - reading.rows.start for reading in wiring[name])
        seen = {*readers.direct, *readers.mixed}
        if covered < len(seen) or (readers.lost and covered < rows[name]) or not readers.called:
            unresolved.append(name)
    circular = _in_circles(wiring)
    for name in circular:
        wiring[name] = tuple(reading for reading in wiring[name] if not circular & set(reading.readers))
    unresolved += [name for name in wiring if name in circular and name not in unresolved]
    return wiring, [name for name in found if name in unresolved]


def _placed(readers: Readers, row: int) -> _Row | None:
    """A row's readers and columns, where they are the same columns, side by side, of all of them."""
    direct = readers.direct.get(row)
    read = direct or readers.mixed.get(row)
    if not read:
        return None
    names = tuple(dict.fromkeys(name for name, _ in read))
    columns = [sorted(column for name, column in read if name == each) for each in names]
    first, size = columns[0][0], len(columns[0])
    if any(own != list(range(first, first + size)) for own in columns) or (direct and size > 1):
        return None
    return names, first, 1 if direct else -size


def _runs(placed: list[_Row | None]) -> Iterable[Reading]:
    """Rows that feed a column each, in order."""
    start = 0
    for row in range(1, len(placed) + 1):
        here, before = placed[row] if row < len(placed) else None, placed[row - 1]
        if before is not None and here == (before[0], before[1] + 1, 1) and before[2] == 1:
            continue
        if before is not None and before[2] == 1:
            first = before[1] - (row - 1 - start)
            yield Reading(slice(start, row), before[0], slice(first, before[1] + 1))
        start = row


def _heads(placed: list[_Row | None]) -> Iterable[Reading]:
    """Rows that act on their head's columns, in blocks of as many rows as the head has columns."""
    blocks: list[tuple[int, _Row]] = []  # first row, what its rows have in common
    for here, run in itertools.groupby(range(len(placed)), key=placed.__getitem__):
        rows = list(run)
        if here is not None and here[2] < 0 and len(rows) % here[2] == 0:
            blocks += [(row, here) for row in rows[:: -here[2]]]
    while blocks:
        start, (names, first, minus) = blocks[0]
        size, count = -minus, 1
        while blocks[count : count + 1] == [(start + count * size, (names, first + count * size, minus))]:
            count += 1
        yield Reading(slice(start, start + count * size), names, slice(first, first + count * size), size)
        blocks = blocks[count:]


def _in_circles(wiring: Wiring) -> set[str]:
    """Layers that read each other in a circle: a layer that runs twice, or weights shared over depth."""
    ahead = {name: {reader for reading in readings for reader in reading.readers} for name, readings in wiring.items()}
    left = dict(ahead)
    while True:  # take away what reads nothing that is left, then what nothing left reads: circles remain
        read = set().union(*left.values()) if left else set()
        ends = {name for name, readers in left.items() if not readers & left.keys() or name not in read}
        if not ends:
            return set(left)
        left = {name: readers - ends for name, readers in left.items() if name not in ends}
