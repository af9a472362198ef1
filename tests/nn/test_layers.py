"""Layers that are linear maps in other clothes: patch convolutions and Conv1D."""

import pytest
import torch
from torch import nn

import isingformer as isf
from isingformer.nn.layers import maskable, weight_of
from isingformer.nn.masked import put_on, take_off
from isingformer.nn.noise import TorchNoise
from isingformer.nn.posterior import Posterior


def wear(layer):
    part = Posterior(weight_of(layer), noise_sd=0.0, sampling="mask", noise=TorchNoise(), layer=0)
    put_on(layer, part)
    return part


CONVOLUTIONS = {
    "square": ((3, 5, 4, 4), (2, 3, 8, 12)),
    "oblong": ((2, 4, (2, 3), (2, 3)), (2, 2, 4, 9)),
    "remainder": ((1, 4, 3, 3), (2, 1, 8, 10)),
    "pixels": ((3, 4, 1, 1), (2, 3, 4, 5)),
    "one image": ((3, 5, 4, 4), (3, 8, 8)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("settings, shape", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_patch_convolution_is_a_linear_map_of_patches(settings, shape, bias):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(*settings, bias=bias).double(), torch.randn(shape).double()
    wanted = layer(x)
    part = wear(layer)
    torch.testing.assert_close(layer(x), wanted)
    part.drop[1] = 1.0  # all of an output channel
    found = layer.eval()(x)
    channel = found.select(-3, 1)
    assert torch.equal(channel, torch.full_like(channel, 0.0 if layer.bias is None else layer.bias[1].item()))
    torch.testing.assert_close(found.select(-3, 0), wanted.select(-3, 0))
    take_off(layer)
    assert type(layer) is nn.Conv2d
    torch.testing.assert_close(layer(x), wanted)


@pytest.mark.parametrize(
    "changes", [{"stride": 1}, {"padding": 1}, {"dilation": 2}, {"groups": 2}], ids=lambda changes: next(iter(changes))
)
def test_other_convolutions_are_left_alone(changes):
    assert maskable(nn.Conv2d(2, 4, 2, stride=2))
    assert not maskable(nn.Conv2d(2, 4, 2, **{"stride": 2, **changes}))


def test_dropping_entries_of_a_patch_drops_those_pixels():
    layer = nn.Conv2d(2, 1, 2, 2, bias=False)
    part = wear(layer)
    part.drop.fill_(1.0)
    part.drop.view(1, 2, 2, 2)[0, 1, 0, 1] = 0.0  # channel 1, upper right
    x = torch.randn(1, 2, 4, 4)
    torch.testing.assert_close(layer.eval()(x)[0, 0], x[0, 1, 0::2, 1::2] * layer.weight[0, 1, 0, 1])


def test_conv1d_of_transformers():
    conv1d = pytest.importorskip("transformers").pytorch_utils.Conv1D
    torch.manual_seed(0)
    layer, x = conv1d(3, 5).double(), torch.randn(2, 4, 5).double()
    wanted = layer(x)
    part = wear(layer)
    assert part.drop.shape == (3, 5)
    torch.testing.assert_close(layer(x), wanted)
    part.drop[:, 2] = 1.0
    x[..., 2] = 100.0  # which nothing reads any more
    lower = x.clone()
    lower[..., 2] = 0.0
    torch.testing.assert_close(layer.eval()(x), layer(lower))
    take_off(layer)
    assert type(layer) is conv1d


def test_the_matrix_of_a_weight_shares_its_memory():
    for layer in (nn.Conv2d(1, 2, 2, 2), nn.Linear(3, 2)):
        with torch.no_grad():
            weight_of(layer).fill_(7.0)
        assert (layer.weight == 7).all()


def test_examples_on_another_axis_are_found_by_the_layer():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 3), torch.randn(6, 2, 4)  # [tokens, examples, in]
    wanted = layer(x)
    put_on(layer, Posterior(layer.weight, noise_sd=0.0, sampling="mask", noise=TorchNoise(), layer=0), example_axis=1)
    torch.testing.assert_close(layer(x), wanted)
    take_off(layer)
    assert not hasattr(layer, "example_axis")


def test_moving_to_another_type_moves_what_is_worn(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 4, 2, 2), nn.Flatten(), nn.Linear(16, 2))
    handle = isf.attach(model, isf.DropConnect(), examples=10, readers={})
    model.double()
    x = torch.randn(3, 1, 4, 4).double()
    assert model(x).dtype == torch.float64
    handle.detach("expected")


@pytest.mark.parametrize("weights", ["expected", "probable"])
def test_detach_writes_into_a_convolution_in_any_memory_format(weights):
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 5, 4, 4)).to(memory_format=memory_format)
        method = isf.attach(model, isf.DropConnect(p=0.6), examples=10)
        method.parts.posteriors["0"].drop[0] = 0.2
        method.detach(weights=weights)
        found.append(model[0].weight.detach().contiguous())
        assert model[0].weight.is_contiguous(memory_format=memory_format)
    assert torch.equal(*found) and found[0].abs().mean((1, 2, 3))[0] > 1.5 * found[0].abs().mean((1, 2, 3))[1]
