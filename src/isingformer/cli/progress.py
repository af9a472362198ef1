"""A bar for downloads and for reading many files: on stderr, and on a terminal only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def transfers(*, shown: bool = True) -> Iterator[Callable[[str, int, int | None], None]]:
    """A function (name, done, total) that moves a bar; each name has its own."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(), TimeRemainingColumn(),
        console=console, disable=not (shown and console.is_terminal), transient=True,
    )  # fmt: skip
    tasks: dict[str, int] = {}

    def move(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=total)
        bar.update(tasks[name], completed=done, total=total)  # type: ignore[arg-type]

    with bar:
        yield move
