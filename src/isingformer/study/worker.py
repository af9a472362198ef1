"""One process at work on a study: claim cells, train their replicas as stacks, score them, keep the records."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..data import Dataset, Images
from ..nn import ViT
from ..predict import activation_bytes
from ..train import Recipe
from .beforehand import data_for
from .plan import Plan
from .record import Cell, Record
from .scoring import records_of
from .shards import Shard
from .stack import Stack
from .store import Job, Store

SHARE_OF_MEMORY = 0.6
TRAINING_COPIES = 5
"""How often the activations of a batch are held in training, by rule of thumb: outputs, gradients, noise, casts."""
OPTIMISER_COPIES = 12
"""How often the weights are: m, gradient, two moments, q, prior, curvature and what comes and goes."""


Training = tuple[Cell, int]
"""A cell and the number of a replica."""


class Told(Protocol):
    """Who hears how a worker gets on."""

    def work(self, cost: float) -> None:
        """So much of the study, in units of `Plan.cost`, is done."""

    def done(self, cell: Cell, trainings: int) -> None:
        """So many trainings of a cell have their records."""

    def say(self, line: str) -> None:
        """Something a person should know."""

    def failed(self, cell: Cell, replica: int, why: str) -> None:
        """A training that left no record."""


class Keeper(Protocol):
    """Where records go: a `Store`, or whoever brings them to one."""

    def add(self, record: Record) -> bool:
        """Keep a record; False where there is one already."""

    def check_data(self, dataset: str, fingerprint: str) -> None:
        """Note a dataset's checksum, or compare it with what was noted."""


@dataclass
class Bench:
    """What every cell of a study needs.

    Args:
        plan: the grid.
        keeper: where records go.
        device: where to train.
        made: of every record; see `scoring.circumstances`.
        told: who hears of it.
        data_dir, download: as `load_data` takes them.
        sharers: how many benches share the memory.
    """

    plan: Plan
    keeper: Keeper
    device: torch.device
    made: dict[str, Any]
    told: Told
    data_dir: str | None = None
    download: bool = True
    sharers: int = 1

    def __post_init__(self) -> None:
        """Nothing is read yet."""
        self._read: tuple[str, Dataset, Images] | None = None
        self.failed: set[Training] = set()
        self._most = 10**9  # the largest stack that has not run out of memory

    def _fail(self, cell: Cell, replica: int) -> None:
        self.failed.add((cell, replica))
        self.told.failed(cell, replica, "its loss turned NaN or infinite")

    def train(self, trainings: Sequence[Training]) -> None:
        """Train and score; all are of one method on one dataset and size."""
        if not trainings:
            return
        cell = trainings[0][0]
        dataset, images = self._data(cell.dataset)
        waiting = list(trainings)
        size = min(len(waiting), self._most, self._fitting(cell, dataset, images))
        if size < len(waiting):
            self.told.say(f"{_named(trainings)}: {len(waiting)} replicas in stacks of {size}, to fit the memory")
        while waiting:
            part = waiting[:size]
            try:
                self._stack(part, dataset, images)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error) or len(part) == 1:
                    raise
                size = self._most = len(part) // 2
                self.told.say(
                    f"{_named(part)}: out of memory with {len(part)} replicas; going on with stacks of {size}"
                )
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            except FloatingPointError:  # raised for all where one of them diverges
                if len(part) > 1:
                    size = 1
                    continue
                self._fail(*part[0])
            waiting = waiting[len(part) :]

    def _stack(self, trainings: Sequence[Training], dataset: Dataset, images: Images) -> None:
        plan, cells = self.plan, [cell for cell, _ in trainings]
        stack = Stack(
            dataset, plan.method_for(*cells), [plan.recipe_for(*one) for one in trainings], device=self.device
        )
        cost = sum(plan.cost(cell) for cell in cells)
        training = 0.8 * cost  # what the bar gives to training; scoring gets the rest
        stack.train(lambda step: self.told.work(training / stack.steps))
        for record in records_of(stack, plan, trainings, images, made=self.made):
            self.keeper.add(record)
        failed = [trainings[place] for place in stack.diverged]
        for one in failed:
            self._fail(*one)
        self.told.work(cost - training)
        for cell in dict.fromkeys(cells):
            self.told.done(cell, sum(one[0] == cell and one not in failed for one in trainings))

    def _data(self, label: str) -> tuple[Dataset, Images]:
        """A dataset and the test images of the study; the last one read is kept."""
        if self._read is None or self._read[0] != label:
            self._read = None
            dataset, images = data_for(self.plan, label, data_dir=self.data_dir, download=self.download)
            self.keeper.check_data(label, dataset.fingerprint())
            self._read = (label, dataset, images)
        return self._read[1], self._read[2]

    def _fitting(self, cell: Cell, dataset: Dataset, images: Images) -> int:
        recipe = self.plan.recipe_for(cell, 0)
        need = replica_bytes(recipe, cell.size, dataset, images, self.plan.samples)
        return max(1, int(SHARE_OF_MEMORY * free_bytes(self.device) / self.sharers / need))


