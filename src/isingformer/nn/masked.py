"""Giving a model's linear layers a posterior, and taking it off again: only the layer's class changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from .noise import Noise
from .posterior import NodeMask, Posterior, Sampling
from .stacked import StackedLinear


class _Masked:
    """Mixed into a linear layer's class: the layer's product goes through its posterior."""

    posterior: Posterior
    weight: Any
    bias: Any

    def forward(self, x: Tensor) -> Tensor:
        return self.posterior(x, self.weight, self.bias)


class MaskedLinear(_Masked, nn.Linear):
    """An `nn.Linear` whose weight is the mean of a posterior."""


class MaskedStackedLinear(_Masked, StackedLinear):
    """A `StackedLinear` whose weight is the mean of a posterior."""


class MaskedIdentity(nn.Identity):
    """An `nn.Identity` that masks the nodes passing through."""

    posterior: NodeMask

    def forward(self, input: Tensor) -> Tensor:
        """The masked nodes."""
        return self.posterior(input)


_MASKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: MaskedLinear,
    StackedLinear: MaskedStackedLinear,
    nn.Identity: MaskedIdentity,
}
_PLAIN = {masked: plain for plain, masked in _MASKED.items()}


def maskable(module: nn.Module) -> bool:
    """Whether the module is a linear layer that can be given a posterior: exactly of a known class."""
    return type(module) in (nn.Linear, StackedLinear)


def put_on(module: nn.Module, posterior: Posterior | NodeMask) -> None:
    """Give a layer its posterior: parameters, buffers and `state_dict` keys stay."""
    module.__class__ = _MASKED[type(module)]
    module.posterior = posterior
    posterior.train(module.training)


def take_off(module: nn.Module) -> None:
    """Make a masked layer the plain layer it was; its weight is not touched."""
    del module.posterior
    module.__class__ = _PLAIN[type(module)]


def posteriors(model: nn.Module) -> dict[str, Posterior]:
    """The weight posteriors that a model carries, by the name of their layer."""
    return {
        name: module.posterior
        for name, module in model.named_modules()
        if isinstance(module, _Masked) and isinstance(module, nn.Module)
    }


def node_masks(model: nn.Module) -> dict[str, NodeMask]:
    """The node masks that a model carries, by the name of the module they sit in."""
    return {name: module.posterior for name, module in model.named_modules() if isinstance(module, MaskedIdentity)}


@contextlib.contextmanager
def _held(modules: Sequence[nn.Module], **values: Any) -> Iterator[None]:
    """Attributes of all modules set to these values inside, as they were outside, whatever happens."""
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
    """
    owners = {name: module for name, module in model.named_modules() if isinstance(module, _Masked)}
    leaves = {name: owner.posterior.expected(owner.weight).detach().requires_grad_() for name, owner in owners.items()}
    with in_eval_mode(model), contextlib.ExitStack() as stack:
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


def weight_of(layer: nn.Module) -> Tensor:
    """The weight parameter of a linear layer, ``[*R, out, in]``."""
    return layer.get_parameter("weight")
