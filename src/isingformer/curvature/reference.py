"""Exact curvature, slowly: what the estimators of this package are compared with. Meant for small models in float64.

Axes: n examples; c, c' the outputs of one example (all its tokens and classes in one row); w the weights of a leaf.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from isingformer.curvature.likelihood import Likelihood
from isingformer.curvature.likelihood import likelihood as as_likelihood


def hessian_diagonal(loss_of: Callable[[], Tensor], leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The diagonal h_w = d2 loss / dw2, by one backward pass for every weight.

    Args:
        loss_of: the mean negative log likelihood, a number, as a function of the leaves.
        leaves: tensors that require gradients, by name.

    Returns:
        h for every leaf, in its shape.
    """
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        loss = loss_of()
    h = {}
    for name, leaf in leaves.items():
        gradient = _gradients(loss, [leaf], create_graph=True)[0]
        rows = [
            _gradients(slope, [leaf])[0].flatten()[w] if slope.requires_grad else torch.zeros_like(slope)
            for w, slope in enumerate(gradient.flatten())
        ]
        h[name] = torch.stack(rows).view_as(leaf).detach()
    return h


def gauss_newton_diagonal(
    outputs_of: Callable[[], Tensor], leaves: Mapping[str, Tensor], likelihood: str | Likelihood
) -> dict[str, Tensor]:
    """The Gauss-Newton diagonal, with the full output Hessian B_n = d2 nll / d outputs2 of every example.

        h_w = 1/N sum over n, c, c' of J[n, c, w] B_n[c, c'] J[n, c', w],    J[n, c, w] = d outputs[n, c] / dw

    For a softmax B = diag(p) - p p'. B comes from autograd, not from the likelihood's own `curvature`.

    Args:
        outputs_of: outputs [N, ...] as a function of the leaves.
        leaves: tensors that require gradients, by name.
        likelihood: a name or an object.

    Returns:
        h for every leaf, in its shape.
    """
    kind = as_likelihood(likelihood)
    with torch.enable_grad():
        outputs = outputs_of()
    h = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for example in outputs:
        hessian = _output_hessian(example.detach(), kind)
        each = [_gradients(output, list(leaves.values())) for output in example.flatten()]
        for index, name in enumerate(leaves):
            jacobian = torch.stack([gradients[index] for gradients in each])  # [c, *w]
            h[name] += (jacobian * torch.tensordot(hessian, jacobian, dims=1)).sum(0) / len(outputs)
    return h


def squared_gradients(
    nll_of: Callable[[int], Tensor], leaves: Mapping[str, Tensor], examples: int
) -> dict[str, Tensor]:
    """The empirical Fisher diagonal h_w = 1/N sum over n of (d nll_n / dw)^2, one example at a time.

    Args:
        nll_of: the negative log likelihood of example n, a number, as a function of the leaves.
        leaves: tensors that require gradients, by name.
        examples: N; `nll_of` is asked for 0 to N - 1.

    Returns:
        h for every leaf, in its shape.
    """
    h = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for n in range(examples):
        with torch.enable_grad():
            nll = nll_of(n)
        for name, gradient in zip(leaves, _gradients(nll, list(leaves.values())), strict=True):
            h[name] += gradient.square() / examples
    return h


def _gradients(number: Tensor, leaves: list[Tensor], create_graph: bool = False) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        number, leaves, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )


def _output_hessian(outputs: Tensor, kind: Likelihood) -> Tensor:
    """B [c, c'] of one example. Any target will do, B does not depend on it; a fixed seed draws one."""
    batch = outputs.unsqueeze(0)
    targets = kind.sample(batch, torch.Generator(outputs.device).manual_seed(0))

    def nll(row: Tensor) -> Tensor:
        return kind.nll(row.view_as(batch), targets).sum()

    hessian = torch.autograd.functional.hessian(nll, outputs.flatten())
    return torch.as_tensor(hessian)
