"""The reference transformer against a plain implementation with the same weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isingformer as isf
from isingformer.nn.vit import patches

DOUBLE = torch.float64
SHAPE = {"image_size": 6, "channels": 2, "patch": 3, "width": 8, "depth": 2, "heads": 2, "mlp": 12, "classes": 5}


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def vit(**settings):
    """A network in which every parameter is random, norms and biases too."""
    model = isf.ViT(**{**SHAPE, **settings}).double()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(0.5 * randn(*parameter.shape, seed=i))
    return model


def attention_by_torch(attention, x):
    """`nn.MultiheadAttention` with the same weights."""
    width = x.shape[-1]
    torchs = nn.MultiheadAttention(width, attention.heads, batch_first=True, dtype=DOUBLE)
    torchs.load_state_dict(
        {
            "in_proj_weight": attention.qkv.weight,
            "in_proj_bias": attention.qkv.bias,
            "out_proj.weight": attention.proj.weight,
            "out_proj.bias": attention.proj.bias,
        }
    )
    return torchs(x, x, x, need_weights=False)[0]


def plainly(model, images, pool):
    """The forward pass written out for one network, one image after the other."""
    side, width = model.patch, model.position.shape[-1]

    def norm(x, layer):
        return F.layer_norm(x, (width,), layer.weight, layer.bias)

    outputs = []
    for image in images:
        tokens = [model.class_token.view(width)]
        for top in range(0, image.shape[1], side):
            for left in range(0, image.shape[2], side):
                pixels = image[:, top : top + side, left : left + side].flatten()
                tokens.append(model.embed.weight @ pixels + model.embed.bias)
        x = torch.stack(tokens) + model.position[0]
        for block in model.blocks:
            x = x + attention_by_torch(block.attn, norm(x, block.norm1)[None])[0]
            hidden = F.gelu(norm(x, block.norm2) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
            x = x + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
        x = norm(x, model.norm)
        outputs.append(model.head.weight @ (x[0] if pool == "class" else x.mean(0)) + model.head.bias)
    return torch.stack(outputs)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("depth", [0, 2])
def test_output_is_that_of_a_plain_implementation(pool, depth):
    model, images = vit(pool=pool, depth=depth), randn(3, 2, 6, 6, seed=99)
    torch.testing.assert_close(model(images), plainly(model, images, pool), rtol=0, atol=1e-10)


@torch.no_grad()
def test_attention_is_a_softmax_of_scaled_products_within_each_head():
    attention, x = vit().blocks[0].attn, randn(2, 5, 8, seed=1)
    q, k, v = (part.unflatten(-1, (2, 4)) for part in attention.qkv(x).chunk(3, -1))  # [B, T, heads, channels]
    scores = torch.einsum("bihc,bjhc->bhij", q, k) / 2.0
    mixed = torch.einsum("bhij,bjhc->bihc", scores.softmax(-1), v).flatten(-2)
    torch.testing.assert_close(attention(x), attention.proj(mixed), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("size", "side", "channels"), [(6, 3, 2), (8, 2, 1), (4, 4, 3)])
def test_patches_are_those_of_unfold_in_reading_order(size, side, channels):
    images = randn(5, channels, size, size)
    assert torch.equal(patches(images, side), F.unfold(images, side, stride=side).mT)
    assert torch.equal(patches(images[None], side)[0], patches(images, side))


def test_pooling_is_by_class_token_unless_asked():
    model, images = vit(), randn(3, 2, 6, 6)
    assert isf.ViT(**SHAPE).pool == "class"
    with torch.no_grad():
        assert not torch.allclose(model(images), plainly(model, images, "mean"))


def test_every_parameter_is_used():
    model = vit()
    model(randn(2, 2, 6, 6)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch": 4}, "image_size 6 is not a multiple of patch 4"),
        ({"heads": 3}, "width 8 is not a multiple of heads 3"),
        ({"pool": "max"}, "pool must be 'class' or 'mean', got 'max'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        isf.ViT(**{**SHAPE, **settings})


def test_images_of_another_size_are_refused():
    with pytest.raises(RuntimeError):
        vit()(randn(1, 2, 9, 9))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_frugal_it_computes_the_same_logits_and_gradients(pool):
    full, frugal = (vit(pool=pool, replicas=2) for _ in range(2))
    frugal.frugal = True
    tokens = []
    frugal.blocks[-1].mlp.register_forward_hook(lambda module, args, out: tokens.append(out.shape[-2]))
    images = randn(2, 3, 2, 6, 6)
    found = [model(images) for model in (full, frugal)]
    torch.testing.assert_close(*found)
    assert tokens == [1 if pool == "class" else 5]
    for logits in found:
        logits.square().sum().backward()
    for one, other in zip(full.parameters(), frugal.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
