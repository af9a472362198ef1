"""The training loop: AdamW, a cosine with a rise before it, clipping, validation, checkpoints.

    loss = mean NLL of a batch + kl(),    on passes drawn from the posterior

Random numbers: a step seeds torch's default generators from (seed, step) and the caller's states are put back at the
end. So any step can be repeated, and a resumed training draws what an uninterrupted one would have drawn.

Several processes (see `processes.py`) each run this loop on their part of every batch; gradients are averaged by
DistributedDataParallel, figures are added up, and all take every decision together.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from ..curvature.likelihood import Likelihood
from ..data import Images
from ..methods import Attached
from ..methods.distributed import add_up, by_first, nothing, processes, rank
from .batches import Batches, derived_seed, in_chunks
from .checkpoint import Progress, read_checkpoint, restore, snapshot, write_checkpoint
from .device import deterministic, precision
from .processes import any_of, data_parallel
from .recipe import Recipe, schedule


class Diverged(ArithmeticError):
    """The loss turned NaN or infinite."""


class Watcher(Protocol):
    """Who is told how a training goes: a progress bar, a log."""

    def step(self, progress: Progress, figures: Callable[[], dict[str, float]]) -> None:
        """A step is done. `figures` computes what there is to show, which costs something: not at every step."""

    def epoch(self, progress: Progress, row: dict[str, float]) -> None:
        """An epoch is complete; `row` is its line of the history."""


@dataclass
class Loop:
    """One training, from wherever its checkpoint stands to its end.

    Args:
        method: on the model, both on their device.
        batches: the training images.
        validation: images that measure an epoch; may be empty.
        recipe: the settings.
        lr: the peak learning rate.
        checkpoint: the file to write to, and to go on from where it exists; None: no file.
        checkpoint_every: steps between checkpoints; None: once an epoch.
        watcher: who is told.
        stop: asked after every step; once it says True a checkpoint is written and the loop ends early.
    """

    method: Attached
    batches: Batches
    validation: Images
    recipe: Recipe
    lr: float
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    watcher: Watcher | None = None
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        """Build the optimiser; take up the checkpoint where there is one."""
        self.model = self.method.model
        self.network: nn.Module = self.model  # what a training pass calls
        self.device = next(self.model.parameters()).device
        self.likelihood: Likelihood = self.method.parts.likelihood
        self.steps = self.recipe.epochs * self.batches.per_epoch
        self.optimizer = adamw(*decay_groups(self.method), self.lr, self.recipe.weight_decay)
        self.autocast = precision(self.recipe.precision, self.device)
        self.moves = self.batches.held_out.moves(
            steps=self.steps, per_epoch=self.batches.per_epoch, settling=self.method.rule.settling
        )
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        if self.checkpoint is not None and self.checkpoint.exists():
            self.progress, self.best = read_checkpoint(self.checkpoint, self.method, self.optimizer)
        if processes() > 1:
            self.network = data_parallel(self.model)
        # Kept on the device: reading them at every step would make a GPU wait.
        self.running = torch.tensor(self.progress.running, dtype=torch.float64, device=self.device)
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=self.device)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.progress.stopped or self.progress.step >= self.steps

    def run(self) -> bool:
        """Train to the end, or until `stop` says so; whether the end was reached."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), deterministic(self.recipe.deterministic):
            while not self.done:
                started = time.perf_counter()
                self._step()
                progress = self.progress
                if progress.step % self.batches.per_epoch == 0:
                    self._end_of_epoch()
                progress.seconds += time.perf_counter() - started
                stopping = any_of(self.stop())
                every = self.checkpoint_every or self.batches.per_epoch
                if stopping or self.done or progress.step % every == 0:
                    self._write()
                if self.watcher is not None:
                    self.watcher.step(progress, self.figures)
                if stopping:
                    break
        if self.done and self.best:
            restore(self.method, self.best)
        return self.done

    def _step(self) -> None:
        step, optimizer, model = self.progress.step, self.optimizer, self.model
        self._seed_generators(derived_seed(self.recipe.seed, "noise", step, *([rank()] if rank() else [])))
        rate = self.lr * schedule(step, steps=self.steps, warmup=self.recipe.lr_warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        x, y = self.batches(step)
        model.train()
        try:
            with self.autocast():
                outputs = self.network(x)
            nll = self.likelihood.nll(outputs.float(), y).mean()
            # Parts may differ by an image; with this factor the mean over processes is the mean over the batch.
            loss = (nll + self.method.kl()) * (len(y) * processes() / self.batches.batch)
            self._notice_nan(loss, step)
            loss.backward()
            if self.recipe.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe.clip)
            optimizer.step()
            optimizer.zero_grad()
            self.method.step(targets=y)
            self._learn_delta(step)
        except FloatingPointError:  # the method's own check; on a GPU it comes some steps late
            self._check_nan()
            raise self._diverged(step) from None
        self.progress.step += 1
        with torch.no_grad():
            right = self.likelihood.probabilities(outputs.float()).argmax(-1) == y
            count = len(y)
            self.running += torch.stack([nll.double() * count, right.sum(), torch.full_like(nll, count)])

    def _learn_delta(self, step: int) -> None:
        """Where it is due, by images that this part of the training holds out of the gradient."""
        if step not in self.moves:
            return
        x, y = self.batches.outsiders()
        with self.autocast():
            self.method.learn_delta(x, targets=y)
        if step == self.moves[-1]:
            self.method.settle_delta()

    def _seed_generators(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _notice_nan(self, loss: Tensor, step: int) -> None:
        if self.device.type == "cpu":
            if any_of(not bool(loss.isfinite())):
                raise self._diverged(step)
        else:
            fresh = ~loss.detach().isfinite() & (self.first_bad < 0)
            self.first_bad = torch.where(fresh, step, self.first_bad)

    def _check_nan(self) -> None:
        """Before anything is shown: what the GPU noted in the meantime."""
        bad = int(self.first_bad)
        if bad >= 0:
            raise self._diverged(bad)

    def _check_weights(self) -> None:
        """Before anything is written: the last update itself may have ruined them, after a loss that was finite."""
        self._check_nan()
        if not bool(torch.stack(torch._foreach_norm(list(self.model.parameters()))).isfinite().all()):
            raise self._diverged(self.progress.step - 1, "the weights")

    def _diverged(self, step: int, what: str = "the loss") -> Diverged:
        kept = "" if self.checkpoint is None or not self.checkpoint.exists() else "; the last checkpoint is whole"
        seed = derived_seed(self.recipe.seed, "noise", step)
        rate = self.lr * schedule(step, steps=self.steps, warmup=self.recipe.lr_warmup)
        return Diverged(
            f"{what} turned NaN or infinite at step {step + 1} of {self.steps} (batch seed {seed}, learning rate "
            f"{rate:.3g}){kept}. Try a lower learning rate, a longer lr_warmup, stronger clipping, or float32, with "
            "another --out or --overwrite: the same command would end the same way"
        )

    def figures(self) -> dict[str, float]:
        """Loss, accuracy, mean q and share dropped, of the epoch under way."""
        self._check_nan()
        loss, right, images = self.running.tolist()
        return {"loss": loss / max(1, images), "accuracy": right / max(1, images), **self.method.summary()}

    def _end_of_epoch(self) -> None:
        add_up(self.running, "figures")
        row = {"epoch": len(self.progress.history) + 1, "step": self.progress.step, **self.figures()}
        row["lr"] = self.optimizer.param_groups[0]["lr"]
        if len(self.validation):
            self._check_weights()
            row["validation_nll"], row["validation_accuracy"] = self.validate()
        self.progress.history.append(row)
        self.running.zero_()
        if self.recipe.patience is not None:
            self._look_for_best(row)
        if self.watcher is not None:
            self.watcher.epoch(self.progress, row)

    def _look_for_best(self, row: dict[str, float]) -> None:
        progress, nll = self.progress, row["validation_nll"]
        if progress.step < min(self.method.rule.settling, self.steps):
            return  # a network whose masks are not all there yet is not what was asked for
        if progress.best_nll is None or nll < progress.best_nll:
            progress.best_nll, progress.best_epoch = nll, int(row["epoch"])
            self.method.synchronise()
            self.best = snapshot(self.method)
        waited = row["epoch"] - progress.best_epoch >= (self.recipe.patience or 0)
        progress.stopped = waited and progress.step < self.steps

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Mean NLL and accuracy of the expected network on the validation images."""
        self.model.eval()
        nll = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        chunks = in_chunks(self.validation, self.batches.mean, self.batches.sd, self.device)
        for x, y in itertools.islice(chunks, rank(), None, processes()):
            with self.autocast():
                outputs = self.model(x)
            nll += self.likelihood.nll(outputs.float(), y).double().sum()
            right += (self.likelihood.probabilities(outputs.float()).argmax(-1) == y).sum()
        add_up(nll, "figures")
        add_up(right, "figures")
        return float(nll) / len(self.validation), int(right) / len(self.validation)

    def _write(self) -> None:
        self._check_weights()
        # Every process gets an equal share of what all have, so that one file is good for all of them.
        self.method.synchronise()
        self.progress.running = add_up(self.running, "figures").div_(processes()).tolist()
        file = self.checkpoint
        if file is not None:
            by_first(
                lambda: write_checkpoint(file, self.progress, self.method, self.optimizer, self.best), others=nothing
            )


def decay_groups(method: Attached) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that weight decay is for, the matrices of the linear layers, and the others."""
    matrices = {f"{name}.weight" for name in method.parts.layers}
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in method.model.named_parameters():
        groups[name in matrices].append(parameter)
    return groups[True], groups[False]


def adamw(
    decayed: list[nn.Parameter], others: list[nn.Parameter], lr: float | Tensor, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW, with decay on some parameters and none on others; see `decay_groups`.

    With the learning rate in a tensor on a GPU its step can be captured in a CUDA graph.
    """
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    captured = isinstance(lr, Tensor)
    return torch.optim.AdamW(groups, lr=lr, fused=captured, capturable=captured)
