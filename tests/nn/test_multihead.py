"""A masked `nn.MultiheadAttention` computes what torch's own does, with every option it has."""

import copy

import pytest
import torch
from torch import nn

import isingformer as isf
from isingformer.nn.masked import put_on, rerouted_around, take_off
from isingformer.nn.multihead import MaskedMultiheadAttention
from isingformer.nn.noise import TorchNoise
from isingformer.nn.posterior import Posterior
from isingformer.topology import maskable_layers

WIDTH, HEADS = 8, 2


def masked(attention, names=None):
    """A copy with posteriors that drop nothing."""
    twin = copy.deepcopy(attention)
    for number, (name, layer) in enumerate(maskable_layers(twin).items()):
        if names is None or name in names:
            weight = layer.get_parameter("weight")
            part = Posterior(weight, noise_sd=0.0, sampling="mask", noise=TorchNoise(), layer=number)
            put_on(layer, part, rerouted_around(twin, name))
    assert type(twin) is MaskedMultiheadAttention
    return twin


def inputs(batch_first, queries=3, keys=5, examples=2, kdim=WIDTH, vdim=WIDTH):
    torch.manual_seed(1)
    shapes = [(queries, WIDTH), (keys, kdim), (keys, vdim)]
    return [torch.randn(examples, *s).transpose(0, 0 if batch_first else 1).double() for s in shapes]


def compare(attention, args, **kwargs):
    attention = attention.double().train()
    for bias in (attention.in_proj_bias, attention.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias)
    expected = attention(*args, **kwargs)
    found = masked(attention)(*args, **kwargs)
    torch.testing.assert_close(found, expected)
    partly = masked(attention, ["out_proj"])(*args, **kwargs)
    torch.testing.assert_close(partly, expected)


OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "learned tokens": {"add_bias_kv": True},
    "zero token": {"add_zero_attn": True},
    "both tokens": {"add_bias_kv": True, "add_zero_attn": True},
    "widths": {"kdim": 6, "vdim": 4},
    "widths, no bias": {"kdim": 6, "vdim": 4, "bias": False},
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_cross_attention(options, batch_first, need_weights):
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options)
    widths = {name: options[name] for name in ("kdim", "vdim") if name in options}
    padding = torch.tensor([[False] * 5, [False, False, True, True, False]])
    compare(attention, inputs(batch_first, **widths), need_weights=need_weights, key_padding_mask=padding)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_self_attention(batch_first, need_weights):
    x = inputs(batch_first)[1]
    compare(nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first), [x, x, x], need_weights=need_weights)


def test_key_apart_from_value():
    query, key, value = inputs(True)
    compare(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), [query, key, value])
    compare(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), [key, key, value])
    compare(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), [query, key, key])


MASKS = {
    "bool": torch.ones(5, 5, dtype=torch.bool).triu(1),
    "added": torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double(),
    "by head": torch.randn(2 * HEADS, 5, 5, generator=torch.Generator().manual_seed(0)).double(),
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks(mask, padded, need_weights):
    x = inputs(True)[1]
    padding = torch.zeros(2, 5, dtype=mask.dtype)
    padding[1, 3:] = True if mask.dtype == torch.bool else -2.0
    more = {"key_padding_mask": padding} if padded else {}
    compare(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), [x, x, x], attn_mask=mask,
            need_weights=need_weights, average_attn_weights=False, **more)  # fmt: skip


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_hint_and_unbatched_inputs(need_weights):
    x = inputs(True)[1][0]
    attention = nn.MultiheadAttention(WIDTH, HEADS)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    compare(attention, [x, x, x], attn_mask=causal, is_causal=True, need_weights=need_weights)
    with pytest.raises(ValueError, match="is_causal=True without attn_mask"):
        masked(attention)(x.float(), x.float(), x.float(), is_causal=True)


def test_taking_off_gives_torchs_own_back():
    attention = nn.MultiheadAttention(WIDTH, HEADS)
    names = [name for name, _ in attention.named_modules()]
    kinds = [type(module) for module in attention.modules()]
    layers = maskable_layers(attention)
    for number, (name, layer) in enumerate(layers.items()):
        part = Posterior(layer.get_parameter("weight"), noise_sd=0.0, sampling="mask", noise=TorchNoise(), layer=number)
        put_on(layer, part, rerouted_around(attention, name))
    take_off(layers["in_proj"])
    assert type(attention) is MaskedMultiheadAttention  # its other layer still needs it
    take_off(layers["out_proj"])
    assert [name for name, _ in attention.named_modules()] == names
    assert [type(module) for module in attention.modules()] == kinds
    assert set(vars(attention)) == set(vars(nn.MultiheadAttention(WIDTH, HEADS)))


def test_attention_dropout_stays():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = (
                nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True),
                nn.Linear(8, 2),
            )

        def forward(self, x):
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    model = Net()
    isf.attach(model, isf.Plain(), examples=10)
    x = torch.randn(2, 4, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_a_copy_is_on_its_own():
    attention = nn.MultiheadAttention(WIDTH, HEADS)
    twin = copy.deepcopy(masked(attention))
    assert twin.in_proj.__dict__["owner"] is twin
    assert twin.in_proj.weight is twin.in_proj_weight
