"""What the three ways of passing through a layer compute."""

import pytest
import torch

from frozen import FrozenNoise
from isingformer.nn.local import local_noise
from isingformer.nn.nodes import node_odds, split
from isingformer.nn.noise import TorchNoise
from isingformer.nn.posterior import NodeMask, Posterior

DRAWS = 20_000


def layer(tied=False, sampling="mask", noise_sd=0.3, noise=None, dtype=torch.float64):
    torch.manual_seed(0)
    weight = torch.randn(4, 5, dtype=dtype)
    part = Posterior(weight, noise_sd=noise_sd, sampling=sampling, noise=noise or TorchNoise(), layer=0, tied=tied)
    drop = torch.rand(1, 5, dtype=dtype).expand(4, 5) if tied else torch.rand(4, 5, dtype=dtype)
    part.drop.copy_(drop)
    return part, weight


def many(part, x, weight):
    """What passes give for one input, ``[DRAWS, out]``: a pass each, or with `local` noise a row each."""
    if part.sampling == "local":
        return part(x.expand(DRAWS, -1), weight, None)
    return torch.stack([part(x, weight, None)[0] for _ in range(DRAWS)])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_mean_and_variance_of_a_pass(tied, sampling):
    part, weight = layer(tied, sampling)
    x, bias = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    drawn = torch.stack([part(x, weight, bias) for _ in range(DRAWS)])
    q = part.drop
    mean = x @ (weight * (1 - q)).T + bias
    variance = x.square() @ (weight.square() * q * (1 - q) + part.noise_sd**2).T
    if tied and sampling == "local":  # noise on what the masks let through
        variance = x.square() @ (weight.square() * q * (1 - q) + part.noise_sd**2 * (1 - q)).T
    error = variance.sqrt() / DRAWS**0.5
    assert ((drawn.mean(0) - mean).abs() < 5 * error).all()
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.1, atol=0)


