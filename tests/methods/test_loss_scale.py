"""Losses that are multiplied by something, and gradients that are not finite because of it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.methods.news import PATIENCE, News
from training import one_step

SETTINGS = [{"refresh": 2}, {"refresh": 10, "measure_every": 10}, {"refresh": 1}]


def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_real_loss_scaler_finds_its_factor(settings):
    """It begins with factors that make every gradient infinite, for longer than a refresh."""
    model = small()
    method = isf.attach(model, isf.Ising(warmup=0, **settings), examples=64)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=4)
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    factors = []
    for _ in range(60):
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), y) + method.kl()
        scaler.scale(loss).backward()
        factors.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        method.step()
    assert factors[-1] < 2.0**20 and max(h.max() for h in method.curvature().values()) > 0


@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_that_never_become_finite_are_an_error(settings):
    model = small()
    method = isf.attach(model, isf.Ising(warmup=0, **settings), examples=64)
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    steps = 0
    with pytest.raises(FloatingPointError, match=rf"no finite gradient in {PATIENCE} backward passes"):
        while steps < 30 * PATIENCE:
            steps += 1
            ((F.cross_entropy(model(x), y) + method.kl()) * 1e38 * 1e38).backward()
            model.zero_grad()
            method.step()
    assert steps >= PATIENCE


def test_one_finite_gradient_begins_the_count_anew():
    news, yes, no = News(), torch.tensor(True), torch.tensor(False)
    news.check(no, PATIENCE - 1)
    news.check(no, 0)  # nothing was to be measured
    news.check(yes, 1)
    news.check(no, PATIENCE - 1)
    with pytest.raises(FloatingPointError):
        news.check(no, 1)


def test_losses_of_other_weights_in_one_backward_pass(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=1), examples=10)
    one_step(model, method, x, y)
    state = method.state_dict()
    losses = [F.cross_entropy(model(x), y) + method.kl() for _ in range(2)]
    with pytest.raises(RuntimeError, match=r"kl\(\) in it with factors 0\.[19] and 0\.[19].*a backward pass for each"):
        (0.9 * losses[0] + 0.1 * losses[1]).backward()
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    model.zero_grad()
    sum(0.5 * (F.cross_entropy(model(x), y) + method.kl()) for _ in range(2)).backward()  # weighed alike
    method.step()


def test_layers_may_get_no_examples(batch):
    """As an expert that no token was sent to; on measured steps too."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    method = isf.attach(model, isf.Ising(warmup=0, refresh=2, measure_every=1), examples=10)
    for shape in ((0, 3), (0, 5, 3), (4, 5, 3), (0, 5, 3)):
        (model(torch.zeros(shape) + 1).sum() / 20 + method.kl()).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        method.step()
    assert all(h.isfinite().all() and h.max() > 0 for h in method.curvature().values())


@pytest.mark.parametrize("examples", [np.int64(10), torch.tensor(10), 10.0])
def test_a_number_of_examples_of_any_kind_can_be_saved(tiny, examples, tmp_path):
    model = tiny()
    method = isf.attach(model, isf.DropConnect(p=0.1), examples=examples)
    assert type(method.examples) is int
    isf.save(model, tmp_path)
    assert isf.load(tmp_path).head.posterior.drop.max() > 0


def test_a_second_derivative_of_kl_is_right_and_of_local_noise_an_error(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.DropConnect(p=0.25, kl_weight=1.0), examples=2)
    m = model.head.weight
    (slope,) = torch.autograd.grad(method.kl(), m, create_graph=True)
    v = torch.randn_like(m)
    (curved,) = torch.autograd.grad((slope * v).sum(), m)
    slab = method.method.slab_sd(m.shape[-1])
    torch.testing.assert_close(curved, 0.5 * 0.75 * v / slab**2)
    with pytest.raises(RuntimeError, match="sampling 'local' has no second derivatives"):
        torch.autograd.grad(F.cross_entropy(model(x), y), m, create_graph=True)
    with isf.sampled(model):
        (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), m, create_graph=True)
    assert slope.requires_grad
