"""A study on a Ray cluster: cells that train as one stack are a task, and their records come back to one store.

    outcome = run_on_ray(read_plan("paper"), "studies/paper", address="auto")

Only this process, the driver, touches the study's folder. It claims what it hands out, as any other worker of the store
does, so that a task that is lost with its machine loses nothing but its own time: it is handed out again. Tasks read
their data by the plan's names on whichever machine they run. How far they are comes by a queue that nothing depends on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.queue import Queue
except ImportError as error:
    raise ImportError(f"a study on Ray needs ray ({error}): pip install 'isingformer[ray]'") from None

from .._version import __version__
from ..study import Cell, Outcome, Plan, Record, Store
from ..study.runner import PATIENCE, Bar, Ears
from ..study.scoring import circumstances
from ..study.shards import WHOLE, Shard
from ..study.store import Job
from ..study.worker import Bench, Training, claim_of, stackable
from . import _ray_cluster as cluster
from ._ray_cluster import check

__all__ = ["check", "run_on_ray"]

RETRIES = 3
"""How often a task is handed out again after its worker died."""
IN_FLIGHT = 200
"""Tasks handed out at a time; each holds the claims of its cells, and with them open files."""


@dataclass
class _Found:
    """What a task brings back; a `Keeper`."""

    records: list[Record] = field(default_factory=list)
    data: dict[str, str] = field(default_factory=dict)
    """Checksums of the datasets it read."""
    said: list[str] = field(default_factory=list)
    failed: list[tuple[Cell, int, str]] = field(default_factory=list)

    def add(self, record: Record) -> bool:
        self.records.append(record)
        return True

    def check_data(self, dataset: str, fingerprint: str) -> None:
        self.data[dataset] = fingerprint


class _Sender:
    """Hears of a task's work and tells the driver how much of it is done in all, so that a second try starts at 0."""

    def __init__(self, found: _Found, post: Queue, number: int) -> None:
        self.found, self.post, self.number = found, post, number
        self.worked, self.sent = 0.0, time.monotonic()

    def work(self, cost: float) -> None:
        self.worked += cost
        if time.monotonic() - self.sent > PATIENCE:
            with contextlib.suppress(RayError):  # a bar that stands still is no reason to stop
                self.post.put((self.number, self.worked))
            self.sent = time.monotonic()

    def done(self, cell: Cell, trainings: int) -> None:
        pass  # the driver sees the records

    def say(self, line: str) -> None:
        self.found.said.append(line)

    def failed(self, cell: Cell, replica: int, why: str) -> None:
        self.found.failed.append((cell, replica, why))


def _train_group(
    trainings: Sequence[Training], plan: Plan, post: Queue, number: int, version: str, settings: dict[str, Any]
) -> _Found:
    """The whole of a task: cells that differ in their rate alone."""
    if version != __version__:
        raise ValueError(
            f"a worker of the Ray cluster has isingformer {__version__}, the study was started with {version}; install "
            "the same version on all machines"
        )
    found = _Found()
    device = torch.device(settings["device"])
    if device.type == "cpu":
        torch.set_num_threads(1)  # Ray counts a task as one core
    bench = Bench(
        plan, found, device, circumstances(settings["command"]), _Sender(found, post, number),
        data_dir=settings["data_dir"], download=settings["download"], sharers=settings["sharers"],
    )  # fmt: skip
    bench.train(trainings)
    return found


@dataclass
class _Task:
    """Cells that are handed out, with the claims on them."""

    number: int
    trainings: list[Training]
    claims: contextlib.ExitStack
    cost: float
    worked: float = 0.0
    died: int = 0

    @property
    def name(self) -> str:
        return ", ".join(dict.fromkeys(cell.name for cell, _ in self.trainings))


def run_on_ray(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    address: str = "auto",
    device: str = "auto",
    gpus_per_task: float | None = None,
    shard: Shard = WHOLE,
    jobs: int | None = None,
    data_dir: str | None = None,
    download: bool = True,
    progress: bool = True,
    command: str | None = None,
) -> Outcome:
    """Train and score what is still to do of a study, on a Ray cluster. Called again, it goes on.

    Cells that differ in their rate alone are one task, on one core and its share of a GPU. A task whose worker dies is
    handed out again, up to three times; then its trainings are named as failed and the others go on. isingformer must
    be installed on all machines, in one version, and find the datasets there.

    Args:
        plan: the grid.
        folder: the store, on this machine; see `Store.open` for when one that exists is taken up.
        address: ``auto`` (the cluster that this machine belongs to, or that RAY_ADDRESS names), ``local`` (one on this
            machine, for as long as this lasts), ``HOST:PORT``, or ``ray://HOST:PORT`` for a Ray client.
        device: ``auto`` (GPUs where the cluster has them), ``cpu`` or ``cuda``; which GPU, Ray says.
        gpus_per_task: the share of a GPU that a task gets, from 0 to 1: 0.5 puts two on one. None: 1 on GPUs, else 0.
        shard: a part of the grid.
        jobs: cores that a ``local`` cluster has, and so tasks side by side on a CPU. None: those of the machine.
        data_dir: where the datasets are, on every machine. None: each machine's own ISINGFORMER_DATA.
        download: whether what is missing may be brought, by every machine for itself.
        progress: show a bar with the time left on stderr.
        command: kept in every record.

    Raises:
        OSError: No cluster answers.
        ValueError: It has not what a task needs.
    """
    check(address, device, gpus_per_task, jobs)
    store = Store.open(folder, plan)
    done, total = store.progress(plan, shard)
    outcome = Outcome(done, total)
    left = store.jobs(plan, shard)
    if not left:
        return outcome
    with cluster.connected(address, jobs):
        gpus = cluster.gpus(device, gpus_per_task)
        settings = {
            "device": "cuda" if gpus else "cpu", "command": command, "data_dir": data_dir, "download": download,
            "sharers": cluster.sharers(gpus, len(left)),
        }  # fmt: skip
        to_do = sum(plan.cost(job.cell) * len(job.replicas) for job in left)
        with Bar(shown=progress, total=to_do, title=f"{plan.name}: {total - done} trainings") as bar:
            _Driver(plan, store, shard, Ears(outcome, bar), settings, gpus).run(left)
    outcome.done, outcome.total = store.progress(plan, shard)
    return outcome


