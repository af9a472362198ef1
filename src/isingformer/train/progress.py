"""How a training shows itself: a bar for a person, a line an epoch for a log, TensorBoard where it is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checkpoint import Progress

SECONDS_BETWEEN = 0.5
"""How often the bar's figures are computed anew."""


class Bar:
    """A rich progress bar on stderr with loss, accuracy, mean q and share dropped; without a terminal, lines.

    Args:
        epochs, per_epoch: how long the training is.
        done: steps done already.
    """

    def __init__(self, *, epochs: int, per_epoch: int, done: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.epochs, self.per_epoch = epochs, per_epoch
        self.console = Console(stderr=True)
        self.bar = RichProgress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"), TimeRemainingColumn(), console=self.console,
            disable=not self.console.is_terminal, transient=False,
        )  # fmt: skip
        self.task = self.bar.add_task("training", total=epochs * per_epoch, completed=done, figures="")
        self.shown = float("-inf")

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def say(self, line: str) -> None:
        """Print a line, above the bar where there is one."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def step(self, progress: Progress, figures: Callable[[], dict[str, float]]) -> None:
        """Move the bar; compute its figures twice a second."""
        if not self.console.is_terminal:
            return
        now, at_start = time.monotonic(), progress.step % self.per_epoch == 0
        if now - self.shown >= SECONDS_BETWEEN and not at_start:
            self.shown = now
            self.bar.update(self.task, completed=progress.step, figures=in_words(figures()))
        else:
            self.bar.update(self.task, completed=progress.step)

    def epoch(self, progress: Progress, row: dict[str, float]) -> None:
        """Print a line, for logs; on a terminal the bar shows the validation figures instead."""
        if self.console.is_terminal:
            self.bar.update(self.task, figures=in_words(row))
        else:
            said = f"epoch {row['epoch']}/{self.epochs}  {in_words(row)}  {progress.seconds:.0f} s"
            self.say(said)


def in_words(figures: dict[str, float]) -> str:
    """The figures of a step or an epoch in one line."""
    said = f"loss {figures['loss']:.3f}  acc {figures['accuracy']:.3f}"
    said += f"  q {figures['mean_q']:.3f}  dropped {figures['dropped']:.1%}"
    if "validation_nll" in figures:
        said += f"  val NLL {figures['validation_nll']:.3f}  val acc {figures['validation_accuracy']:.3f}"
    return said


class TensorBoard:
    """Every epoch's figures as TensorBoard scalars.

    Args:
        folder: of the event files.
        epochs_done: epochs of a training that goes on; what an earlier process wrote after them is hidden.
    """

    def __init__(self, folder: Path, *, epochs_done: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder), purge_step=epochs_done + 1)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *error: object) -> None:
        self.writer.close()

    def step(self, progress: Progress, figures: Callable[[], dict[str, float]]) -> None:
        """Nothing: an epoch is often enough."""

    def epoch(self, progress: Progress, row: dict[str, float]) -> None:
        """Write the row."""
        for name, value in row.items():
            if name not in ("epoch", "step"):
                self.writer.add_scalar(name, value, int(row["epoch"]))
        self.writer.flush()


def tensorboard_installed() -> bool:
    """Whether TensorBoard can be written."""
    import importlib.util

    return importlib.util.find_spec("tensorboard") is not None


class Several:
    """Several watchers as one."""

    def __init__(self, *watchers: Any) -> None:
        self.watchers = watchers

    def step(self, progress: Progress, figures: Callable[[], dict[str, float]]) -> None:
        """Tell them all."""
        for watcher in self.watchers:
            watcher.step(progress, figures)

    def epoch(self, progress: Progress, row: dict[str, float]) -> None:
        """Tell them all."""
        for watcher in self.watchers:
            watcher.epoch(progress, row)
