"""All replicas of a cell, at all its rates, as one batched program: stacked weights, one optimiser, data on the device.

A replica has its own sample, initial weights, order of batches, noise stream and clipping, all from its own seed, so
its result does not depend on who it was stacked with. It is the training of `isingformer.train` with the same seed, but
for the noise, which comes from keyed streams here. On a GPU the blocks of the network are compiled where a training is
long enough to pay for it, and a training step is a CUDA graph (`capture.py`).

Axes: R replicas, N images of a sample, B images of a batch, C channels, T passes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..data import Dataset, Images, split_rows, standardise
from ..methods import Method, attach
from ..nn import clip_grad_norm_, stack
from ..nn.masked import in_eval_mode
from ..nn.posterior import Sampling
from ..predict import Prediction, predict
from ..train.batches import augmented, derived_seed
from ..train.device import precision
from ..train.held_out import HeldOut
from ..train.loop import adamw, decay_groups
from ..train.recipe import Recipe, schedule
from ..train.training import initial_network
from .capture import CapturedStep
from .flat import Flat

WORTH_COMPILING = 1500
"""Training steps from which on a GPU saves more by compiled code than compiling it takes."""
IMAGES_AT_ONCE = 20480
"""In a pass of a GPU's predictions, over all replicas."""
PROGRAMS = 64
"""How many compiled versions of a block (of shapes, methods, modes) torch may keep before it gives up compiling."""


