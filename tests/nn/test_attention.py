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


def test_the_first_tokens_may_ask_alone():
    qkv = torch.randn(3, 5, 3, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(attention(qkv, 2), written_out(qkv)[:, :2])


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    "tokens, channels, heads", [(65, 32, 4), (50, 32, 4), (5, 16, 3), (80, 16, 2), (128, 64, 2), (129, 32, 1)]
)
@pytest.mark.parametrize("queries", [None, 1, 3])
def test_on_a_gpu_it_is_the_formula_forward_and_backward(
    tokens, channels, heads, queries, dtype, tolerance, compiled, monkeypatch
):
    if compiled and (tokens, dtype) != (65, torch.bfloat16):
        pytest.skip("compiling takes long: one shape is enough")
    qkv = torch.randn(4, tokens, 3, heads, channels, device="cuda", dtype=dtype).requires_grad_()
    d = torch.randn(4, queries or tokens, heads, channels, device="cuda", dtype=dtype)
    if compiled:
        torch._dynamo.reset()
        found = torch.compile(attention, dynamic=False)(qkv, queries)
    else:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # so that it uses the kernel
        found = attention(qkv, queries)
    (grad,) = torch.autograd.grad(found, qkv, d)
    wide = qkv.detach().double().requires_grad_()
    q, k, v = wide.movedim(2, 0).transpose(-2, -3)
    expected = F.scaled_dot_product_attention(q[:, :, :queries], k, v).transpose(-2, -3)
    (expected_grad,) = torch.autograd.grad(expected, wide, d.double())
    for one, other in ((found, expected), (grad, expected_grad)):
        assert (one.double() - other).norm() / other.norm() < tolerance


@pytest.mark.gpu
def test_sequences_up_to_the_limit_use_the_kernel(monkeypatch):
    used = []
    monkeypatch.setattr("isingformer.nn.attention.pieces", lambda tokens: used.append(tokens) or (128, 0))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for tokens in (65, 129):
        attention(torch.randn(2, tokens, 3, 1, 32, device="cuda"))
    assert used == [65]
