"""The sum over squared slopes of attention against every slope written out."""

import pytest
import torch

from isingformer.curvature import slopes


def inputs(tokens, queries, channels, dtype=torch.float64):
    generator = torch.Generator().manual_seed(tokens)
    p = torch.randn(2, 3, queries, tokens, generator=generator, dtype=dtype).softmax(-1)
    k, v = torch.randn(2, 2, 3, tokens, channels, generator=generator, dtype=dtype)
    h = torch.rand(2, 3, queries, channels, generator=generator, dtype=dtype)
    return p, k, v, p @ v, p @ k, h


def written_out(p, k, v, o, mean_key, h):
    centred = k[..., None, :, :] - mean_key[..., None, :]  # [..., t, s, c']
    return torch.einsum("...tc,...tcd->...td", h, torch.einsum("...ts,...sc,...tsd->...tcd", p, v, centred).square())


@pytest.mark.parametrize("tokens, queries", [(7, 7), (5, 1)])
def test_it_is_every_slope_squared_and_added_up(tokens, queries):
    given = inputs(tokens, queries, 4)
    torch.testing.assert_close(slopes.squared_slopes(*given), written_out(*given))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tokens, queries, channels", [(65, 65, 32), (65, 1, 32), (50, 50, 32), (5, 7, 16), (80, 80, 16), (128, 128, 64)]
)
def test_on_a_gpu_a_kernel_has_the_digits_of_float32(tokens, queries, channels, monkeypatch):
    given = inputs(tokens, queries, channels)
    narrow = [one.cuda().float().transpose(0, 1).contiguous().transpose(0, 1) for one in given]  # of any strides
    used = []
    on_chip = slopes._on_chip
    monkeypatch.setattr(slopes, "_on_chip", lambda *args: used.append(1) or on_chip(*args))
    found = slopes.squared_slopes(*narrow)
    assert used and found.dtype == torch.float32
    exact = written_out(*given)
    assert (found.cpu().double() - exact).norm() < 3e-6 * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens, channels", [(129, 32), (20, 8)])
def test_what_does_not_fit_the_kernel_is_added_up_by_torch(tokens, channels):
    given = inputs(tokens, tokens, channels)
    found = slopes.squared_slopes(*(one.cuda().float() for one in given))
    torch.testing.assert_close(found.cpu().double(), written_out(*given), rtol=1e-4, atol=1e-6)
