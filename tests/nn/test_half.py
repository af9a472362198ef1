"""float16, whose largest number is 65,504: inputs beyond its root must not make the noise of `local` infinite."""

import pytest
import torch

from isingformer.nn.local import local_noise

SCALES = [1e-2, 1.0, 300.0, 3e3]


def parts(scale):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 64, generator=generator) * torch.rand(6, 3, 1, generator=generator) * scale
    variance = torch.rand(8, 64, generator=generator) * 1e-3
    return x.half(), variance.half(), torch.randn(6, 3, 8, generator=generator).half()


@pytest.mark.parametrize("scale", SCALES)
def test_the_noise_is_that_of_float64(scale):
    x, variance, eps = parts(scale)
    wanted = eps.double() * (x.double().square() @ variance.double().T).sqrt()
    found = local_noise(x, variance, eps)
    assert found.dtype == torch.float16
    assert (found.double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.parametrize("scale", SCALES)
def test_so_are_its_gradients(scale):
    grads = []
    for dtype in (torch.float16, torch.float64):
        x, variance, eps = (part.to(dtype).requires_grad_() for part in parts(scale))
        noise = local_noise(x, variance, eps)
        grads.append(torch.autograd.grad(noise, x, noise.detach().sign() / 64)[0])
    half, wanted = grads
    assert (half.double() - wanted).norm() < 2e-2 * wanted.norm()


def test_without_examples_there_is_no_noise():
    x, variance, eps = parts(1.0)
    assert local_noise(x[:0], variance, eps[:0]).shape == (0, 3, 8)
