"""What the trainers' callbacks share: finding the method, what is logged, and the method's file in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from .._files import read_tensors, write_tensors
from ..methods import Attached, attached_to

STATE_FILE = "isingformer.safetensors"
"""The method's state in a checkpoint's folder; beside a checkpoint that is a file, what its name ends with."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def method_of(model: nn.Module, given: Attached | None, who: str) -> Attached:
    """The method that a trainer's model carries, itself or in a module of it.

    Args:
        model: what the trainer trains.
        given: the method that the user named, which must be on that model; None: the one that is there.
        who: the callback, for messages.
    """
    found = [method for module in model.modules() if (method := attached_to(module)) is not None]
    if given is not None:
        if given not in found:
            raise ValueError(f"{who}: the method it was given is not on the {type(model).__name__} that is trained")
        return given
    if len(found) != 1:
        raise ValueError(
            f"{who}: expected one attached method on the {type(model).__name__} that is trained, found {len(found)}; "
            "call isf.attach(model, ...) before training, or name the method"
        )
    return found[0]


@torch.no_grad()
def logged(method: Attached) -> dict[str, Tensor]:
    """Mean q over all weights, and kl() as it stands in the loss; on the device, which need not be waited for."""
    drops = list(method.parts.drops().values())
    total = torch.stack([q.sum() for q in drops]).sum()
    return {"mean_q": total / sum(q.numel() for q in drops), "kl": method.kl().mean()}


def fingerprint(method: Attached) -> str:
    """A number that tells whether the masked layers hold the same m: the exact sum of its bits, in any order."""
    total = 0
    for name in method.parts.posteriors:
        m = method.parts.mean(name).contiguous()
        total += int(m.view(_BITS[m.element_size()]).sum(dtype=torch.int64))
    return str(total)


def write_state(method: Attached, file: Path) -> None:
    """Put the method's state beside the weights that a trainer has just saved."""
    write_tensors(file, method.state_dict(), {"weights": fingerprint(method)})


def read_state(method: Attached, file: Path) -> None:
    """Restore the method from a checkpoint whose weights the model holds already.

    Raises:
        FileNotFoundError: the checkpoint was made without a method, or the process died before it was complete.
        ValueError: the file belongs to other weights than the model's.
    """
    if not file.is_file():
        raise FileNotFoundError(
            f"this checkpoint has no {file}, so q cannot be restored; it was made without an IsingCallback, or was "
            "not finished. Resume from another"
        )
    state, notes = read_tensors(file)
    if notes.get("weights") != fingerprint(method):
        raise ValueError(
            f"{file} belongs to other weights than the model has, so the trainer did not restore them from there; "
            "resume from another checkpoint"
        )
    method.load_state_dict(state)