class _Driver:
    """Hands out tasks and keeps what they bring back."""

    def __init__(
        self, plan: Plan, store: Store, shard: Shard, ears: Ears, settings: dict[str, Any], gpus: float
    ) -> None:
        self.plan, self.store, self.shard, self.ears, self.settings = plan, store, shard, ears, settings
        # Lost tasks are handed out again here, where it can be counted and told, and not by Ray.
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_train_group)
        self.post = Queue(actor_options={"num_cpus": 0})
        self.running: dict[Any, _Task] = {}

    def run(self, jobs: Sequence[Job]) -> None:
        """All that no other process is at."""
        waiting = list(enumerate(stackable(jobs)))
        try:
            while waiting or self.running:
                while waiting and len(self.running) < IN_FLIGHT:
                    self._claim_and_start(*waiting.pop(0))
                ended, _ = ray.wait(list(self.running), timeout=PATIENCE) if self.running else ([], [])
                self._listen()
                for reference in ended:
                    self._end(reference, self.running.pop(reference))
        finally:
            for reference, task in self.running.items():
                with contextlib.suppress(RayError):
                    ray.cancel(reference, force=True)
                task.claims.close()
            with contextlib.suppress(RayError):
                self.post.shutdown(force=True)

    def _claim_and_start(self, number: int, together: Sequence[Job]) -> None:
        with contextlib.ExitStack() as claims:
            mine = [j for j in together if claims.enter_context(self.store.claim(claim_of(j.cell, self.shard)))]
            trainings = [(j.cell, k) for j in mine for k in j.replicas if k not in self.store.done(j.cell)]
            if trainings:
                cost = float(sum(self.plan.cost(cell) for cell, _ in trainings))
                self._start(_Task(number, trainings, claims.pop_all(), cost))

    def _start(self, task: _Task) -> None:
        cell = task.trainings[0][0]
        named = self.remote.options(name=f"study:{cell.dataset}_{cell.size}_{cell.method}")
        reference = named.remote(task.trainings, self.plan, self.post, task.number, __version__, self.settings)
        self.running[reference] = task

    def _end(self, reference: Any, task: _Task) -> None:
        try:
            found: _Found = ray.get(reference)
        except RayTaskError as error:  # ours: it would come again
            task.claims.close()
            said = " ".join(str(error.cause).split()) or type(error.cause).__name__
            raise (ValueError if isinstance(error.cause, ValueError | OSError) else RuntimeError)(said) from None
        except RayError as error:  # Ray's: the worker, its machine or the way to it is gone
            self._again(task, error)
            return
        with task.claims:
            for dataset, fingerprint in found.data.items():
                self.store.check_data(dataset, fingerprint)
            for record in found.records:
                self.store.add(record)
        self._moved(task, task.cost)
        for line in found.said:
            self.ears.say(line)
        for one in found.failed:
            self.ears.failed(*one)
        for cell in dict.fromkeys(cell for cell, _ in task.trainings):
            self.ears.done(cell, sum(record.cell == cell for record in found.records))

    def _again(self, task: _Task, error: RayError) -> None:
        task.died += 1
        self._moved(task, 0.0)
        if task.died <= RETRIES:
            self.ears.say(f"{task.name}: its worker died ({type(error).__name__}), and it was trained again")
            self._start(task)
            return
        for cell, replica in task.trainings:
            self.ears.failed(cell, replica, f"its worker died {task.died} times ({type(error).__name__})")
        task.claims.close()

    def _listen(self) -> None:
        """Take in how far the tasks are."""
        numbers = {task.number: task for task in self.running.values()}
        with contextlib.suppress(RayError, queue.Empty):
            for number, worked in self.post.get_nowait_batch(self.post.size()):
                if number in numbers:
                    self._moved(numbers[number], worked)

    def _moved(self, task: _Task, worked: float) -> None:
        self.ears.work(worked - task.worked)
        task.worked = worked
