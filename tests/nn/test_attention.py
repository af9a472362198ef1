"""Attention against the formula written out, and the kernel for short sequences against torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F

from isingformer.nn.attention import attention


def written_out(qkv):
    out = torch.empty_like(qkv[:, :, 0])
    for n in range(qkv.shape[0]):
        for head in range(qkv.shape[3]):
            q, k, v = qkv[n, :, :, head].unbind(1)
            out[n, :, head] = torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), -1) @ v
    return out


def test_it_is_the_formula():
    qkv = torch.randn(3, 5, 3, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(attention(qkv), written_out(qkv))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("tokens, channels, heads", [(65, 32, 4), (50, 32, 4), (5, 16, 3), (128, 64, 2), (129, 32, 1)])
def test_compiled_on_a_gpu_it_is_the_formula_forward_and_backward(tokens, channels, heads, dtype, tolerance):
    torch._dynamo.reset()
    qkv = torch.randn(4, tokens, 3, heads, channels, device="cuda", dtype=dtype).requires_grad_()
    d = torch.randn(4, tokens, heads, channels, device="cuda", dtype=dtype)
    found = torch.compile(attention, dynamic=False)(qkv)
    (grad,) = torch.autograd.grad(found, qkv, d)
    wide = qkv.detach().double().requires_grad_()
    q, k, v = wide.movedim(2, 0).transpose(-2, -3)
    expected = F.scaled_dot_product_attention(q, k, v).transpose(-2, -3)
    (expected_grad,) = torch.autograd.grad(expected, wide, d.double())
    for one, other in ((found, expected), (grad, expected_grad)):
        assert (one.double() - other).norm() / other.norm() < tolerance


@pytest.mark.gpu
def test_sequences_up_to_the_limit_use_the_kernel(monkeypatch):
    used = []
    monkeypatch.setattr("isingformer.nn.attention._padded", lambda tokens: used.append(tokens) or 128)
    for tokens in (65, 129):
        torch._dynamo.reset()
        torch.compile(attention, dynamic=False)(torch.randn(2, tokens, 3, 1, 32, device="cuda"))
    assert used == [65]
