"""A table that prints itself; pages show the same one."""

from __future__ import annotations

from dataclasses import dataclass

Entry = str | int | float


@dataclass(frozen=True)
class Table:
    """Words and numbers in columns."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]

    def text(self) -> tuple[tuple[str, ...], ...]:
        """The rows as people read them."""
        return tuple(tuple(shown(entry) for entry in row) for row in self.rows)

    def __str__(self) -> str:
        rows = [self.header, *self.text()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.header))]
        left = [all(isinstance(row[i], str) for row in self.rows) for i in range(len(self.header))]
        lines = (
            "  ".join(cell.ljust(w) if to else cell.rjust(w) for cell, w, to in zip(row, widths, left, strict=True))
            for row in rows
        )
        return "\n".join([self.title, *(line.rstrip() for line in lines)])


def interval_ends(level: float) -> tuple[str, str]:
    """What the ends of an interval are called: 5% and 95%."""
    return f"{50 * (1 - level):g}%", f"{50 * (1 + level):g}%"


def shown(entry: Entry) -> str:
    """A number for people: whole ones with commas, others with three digits that count; words as they are."""
    if isinstance(entry, float):
        return f"{entry:,.0f}" if abs(entry) >= 1000 else f"{entry:.3g}"
    return f"{entry:,}" if isinstance(entry, int) else entry
