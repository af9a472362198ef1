"""Giving layers a posterior, and taking it off again: only classes change, of the layer and of what is around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from .layers import Masked, MaskedIdentity, MaskedLinear, MaskedStackedLinear, masked_class, plain_class, weight_of
from .multihead import DenseTransformerEncoder, MaskedMultiheadAttention, Projection
from .noise import Noise
from .posterior import NodeMask, Posterior, Sampling

__all__ = [
    "MaskedLinear",
    "MaskedStackedLinear",
    "drawing",
    "expected_network",
    "in_eval_mode",
    "measured_at_expected",
    "node_masks",
    "posteriors",
    "put_on",
    "rerouted_around",
    "take_off",
    "weight_of",
]


_REROUTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: MaskedMultiheadAttention,
    nn.TransformerEncoder: DenseTransformerEncoder,
}
"""Modules that compute around the layers inside them, and what they are while one of those is masked."""
_DIRECT = {masked: plain for plain, masked in _REROUTED.items()}
_COUNT = "_masked_inside"


def rerouted_around(model: nn.Module, name: str) -> list[nn.Module]:
    """The modules around a layer that must change while it is masked, so that its posterior is not passed by."""
    parts = name.split(".")[:-1]
    around = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts) + 1)]
    return [module for module in around if type(module) in _REROUTED or type(module) in _DIRECT]


def put_on(
    module: nn.Module, posterior: Posterior | NodeMask, around: Sequence[nn.Module] = (), example_axis: int = 0
) -> None:
    """Give a layer its posterior: parameters, buffers and `state_dict` keys stay.

    Args:
        module: the layer, or an identity for a node mask.
        posterior: what it gets.
        around: what `rerouted_around` says.
        example_axis: which axis of the layer's input counts examples.
    """
    if isinstance(module, Projection):
        module.__dict__["owner"].add_module(module.name, module)
    else:
        module.__class__ = masked_class(type(module))
    module.posterior = posterior
    if example_axis:
        module.__dict__["example_axis"] = example_axis
    module.__dict__["around"] = list(around)  # no children of the layer: they are its ancestors
    for outer in around:
        outer.__class__ = _REROUTED.get(type(outer), type(outer))
        outer.__dict__[_COUNT] = outer.__dict__.get(_COUNT, 0) + 1
    posterior.train(module.training)


def take_off(module: nn.Module) -> None:
    """Make a masked layer the plain layer it was; its weight is not touched."""
    del module.posterior
    module.__dict__.pop("example_axis", None)
    for outer in module.__dict__.pop("around"):
        outer.__dict__[_COUNT] -= 1
        if not outer.__dict__[_COUNT]:
            del outer.__dict__[_COUNT]
            outer.__class__ = _DIRECT[type(outer)]
    if isinstance(module, Projection):
        delattr(module.__dict__["owner"], module.name)
    else:
        module.__class__ = plain_class(type(module))


def posteriors(model: nn.Module) -> dict[str, Posterior]:
    """The weight posteriors that a model carries, by the name of their layer."""
    return {
        name: module.posterior
        for name, module in model.named_modules()
        if isinstance(module, Masked) and isinstance(module, nn.Module)
    }


def node_masks(model: nn.Module) -> dict[str, NodeMask]:
    """The node masks that a model carries, by the name of the module they sit in."""
    return {name: module.posterior for name, module in model.named_modules() if isinstance(module, MaskedIdentity)}


@contextlib.contextmanager
def _held(modules: Sequence[nn.Module | nn.Parameter], **values: Any) -> Iterator[None]:
    """Attributes of all modules or parameters set to these values inside, as they were outside, whatever happens."""
    before = [[getattr(module, name) for name in values] for module in modules]
    try:
        for module in modules:
            for name, value in values.items():
                setattr(module, name, value)
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            for name, value in zip(values, old, strict=True):
                setattr(module, name, value)


@contextlib.contextmanager
def drawing(model: nn.Module, how: Sampling, noise: Noise | None = None) -> Iterator[None]:
    """Inside, every pass is drawn this way in any mode, from this noise where one is given."""
    parts = [*posteriors(model).values(), *node_masks(model).values()]
    with _held(parts, forced=how), _held(parts, noise=noise) if noise is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, every module is in eval mode; outside, each in the mode it had."""
    modules = list(model.modules())
    with _held(modules, training=False):
        yield


@contextlib.contextmanager
def expected_network(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inside, the model is its expected network with a leaf for every effective weight w = m (1 - q), by layer.

    Gradients with respect to the leaves are gradients with respect to w, so that a dropped weight keeps its curvature.
    Nothing else requires one, so that what no masked layer comes before is not looked at.
    """
    owners: dict[str, Any] = {name: module for name, module in model.named_modules() if isinstance(module, Masked)}
    leaves = {
        name: owner.posterior.expected(weight_of(owner)).detach().contiguous().requires_grad_()
        for name, owner in owners.items()
    }
    with in_eval_mode(model), _held(list(model.parameters()), requires_grad=False), contextlib.ExitStack() as stack:
        for name, owner in owners.items():
            stack.enter_context(_held([owner.posterior], stand_in=leaves[name], forced=None))
        yield leaves


@contextlib.contextmanager
def measured_at_expected(model: nn.Module) -> Iterator[dict[str, Posterior]]:
    """Inside, passes of the expected network leave their squared per-example gradients in fresh companions."""
    parts = posteriors(model)
    with in_eval_mode(model), contextlib.ExitStack() as stack:
        stack.enter_context(_held(list(parts.values()), forced=None, measure_expected=True))
        for part in parts.values():
            stack.enter_context(_held([part], companion=None, squares="exact"))
            part.measure(True)
        yield parts
