"""`lm`, `mc-fisher` and `hutchinson` measure at the expected network, by an extra pass."""

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.curvature.reference import gauss_newton_diagonal, hessian_diagonal
from isingformer.nn.masked import expected_network
from training import one_step


def settings(curvature):
    return isf.Ising(delta=0.3, warmup=0, refresh=1, curvature=curvature, average=0.999)


def exact(model, x, y, kind):
    with expected_network(model) as leaves:
        if kind == "gauss-newton":
            return gauss_newton_diagonal(lambda: model(x), leaves, "softmax")
        return hessian_diagonal(lambda: F.cross_entropy(model(x), y), leaves)


@pytest.mark.parametrize("curvature, kind", [("mc-fisher", "gauss-newton"), ("hutchinson", "hessian")])
def test_converges_to_the_exact_diagonal(batch, curvature, kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.randint(3, (12,))
    method = isf.attach(model, settings(curvature), examples=10)
    for part in method.parts.posteriors.values():
        part.drop.fill_(0.4)
    wanted = exact(model, x, y, kind)
    method.rule.before_forward((x,), {})
    for _ in range(3000):
        method.rule._measure(y)
    method.rule.average.fold()
    error = {"mc-fisher": 0.1, "hutchinson": 0.3}[curvature]  # off-diagonals make hutchinson the noisier of the two
    for name, h in method.curvature().items():
        assert (h - wanted[name]).norm() < error * wanted[name].norm(), name


def test_lm_is_exact_for_the_last_layer(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, settings("lm"), examples=10)
    wanted = exact(model, x, y, "gauss-newton")["head"]
    one_step(model, method, x, y)
    torch.testing.assert_close(method.curvature()["head"], wanted, rtol=1e-9, atol=0)


@pytest.mark.parametrize("curvature", ["lm", "mc-fisher", "hutchinson"])
def test_leaves_gradients_modes_and_weights_alone(tiny, batch, curvature):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, settings(curvature), examples=10)
    (F.cross_entropy(model(x), y) + method.kl()).backward()
    before = {name: (p.detach().clone(), p.grad.clone()) for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    method.step(targets=y)
    assert modes == [module.training for module in model.modules()]
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name][0]) and torch.equal(p.grad, before[name][1]), name


@pytest.mark.parametrize("curvature", ["lm", "mc-fisher", "hutchinson"])
def test_stacked_replicas_have_their_own(tiny, batch, curvature):
    x, y = batch()
    stacked = isf.stack([tiny(seed=0), tiny(seed=1)])
    method = isf.attach(stacked, settings(curvature), examples=10)
    loss = torch.stack([F.cross_entropy(logits, y) for logits in stacked(x)]) + method.kl()
    loss.sum().backward()
    method.step(targets=y)
    h = method.curvature()["head"]
    assert h.shape == (2, 3, 8) and not torch.allclose(h[0], h[1])


def test_hutchinson_asks_for_the_labels(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, settings("hutchinson"), examples=10)
    (F.cross_entropy(model(x), y) + method.kl()).backward()
    with pytest.raises(ValueError, match=r"method.step\(targets=y\)"):
        method.step()


def test_a_step_before_any_forward_says_what_is_missing(tiny):
    method = isf.attach(tiny(), settings("lm"), examples=10)
    with pytest.raises(RuntimeError, match=r"call model\(x\) before method.step"):
        method.step()
