"""Vision transformers of other libraries, read as what they are: which of their layers are which of ours.

Known are `ViTForImageClassification` of transformers, `VisionTransformer` of torchvision and `VisionTransformer` of
timm, by the names of their classes, so that none of these libraries is imported here. What differs from a `ViT` and can
be said in a `Shape` is taken over: head sizes, the eps of the norms, layers without biases. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .shape import BlockShape, Shape


@dataclass(frozen=True)
class Foreign:
    """A model of another library in our terms."""

    shape: Shape
    layers: Mapping[str, tuple[str, ...]]
    """By our linear layers, the names of theirs, whose rows one after the other are ours."""
    others: Mapping[str, str]
    """By our other parameters, the names of theirs."""


@dataclass(frozen=True)
class _Block:
    """What a reader finds of one block: names of its norms and of its layers in order."""

    norms: tuple[str, str]
    qkv: tuple[str, ...]
    proj: str
    fc1: str
    fc2: str
    heads: int


def read_foreign(model: nn.Module) -> Foreign | None:
    """What a model of another library is in our terms; None: of none that is known.

    Raises:
        ValueError: it has something that our `ViT` has not.
    """
    for kind in type(model).__mro__:
        for (library, name), read in _READERS.items():
            if kind.__name__ == name and kind.__module__.startswith(library):
                return read(model)
    return None


def refuse(model: nn.Module, what: str) -> ValueError:
    """The error that says what a smaller network could not compute."""
    return ValueError(
        f"this {type(model).__name__} has {what}, which a smaller network cannot hold; give one without, or compress "
        "an isingformer ViT"
    )


def _transformers(model: nn.Module) -> Foreign:
    config: Any = model.config
    if config.hidden_act != "gelu":
        raise refuse(model, f"hidden_act={config.hidden_act!r} instead of 'gelu'")
    if not config.num_labels:
        raise refuse(model, "no classifier (num_labels=0)")
    at = next(name for name in ("vit.layers", "vit.encoder.layer", "vit.encoder.layers") if _has(model, name))
    blocks = []
    for number in range(len(list(model.get_submodule(at).children()))):
        block = f"{at}.{number}"
        inside = _linear_layers(model, block)
        if len(inside) != 6:
            raise refuse(model, f"{len(inside)} linear layers in {block} instead of 6")
        norms = f"{block}.layernorm_before", f"{block}.layernorm_after"
        proj, fc1, fc2 = inside[3:]
        blocks.append(_Block(norms, tuple(inside[:3]), proj, fc1, fc2, config.num_attention_heads))
    start = "vit.embeddings."
    return _foreign(
        model, blocks, embed=f"{start}patch_embeddings.projection", norm="vit.layernorm", head="classifier",
        class_token=f"{start}cls_token", position=f"{start}position_embeddings", image_size=config.image_size,
    )  # fmt: skip


def _torchvision(model: nn.Module) -> Foreign:
    if type(model.get_submodule("conv_proj")) is nn.Sequential:
        raise refuse(model, "a stem of several convolutions")
    if [name for name, _ in model.get_submodule("heads").named_children()] != ["head"]:
        raise refuse(model, "more than a linear layer for a head (representation_size)")
    blocks = []
    for name, block in model.get_submodule("encoder.layers").named_children():
        at = f"encoder.layers.{name}."
        attention: Any = block.get_submodule("self_attention")
        _check_activation(model, block.get_submodule("mlp.1"))
        blocks.append(
            _Block(
                (f"{at}ln_1", f"{at}ln_2"), (f"{at}self_attention.in_proj",), f"{at}self_attention.out_proj",
                f"{at}mlp.0", f"{at}mlp.3", attention.num_heads,
            )
        )  # fmt: skip
    return _foreign(
        model, blocks, embed="conv_proj", norm="encoder.ln", head="heads.head", class_token="class_token",
        position="encoder.pos_embedding", image_size=model.image_size,
    )  # fmt: skip


def _timm(model: nn.Module) -> Foreign:
    given: Any = model
    if given.global_pool != "token":
        raise refuse(model, f"global_pool={given.global_pool!r} instead of 'token'")
    if getattr(given, "reg_token", None) is not None or getattr(given, "no_embed_class", False):
        raise refuse(model, "register tokens, or a class token without a position")
    for name in ("patch_embed.norm", "norm_pre", "fc_norm"):
        _check_identity(model, name)
    blocks = []
    for number, block in enumerate(given.blocks):
        at = f"blocks.{number}."
        for name in ("attn.q_norm", "attn.k_norm", "attn.norm", "ls1", "ls2", "mlp.norm"):
            _check_identity(model, at + name)
        _check_activation(model, block.mlp.act)
        blocks.append(
            _Block(
                (f"{at}norm1", f"{at}norm2"), (f"{at}attn.qkv",), f"{at}attn.proj", f"{at}mlp.fc1", f"{at}mlp.fc2",
                block.attn.num_heads,
            )
        )  # fmt: skip
    return _foreign(
        model, blocks, embed="patch_embed.proj", norm="norm", head="head", class_token="cls_token",
        position="pos_embed", image_size=given.patch_embed.img_size,
    )  # fmt: skip


_READERS: dict[tuple[str, str], Callable[[nn.Module], Foreign]] = {
    ("transformers.models.vit.", "ViTForImageClassification"): _transformers,
    ("torchvision.models.vision_transformer", "VisionTransformer"): _torchvision,
    ("timm.models.vision_transformer", "VisionTransformer"): _timm,
}


def _foreign(
    model: nn.Module, blocks: Sequence[_Block], *, embed: str, norm: str, head: str, class_token: str, position: str,
    image_size: Any,
) -> Foreign:  # fmt: skip
    """The whole, from the names of its parts."""
    convolution, side = model.get_submodule(embed), _square(model, image_size)
    assert isinstance(convolution, nn.Conv2d)
    patch = _square(model, convolution.kernel_size)
    layers: dict[str, tuple[str, ...]] = {"embed": (embed,)}
    others = {"class_token": class_token, "position": position}
    norms, widths = {norm: "norm"}, []
    for i, block in enumerate(blocks):
        at = f"blocks.{i}."
        layers |= {f"{at}attn.qkv": block.qkv, f"{at}attn.proj": (block.proj,)}
        layers |= {f"{at}mlp.fc1": (block.fc1,), f"{at}mlp.fc2": (block.fc2,)}
        norms |= {block.norms[0]: f"{at}norm1", block.norms[1]: f"{at}norm2"}
        channels, hidden = _inputs(model, block.proj), _inputs(model, block.fc2)
        size = channels // block.heads
        widths.append(BlockShape((size,) * block.heads, (size,) * block.heads, hidden))
    layers["head"] = (head,)
    eps = set()
    for theirs, ours in norms.items():
        module = model.get_submodule(theirs)
        if not isinstance(module, nn.LayerNorm) or module.weight is None or module.bias is None:
            raise refuse(model, f"{theirs}, a {type(module).__name__} that is no layer norm with weight and bias,")
        eps.add(module.eps)
        others |= {f"{ours}.weight": f"{theirs}.weight", f"{ours}.bias": f"{theirs}.bias"}
    if len(eps) != 1 or len({block.qk for block in widths}) > 1:
        raise refuse(model, "blocks whose norms or heads differ")
    width = convolution.out_channels
    shape = Shape(
        image_size=side, channels=convolution.in_channels, patch=patch, width=width, full_width=width,
        classes=_outputs(model, head), pool="class", head_size=widths[0].qk[0], blocks=tuple(widths),
        every_token=True, eps=eps.pop(),
    )  # fmt: skip
    if list(model.get_parameter(position).shape) != [1, shape.tokens, width]:
        raise refuse(model, f"positions of shape {list(model.get_parameter(position).shape)}")
    return Foreign(shape, layers, others)


def _linear_layers(model: nn.Module, at: str) -> list[str]:
    """The names of the linear layers inside a module, in its order."""
    found = model.get_submodule(at).named_modules()
    return [f"{at}.{name}" for name, module in found if isinstance(module, nn.Linear)]


def _inputs(model: nn.Module, layer: str) -> int:
    module = model.get_submodule(layer)
    assert isinstance(module, nn.Linear)
    return module.in_features


def _outputs(model: nn.Module, layer: str) -> int:
    module = model.get_submodule(layer)
    if not isinstance(module, nn.Linear):
        raise refuse(model, f"{layer}, a {type(module).__name__}, for a classifier")
    return module.out_features


def _has(model: nn.Module, name: str) -> bool:
    try:
        model.get_submodule(name)
    except AttributeError:
        return False
    return True


def _square(model: nn.Module, size: Any) -> int:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(set(pair)) != 1:
        raise refuse(model, f"images or patches that are not square, {pair},")
    return int(pair[0])


def _check_identity(model: nn.Module, name: str) -> None:
    if _has(model, name) and type(model.get_submodule(name)) is not nn.Identity:
        raise refuse(model, f"{name}, a {type(model.get_submodule(name)).__name__},")


def _check_activation(model: nn.Module, module: nn.Module) -> None:
    if type(module).__name__ != "GELU" or getattr(module, "approximate", "none") != "none":
        raise refuse(model, f"activations {module} instead of GELU()")
