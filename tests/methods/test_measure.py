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


class WithLoss(torch.nn.Module):
    """A model that makes its loss by itself where it is given labels, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

    def forward(self, x, labels=None):
        outputs = self.body(x)
        return outputs if labels is None else (outputs, F.cross_entropy(outputs, labels))


@pytest.mark.parametrize("curvature", ["lm", "mc-fisher", "hutchinson"])
def test_a_model_that_was_given_its_labels(curvature):
    torch.manual_seed(0)
    model = WithLoss()
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    method = isf.attach(model, settings(curvature), examples=10, example=(x,))
    (model(x, labels=y)[1] + method.kl()).backward()
    method.step(targets=y)
    assert all(h.isfinite().all() and h.abs().max() > 0 for h in method.curvature().values())


def test_lm_needs_no_rule_for_what_lies_below_the_masked_layers():
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Softplus())
    model = torch.nn.Sequential(body, torch.nn.Linear(6, 3)).double()
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))
    method = isf.attach(model, settings("lm"), examples=10, include="1")
    model(x)  # the statistics of batches move on
    (F.cross_entropy(model(x), y) + method.kl()).backward()
    wanted = exact(model, x, y, "gauss-newton")["1"]
    method.step()
    torch.testing.assert_close(method.curvature()["1"], wanted)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("curvature", ["lm", "mc-fisher", "hutchinson"])
def test_inputs_in_half_precision_under_autocast(tiny, batch, curvature):
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model, (x, y) = tiny(torch.float32), batch(dtype=torch.bfloat16)
        method = isf.attach(model, settings(curvature), examples=10, seeds=0)
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = F.cross_entropy(model(x.to(dtype)).float(), y) + method.kl()
        loss.backward()
        method.step(targets=y)
        found.append(method.curvature()["head"])
    assert torch.equal(*found)  # the weights' precision, not autocast's
