"""`fisher` is the mean squared per-example gradient, whatever multiplies or divides the loss."""

import copy

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from frozen import freeze_noise, squared_gradients_one_by_one


def attached(model, **settings):
    settings = {"delta": 0.3, "warmup": 0, "refresh": 1, "sampling": "mask", "node_rate": 0.0, **settings}
    method = isf.attach(model, isf.Ising(**settings), examples=100)
    freeze_noise(model)
    return method


def expected(model, x, y):
    return squared_gradients_one_by_one(model, lambda: F.cross_entropy(model(x), y, reduction="none"))


def assert_same(found, wanted, rtol=1e-9):
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert wanted[name].max() > 0, name
        torch.testing.assert_close(found[name], wanted[name], rtol=rtol, atol=rtol * float(wanted[name].max()))


def mean_loss(model, method, x, y):
    return F.cross_entropy(model(x), y) + method.kl()


def plain(model, method, x, y):
    mean_loss(model, method, x, y).backward()


def kl_called_first(model, method, x, y):
    divergence = method.kl()
    (divergence + F.cross_entropy(model(x), y)).backward()


def loss_scaler(model, method, x, y):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(mean_loss(model, method, x, y)).backward()


def divided_accumulation(model, method, x, y):
    for half_x, half_y in zip(x.chunk(2), y.chunk(2), strict=True):
        (mean_loss(model, method, half_x, half_y) / 2).backward()


def undivided_accumulation(model, method, x, y):
    for half_x, half_y in zip(x.chunk(3), y.chunk(3), strict=True):
        mean_loss(model, method, half_x, half_y).backward()


def uneven_undivided(model, method, x, y):
    for part_x, part_y in zip(x.split([1, 5]), y.split([1, 5]), strict=True):
        mean_loss(model, method, part_x, part_y).backward()


def uneven_weighted_by_size(model, method, x, y):
    for part_x, part_y in zip(x.split([4, 2]), y.split([4, 2]), strict=True):
        (mean_loss(model, method, part_x, part_y) * len(part_x) / len(x)).backward()


def two_forwards_before_two_backwards(model, method, x, y):
    losses = [
        mean_loss(model, method, part_x, part_y) * weight
        for part_x, part_y, weight in zip(x.split([2, 4]), y.split([2, 4]), (3.0, 0.5), strict=True)
    ]
    for loss in losses:
        loss.backward()


def two_passes_in_one_backward(model, method, x, y):
    parts = zip(x.split([2, 4]), y.split([2, 4]), strict=True)
    (sum(F.cross_entropy(model(part_x), part_y) for part_x, part_y in parts) + method.kl()).backward()


TRAPS = [
    plain, kl_called_first, loss_scaler, divided_accumulation, undivided_accumulation, uneven_undivided,
    uneven_weighted_by_size, two_forwards_before_two_backwards, two_passes_in_one_backward,
]  # fmt: skip


@pytest.mark.parametrize("train", TRAPS, ids=lambda trap: trap.__name__)
def test_equals_gradients_taken_one_example_at_a_time(tiny, batch, train):
    model, (x, y) = tiny(), batch(6)
    method = attached(model)
    wanted = expected(model, x, y)
    train(model, method, x, y)
    method.step()
    assert_same(method.curvature(), wanted)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_local_sampling_measures_at_the_weight_each_token_saw(tiny, batch, pool):
    model, (x, y) = tiny(pool=pool), batch(5)
    method = attached(model, sampling="local")
    wanted = expected(model, x, y)
    plain(model, method, x, y)
    method.step()
    assert_same(method.curvature(), wanted)


def test_a_dropped_weight_keeps_its_curvature(tiny, batch):
    model, (x, y) = tiny(), batch(6)
    method = attached(model)
    head = model.head.posterior
    head.drop.fill_(1.0)
    wanted = expected(model, x, y)
    plain(model, method, x, y)
    method.step()
    assert (wanted["head"] > 0).all()
    assert_same(method.curvature(), wanted)


