"""Many parameters as columns of one tensor: clipping and the optimiser take a few kernels, not a few a parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Flat:
    """Parameters of a stacked model laid side by side.

    Args:
        parameters: ``[R, ...]`` each; from now on views of the columns of one tensor.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        # Odd sizes last: what comes after them would not be aligned.
        self.parameters = sorted(parameters, key=lambda parameter: parameter[0].numel() % 8 != 0)
        self.whole = nn.Parameter(torch.cat([parameter.detach().flatten(1) for parameter in self.parameters], 1))
        """All of them, ``[R, P]``."""
        sizes = [parameter[0].numel() for parameter in self.parameters]
        for parameter, columns in zip(self.parameters, self.whole.detach().split(sizes, 1), strict=True):
            parameter.data = columns.view(parameter.shape)

    def gather(self) -> None:
        """Take the gradients of the parameters over into the gradient of the whole, and clear theirs."""
        self.whole.grad = torch.cat([_gradient(parameter).flatten(1) for parameter in self.parameters], 1)
        for parameter in self.parameters:
            parameter.grad = None


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