@pytest.mark.parametrize("node_rate", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_kept_weights_have_their_own_variance_and_dropped_ones_none(sampling, node_rate):
    torch.manual_seed(0)
    weight = torch.randn(4, 5, dtype=torch.float64)
    part = Posterior(
        weight, noise_sd=0.1, sampling=sampling, noise=TorchNoise(), layer=0, node_rate=node_rate, own_variance=True
    )
    part.drop.copy_(torch.rand(1, 5).expand(4, 5))
    part.variance.copy_(torch.rand(4, 5))
    x = torch.randn(1, 5, dtype=torch.float64)
    drawn = many(part, x, weight)
    q = part.drop
    variance = x.square() @ (weight.square() * q * (1 - q) + 0.1**2 + (1 - q) * part.variance).T
    torch.testing.assert_close(drawn.var(0), variance[0], rtol=0.1, atol=0)
    part.drop.fill_(1.0)
    assert float(torch.stack([part.draw(weight) for _ in range(500)]).std()) == pytest.approx(0.1, rel=0.1)


def test_one_mask_serves_the_whole_batch_and_local_noise_every_row():
    x = torch.ones(6, 5, dtype=torch.float64)
    part, weight = layer(sampling="mask")
    rows = part(x, weight, None)
    torch.testing.assert_close(rows, rows[:1].expand_as(rows), rtol=1e-12, atol=1e-12)
    part, weight = layer(sampling="local")
    assert len(part(x, weight, None)[:, 0].unique()) == 6


def test_tied_masks_drop_whole_input_nodes():
    part, weight = layer(tied=True, noise_sd=0.0)
    for _ in range(50):
        drawn = part.draw(weight)
        gone = drawn == 0
        assert (gone.all(0) | (~gone).all(0)).all()


def by_node(q, sampling="mask", node_rate=1.0, **how):
    """(the layer, its weight): masks by node up to a rate, q as given."""
    part, weight = layer(sampling=sampling, **how)
    part.node_rate = node_rate
    part.drop.copy_(q)
    return part, weight


@pytest.mark.parametrize("node_rate", [0.3, 1.0])
def test_one_number_a_node_drops_each_weight_at_its_own_rate(node_rate):
    q = torch.rand(4, 5, dtype=torch.float64)
    part, weight = by_node(q, node_rate=node_rate, noise_sd=0.0)
    gone = torch.stack([part.draw(weight) == 0 for _ in range(DRAWS)]).double()
    assert ((gone.mean(0) - q).abs() < 5 * (q * (1 - q) / DRAWS).sqrt()).all()
    a, b = split(q, node_rate)
    torch.testing.assert_close((1 - a) * (1 - b), 1 - q)
    both = (1 - torch.maximum(a[0], a[1])) * (1 - b[0]) * (1 - b[1])  # two weights of a node are kept
    found = ((1 - gone[:, 0]) * (1 - gone[:, 1])).mean(0)
    assert ((found - both).abs() < 5 * (both * (1 - both) / DRAWS).sqrt()).all()
    if node_rate < 1:
        return
    order = q.argsort(0)
    assert (gone.gather(1, order.expand_as(gone)).diff(dim=1) >= 0).all()  # never one without those of higher q


@pytest.mark.parametrize("node_rate", [0.25, 1.0])
@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_by_node_what_reads_a_node_varies_together(sampling, node_rate):
    """Where all weights of a node have one q: what they share is the part a of it, what they have alone the rest."""
    part, weight = by_node(torch.rand(1, 5, dtype=torch.float64).expand(4, 5), sampling, node_rate, noise_sd=0.0)
    x = torch.randn(1, 5, dtype=torch.float64)
    drawn = many(part, x, weight)
    q = part.drop[0]
    a = q.clamp_max(node_rate)
    together = x[0].square() * (1 - q).square() * a / (1 - a)
    covariance = torch.einsum("i,ai,bi->ab", together, weight, weight)
    covariance += torch.diag((x[0].square() * q * (1 - q) - together) @ weight.T.square())
    error = covariance.diag().sqrt()
    assert ((drawn.mean(0) - weight @ (x[0] * (1 - q))).abs() < 5 * error / DRAWS**0.5).all()
    torch.testing.assert_close(drawn.T.cov(), covariance, rtol=0, atol=float(0.05 * covariance.diag().max()))


def test_by_node_local_noise_is_node_dropout_where_all_weights_of_a_node_are_alike():
    q = torch.rand(1, 5, dtype=torch.float64).expand(4, 5)
    noise = FrozenNoise()
    part, weight = by_node(q, "local", noise_sd=0.0, noise=noise)
    tied, _ = layer(tied=True, sampling="local", noise_sd=0.0, noise=noise)
    tied.drop.copy_(q)
    tied.layer = part.layer
    x = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(part(x, weight, None), tied(x, weight, None))


def test_by_node_local_noise_is_nowhere_less_than_the_masks():
    q = torch.rand(4, 5, dtype=torch.float64)
    part, weight = by_node(q, "local", noise_sd=0.0)
    odds = node_odds(weight, q, 1.0)
    square = (weight * (1 - q)).square()
    torch.testing.assert_close((square * odds).sum(0), (weight.square() * q * (1 - q)).sum(0))
    for node in range(5):
        x = torch.eye(5, dtype=torch.float64)[node].expand(DRAWS, 5)
        found = part(x, weight, None).var(0)
        variance = torch.maximum(square * odds, weight.square() * q * (1 - q))[:, node]
        torch.testing.assert_close(found, variance, rtol=0.1, atol=1e-4)
    assert torch.equal(node_odds(torch.zeros_like(weight), q, 1.0), torch.zeros(1, 5, dtype=torch.float64))


@pytest.mark.parametrize("node_rate", [0.0, 0.1, 1.0])
def test_dropping_nodes_leaves_curvature_as_it_is(node_rate):
    """A loss that is linear in the outputs has h = d^2 x^2 whatever was dropped."""
    q = torch.tensor([0.75, 0.1, 0.5, 0.9, 0.0], dtype=torch.float64).expand(4, 5)
    part, weight = by_node(q, "local", node_rate, noise_sd=0.0)
    part.train().measure(True)
    x, d = torch.ones(DRAWS, 5, dtype=torch.float64), torch.arange(1.0, 5.0, dtype=torch.float64)
    (part(x, weight.requires_grad_(), None) @ d).mean().backward()
    h = part.companion.grad[:-2].view(4, 5) / DRAWS
    torch.testing.assert_close(h, d.square()[:, None].expand(4, 5), rtol=0.1, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nodes_of_half_precision_are_dropped_at_their_rates(dtype):
    part, weight = layer(sampling="local", noise_sd=0.0, dtype=dtype)
    part.node_rate = 1.0
    part.drop.fill_(0.99)
    x, weight = torch.ones(DRAWS, 5, dtype=dtype), (0.02 * torch.ones(4, 5)).to(dtype)
    drawn = part(x, weight, None).float()
    assert float(drawn.mean()) == pytest.approx(5 * 0.02 * 0.01, rel=0.05)
    assert float(drawn.var(0).mean()) == pytest.approx(5 * 0.02**2 * 0.99 * 0.01, rel=0.15)


def test_tied_masks_have_neither_rate_nor_variance():
    for more in ({"node_rate": 0.1}, {"own_variance": True}):
        with pytest.raises(ValueError, match="tied masks are one a node already"):
            Posterior(torch.ones(2, 2), noise_sd=0.0, sampling="mask", noise=TorchNoise(), layer=0, tied=True, **more)


def test_certain_weights_stay_and_dropped_weights_go():
    part, weight = layer(noise_sd=0.0)
    part.drop.copy_((torch.rand(4, 5) < 0.5).double())
    assert torch.equal(part.draw(weight), torch.where(part.drop == 1, 0.0, weight))
    assert not part.stochastic()


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_local_noise_has_the_gradient_of_its_formula(shape):
    torch.manual_seed(0)
    lead = shape[:-2]
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(*lead, 4, 5, dtype=torch.float64, requires_grad=True)
    eps = torch.randn(*shape[:-1], 4, dtype=torch.float64)
    naive = eps * (x.square() @ variance.mT).sqrt()
    torch.testing.assert_close(local_noise(x, variance, eps), naive, rtol=1e-12, atol=0)
    weights = torch.randn_like(naive)
    wanted = torch.autograd.grad((naive * weights).sum(), (x, variance))
    found = torch.autograd.grad((local_noise(x, variance, eps) * weights).sum(), (x, variance))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=0)


def test_no_variance_gives_no_noise_and_no_nan():
    x = torch.zeros(2, 5, requires_grad=True)
    variance = torch.zeros(4, 5, requires_grad=True)
    noise = local_noise(x, variance, torch.randn(2, 4))
    noise.sum().backward()
    assert noise.abs().max() < 1e-8
    assert torch.equal(x.grad, torch.zeros(2, 5)) and torch.equal(variance.grad, torch.zeros(4, 5))


def test_a_mask_reaches_the_mean_through_kept_weights_only():
    part, weight = layer(noise=FrozenNoise(), noise_sd=0.0)
    weight.requires_grad_()
    kept = (part.draw(weight) != 0).detach()
    part(torch.randn(7, 5, dtype=torch.float64), weight, None).sum().backward()
    assert ((weight.grad != 0) == kept).all()


def test_node_mask_drops_nodes_of_the_call_or_of_every_token():
    q = torch.full((100,), 0.4, dtype=torch.float64)
    x = torch.ones(8, 3, 100, dtype=torch.float64)
    for sampling, alike in (("mask", True), ("local", False)):
        mask = NodeMask(q, sampling=sampling, noise=TorchNoise(), layer=0)
        torch.manual_seed(0)
        out = mask(x)
        assert bool((out == out[0, 0]).all()) is alike
        assert set(out.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(mask.eval()(x), x * 0.6)


@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_one_example_without_its_axis(sampling):
    part, weight = layer(sampling=sampling, noise=FrozenNoise())
    x = torch.randn(5, dtype=torch.float64)
    assert torch.equal(part(x, weight, None), part(x[None], weight, None)[0])


def test_node_mask_keeps_its_precision_in_a_narrow_model():
    mask = NodeMask(torch.full((3,), 0.1), sampling="mask", noise=TorchNoise(), layer=0).bfloat16()
    assert torch.equal(mask.drop, torch.full((3,), 0.1))


@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_autocast_leaves_float64_alone(sampling):
    part, weight = layer(sampling=sampling)
    part.measure(True)
    with torch.autocast("cpu", torch.bfloat16):
        out = part(torch.randn(2, 5, dtype=torch.float64), weight.requires_grad_(), None)
    assert out.dtype == torch.float64
