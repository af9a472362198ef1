"""The network with uneven widths."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from doubles import DOUBLE, randn
from isingformer.compress.compact import CompactAttention, CompactNorm, CompactViT, Constant
from isingformer.compress.shape import BlockShape, Shape, shape_of


def test_the_norm_counts_constants_that_are_not_there():
    """A layer norm over all channels, some of them constant over images, seen from those that are left."""
    x, constants = randn(4, 5, 6), randn(5, 3, seed=1)
    whole = torch.cat([x, constants.expand(4, 5, 3)], dim=-1)
    norm = CompactNorm(6, 9, tokens=5).double()
    norm.weight.data, norm.bias.data = randn(6, seed=2), randn(6, seed=3)
    norm.gone_mean.copy_(constants.mean(-1, keepdim=True))
    norm.gone_var.copy_(constants.var(-1, correction=0, keepdim=True))
    expected = F.layer_norm(whole, (9,))[..., :6] * norm.weight + norm.bias
    assert (norm(x) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("first", [False, True], ids=["all tokens", "one token"])
@pytest.mark.parametrize("widths", [(3, 3), (2, 4), (4, 1)], ids=str)
def test_even_heads_and_uneven_heads_compute_the_same(widths, first):
    """The fused path and the loop over heads, made to do the same work."""
    block = BlockShape((widths[0],) * 2, (widths[1],) * 2, 1)
    attention = CompactAttention(6, block, head_size=5, first=first).double()
    assert attention.even
    x = randn(2, 4, 6)
    fused = attention(x)
    attention.even = False
    assert (attention(x) - fused).abs().max() < 1e-12


def test_a_head_without_scores_takes_the_mean():
    attention = CompactAttention(6, BlockShape((0,), (2,), 1), head_size=4).double()
    x = randn(2, 4, 6)
    expected = attention.proj(attention.qkv(x).mean(1, keepdim=True)).expand(2, 4, 6)
    assert (attention(x) - expected).abs().max() < 1e-12


def test_it_is_built_again_from_its_config(tiny):
    compact = CompactViT(**shape_of(tiny()).config()).to(DOUBLE)
    again = CompactViT(**compact.config).to(DOUBLE)
    again.load_state_dict(compact.state_dict())
    x = randn(3, 1, 4, 4)
    assert torch.equal(again(x), compact(x))


def test_with_all_widths_it_is_the_vit(tiny, batch):
    model, (x, _) = tiny(), batch()
    compact = CompactViT(**shape_of(model).config()).to(DOUBLE)
    compact.load_state_dict(model.state_dict())
    assert (compact(x) - model(x)).abs().max() < 1e-12


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("gone", ["nothing", "attention", "mlp", "both"])
def test_the_last_block_computes_only_what_is_read(pool, gone):
    """With heads of one width or of several, one without scores, and residual channels removed."""
    rest = {"image_size": 6, "channels": 2, "patch": 2, "width": 7, "classes": 3, "full_width": 9, "head_size": 4}
    for qk, value in (((4, 4), (4, 4)), ((3, 0, 2), (2, 4, 1))):
        heads = ((), ()) if gone in ("attention", "both") else (qk, value)
        last = BlockShape(*heads, 0 if gone in ("mlp", "both") else 5)
        shape = Shape(**rest, pool=pool, blocks=(BlockShape(qk, value, 5), last))
        short = CompactViT(**shape.config()).to(DOUBLE)
        whole = CompactViT(**dataclasses.replace(shape, every_token=True).config()).to(DOUBLE)
        state = {name: randn(*t.shape, seed=n).abs() for n, (name, t) in enumerate(whole.state_dict().items())}
        whole.load_state_dict(state)
        short.load_state_dict({name: state[name][: len(t)] for name, t in short.state_dict().items()})
        x = randn(4, 2, 6, 6)
        assert (short(x) - whole(x)).abs().max() < 1e-12
        y = torch.tensor([0, 1, 2, 0])
        grads = [
            torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())) for model in (short, whole)
        ]
        for (name, _), one, other in zip(short.named_parameters(), *grads, strict=True):
            assert (one - other).abs().max() < 1e-12, name
        saved = dataclasses.replace(shape, every_token=True).macs() - shape.macs()
        assert saved > 0 if pool == "class" and gone != "both" else saved == 0


def test_a_constant_is_added_to_all_tokens():
    constant = Constant(3)
    constant.bias.data = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 4, 3)
    assert torch.equal(x + constant(x), x + constant.bias.expand(2, 4, 3))
