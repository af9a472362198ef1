"""Modules that are linear maps, and the class each gets when it carries a posterior.

Whatever shape its parameter has, a layer is a matrix ``[*R, out, in]`` to its posterior:

    nn.Linear, StackedLinear   the weight itself
    Conv1D (transformers)      the weight transposed
    nn.Conv2d                  rows are output channels, columns a patch ``[C, height, width]`` laid flat; only where
                               patches do not overlap, that is where the kernel's size is the stride
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .posterior import NodeMask, Posterior
from .stacked import StackedLinear


class Masked:
    """Mixed into a layer's class: the layer's product goes through its posterior."""

    posterior: Posterior
    weight: Any
    bias: Any
    example_axis: int = 0
    """Which axis of the input counts examples; the posterior wants it first."""

    def forward(self, input: Tensor) -> Tensor:
        """The layer's product with its weight expected or drawn."""
        matrix = self.as_matrix(self.weight)
        if not self.example_axis:
            return self.posterior(input, matrix, self.bias)
        first = input.movedim(self.example_axis, 0)
        return self.posterior(first, matrix, self.bias).movedim(0, self.example_axis)

    @staticmethod
    def as_matrix(weight: Tensor) -> Tensor:
        """A weight as ``[*R, out, in]``, sharing its memory, but for that of a convolution in channels_last."""
        return weight


class MaskedLinear(Masked, nn.Linear):
    """An `nn.Linear` whose weight is the mean of a posterior."""


class MaskedStackedLinear(Masked, StackedLinear):
    """A `StackedLinear` whose weight is the mean of a posterior."""


class MaskedOutProjection(Masked, nn.modules.linear.NonDynamicallyQuantizableLinear):
    """The output projection of an `nn.MultiheadAttention` whose weight is the mean of a posterior."""


class _Transposed(Masked):
    """For layers that keep their weight as ``[in, out]``."""

    @staticmethod
    def as_matrix(weight: Tensor) -> Tensor:
        return weight.mT


class MaskedConv2d(Masked, nn.Conv2d):
    """An `nn.Conv2d` over patches that do not overlap, whose weight is the mean of a posterior."""

    def forward(self, input: Tensor) -> Tensor:
        """``[N, C, H, W]`` (or one image without N) to ``[N, out, rows, columns]``."""
        images = input if input.dim() == 4 else input.unsqueeze(0)
        output = self.posterior(self._patches(images), self.as_matrix(self.weight), self.bias).movedim(-1, 1)
        return output if input.dim() == 4 else output.squeeze(0)

    def _patches(self, images: Tensor) -> Tensor:
        """``[N, rows, columns, C * height * width]``; what does not fill a patch is left out, as a convolution does."""
        height, width = self.kernel_size
        rows, columns = images.shape[-2] // height, images.shape[-1] // width
        whole = images[..., : rows * height, : columns * width]
        grid = whole.unflatten(-2, (rows, height)).unflatten(-1, (columns, width))  # [N, C, rows, h, columns, w]
        return grid.permute(0, 2, 4, 1, 3, 5).flatten(3)

    @staticmethod
    def as_matrix(weight: Tensor) -> Tensor:
        """Rows are output channels, columns the entries of a patch."""
        return weight.flatten(1)


class MaskedIdentity(nn.Identity):
    """An `nn.Identity` that masks the nodes passing through."""

    posterior: NodeMask

    def forward(self, input: Tensor) -> Tensor:
        """The masked nodes."""
        return self.posterior(input)


_MASKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: MaskedLinear,
    StackedLinear: MaskedStackedLinear,
    nn.modules.linear.NonDynamicallyQuantizableLinear: MaskedOutProjection,
    nn.Conv2d: MaskedConv2d,
    nn.Identity: MaskedIdentity,
}


def masked_class(kind: type[nn.Module]) -> type[nn.Module]:
    """What a layer of this class becomes when it gets a posterior."""
    if is_conv1d(kind) and kind not in _MASKED:  # made here, so that transformers is not imported for its sake
        _MASKED[kind] = type("MaskedConv1D", (_Transposed, kind), {"__module__": __name__})
    return _MASKED[kind]


def plain_class(kind: type[nn.Module]) -> type[nn.Module]:
    """What a masked layer was before."""
    return next(plain for plain, masked in _MASKED.items() if masked is kind)


def is_conv1d(kind: type[nn.Module]) -> bool:
    """Whether a class is the Conv1D of `transformers` (GPT-2): a linear layer by another name."""
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def maskable(module: nn.Module) -> bool:
    """Whether a module can be given a posterior: exactly of a known class, so no forward is overridden; m its own."""
    kind = type(module)
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return False  # pruned, or with a norm of its own: made anew from other parameters at every call
    if kind is nn.Conv2d:
        return _takes_patches(module)
    return kind in (nn.Linear, StackedLinear) or is_conv1d(kind)


def _takes_patches(conv: nn.Module) -> bool:
    return (
        isinstance(conv, nn.Conv2d)
        and tuple(conv.kernel_size) == tuple(conv.stride)
        and conv.padding in (0, (0, 0), "valid")
        and tuple(conv.dilation) == (1, 1)
        and conv.groups == 1
    )


def weight_of(layer: nn.Module, weight: Tensor | None = None) -> Tensor:
    """The weight of a layer, or a tensor laid out like it, as a matrix ``[*R, out, in]`` by `as_matrix`."""
    kind: Any = type(layer) if isinstance(layer, Masked) else masked_class(type(layer))
    matrix: Tensor = kind.as_matrix(layer.get_parameter("weight") if weight is None else weight)
    return matrix
