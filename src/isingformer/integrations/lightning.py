"""The Trainer of Lightning.

    isf.attach(module.network, isf.Ising(), examples=len(dataset), steps=steps)
    L.Trainer(callbacks=[IsingCallback()]).fit(module, loader)

No hook of a callback can replace the loss, so for as long as a fit lasts the module's `training_step` is wrapped: what
it returns has kl() added. Division by the accumulated batches, a loss scaler and clipping come afterwards, for both.

Nor is a callback told where a checkpoint goes, so the trainer's `save_checkpoint` is wrapped too: beside ``NAME.ckpt``
comes ``NAME.ckpt.isingformer.safetensors`` with the method's state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..methods import Attached
from ._shared import STATE_FILE, logged, method_of, read_state, write_state

try:
    import lightning.pytorch as pl
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError(f"Lightning's callback needs lightning ({error}): pip install 'isingformer[lightning]'") from None


class IsingCallback(pl.Callback):
    """Trains an attached model with Lightning: kl() in the loss, `step()` after the optimiser's, q in checkpoints.

    Mean q and the divergence are logged as ``mean_q`` and ``kl``. What `training_step` logs of its own loss is without
    the divergence. Whatever checkpoint `fit`, `validate`, `test` or `predict` is given, q is restored with the weights.

    Lightning's checkpoints hold no random state. For a resumed training to equal an undisturbed one, give `attach` a
    stream of its own (``seeds=``), which is part of the method's state.

    Args:
        method: what `attach` returned; None: the one that the module, or a network inside it, carries.
    """

    def __init__(self, method: Attached | None = None) -> None:
        self._given = method
        self._method: Attached | None = None
        self._unwrap: Callable[[], None] | None = None
        self._accompanied: pl.Trainer | None = None
        self._steps = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the method, before a checkpoint is read."""
        self._method = method_of(pl_module, self._given, "IsingCallback")
        if stage == "fit" and not pl_module.automatic_optimization:
            raise ValueError(
                f"IsingCallback: {type(pl_module).__name__} optimises by hand; there, train on loss + method.kl() and "
                "call method.step() yourself"
            )
        self._accompany_checkpoints(trainer)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The weights have been restored, where there was a checkpoint; so is q."""
        self._restore(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Likewise; but a validation during a fit has restored nothing."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._restore(trainer)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Likewise."""
        self._restore(trainer)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Likewise."""
        self._restore(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Wrap `training_step`."""
        self._steps = trainer.global_step
        self._restore_step()
        own = pl_module.__dict__.get("training_step")
        step = pl_module.training_step

        @functools.wraps(step)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            return self._with_kl(step(*args, **kwargs))

        def unwrap() -> None:
            if own is None:
                del pl_module.__dict__["training_step"]
            else:
                pl_module.__dict__["training_step"] = own

        pl_module.__dict__["training_step"] = training_step
        self._unwrap = unwrap

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Where the optimiser has stepped, so does the method; checkpoints are written after this."""
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        self._known().step()
        pl_module.log_dict(logged(self._known()), on_step=True, on_epoch=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the module its `training_step` back."""
        self._restore_step()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Likewise where training broke off."""
        self._restore_step()

    def _with_kl(self, output: Any) -> Any:
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor) or not torch.is_grad_enabled():
            return output
        with torch.autocast(loss.device.type, enabled=False):  # a sum over all weights wants its own precision
            whole = loss + self._known().kl()
        return {**output, "loss": whole} if isinstance(output, Mapping) else whole

    def _restore(self, trainer: pl.Trainer) -> None:
        if trainer.ckpt_path is not None:
            read_state(self._known(), _beside(trainer.ckpt_path))

    def _accompany_checkpoints(self, trainer: pl.Trainer) -> None:
        """Write the method's state with every checkpoint of this trainer, and remove it with them."""
        if self._accompanied is trainer:
            return
        self._accompanied = trainer
        save, remove = trainer.save_checkpoint, trainer.strategy.remove_checkpoint

        @functools.wraps(save)
        def save_checkpoint(filepath: str | Path, *args: Any, **kwargs: Any) -> None:
            save(filepath, *args, **kwargs)
            if trainer.is_global_zero:
                write_state(self._known(), _beside(filepath))

        @functools.wraps(remove)
        def remove_checkpoint(filepath: str | Path) -> None:
            # With a link goes nothing but the link: what it leads to is another checkpoint, which stays.
            beside = None if Path(filepath).is_symlink() else _beside(filepath)
            remove(filepath)
            if beside is not None and trainer.is_global_zero:
                beside.unlink(missing_ok=True)

        trainer.__dict__["save_checkpoint"] = save_checkpoint
        trainer.strategy.__dict__["remove_checkpoint"] = remove_checkpoint

    def _restore_step(self) -> None:
        if self._unwrap is not None:
            self._unwrap()
            self._unwrap = None

    def _known(self) -> Attached:
        if self._method is None:
            raise RuntimeError("IsingCallback: the Trainer has not set it up yet, so its method is unknown")
        return self._method


def _beside(checkpoint: str | Path) -> Path:
    """Where the method's state of a checkpoint lies; of a link, that of the checkpoint it leads to."""
    if "://" in str(checkpoint):
        raise ValueError(f"IsingCallback: checkpoints must be on this machine's disks, got {checkpoint}")
    path = Path(checkpoint).resolve()
    return path.with_name(f"{path.name}.{STATE_FILE}")
