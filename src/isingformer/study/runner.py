"""A study from its plan to its records: in this process, or in several that share the store."""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from typing import Any

import torch

from ..train import find_device
from .beforehand import check_beforehand
from .plan import Plan
from .record import Cell
from .scoring import circumstances
from .shards import WHOLE, Shard
from .store import Store
from .worker import Bench, Worker

PATIENCE = 0.2
"""Seconds between two looks at the workers."""


@dataclass
class Outcome:
    """How a study stands after a call."""

    done: int
    total: int
    """Trainings of the shard."""
    failed: list[str] = field(default_factory=list)
    """Trainings that left no record, and why."""
    said: list[str] = field(default_factory=list)


def run_study(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    shard: Shard = WHOLE,
    jobs: int | None = None,
    data_dir: str | None = None,
    download: bool = True,
    progress: bool = True,
    command: str | None = None,
) -> Outcome:
    """Train and score what is still to do of a study. Called again, by whichever process, it goes on.

    Args:
        plan: the grid.
        folder: the store; see `Store.open` for when one that exists is taken up.
        device: ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1``.
        shard: a part of the grid.
        jobs: processes that work side by side. None: one on a GPU; on a CPU one for every core, each on one thread.
        data_dir: where the datasets are, as `load_data` takes it.
        download: whether what is missing may be brought.
        progress: show a bar with the time left on stderr.
        command: kept in every record.
    """
    place = find_device(device)
    left = Store(folder).jobs(plan, shard)
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be a number of processes from 1 on, got {jobs}")
    cells = [job.cell for job in left]
    datasets = len({cell.dataset for cell in cells})
    with Bar(shown=progress and bool(left), total=datasets, title=f"{plan.name}: a look at the data") as bar:
        check_beforehand(plan, cells, data_dir=data_dir, download=download, told=lambda: bar.move(1))
    store = Store.open(folder, plan)  # now only: a plan to be corrected leaves no folder that holds another study
    done, total = store.progress(plan, shard)
    outcome = Outcome(done, total)
    if not left:
        return outcome
    if jobs is None:
        jobs = min(len(left), os.cpu_count() or 1) if place.type == "cpu" else 1
    settings: dict[str, Any] = {
        "plan": plan, "folder": str(store.path), "shard": shard, "device": str(place), "data_dir": data_dir,
        "download": download, "made": circumstances(command), "sharers": jobs,
    }  # fmt: skip
    to_do = sum(plan.cost(job.cell) * len(job.replicas) for job in left)
    with Bar(shown=progress, total=to_do, title=f"{plan.name}: {total - done} trainings") as bar:
        ears = Ears(outcome, bar)
        if jobs == 1:
            _work(ears, **settings)
        else:
            _together(jobs, ears, settings)
    outcome.done, outcome.total = store.progress(plan, shard)
    return outcome


class Ears:
    """Hears of the work in this process.

    Args:
        outcome: what is heard goes there.
        bar: and is shown here.
    """

    def __init__(self, outcome: Outcome, bar: Bar) -> None:
        self.outcome, self.bar = outcome, bar

    def work(self, cost: float) -> None:
        """Move the bar."""
        self.bar.move(cost)

    def done(self, cell: Cell, trainings: int) -> None:
        """Count trainings that have their records."""
        self.outcome.done += trainings
        self.bar.line(f"{cell.name}: {self.outcome.done} of {self.outcome.total} trainings")

    def say(self, line: str) -> None:
        """Keep a line for the end."""
        self.outcome.said.append(line)

    def failed(self, cell: Cell, replica: int, why: str) -> None:
        """Keep the name of a training that left no record."""
        self.outcome.failed.append(f"{cell.name} replica {replica}: {why}")


class _Post:
    """Hears of the work in a process of its own, and tells its parent; without one it stops."""

    def __init__(self, post: Queue[tuple[str, Any]], parent: int) -> None:
        self.post, self.parent = post, parent
        self.waiting, self.sent = 0.0, time.monotonic()

    def work(self, cost: float) -> None:
        if os.getppid() != self.parent:
            raise SystemExit("the study's main process is gone")
        self.waiting += cost
        if time.monotonic() - self.sent > PATIENCE:
            self.flush()

    def flush(self) -> None:
        self.post.put(("work", (self.waiting,)))
        self.waiting, self.sent = 0.0, time.monotonic()

    def say(self, line: str) -> None:
        self.post.put(("say", (line,)))

    def done(self, cell: Cell, trainings: int) -> None:
        self.post.put(("done", (cell, trainings)))

    def failed(self, cell: Cell, replica: int, why: str) -> None:
        self.post.put(("failed", (cell, replica, why)))


def _work(
    told: Any, *, plan: Plan, folder: str, shard: Shard, device: str, data_dir: str | None, download: bool,
    made: dict[str, Any], sharers: int,
) -> None:  # fmt: skip
    store = Store(folder)
    bench = Bench(
        plan, store, torch.device(device), made, told, data_dir=data_dir, download=download, sharers=sharers
    )  # fmt: skip
    Worker(bench, store, shard).run()


def _process(post: Queue[tuple[str, Any]], parent: int, settings: dict[str, Any]) -> None:
    """The whole of a worker process."""
    torch.set_num_threads(1)
    told = _Post(post, parent)
    try:
        _work(told, **settings)
        told.flush()
        post.put(("end", None))
    except Exception as error:
        post.put(("error", (isinstance(error, ValueError | OSError), str(error) or type(error).__name__)))


def _together(jobs: int, ears: Ears, settings: dict[str, Any]) -> None:
    """Several processes, each taking the next cell that no other is at."""
    context = multiprocessing.get_context("spawn")
    post: Queue[tuple[str, Any]] = context.Queue()
    workers = [context.Process(target=_process, args=(post, os.getpid(), settings), daemon=True) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    ended = 0
    try:
        while ended < jobs:
            try:
                kind, what = post.get(timeout=PATIENCE)
            except queue.Empty:
                dead = [worker.exitcode for worker in workers if worker.exitcode not in (None, 0)]
                if dead:
                    raise RuntimeError(
                        f"a worker process of the study ended with code {dead[0]}; what it had finished is kept: give "
                        "the same command again"
                    ) from None
                continue
            if kind == "error":
                bad_input, said = what
                raise ValueError(said) if bad_input else RuntimeError(said)
            if kind == "end":
                ended += 1
            else:
                getattr(ears, kind)(*what)
    finally:
        for worker in workers:
            if ended < jobs:
                worker.terminate()
            worker.join()


class Bar:
    """A bar with the time left, on a terminal; elsewhere a line for every cell.

    Args:
        shown: whether to show anything.
        total: of all that is to do.
        title: what it says.
    """

    def __init__(self, *, shown: bool, total: float, title: str) -> None:
        from rich import progress
        from rich.console import Console

        self.shown, self.console = shown, Console(stderr=True)
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=32), progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn(),
            console=self.console, disable=not (shown and self.console.is_terminal),
        )  # fmt: skip
        self.task = self.bar.add_task(title, total=total)

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def move(self, cost: float) -> None:
        """So much more is done."""
        self.bar.update(self.task, advance=cost)

    def line(self, text: str) -> None:
        """For a log."""
        if self.shown and not self.console.is_terminal:
            self.console.print(text, highlight=False, soft_wrap=True)
