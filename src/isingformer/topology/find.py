"""The topology of a model: known, stated by the user, or found by running the model once.

Known are our `ViT` and plain stacks. Any other model is traced: on the user's example, or on a guess of what it takes.
Where it cannot be run, only the inside of `nn.MultiheadAttention` is known. A layer about which nothing is known rests
without neighbours, and one warning names all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..ising import Reading, Wiring
from ..nn.layers import weight_of
from ..nn.vit import ViT
from .axes import Examples, find_examples
from .inputs import as_inputs, guesses, one_and_two
from .patterns import as_stated, of_attentions, of_stack, of_vit
from .readings import wiring_of
from .select import maskable_layers, selected_layers
from .trace import Readers, quiet, trace

_MOST_NAMES = 20


@dataclass(frozen=True)
class Topology:
    """What a method needs to know of a model's structure."""

    layers: tuple[str, ...]
    """The layers that carry masks, in the model's order."""
    wiring: Wiring
    """Who reads each of them; an empty tuple where nobody does or nothing is known."""
    node_layers: tuple[str, ...]
    """The layers whose inputs node dropout masks: in a ViT, those of attention and MLP."""
    embeddings: Mapping[str, tuple[str, ...]]
    """Modules through which the embedded tokens pass, each with the parameters that scale what passes."""
    example_axes: Mapping[str, int] = field(default_factory=dict)
    """For layers whose input does not count examples on its first axis, the axis that does."""
    flat: tuple[str, ...] = ()
    """Layers whose input has examples and tokens on one axis."""


def find_topology(
    model: nn.Module,
    readers: Mapping[str, Sequence[str]] | None = None,
    *,
    example: Any = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    trainable_only: bool = False,
) -> Topology:
    """The topology of a model, as known, found or stated.

    Args:
        model: anything with linear layers.
        readers: the layers that read each layer's output nodes, in order of nodes. Layers left out are read by nobody,
            like a classifier's head.
        example: inputs to run the model on: a tensor, a tuple of arguments, or a mapping of named ones; examples on the
            first axis.
        include: which layers carry masks; see `selected_layers`.
        exclude: which do not.
        trainable_only: only those whose weight requires gradients.
    """
    chosen, every = selected_layers(model, include, exclude, trainable_only), maskable_layers(model)
    if isinstance(model, ViT) and readers is None and every.keys() <= (known := of_vit(model)).keys():
        inside = tuple(name for name in chosen if name.startswith("blocks."))
        embedded = {"embedded": ("embed.weight", "embed.bias", "class_token", "position")} if "embed" in chosen else {}
        return Topology(tuple(chosen), _among(known, chosen), inside, embedded)
    wiring: Wiring = of_stack(model, every) if readers is None else as_stated(chosen, readers)
    unknown = [name for name in every if name not in wiring] if readers is None else []
    where = Examples()
    as_built = isinstance(model, ViT) and readers is not None
    if not as_built and (readers is not None or unknown or example is not None):
        found, where = _run(model, every, example)
        if readers is None:
            if found is not None:
                rows = {name: weight_of(layer).shape[-2] for name, layer in every.items()}
                wiring, unknown = wiring_of(found, rows)
            attentions = of_attentions(model)
            wiring = {**wiring, **attentions}
            unknown = [name for name in unknown if name not in attentions]
    flat = tuple(name for name in where.flat if name in chosen)
    missing = _what_is_missing(
        model, [n for n in unknown if n in chosen], flat, where.crossed, all_flat=len(flat) == len(chosen)
    )
    if missing:
        warnings.warn(missing, stacklevel=3)
    axes = {name: axis for name, axis in where.axes.items() if name in chosen}
    return Topology(tuple(chosen), _among(wiring, chosen), tuple(chosen), {}, axes, flat)


def _run(model: nn.Module, layers: Mapping[str, nn.Module], example: Any) -> tuple[dict[str, Readers] | None, Examples]:
    """(who reads whom, where examples are) from runs of the model; (None, as usual) where no guess of inputs fits."""
    for inputs in guesses(model) if example is None else [as_inputs(example)]:
        one, two = one_and_two(inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pass that the user did not ask for
            try:
                with quiet(model):
                    model(*one[0], **one[1])  # a guess that does not fit costs little
                found = trace(model, layers, one)
            except Exception as error:
                if example is not None:
                    raise ValueError(
                        f"the model does not run on the first entry of the example ({type(error).__name__}: {error}); "
                        "expected a tensor, a tuple of arguments or a dict of named ones, examples on the first axis"
                    ) from error
                continue
            try:
                return found, find_examples(model, layers, one, two)
            except Exception:  # a model of one example at a time
                return found, Examples()
    return None, Examples()


def _among(wiring: Wiring, chosen: Mapping[str, nn.Module]) -> Wiring:
    """The wiring of the chosen layers; readers without masks drop nothing and are left out."""
    left: dict[str, tuple[Reading, ...]] = {}
    for name in chosen:
        masked = [(each, tuple(r for r in each.readers if r in chosen)) for each in wiring.get(name, ())]
        left[name] = tuple(Reading(each.rows, own, each.columns, each.head_size) for each, own in masked if own)
    return left


def _what_is_missing(
    model: nn.Module, unknown: Sequence[str], flat: Sequence[str], crossed: Sequence[str], *, all_flat: bool
) -> str:
    kind, said = type(model).__name__, []
    if unknown:
        said.append(
            f"who reads {_listed(unknown)} in {kind} is not known: these layers rest without neighbours (coupling has "
            "no effect on them). State it with readers={layer: [layers that read it]}, or give attach an example input"
        )
    if flat:
        said.append(
            f"{_listed(flat)} in {kind} get examples and tokens on one axis: their curvature squares every token by "
            "itself, as curvature='expand' does, and nodes are dropped token by token"
            + (
                "; with no other layer to count examples by, say how many a batch has: kl(terms=...)"
                if all_flat
                else ""
            )
        )
    if crossed:
        said.append(
            f"{_listed(crossed)} attends over the first axis of what {kind} gets, which must count examples: their "
            "curvature would be wrong. Build it with batch_first=True, or transpose inside the model"
        )
    return ". Also, ".join(said)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
