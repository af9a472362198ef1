"""The field's terms against numbers worked out by hand, and the references of `divergence.py`."""

import math

import pytest
import torch

from isingformer.ising import evidence, kl_weights, logit, prior_field, slab_minus_spike

DOUBLE = torch.float64


def test_logit_undoes_the_sigmoid():
    for p in (1e-12, 0.1, 0.5, 0.999):
        assert 1 / (1 + math.exp(-logit(p))) == pytest.approx(p)
        assert logit(torch.tensor(p, dtype=DOUBLE)).item() == pytest.approx(logit(p))


def test_prior_field_printed_and_centred():
    share = torch.tensor([[0.0], [0.2], [1.0]], dtype=DOUBLE)
    base = math.log(0.2 / 0.8)
    printed = prior_field(share, delta=0.2, coupling=2.0, centred=False)
    torch.testing.assert_close(printed, torch.tensor([[base], [base + 0.4], [base + 2]], dtype=DOUBLE))
    centred = prior_field(share, delta=0.2, coupling=2.0)
    torch.testing.assert_close(centred, torch.tensor([[base - 0.4], [base], [base + 1.6]], dtype=DOUBLE))


def test_three_readings_of_the_evidence():
    m, h = torch.tensor([[2.0, -3.0]], dtype=DOUBLE), torch.tensor([[0.5, 0.1]], dtype=DOUBLE)
    torch.testing.assert_close(evidence(m, h, examples=10), torch.tensor([[-10.0, -4.5]], dtype=DOUBLE))
    curvature = evidence(m, h, examples=10, kind="curvature")
    torch.testing.assert_close(curvature, torch.tensor([[-5.0, -1.0]], dtype=DOUBLE))
    assert evidence(m, h, examples=10, kind="none").eq(0).all()
    with pytest.raises(ValueError, match="'obd', 'curvature' or 'none', got 'hessian'"):
        evidence(m, h, examples=10, kind="hessian")


@pytest.mark.parametrize(("s", "s1", "s2"), [(0.1, 0.1, 1.0), (0.05, 0.2, 0.7), (0.3, 0.1, 2.0)])
def test_slab_minus_spike_is_minus_the_slope_of_the_divergence(s, s1, s2):
    m = torch.linspace(-2, 2, 9, dtype=DOUBLE)
    widths = {"noise_sd": s, "spike_sd": s1, "slab_sd": s2}
    step = 1e-5
    up, down = (kl_weights(m, torch.full_like(m, 0.3 + sign * step), **widths) for sign in (1, -1))
    torch.testing.assert_close(slab_minus_spike(m, **widths), -(up - down) / (2 * step), rtol=1e-7, atol=1e-7)
