"""A training's whole state in one file, so that it goes on as if it had never stopped.

One safetensors file holds the weights, the method's state (q, curvature, counters), the optimiser's moments, the best
model so far where one is kept, and in its header the step, the history and what the schedule needs. It is written to a
temporary name and renamed: whenever the process dies, the file is the last checkpoint or the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .._files import read_tensors, write_tensors
from ..methods import Attached

FORMAT = "1"
BEGIN_ANEW = "remove it and the same command begins at step 0, as it does with --overwrite"


@dataclass
class Progress:
    """Where a training stands, besides its tensors."""

    step: int = 0
    """Steps done."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One row an epoch that is complete."""
    running: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Of the epoch under way: summed loss, summed right answers, images."""
    best_nll: float | None = None
    """The lowest validation NLL, where early stopping looks for it."""
    best_epoch: int = 0
    stopped: bool = False
    """Whether early stopping has ended the training."""
    seconds: float = 0.0
    """Time spent training."""


def write_checkpoint(
    file: Path,
    progress: Progress,
    method: Attached,
    optimizer: torch.optim.Optimizer,
    best: Mapping[str, Tensor],
) -> None:
    """Write the state, whole or not at all.

    Args:
        file: what is replaced.
        progress: the counters.
        method: on the model that trains.
        optimizer: of that model's parameters, in their order.
        best: the tensors of `snapshot`, of the best epoch; empty where none is kept.
    """
    tensors = dict(prefixed("live.", snapshot(method)))
    tensors.update(prefixed("best.", best))
    for number, state in optimizer.state_dict()["state"].items():
        tensors.update(prefixed(f"optimizer.{number}.", state))
    write_tensors(file, tensors, {"format": FORMAT, "progress": json.dumps(vars(progress))})


def read_checkpoint(
    file: Path, method: Attached, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor]]:
    """Put a stored state back into a freshly built model, method and optimiser.

    Returns:
        The counters, and the tensors of the best epoch.
    """
    tensors, notes = read_tensors(file, remedy=BEGIN_ANEW)
    if notes.get("format") != FORMAT:
        raise ValueError(f"{file} has format {notes.get('format')}, this version reads {FORMAT}; {BEGIN_ANEW}")
    restore(method, unprefixed("live.", tensors))
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in unprefixed("optimizer.", tensors).items():
        number, key = name.split(".")
        state.setdefault(int(number), {})[key] = tensor
    whole = {**optimizer.state_dict(), "state": state}
    optimizer.load_state_dict(whole)
    return Progress(**json.loads(notes["progress"])), unprefixed("best.", tensors)


def snapshot(method: Attached) -> dict[str, Tensor]:
    """A copy of the model's and the method's tensors."""
    model = {name: tensor.detach().clone() for name, tensor in method.model.state_dict().items()}
    return {**dict(prefixed("model.", model)), **dict(prefixed("method.", method.state_dict()))}


def restore(method: Attached, tensors: Mapping[str, Tensor]) -> None:
    """Put a `snapshot` back."""
    method.load_state_dict(unprefixed("method.", tensors))
    method.model.load_state_dict(unprefixed("model.", tensors))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors under longer names."""
    return ((prefix + name, tensor) for name, tensor in tensors.items())


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin like this, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
