"""Hutchinson's estimate: the Hessian's diagonal from random signs.

    h = E[z * (H z)],    z = +1 or -1, each with probability 1/2

because E[z_i z_j] is 1 for i = j and 0 otherwise. One draw is one Hessian-vector product, a backward pass through the
backward pass. The variance of a draw of h_i is the sum over j != i of H_ij^2, so a Hessian with strong off-diagonal
entries needs many draws; a diagonal one needs a single draw. Unlike Gauss-Newton's, this h may be negative.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def hutchinson_diagonal(
    loss_of: Callable[[], Tensor],
    leaves: Mapping[str, Tensor],
    draws: int = 1,
    generator: Generator | None = None,
) -> dict[str, Tensor]:
    """Unbiased estimate of the diagonal of d2 loss / d leaves2, the mean of z * (H z) over draws.

    Args:
        loss_of: the mean negative log likelihood as a function of the leaves, evaluated once; a number, or [R] for
            stacked replicas, which do not interact and are summed.
        leaves: tensors that require gradients, by name.
        draws: how many z to average over.
        generator: draws z, on its own device; None uses PyTorch's global generator of the leaf's device.

    Returns:
        h for every leaf, in its shape; zeros where the loss does not depend on a leaf.
    """
    if draws < 1:
        raise ValueError(f"hutchinson: draws is {draws}; expected 1 or more; one draw is already unbiased")
    weights = list(leaves.values())
    # The fused attention kernels have no second derivative.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        loss = loss_of()
    if loss.ndim > 1:
        raise ValueError(
            f"hutchinson: the loss has shape {list(loss.shape)}; expected a number or one per replica; average it first"
        )
    gradients = torch.autograd.grad(loss.sum(), weights, create_graph=True, allow_unused=True, materialize_grads=True)
    total = [torch.zeros_like(weight) for weight in weights]
    bent = [gradient.requires_grad for gradient in gradients]  # a leaf in which the loss is linear has no curvature
    if not any(bent):
        return dict(zip(leaves, total, strict=True))
    for draw in range(draws):
        z = [_signs(weight, generator) for weight in weights]
        products = torch.autograd.grad(
            [gradient for gradient, curved in zip(gradients, bent, strict=True) if curved],
            weights,
            [sign for sign, curved in zip(z, bent, strict=True) if curved],
            retain_graph=draw + 1 < draws,
            allow_unused=True,
            materialize_grads=True,
        )
        for sum_so_far, sign, product in zip(total, z, products, strict=True):
            sum_so_far += sign * product
    return {name: sum_over_draws / draws for name, sum_over_draws in zip(leaves, total, strict=True)}


def _signs(like: Tensor, generator: Generator | None) -> Tensor:
    """+1 and -1 in equal shares, in the shape, dtype and device of a tensor."""
    source = like.device if generator is None else generator.device
    coins = torch.randint(0, 2, like.shape, generator=generator, device=source)
    return (2 * coins - 1).to(like)
