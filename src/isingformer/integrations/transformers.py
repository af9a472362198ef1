"""The Trainer of Hugging Face `transformers`.

    isf.attach(model, isf.Ising(), examples=len(dataset), steps=steps)
    Trainer(model, args, train_dataset=dataset, callbacks=[IsingCallback()]).train()

A callback is told of the loss only when it is too late to change it. But the Trainer takes its loss from the model's
output, so a forward hook on the model can add kl() there. Whatever the Trainer does to the loss afterwards (division by
the accumulation steps, a loss scaler, the number of processes) then happens to both, and the divergence's gradient is
there before gradients are clipped.

One thing happens before. With labels the Trainer counts the items n of all micro-batches of a step, and many models
divide their summed loss by it while others ignore it. So the hook keeps n from the model, which then returns a mean,
and does the division itself:

    loss = n_b / n (mean over the micro-batch + kl()),        n_b items of this micro-batch, sum of n_b = n
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..methods import Attached
from ._shared import STATE_FILE, logged, method_of, read_state, write_state

try:
    from transformers import TrainerCallback
    from transformers.loss.loss_utils import ForCausalLMLoss
except ImportError as error:
    raise ImportError(
        f"the Trainer's callback needs transformers and accelerate ({error}): pip install 'isingformer[transformers]'"
    ) from None

Loss = Callable[..., Tensor]
IGNORED = -100
"""The label that the losses of `transformers` leave out."""


class IsingCallback(TrainerCallback):
    """Trains an attached model with the `Trainer`: kl() in the loss, `step()` after the optimiser's, q in checkpoints.

    Mean q and the divergence are logged as ``mean_q`` and ``kl`` beside the loss, which includes the latter; that of an
    evaluation does not. A checkpoint gets the file ``isingformer.safetensors``, which is read on resuming and when
    the best model is loaded at the end.

    Args:
        method: what `attach` returned; None: the one that the trained model carries.
        checkpoint: the checkpoint that training resumes from, needed only where it is not in the output folder.
    """

    def __init__(self, method: Attached | None = None, *, checkpoint: str | Path | None = None) -> None:
        self._given = method
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._method: Attached | None = None
        self._hooks: list[Any] = []
        self._training = False  # between the beginning of a step and the optimiser's
        self._entered = 0  # how often kl() went into this step's loss
        self._items: Tensor | int | None = None  # n, as it was kept from the model
        self._shifts = False
        self._divides: bool | None = None
        self._labels: Tensor | None = None

    def loss(self, function: Loss) -> Loss:
        """A loss of your own with kl() in it: ``Trainer(compute_loss_func=callback.loss(function), ...)``.

        Args:
            function: of outputs, labels and ``num_items_in_batch``, as the Trainer calls it. It may divide a sum by
                that number or ignore it: the first call is repeated with twice the number, to see which.
        """

        def with_kl(outputs: Any, labels: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
            value = function(outputs, labels, num_items_in_batch=num_items_in_batch)
            if not self._training or not torch.is_grad_enabled():
                return value
            share: Tensor | float = 1.0
            if num_items_in_batch is not None:
                if self._divides is None:
                    with torch.no_grad():
                        half = function(outputs, labels, num_items_in_batch=2 * num_items_in_batch)
                    self._divides = not torch.equal(half, value)
                share = self._count({"labels": labels}) / num_items_in_batch if self._divides else 1.0
            return value + share * self._kl({"labels": labels})

        return with_kl

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the method, restore it where training resumes, and hook the model."""
        model: nn.Module = kwargs["model"]
        if args.n_gpu > 1:
            raise ValueError(
                f"IsingCallback: DataParallel over {args.n_gpu} GPUs runs copies of the model that the method does not "
                "see; start one process a GPU with torchrun, or set CUDA_VISIBLE_DEVICES to one"
            )
        self._method = method_of(model, self._given, "IsingCallback")
        encodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        self._shifts = getattr(model, "loss_function", None) is ForCausalLMLoss and not encodes
        if state.global_step:
            folder = self._checkpoint or _folder(args, state.global_step)
            _check_resumed_from(folder, state)
            self._restore(model, folder)
        for hook in list(model._forward_hooks.values()):  # of a training that an exception ended
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, IsingCallback):
                owner._unhook()
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward, with_kwargs=True),
        ]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here to the optimiser's step, training passes get kl()."""
        self._training, self._entered, self._labels = True, 0, None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The gradients are complete: were the divergence's among them?"""
        self._training = False
        if not self._entered:
            raise RuntimeError(
                "IsingCallback: the loss did not come from the model's forward pass, so kl() is not in it; give your "
                "loss (or label smoothing) as Trainer(compute_loss_func=callback.loss(function), callbacks=[callback])"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimiser has stepped; so does the method, before anything is saved or evaluated."""
        self._known().step(targets=self._labels)
        self._labels = None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete the checkpoint. Trials of a search are never resumed, and lie elsewhere."""
        if args.should_save and not state.is_hyper_param_search:
            write_state(self._known(), _folder(args, state.global_step) / STATE_FILE)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Add to what is logged of training: in the history, and for the callbacks that come after this one."""
        if logs is None or "loss" not in logs or self._method is None:
            return
        about = {name: value.item() for name, value in logged(self._method).items()}
        logs.update(about)
        if state.log_history:
            state.log_history[-1].update(about)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the model as it was; q follows where the Trainer has gone back to its best weights."""
        self._unhook()
        if args.load_best_model_at_end and state.best_model_checkpoint is not None and self._method is not None:
            self._restore(kwargs["model"], Path(state.best_model_checkpoint))

    def _restore(self, model: nn.Module, folder: Path) -> None:
        if _has_other_names(model, folder):
            _reload(model, folder)
        read_state(self._known(), folder / STATE_FILE)

    def _known(self) -> Attached:
        assert self._method is not None, "the Trainer calls on_train_begin first"
        return self._method

    def _unhook(self) -> None:
        self._training = False
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._items = None
        if not self._adds(module) or kwargs.get("labels") is None:
            return None
        self._items = kwargs.get("num_items_in_batch")
        return args, {name: value for name, value in kwargs.items() if name != "num_items_in_batch"}

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> Any:
        named = isinstance(outputs, dict)
        loss = outputs.get("loss") if named else outputs[0] if isinstance(outputs, tuple) else None
        if not self._adds(module) or not isinstance(loss, Tensor) or loss.dim():
            return None
        whole = loss + self._kl(kwargs)
        if self._items is not None:
            whole = whole * (self._count(kwargs) / self._items)
        if not named:
            return (whole, *outputs[1:])
        outputs["loss"] = whole
        return outputs

    def _adds(self, module: nn.Module) -> bool:
        return self._training and module.training and torch.is_grad_enabled()

    def _kl(self, inputs: Mapping[str, Any]) -> Tensor:
        labels = inputs.get("labels")
        self._entered += 1
        self._labels = labels if isinstance(labels, Tensor) else None
        by_token = isinstance(labels, Tensor) and labels.dim() > 1 and not labels.is_floating_point()
        return self._known().kl(terms=float(self._count(inputs)) if by_token else None)

    def _count(self, inputs: Mapping[str, Any]) -> Tensor:
        """n_b: how many items the loss of this micro-batch is a mean of."""
        shifted: Tensor | None = inputs.get("shift_labels")
        if shifted is None:
            labels: Tensor = inputs["labels"]
            shifted = labels[..., 1:] if self._shifts and labels.dim() > 1 else labels
        return shifted.ne(IGNORED).sum()


def add_to(trainer: Any, method: Attached | None = None, *, checkpoint: str | Path | None = None) -> IsingCallback:
    """Put an `IsingCallback` on a `Trainer` that exists: before the others, and around its ``compute_loss_func``.

    TensorBoard and its like are callbacks that come before those a user gives. Only from here do they see ``mean_q``
    and ``kl``.

    Args:
        trainer: a `transformers.Trainer`.
        method: as for `IsingCallback`.
        checkpoint: likewise.
    """
    callback = IsingCallback(method, checkpoint=checkpoint)
    trainer.callback_handler.callbacks.insert(0, callback)
    if trainer.compute_loss_func is not None:
        trainer.compute_loss_func = callback.loss(trainer.compute_loss_func)
    return callback


def _folder(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _check_resumed_from(folder: Path, state: Any) -> None:
    """The Trainer does not say which checkpoint it took; its history does."""
    file = folder / "trainer_state.json"
    history = json.loads(file.read_text(encoding="utf-8"))["log_history"] if file.is_file() else None
    if history != state.log_history:
        raise ValueError(
            f"IsingCallback: training was not resumed from {folder}; say which checkpoint it was: "
            "IsingCallback(checkpoint=folder)"
        )


def _has_other_names(model: nn.Module, folder: Path) -> bool:
    """Whether a checkpoint calls the weights otherwise than the model does.

    For some models, ViT among them, `save_pretrained` writes the names that are usual on the hub. Version 5.22 of the
    Trainer reads them back without translating, and goes on with the weights that the model happens to have.
    """
    index, file = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    elif file.is_file():
        with safe_open(file, framework="pt") as stored:
            names = set(stored.keys())
    else:
        return False
    return not names <= set(model.state_dict())


def _reload(model: nn.Module, folder: Path) -> None:
    """Give the model the weights of a checkpoint by way of `from_pretrained`, which knows all names."""
    dtype = next(model.parameters()).dtype
    with torch.random.fork_rng(devices=[]):  # a fresh model draws weights, which is nobody's business
        fresh = type(model).from_pretrained(folder, dtype=dtype)  # type: ignore[attr-defined]
    model.load_state_dict(fresh.state_dict())
