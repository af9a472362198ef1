"""Rules of the Levenberg-Marquardt recursion: which map of `lm_maps` a call of PyTorch is.

`RULES` maps every known function to its rule. A rule takes the function and its arguments, and returns what the
function would, with h instead of gradients in the backward pass. It runs outside the mode that intercepts calls.
"""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import resolve_name

from isingformer.curvature.lm_maps import Attention, Elementwise, Normalise, Product, Softmax

Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Rule = Callable[[Function, Args, Kwargs], Any]


class NoRule(ValueError, NotImplementedError):
    """The recursion met an operation that it cannot cross."""

    def __init__(self, what: str, instead: str = "rewrite it") -> None:
        known = ", ".join(sorted({f.__name__ for f in RULES if not f.__name__.startswith("_")}))
        super().__init__(f"lm has no rule for {what}; known: {known}; {instead}, or use curvature='fisher'")


def name_of(function: Function) -> str:
    """As the user wrote it, for example torch.nn.functional.gelu."""
    return resolve_name(function) or getattr(function, "__name__", repr(function))


def _call(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    return cast(Callable[..., Tensor], function.apply)(*args)


def _opened(
    function: Function, args: Args, kwargs: Kwargs, wanted: Callable[[Tensor], bool]
) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The call as a function of those of its tensor arguments that are wanted, and these."""
    keys = [*range(len(args)), *kwargs]
    given = dict(zip(keys, [*args, *kwargs.values()], strict=True))
    open_keys = [key for key in keys if isinstance(given[key], Tensor) and wanted(given[key])]

    def f(*tensors: Tensor) -> Tensor:
        filled = given | dict(zip(open_keys, tensors, strict=True))
        return cast(Tensor, function(*(filled[i] for i in range(len(args))), **{key: filled[key] for key in kwargs}))

    return f, [given[key] for key in open_keys]


def _bound(function: Function, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """Arguments by name, defaults filled in; what is not written in Python has no signature and keeps its keywords."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except ValueError:
        return dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def refuse_inplace(function: Function, args: Args, kwargs: Kwargs) -> None:
    """A tensor that was overwritten cannot be squared any more."""
    name = getattr(function, "__name__", "")
    writes = name.endswith("_") and not name.endswith("__")
    if writes or name in {"__setitem__", "__set__"} or _bound(function, args, kwargs).get("inplace"):
        raise NoRule(f"{name_of(function)}, which writes in place", "use the variant that returns a new tensor")


def _plain(function: Function, args: Args, kwargs: Kwargs) -> Any:
    """J holds zeros and ones, which are their own squares: PyTorch's backward already is the rule."""
    return function(*args, **kwargs)


def _elementwise(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    """Broadcast first, in the open, so that PyTorch sums h over the axes along which an operand was repeated."""
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    shape = torch.broadcast_shapes(*(one.shape for one in tensors))
    f, operands = _opened(function, args, kwargs, lambda one: one.requires_grad)
    return _call(Elementwise, f, *(one.expand(shape) for one in operands))


def _add(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    return cast(Tensor, (_plain if kwargs.get("alpha", 1) == 1 else _elementwise)(function, args, kwargs))


def _product(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    factors = {key: kwargs[key] ** 2 for key in ("alpha", "beta") if key in kwargs}
    f, operands = _opened(function, args, kwargs, lambda one: True)
    f_squared, _ = _opened(function, args, kwargs | factors, lambda one: True)
    return _call(Product, f, f_squared, *operands)


def _einsum(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    """A product if every summed index stands in both operands; else several entries of b link a[i] to out[j]."""
    equation = args[0].replace(" ", "") if isinstance(args[0], str) else ""
    operands, _, out = equation.partition("->")
    a, _, b = operands.partition(",")
    repeated = any(len(set(index)) < len(index) for index in (a, b, out))
    if "->" not in equation or "." in equation or "," in b or repeated or (set(a) ^ set(b)) - set(out):
        raise NoRule(f"torch.einsum({args[0]!r})", "write it as 'ab,bc->ac', two operands that share each summed index")
    several = args[1] if isinstance(args[1], list | tuple) else args[1:]  # PyTorch takes its operands in a list, too
    return _product(function, (equation, *several), kwargs)


def _mean(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    """J = 1/n: the sum, whose J is ones, times 1/n."""
    x = args[0] if args else kwargs["input"]
    total = torch.sum(*args, **kwargs)
    return _elementwise(torch.mul, (total, total.numel() / max(x.numel(), 1)), {})


def _dropout(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    given = _bound(function, args, kwargs)
    if given["training"] and given["p"] > 0:
        raise NoRule("dropout in training", "call model.eval()")
    return cast(Tensor, function(*args, **kwargs))


def _softmax(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    # torch.nn.functional.softmax has an argument of its own in third place.
    names = ("input", "dim", "_stacklevel", "dtype") if inspect.isfunction(function) else ("input", "dim", "dtype")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("dim") is None:
        raise NoRule(f"{name_of(function)} without dim", "name the axis")
    x = given["input"] if given.get("dtype") is None else given["input"].to(given["dtype"])
    return _call(Softmax, x.transpose(given["dim"], -1)).transpose(given["dim"], -1)


def _layer_norm(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    """The scale has a diagonal J, so that taking it after the normalisation loses nothing."""
    given = dict(zip(("input", "normalized_shape", "weight", "bias", "eps"), args, strict=False)) | kwargs
    x, shape = given["input"], given["normalized_shape"]
    y = _call(Normalise, x.flatten(-len(shape)), given.get("eps", 1e-5)).view(x.shape)
    if given.get("weight") is not None:
        y = _elementwise(torch.mul, (y, given["weight"]), {})
    return y if given.get("bias") is None else y + given["bias"]


def _attention(function: Function, args: Args, kwargs: Kwargs) -> Tensor:
    """A mask is a constant bias of the scores, 0 or -inf where it is boolean."""
    given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
    mask = given.get("attn_mask")
    if given.get("dropout_p", 0) > 0 or given.get("enable_gqa") or (mask is not None and mask.requires_grad):
        raise NoRule("attention with dropout, enable_gqa or a trained mask", "call model.eval(), repeat the keys")
    qkv = [given[name] for name in ("query", "key", "value")]
    batch = torch.broadcast_shapes(*(one.shape[:-2] for one in qkv))
    q, k, v = (one.expand(*batch, *one.shape[-2:]) for one in qkv)
    if given.get("is_causal"):
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    scale = q.shape[-1] ** -0.5 if given.get("scale") is None else given["scale"]
    return _call(Attention, q, k, v, mask, scale)


def _multi_head_attention(function: Function, args: Args, kwargs: Kwargs) -> tuple[Tensor, None]:
    """What `nn.MultiheadAttention` calls, made of its pieces: it is one call, so they are not seen by themselves."""
    given = _bound(function, args, kwargs)
    extras = ("bias_k", "bias_v", "key_padding_mask", "attn_mask", "static_k", "static_v")
    switches = ("add_zero_attn", "use_separate_proj_weight", "need_weights", "is_causal")
    dropout = given["training"] and given["dropout_p"] > 0
    if any(given[name] is not None for name in extras) or any(given[name] for name in switches) or dropout:
        raise NoRule(
            "nn.MultiheadAttention with masks, extra keys or dropout", "call it with need_weights=False in eval"
        )
    weights, bias = given["in_proj_weight"].chunk(3), given["in_proj_bias"]
    biases = (None, None, None) if bias is None else bias.chunk(3)
    heads = []  # q, k, v: [..., head, t, c]
    for x, w, b in zip((given["query"], given["key"], given["value"]), weights, biases, strict=True):
        heads.append(_product(F.linear, (x, w, b), {}).unflatten(-1, (given["num_heads"], -1)).movedim(0, -2))
    o = _attention(F.scaled_dot_product_attention, tuple(heads), {}).movedim(-2, 0).flatten(-2)
    return _product(F.linear, (o, given["out_proj_weight"], given["out_proj_bias"]), {}), None


_NAMES: dict[Rule, str] = {
    _plain: "reshape view view_as reshape_as flatten unflatten transpose permute swapaxes movedim t squeeze unsqueeze "
    "expand expand_as repeat tile contiguous clone cat concat stack unbind chunk split tensor_split select narrow "
    "__getitem__ index_select gather take_along_dim embedding flip roll pad unfold where masked_fill tril triu "
    "broadcast_to sum cumsum to type_as float double half bfloat16 cpu cuda",
    _add: "add __radd__",
    _elementwise: "sub subtract __rsub__ mul multiply div divide true_divide __rdiv__ __rtruediv__ pow __pow__ "
    "__rpow__ neg square sqrt rsqrt reciprocal exp log abs gelu relu relu6 leaky_relu elu selu silu mish hardswish "
    "softplus tanh sigmoid logsigmoid sin cos",
    _product: "linear matmul __matmul__ __rmatmul__ mm bmm mv addmm baddbmm conv1d conv2d conv3d",
    _einsum: "einsum",
    _mean: "mean",
    _dropout: "dropout",
    _softmax: "softmax",
    _layer_norm: "layer_norm",
    _attention: "scaled_dot_product_attention",
    _multi_head_attention: "multi_head_attention_forward",
}

# One operation has up to three faces: torch.tanh, torch.Tensor.tanh, torch.nn.functional.tanh.
RULES: dict[Function, Rule] = {
    getattr(owner, name): rule
    for rule, names in _NAMES.items()
    for name in names.split()
    for owner in (torch, Tensor, F)
    if callable(getattr(owner, name, None))
}
RULES |= {getattr(Tensor, name).__get__: _plain for name in ("T", "mT", "H", "mH")}
