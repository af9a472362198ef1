"""Noise made by kernels is what is hashed, and a compiled backward pass uses the noise of its forward pass."""

import pytest
import torch

from isingformer.nn.local import local_noise
from isingformer.nn.noise import KeyedNoise, derived_keys

KEYS = torch.tensor([5, 77, 2**40 + 3])


def sources(monkeypatch):
    monkeypatch.setattr("isingformer.nn.noise._use_cpu_generator", lambda like: False)
    hashed, kernels = KeyedNoise(KEYS), KeyedNoise(KEYS.cuda())
    for source in (hashed, kernels):
        source.advance()
    return hashed, kernels


@pytest.mark.gpu
@pytest.mark.parametrize("own", [(1,), (7,), (5, 12, 13), (3001,)])
@pytest.mark.parametrize("draw", ["uniform", "normal"])
def test_kernels_make_what_is_hashed(draw, own, monkeypatch):
    hashed, kernels = sources(monkeypatch)
    for layer in (0, 3):
        expected = getattr(hashed, draw)((3, *own), torch.empty(0), layer)
        found = getattr(kernels, draw)((3, *own), torch.empty(0, device="cuda"), layer)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)
        number = torch.full((), layer, dtype=torch.int32, device="cuda")
        assert torch.equal(getattr(kernels, draw)((3, *own), torch.empty(0, device="cuda"), number), found)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 13)])
def test_keys_are_derived_alike_on_both_devices(shape):
    keys = torch.randint(-(2**63), 2**63 - 1, shape)
    places = torch.tensor(2**31 + 7), torch.randint(0, 2**40, shape)
    expected = derived_keys(keys, *places)
    found = derived_keys(keys.cuda(), *(place.cuda() for place in places))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype == torch.int32 and torch.equal(one.cpu(), other)


@pytest.mark.gpu
def test_compiled_masks_are_those_of_eager_mode(monkeypatch):
    _, source = sources(monkeypatch)
    q = torch.rand(3, 7, 12, device="cuda")

    def kept(q):
        return source.uniform(q.shape, q, 2) >= q

    torch._dynamo.reset()
    assert torch.equal(torch.compile(kept, dynamic=False)(q), kept(q))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_noise_has_the_gradient_of_eager_noise(dtype, monkeypatch):
    _, source = sources(monkeypatch)
    layer = torch.full((), 3, dtype=torch.int32, device="cuda")

    def noisy(x, variance):
        return local_noise(x, variance, source.normal((3, 8, 5, 7), x, layer))

    torch._dynamo.reset()
    x = torch.randn(3, 8, 5, 12, device="cuda", dtype=dtype, requires_grad=True)
    variance = torch.rand(3, 7, 12, device="cuda", dtype=dtype, requires_grad=True)
    found = []
    for call in (noisy, torch.compile(noisy, dynamic=False)):
        y = call(x, variance)
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, variance))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