class Stack:
    """R trainings of one method on one dataset, as one.

    Args:
        dataset: whose training file the samples are drawn from.
        method: what every replica is trained with; its drop rate may be a tuple, one rate a replica.
        recipes: one a replica; they differ in their seeds alone.
        device: where they train.
        dtype: of the weights; float64 for exact comparisons.
        fast: on a GPU, compile and capture where it pays. False: run eagerly, for comparisons.
    """

    def __init__(
        self,
        dataset: Dataset,
        method: Method,
        recipes: Sequence[Recipe],
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        fast: bool = True,
    ) -> None:
        self.recipe, self.recipes, self.device, self.dtype = recipes[0], recipes, device, dtype
        self.seeds = [recipe.seed for recipe in recipes]
        self.x, self.y = dataset.train.x.to(device), dataset.train.y.to(device)
        rows = [
            split_rows(
                dataset.train.y, train=recipe.train_size, validation=0, stratified=recipe.stratified,
                seed=recipe.seed_of_sample,
            )[0]
            for recipe in recipes
        ]  # fmt: skip
        self.rows = torch.stack(rows)  # [R, N]
        scales = [standardise(dataset.train.take(own)) for own in rows]
        self.mean, self.sd = (torch.stack(part).to(device, dtype) for part in zip(*scales, strict=True))  # [R, C]
        self.batch = self.recipe.batch_for(self.rows.shape[1])
        self.per_epoch = self.rows.shape[1] // self.batch
        self.steps = self.recipe.epochs * self.per_epoch
        self.held_out = HeldOut.of(method, examples=self.rows.shape[1], epochs=self.recipe.epochs)
        split = [self.held_out.rows(self.rows.shape[1], derived_seed(seed, "held out")) for seed in self.seeds]
        self.outside, self.inside = [held for held, _ in split], [others for _, others in split]
        self.network = self.recipe.network(size=dataset.size, channels=dataset.channels, classes=len(dataset.classes))
        self.lr = self.recipe.rate(self.network)
        self.model = stack([initial_network(self.network, seed) for seed in self.seeds]).to(device, dtype)
        self.model.frugal = True
        self.method = attach(
            self.model, method, examples=self.rows.shape[1], steps=self.steps, likelihood=self.recipe.likelihood,
            seeds=[derived_seed(seed, "noise") for seed in self.seeds],
        )  # fmt: skip
        self.likelihood = self.method.parts.likelihood
        self.captured = fast and device.type == "cuda"
        self.rate = torch.tensor(self.lr, device=device) if self.captured else self.lr
        self.flat = [Flat(group) for group in decay_groups(self.method)]
        decayed, others = ([part.whole] for part in self.flat)
        self.optimizer = adamw(decayed, others, self.rate, self.recipe.weight_decay)
        self.autocast = precision(self.recipe.precision, device)
        self.batch_x = torch.zeros(len(recipes), self.batch, *self.x.shape[1:], dtype=dtype, device=device)
        self.batch_y = torch.zeros(len(recipes), self.batch, dtype=self.y.dtype, device=device)
        self.nll = torch.zeros(len(recipes), dtype=torch.float64, device=device)
        """Summed over the steps of the epoch under way, [R]; after `train`, the mean of the last epoch."""
        self.compiled = self.captured and self.steps >= WORTH_COMPILING
        if self.captured:
            self.model.compile_parts()
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self.seeds)

    def train(self, told: Callable[[int], None] | None = None) -> None:
        """Train all replicas to the end.

        Args:
            told: called with the number of steps done after each; what it raises ends the training.
        """
        started = time.perf_counter()
        self.model.train()
        run: Callable[[], None] = self._step
        with contextlib.ExitStack() as around:
            if self.captured:
                run = captured = CapturedStep(self._step, self.method, self.batch_x)
                around.enter_context(captured.ready())
            around.enter_context(self._programs(compiled=self.compiled))
            moves = self.held_out.moves(steps=self.steps, per_epoch=self.per_epoch, settling=self.method.rule.settling)
            for step in range(self.steps):
                if step % self.per_epoch == 0:
                    order = self._order(step // self.per_epoch)
                    self.nll.zero_()
                place = step % self.per_epoch * self.batch
                self._set(step, order[:, place : place + self.batch])
                run()
                self.method.step(targets=self.batch_y)
                if step in moves:
                    self._learn_delta()
                    if step == moves[-1]:
                        self.method.settle_delta()
                if told is not None:
                    told(step + 1)
            self.nll /= self.per_epoch
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds = time.perf_counter() - started

    def _programs(self, *, compiled: bool) -> contextlib.AbstractContextManager[object]:
        """Inside, parts of the model run compiled, anew for every shape, method and mode that comes along, or eager."""
        if not self.captured:
            return contextlib.nullcontext()
        if not compiled:
            return torch.compiler.set_stance("force_eager")
        from torch._dynamo import config  # takes seconds, and is needed here alone

        return config.patch(recompile_limit=PROGRAMS)

    def _order(self, epoch: int) -> Tensor:
        """The images of an epoch in their order, ``[R, N]``, by their numbers in the training file."""
        orders, needed = [], self.per_epoch * self.batch
        for own, others, seed in zip(self.rows, self.inside, self.seeds, strict=True):
            generator = torch.Generator().manual_seed(derived_seed(seed, "order", epoch))
            order = self.held_out.order(epoch, others, total=len(own), needed=needed, generator=generator)
            orders.append(own[order])
        return torch.stack(orders).to(self.device)

    def _learn_delta(self) -> None:
        """Move every replica's delta by the images that it holds out."""
        rows = [own[held] for own, held in zip(self.rows, self.outside, strict=True)]
        at = torch.stack(rows).to(self.device)
        with self.autocast(), self._programs(compiled=False):
            self.method.learn_delta(self._inputs(self.x[at], None), targets=self.y[at])

    def _set(self, step: int, rows: Tensor) -> None:
        """Lay out the batch, ``[R, B, C, H, W]`` and ``[R, B]``, and the learning rate of a step."""
        rate = self.lr * schedule(step, steps=self.steps, warmup=self.recipe.lr_warmup)
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        self.batch_x.copy_(self._inputs(self.x[rows], step))
        self.batch_y.copy_(self.y[rows])

    def _step(self) -> None:
        """Forward, backward, optimiser: on a GPU, what is captured."""
        with self.autocast():
            outputs = self.model(self.batch_x)
        nll = self.likelihood.nll(outputs.to(self.dtype), self.batch_y).mean(1)  # [R]
        (nll + self.method.kl()).sum().backward()
        for part in self.flat:
            part.gather()
        if self.recipe.clip is not None:
            clip_grad_norm_([part.whole for part in self.flat], self.recipe.clip, replicas=len(self))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.nll += nll.detach()

    def _inputs(self, x: Tensor, step: int | None) -> Tensor:
        """Pixels ``[R, B, C, H, W]`` as each replica reads them; in training augmented, each by its own draws."""
        kinds = self.recipe.augmentations
        if kinds and step is not None:
            generators = [torch.Generator().manual_seed(derived_seed(seed, "augment", step)) for seed in self.seeds]
            x = torch.stack([augmented(own, kinds, draws) for own, draws in zip(x, generators, strict=True)])
        shape = (len(self), 1, -1, 1, 1)
        return (x.to(self.dtype) - self.mean.view(shape)) / self.sd.view(shape)

    @property
    def diverged(self) -> list[int]:
        """The places of replicas whose loss or weights have turned NaN or infinite; the others go on untouched."""
        norms = torch.stack([p.flatten(1).norm(dim=1) for p in self.model.parameters()]).norm(dim=0)  # [R]
        return (~(self.nll + norms).isfinite()).nonzero().flatten().tolist()

    @torch.no_grad()
    def probable(self, images: Images) -> Tensor:
        """Probabilities of every replica's most probable network, as `sparsify` makes it, ``[R, N, C]``.

        W = m (1 - q) where q <= 1/2, else 0.
        """
        x, found = self._images(images), []
        parts = self.method.parts
        drops = [mask.drop for masks in (parts.posteriors, parts.node_masks) for mask in masks.values()]
        before = [q.clone() for q in drops]
        try:
            for q in drops:
                q.masked_fill_(q > 0.5, 1.0)
            with self.autocast(), self._programs(compiled=False), in_eval_mode(self.model):
                for part in x.split(max(1, IMAGES_AT_ONCE // len(self)), 1):
                    found.append(self.likelihood.probabilities(self.model(part).to(self.dtype)))
        finally:
            for q, own in zip(drops, before, strict=True):
                q.copy_(own)
        return torch.cat(found, 1)

    def _images(self, images: Images) -> Tensor:
        """The same images for every replica, as it reads them, ``[R, N, C, H, W]``."""
        return self._inputs(images.x.to(self.device).expand(len(self), *images.x.shape), None)

    def predict(self, images: Images, samples: int, sampling: Sampling = "mask") -> Prediction:
        """T passes of every replica over the same images, ``samples [T, R, N, C]`` on the device.

        Args:
            images: what to predict.
            samples: T.
            sampling: as for `predict`. With ``local`` in eager mode: to compile takes longer than a few passes do.
        """
        x = self._images(images)
        number, size = x.shape[1], None
        if self.captured:  # chunks of one size, for which one program is compiled
            chunks = math.ceil(number * len(self) / IMAGES_AT_ONCE)
            size = math.ceil(number / chunks)
            x = torch.cat([x, x[:, : chunks * size - number]], 1)
        with self.autocast(), self._programs(compiled=sampling == "mask"):
            found = predict(
                self.model, x, samples=samples, batch_size=size, sampling=sampling,
                seeds=[derived_seed(seed, "predict") for seed in self.seeds],
            )  # fmt: skip
        return Prediction(found.samples[:, :, :number].to(self.dtype))