@dataclass
class Worker:
    """One process at work on a store that others may work on too.

    Args:
        bench: where cells are trained; its keeper is the store.
        store: the study's folder.
        shard: the part of the grid to work on.
    """

    bench: Bench
    store: Store
    shard: Shard

    def run(self) -> None:
        """Work until nothing is left that no other process is at."""
        tried = None
        while (jobs := self._left()) and jobs != tried:
            tried = jobs
            for together in stackable(jobs):
                with contextlib.ExitStack() as claims:
                    mine = [
                        job
                        for job in together
                        if claims.enter_context(self.store.claim(claim_of(job.cell, self.shard)))
                    ]
                    self.bench.train(
                        [
                            (job.cell, replica)
                            for job in mine
                            for replica in job.replicas
                            if replica not in self.store.done(job.cell)
                        ]
                    )

    def _left(self) -> list[Job]:
        """What is to do, without what has failed here: it would fail again."""
        jobs = []
        for cell, replicas in self.store.jobs(self.bench.plan, self.shard):
            rest = tuple(replica for replica in replicas if (cell, replica) not in self.bench.failed)
            jobs += [Job(cell, rest)] if rest else []
        return jobs


def claim_of(cell: Cell, shard: Shard) -> str:
    """The name under which a shard's part of a cell is claimed: parts of a cell may lie in several shards."""
    return f"{cell.name}.{shard[0]}of{shard[1]}"


def stackable(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that can train as one program, together: those that differ in their rate alone."""
    groups: dict[tuple[str, int, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.cell.dataset, job.cell.size, job.cell.method), []).append(job)
    return list(groups.values())


def _named(trainings: Sequence[Training]) -> str:
    return ", ".join(dict.fromkeys(cell.name for cell, _ in trainings))


def replica_bytes(recipe: Recipe, size: int, dataset: Dataset, images: Images, samples: int) -> int:
    """About what a replica takes: in training, or when its passes over the test images are held, whichever is more."""
    network = recipe.network(size=dataset.size, channels=dataset.channels, classes=len(dataset.classes))
    with torch.random.fork_rng(devices=[]):
        model = ViT(**network)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    one = torch.zeros(1, dataset.channels, *dataset.size)
    with torch.no_grad():
        activations = activation_bytes(model, one)
    training = TRAINING_COPIES * activations * recipe.batch_for(size)
    scoring = 4 * len(images) * (2 * one.numel() + 4 * samples * network["classes"])
    return OPTIMISER_COPIES * weights + max(training, scoring)


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return 4 << 30


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether that is what went wrong, or what went wrong before: a broken recording of a graph hides it."""
    if error is None:
        return False
    words = ("out of memory", "not enough memory", "can't allocate memory")
    itself = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)
    return itself or _is_out_of_memory(error.__context__)