def test_token_terms_count_tokens(tiny):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 4)).double()
    x, y = torch.randn(3, 6, 5, dtype=torch.float64), torch.randint(4, (3, 6))
    y[0, 3:] = -100  # padding
    method = attached(model)
    # The likelihood is a product over tokens: a sequence's gradient is a sum over its tokens, and h is per token.
    per_sequence = squared_gradients_one_by_one(
        model,
        lambda: [F.cross_entropy(logits, labels, reduction="sum") for logits, labels in zip(model(x), y, strict=True)],
    )
    tokens = int((y != -100).sum())
    (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) + method.kl(terms=tokens)).backward()
    method.step()
    assert_same(method.curvature(), {name: h * 3 / tokens for name, h in per_sequence.items()})


def test_expand_sums_squares_over_tokens_instead(tiny, batch):
    model, (x, y) = tiny(), batch(4)
    method = attached(model, curvature="expand")
    inputs, gradients = {}, {}

    def watch(name):
        def hook(module, args, output):
            inputs[name] = args[0]
            output.register_hook(lambda grad: gradients.update({name: grad}))

        return hook

    for name in method.parts.layers:
        model.get_submodule(name).register_forward_hook(watch(name))
    plain(model, method, x, y)
    method.step()
    for name, h in method.curvature().items():
        d, a = gradients[name].flatten(0, -2) * len(x), inputs[name].flatten(0, -2)
        wanted = torch.einsum("ti,tj->ij", d.square(), a.square()) / len(x)
        torch.testing.assert_close(h, wanted, rtol=1e-9, atol=0)


def test_running_mean_is_bias_corrected(tiny, batch):
    model = tiny()
    method = attached(model, average=0.75, evidence_weight=0.0, kl_weight=1.0)  # q rests, so h is the batch's alone
    found = []
    for seed in range(3):
        x, y = batch(4, seed=seed)
        wanted = expected(model, x, y)
        plain(model, method, x, y)
        method.step()
        found.append(wanted["head"])
    weights = torch.tensor([0.75**2, 0.75, 1.0], dtype=torch.float64)
    mean = sum(w * h for w, h in zip(weights, found, strict=True)) / weights.sum()
    torch.testing.assert_close(method.curvature()["head"], mean, rtol=1e-9, atol=0)


def test_autocast_stays_close_and_accumulates_in_float32(tiny, batch):
    model, (x, y) = tiny(torch.float32), batch(6, torch.float32)
    method = attached(model)
    wanted = expected(model, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    (loss + method.kl()).backward()
    method.step()
    for name, h in method.curvature().items():
        assert h.dtype == torch.float32
        assert (h - wanted[name]).norm() < 0.05 * wanted[name].norm(), name


def test_an_infinite_gradient_under_a_loss_scaler_is_left_out(tiny, batch):
    model, (x, y) = tiny(torch.float32), batch(4, torch.float32)
    method = attached(model, refresh=2)
    wanted = expected(model, x, y)
    (mean_loss(model, method, x, y) * 1e38 * 1e38).backward()
    method.step()
    (mean_loss(model, method, x, y) * 512).backward()
    method.step()
    assert_same(method.curvature(), wanted, rtol=1e-4)


def test_stacked_replicas_have_their_own(tiny, batch):
    singles = [tiny(seed=seed) for seed in range(3)]
    stacked = isf.stack(singles)
    method = attached(stacked)
    x, y = batch(5)
    owners = {name: stacked.get_submodule(name) for name in method.parts.layers}
    used = {name: owner.posterior.draw(owner.weight).detach() for name, owner in owners.items()}
    logits = stacked(x)
    each = torch.stack([F.cross_entropy(replica, y) for replica in logits])
    ((each + method.kl()) * torch.tensor([1.0, 2.0, 0.5])).sum().backward()
    method.step()
    for r in range(3):
        drawn = copy.deepcopy(singles[r])
        with torch.no_grad():
            for name, weight in used.items():
                drawn.get_submodule(name).weight.copy_(weight[r])
        own = isf.attach(drawn, isf.Ising(warmup=5, weight_noise=0.0, sampling="mask"), examples=100)
        wanted = expected(drawn, x, y)
        own.detach()
        assert_same({name: h[r] for name, h in method.curvature().items()}, wanted)


def test_one_layer_is_heard_after_any_number_of_moves():
    """Every move makes a new companion, which may lie where an older one lay."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    method = isf.attach(model, isf.Ising(warmup=0, refresh=1, measure_every=1), examples=10)
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    for _ in range(12):
        plain(model, method, x, y)
        method.step()  # which raises where no squares have arrived
        model.to("cpu")
        model.to("cpu")
