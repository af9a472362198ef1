"""Levenberg-Marquardt curvature: the paper's recursion, for any model made of known operations.

At the output, h = d2 nll / d outputs2 (its diagonal). Then back through every map, down to the weights:

    h_in[i] = sum over j of J[j, i]^2 h_out[j]

For a linear map this is h_x = h_a W^2 and h_w = h_a x^2, summed over tokens and examples; for an activation f'(a)^2 h.

What it leaves out. It squares the Jacobian of each map by itself, so wherever two paths join again (several tokens
that share a weight, a residual stream, two layers in a row) their cross terms are missing, and so are the off-diagonal
entries of the output's Hessian. It is exact for the last layer, and for a diagonal output Hessian (squared error) with
one hidden layer and no shared tokens. Elsewhere it may be off by an order of magnitude.

How. `SquaredJacobians` intercepts the calls of PyTorch that the forward pass makes and gives each a backward that
carries h (`lm_rules`); autograd then walks the graph, and adds up where a tensor was used more than once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from isingformer.curvature import lm_maps
from isingformer.curvature.likelihood import Likelihood
from isingformer.curvature.likelihood import likelihood as as_likelihood
from isingformer.curvature.lm_rules import RULES, NoRule, name_of, refuse_inplace

__all__ = ["NoRule", "SquaredJacobians", "lm_diagonal"]

_MAPS = (lm_maps.Elementwise, lm_maps.Product, lm_maps.Normalise, lm_maps.Softmax, lm_maps.Attention)


class SquaredJacobians(TorchFunctionMode):
    """Inside this context the graph that is built carries h backwards instead of gradients."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """`func`, by its rule where a tensor that needs h goes in and one comes out."""
        kwargs = kwargs or {}
        if not (torch.is_grad_enabled() and _needs_h((args, kwargs))):
            return func(*args, **kwargs)
        refuse_inplace(func, args, kwargs)
        out = RULES[func](func, args, kwargs) if func in RULES else func(*args, **kwargs)
        if func not in RULES and _needs_h(out):  # shapes, comparisons and the like need no rule
            raise NoRule(name_of(func))
        if any(tensor.dtype == torch.float16 for tensor in _tensors(out)):  # h of 1e-8 and less is common
            raise NoRule(f"float16, in which h underflows (in {name_of(func)})", "run the model in bfloat16 or float32")
        return out


def lm_diagonal(
    outputs_of: Callable[[], Tensor],
    leaves: Mapping[str, Tensor],
    likelihood: str | Likelihood,
    *,
    replica_axes: int = 0,
    examples: int | None = None,
) -> dict[str, Tensor]:
    """The diagonal h = d2 nll / d leaf2 by the recursion of this module, averaged over examples.

    Args:
        outputs_of: runs the model, in evaluation mode, on a batch that it holds; its weights are the leaves. In
            bfloat16 h keeps about two digits; float16 is refused.
        leaves: tensors that require gradients, by name.
        likelihood: a name or an object, see `likelihood`.
        replica_axes: how many leading axes of the outputs are replicas, which are not averaged over.
        examples: how many examples the average is over; by default the length of the outputs' first axis after the
            replicas. Where tokens have targets of their own and N counts tokens, give their number.

    Returns:
        h for every leaf, in its shape; zeros where a leaf does not reach the outputs.

    Raises:
        NoRule: the model contains an operation that the recursion cannot cross.
    """
    rigid = [name for name, leaf in leaves.items() if not leaf.requires_grad]
    if rigid:
        raise ValueError(f"lm: leaves {rigid} do not require gradients; expected leaves that do; use requires_grad_()")
    with torch.enable_grad(), SquaredJacobians():
        outputs = outputs_of()
    if outputs.ndim <= replica_axes:
        raise ValueError(
            f"lm: outputs have shape {list(outputs.shape)}; expected examples after {replica_axes} replica axes; "
            "return outputs that are not reduced"
        )
    if not outputs.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    _refuse_foreign_backwards(outputs, leaves.values())
    count = outputs.shape[replica_axes] if examples is None else examples
    boundary = as_likelihood(likelihood).curvature(lm_maps.wide(outputs.detach())) / count
    found = torch.autograd.grad(
        outputs, list(leaves.values()), boundary.to(outputs.dtype), allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from _tensors(tuple(tree.values()))
    elif isinstance(tree, tuple | list):
        for branch in tree:
            yield from _tensors(branch)


def _needs_h(tree: Any) -> bool:
    return any(tensor.requires_grad for tensor in _tensors(tree))


def _refuse_foreign_backwards(outputs: Tensor, leaves: Iterable[Tensor]) -> None:
    """A user's own autograd.Function is not intercepted: it would pass gradients where h is expected."""
    seen = {leaf.grad_fn for leaf in leaves}
    ahead = [outputs.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        written_by = getattr(type(node), "_forward_cls", None)
        if written_by is not None and written_by not in _MAPS:
            raise NoRule(f"{written_by.__name__}, an autograd.Function", "compute it with torch functions")
        ahead += [before for before, _ in node.next_functions]
