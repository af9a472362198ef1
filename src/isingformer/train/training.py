"""From a dataset and a method to a run: the whole of a training."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch

from ..data import Dataset, Images, load_data, split, standardise
from ..methods import Attached, Ising, Method, attach, save
from ..methods.distributed import by_first, nothing, processes, rank
from ..methods.method import plain
from ..nn.vit import ViT
from .batches import Batches, derived_seed
from .checkpoint import Progress
from .device import find_device, threads, threads_for
from .folder import RunFolder
from .held_out import HeldOut
from .loop import Loop
from .processes import joined, own_device
from .progress import Bar, Several, TensorBoard, tensorboard_installed
from .q_history import FRAMES, QHistory
from .recipe import Recipe, whole
from .run import Run


def train(
    data: Dataset | str | os.PathLike[str],
    method: Method | None = None,
    recipe: Recipe | None = None,
    *,
    out: str | os.PathLike[str],
    device: str = "auto",
    checkpoint_every: int | None = None,
    overwrite: bool = False,
    q_frames: int = FRAMES,
    progress: bool = True,
    tensorboard: bool | None = None,
    command: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train a vision transformer on images, into a folder. Called again after an interruption, it goes on.

    Whenever the process dies, at most the steps since the last checkpoint are lost, and the result is bit by bit that
    of a training that was never interrupted (on the same machine; on a GPU with ``Recipe(deterministic=True)``).
    torch's default generators are used and left as they were.

    Where torchrun has started several processes, all call this alike: each takes its part of every batch, and the first
    one writes the folder, which all must see.

    Args:
        data: a `Dataset`, or what `load_data` takes: ``"digits"``, ``"mnist"``, a folder of images, an .npz.
        method: `Ising` (None), `DropConnect`, `Dropout` or `Plain`.
        recipe: all other settings; None: the defaults of `Recipe`.
        out: the run's folder. One that holds the same training unfinished is taken up, finished is returned as it is.
        device: ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1``.
        checkpoint_every: steps between checkpoints; None: once an epoch.
        overwrite: begin anew, whatever training the folder holds.
        q_frames: how many pictures of q to keep from the training, for `isingformer explain`; 0: none.
        progress: show a bar on stderr.
        tensorboard: write TensorBoard events; None: where it is installed.
        command: kept in run.json, to say how it was made.
        stop: asked after every step; once it says True a checkpoint is written and the run is returned unfinished.

    Raises:
        Diverged: the loss turned NaN or infinite.
        FileExistsError: `out` holds a training with other settings.
    """
    method, recipe = method or Ising(), recipe or Recipe()
    checkpoint_every, q_frames = plain(checkpoint_every), plain(q_frames)
    if checkpoint_every is not None and not whole(checkpoint_every, 1):
        raise ValueError(f"checkpoint_every must be a number of steps from 1 on, or None, got {checkpoint_every!r}")
    if not whole(q_frames, 0) or q_frames == 1:
        raise ValueError(f"q_frames must be 2 or more pictures, or 0 for none, got {q_frames!r}")
    place = own_device(find_device(device))
    dataset = data if isinstance(data, Dataset) else load_data(data)
    sample, validation = split(
        dataset.train, train=recipe.train_size, validation=recipe.validation, stratified=recipe.stratified,
        seed=recipe.seed_of_sample,
    )  # fmt: skip
    if recipe.patience is not None and not len(validation):
        raise ValueError(
            f"patience={recipe.patience} needs validation images, and validation={recipe.validation} of "
            f"{len(sample)} training images holds out none; hold out more"
        )
    network = recipe.network(size=dataset.size, channels=dataset.channels, classes=len(dataset.classes))
    mean, sd = standardise(sample)
    with joined(place), contextlib.ExitStack() as held:
        batches = Batches(
            sample, batch=recipe.batch_for(len(sample)), mean=mean, sd=sd, augment=recipe.augmentations,
            seed=recipe.seed, device=place, share=(rank(), processes()),
            held_out=HeldOut.of(method, examples=len(sample), epochs=recipe.epochs),
        )  # fmt: skip
        steps, lr = recipe.epochs * batches.per_epoch, recipe.rate(network)
        # Before the folder: settings that no network fits must not leave one behind.
        handle = build(network, method, recipe, examples=len(sample), steps=steps, device=place)
        folder = RunFolder(out)
        about: dict[str, Any] = {
            "command": command,
            "data": described(dataset, sample, validation, mean.tolist(), sd.tolist()),
            "method": {"name": method.name, "settings": method.settings()},
            "recipe": recipe.settings(),
            "network": network,
            "plan": {
                "batch": batches.batch, "steps": steps, "lr": lr, "threads": threads_for(network, place),
                "processes": processes(),
            },
        }  # fmt: skip

        def begin() -> dict[str, Any]:
            held.enter_context(folder.locked())
            return folder.begin(about, overwrite=overwrite)

        about = by_first(begin, others=folder.read)
        if about["finished"] is not None:
            return Run(folder.path, dataset=dataset, device=place)
        loop = Loop(
            handle, batches, validation, recipe, lr=lr, checkpoint=folder.checkpoint,
            checkpoint_every=checkpoint_every, stop=stop,
        )  # fmt: skip
        with contextlib.ExitStack() as shown, threads(about["plan"]["threads"]):
            if rank() == 0:
                loop.watcher = _watchers(
                    shown, folder, loop, q_frames=q_frames, progress=progress, tensorboard=tensorboard
                )
            finished = loop.run()

        def finish() -> None:
            save(handle.model.eval(), folder.path)
            folder.finish(about, outcome(loop.progress))

        if finished:
            by_first(finish, others=nothing)
        return Run(folder.path, dataset=dataset, device=place)


