"""What the loss of a backward pass was multiplied by, as the probes in `kl()` saw it, and what cannot be made of it.

A GPU is not asked, which would make Python wait for it at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIKE = 1e-3
"""Up to which share the factors of one backward pass may differ, by rounding."""


def common_factor(factors: Sequence[Tensor]) -> Tensor:
    """The factor of a pass, ``[*R]``, from those of every `kl()` in its loss; raises where they are not the same."""
    together = torch.stack(list(factors))
    factor = together.mean(0)
    if len(factors) > 1 and factor.device.type == "cpu":
        apart = (together - factor).abs() > ALIKE * factor.abs()
        if bool((apart & together.isfinite()).any()):
            raise RuntimeError(
                f"one backward pass had method.kl() in it with factors {_listed(together)}, so that the scale of each "
                "loss is unknown and this batch was left out; run a backward pass for each, or weigh them alike"
            )
    return factor


def check_taken_in(factor: Tensor, finite: Tensor) -> None:
    """Raise where a pass was left out for a factor of 0, or for gradients that no loss scaler explains.

    Args:
        factor: of the pass, ``[*R]``.
        finite: whether its squares were, likewise.
    """
    if finite.device.type != "cpu":
        return
    if bool((factor == 0).any()):
        raise RuntimeError(
            "method.kl() entered the loss with factor 0, so the loss's scale is unknown and this batch was left "
            "out; multiply kl() by nothing that the loss is not multiplied by, and set its weight with kl_weight"
        )
    if bool((~finite & (factor <= 1)).any()):
        raise FloatingPointError(
            "the loss or its gradient is NaN or infinite; this batch was left out and q is as it was. Skip the "
            "optimiser's step and clear the gradients; then look at the learning rate, the inputs and the loss"
        )


def _listed(factors: Tensor) -> str:
    return " and ".join(f"{float(own.flatten()[0]):g}" for own in factors)
