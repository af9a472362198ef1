"""What a model must be to be compressed; whatever is wrong is said in one line, before anything happens."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ..methods import Attached, attached_to
from ..methods.ising_rule import IsingRule
from .shape import RESIDUAL, Shape, shape_of
from .translate import ours


def checked_handle(what: str, model: nn.Module) -> Attached:
    """The method on a single vision transformer that was trained with it, or given its posterior by `fit_posterior`.

    Where that is of another library, the method on a copy of ours; see `translate.py`.
    """
    handle = attached_to(model)
    try:
        shape = shape_of(model)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if handle is None:
        raise ValueError(
            f"{what}: this {type(model).__name__} carries no method, so there is no posterior; attach one and train, "
            "or load a saved model"
        )
    handle.check_whole(what)
    if handle.steps == 0 and not _measured(handle):
        raise ValueError(
            f"{what}: this {type(model).__name__} was never trained: its method has counted no step; train it first, "
            "with method.step() after every step, or give a trained model its posterior with fit_posterior"
        )
    try:
        copied = attached_to(ours(model))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    assert copied is not None  # it is the model's own, or was copied with it
    bare = [name for name in shape.wiring() if name not in copied.parts.posteriors]
    if bare:
        raise ValueError(
            f"{what}: {bare[0]} carries no mask, since attach left it out, and all layers are ranked together; attach "
            "to all of them"
        )
    return copied


def _measured(handle: Attached) -> bool:
    """Whether the method knows of any curvature: `fit_posterior` measures it without a step."""
    return isinstance(handle.rule, IsingRule) and bool(handle.rule.average.weight.any())


def check_posterior_speaks(what: str, handle: Attached, asked: str) -> None:
    """Refuse a posterior that says nothing of single weights: q the same for all, or still where the prior put it.

    Args:
        what: the caller, for the message.
        handle: on the model.
        asked: what needs the posterior, for the message.
    """
    other = "use a score that does not ask it, such as 'gate', 'taylor' or 'magnitude', with a target"
    if not isinstance(handle.rule, IsingRule):
        raise ValueError(
            f"{what}: {handle.method.name} has a fixed q, which ranks nothing, and {asked} needs one that does; "
            f"train with Ising, or {other}"
        )
    measured = bool((handle.rule.average.average > 0).any())
    moved = any(
        bool((part.drop - torch.sigmoid(part.prior)).abs().max() > 1e-6) for part in handle.parts.posteriors.values()
    )
    swept = any(bool((part.drop > 0).any()) for part in handle.parts.posteriors.values())
    if not (measured and moved and swept):
        raise ValueError(
            f"{what}: the posterior is still at its prior after {handle.steps} steps (in its warm-up, or without "
            f"evidence), and {asked} needs one that has learnt; train on, or {other}"
        )


def check_not_frozen(what: str, model: nn.Module, shape: Shape, kinds: Iterable[str]) -> None:
    """Refuse to cut a layer that is frozen.

    Args:
        what: the caller, for the message.
        model: to be compressed.
        shape: of the model.
        kinds: the kinds of nodes that are to be removed, as `Shape.nodes` names them.
    """
    cut = set(kinds)
    for layer, (rows, columns) in shape.wiring().items():
        if not cut & {*rows, columns}:
            continue
        for name, parameter in model.get_submodule(layer).named_parameters():
            if not parameter.requires_grad:
                why = "residual channels" if RESIDUAL in cut else "its nodes"
                layer = getattr(model, "origin", {}).get(layer, layer)
                raise ValueError(
                    f"{what}: {layer}.{name} is frozen (requires_grad=False), and removing {why} would change it; "
                    f"unfreeze it, or leave it out with structures=(...)"
                )