def build(
    network: dict[str, Any], method: Method, recipe: Recipe, *, examples: int, steps: int, device: torch.device
) -> Attached:
    """The network with its method, on its device."""
    model = initial_network(network, recipe.seed).to(device)
    return attach(model, method, examples=examples, steps=steps, likelihood=recipe.likelihood)


def initial_network(network: dict[str, Any], seed: int) -> ViT:
    """The network with the initial weights that follow from a seed, on every device alike."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derived_seed(seed, "weights"))
        return ViT(**network)


def described(dataset: Dataset, sample: Images, validation: Images, mean: Any, sd: Any) -> dict[str, Any]:
    """What run.json says of the data: enough to read them again and to see whether they are the same."""
    return {
        "name": dataset.name,
        "origin": None if dataset.origin is None else dict(dataset.origin),
        "fingerprint": dataset.fingerprint(),
        "classes": list(dataset.classes),
        "size": list(dataset.size),
        "channels": dataset.channels,
        "pixels": str(sample.x.dtype).removeprefix("torch."),
        "train": len(sample),
        "validation": len(validation),
        "test": len(dataset.test),
        "mean": mean,
        "sd": sd,
    }


def outcome(progress: Progress) -> dict[str, Any]:
    """How a training ended; the figures are those of the epoch whose model was kept."""
    kept = progress.best_epoch or len(progress.history)
    return {
        "epochs": len(progress.history),
        "steps": progress.step,
        "stopped_early": progress.stopped,
        "kept_epoch": kept,
        "seconds": round(progress.seconds, 1),
        "figures": progress.history[kept - 1],
    }


def _watchers(
    shown: contextlib.ExitStack, folder: RunFolder, loop: Loop, *, q_frames: int, progress: bool,
    tensorboard: bool | None,
) -> Several:  # fmt: skip
    watchers: list[Any] = [_History(folder)]
    if q_frames and isinstance(loop.method.method, Ising):  # the q of other methods stands still
        watchers.append(QHistory(folder.q_history, loop.method, steps=loop.steps, frames=q_frames))
    if tensorboard or (tensorboard is None and tensorboard_installed()):
        watchers.append(shown.enter_context(TensorBoard(folder.tensorboard, epochs_done=len(loop.progress.history))))
    if progress:
        bar = Bar(epochs=loop.recipe.epochs, per_epoch=loop.batches.per_epoch, done=loop.progress.step)
        watchers.append(shown.enter_context(bar))
        if loop.progress.step:
            bar.say(f"going on after step {loop.progress.step} of {loop.steps}")
    return Several(*watchers)


class _History:
    """Keeps history.csv in step."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def step(self, progress: Progress, figures: Callable[[], dict[str, float]]) -> None:
        """Nothing: the table has a line an epoch."""

    def epoch(self, progress: Progress, row: dict[str, float]) -> None:
        """Write the table anew."""
        self.folder.write_history(progress.history)
