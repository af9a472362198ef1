"""The network with uneven widths."""

import torch
import torch.nn.functional as F

from doubles import DOUBLE, randn
from isingformer.compress.compact import CompactAttention, CompactNorm, CompactViT, Constant
from isingformer.compress.shape import BlockShape, shape_of


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


def test_even_heads_and_uneven_heads_compute_the_same():
    """The fused path and the loop over heads, made to do the same work."""
    attention = CompactAttention(6, BlockShape((3, 3), (3, 3), 1), head_size=5).double()
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


def test_a_constant_is_added_to_all_tokens():
    constant = Constant(3)
    constant.bias.data = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 4, 3)
    assert torch.equal(x + constant(x), x + constant.bias.expand(2, 4, 3))
