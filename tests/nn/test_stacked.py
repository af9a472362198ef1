"""Replicas stacked on a leading axis are the networks they were: in outputs, in gradients and in training."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isingformer as isf
from isingformer.nn import StackedLayerNorm, StackedLinear

DOUBLE = torch.float64
SHAPE = {"image_size": 4, "channels": 1, "patch": 2, "width": 8, "depth": 2, "heads": 2, "mlp": 12, "classes": 3}
REPLICAS = 3


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def vits(count=REPLICAS, **settings):
    models = [isf.ViT(**{**SHAPE, **settings}).double() for _ in range(count)]
    with torch.no_grad():
        for r, model in enumerate(models):
            for i, parameter in enumerate(model.parameters()):
                parameter.copy_(0.4 * randn(*parameter.shape, seed=100 * r + i))
    return models


def batch(seed=0, examples=6):
    labels = torch.randint(3, (REPLICAS, examples), generator=torch.Generator().manual_seed(seed))
    return randn(REPLICAS, examples, 1, 4, 4, seed=seed), labels


@torch.no_grad()
@pytest.mark.parametrize("shape", [(4, 5), (4, 2, 5), (4, 2, 3, 5)])
def test_stacked_layers_are_single_layers_side_by_side(shape):
    x = randn(REPLICAS, *shape)
    linear, norm = StackedLinear(REPLICAS, 5, 7).double(), StackedLayerNorm(REPLICAS, 5).double()
    norm.weight.copy_(randn(REPLICAS, 5, seed=1))
    norm.bias.copy_(randn(REPLICAS, 5, seed=2))
    for r in range(REPLICAS):
        torch.testing.assert_close(linear(x)[r], F.linear(x[r], linear.weight[r], linear.bias[r]))
        torch.testing.assert_close(norm(x)[r], F.layer_norm(x[r], (5,), norm.weight[r], norm.bias[r]))
    bare = StackedLinear(REPLICAS, 5, 7, bias=False).double()
    torch.testing.assert_close(bare(x)[1], F.linear(x[1], bare.weight[1]))


def test_stacked_linear_starts_in_the_range_of_nn_linear():
    layer = StackedLinear(REPLICAS, 25, 400)
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max() <= 0.2 and parameter.std().item() == pytest.approx(0.2 / 3**0.5, rel=0.1)
        assert not torch.equal(parameter[0], parameter[1])


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_stacked_network_and_its_gradients_are_those_of_each_network(pool):
    models, (images, labels) = vits(pool=pool), batch()
    stacked = isf.stack(models)
    outputs = stacked(images)
    losses = torch.stack([F.cross_entropy(outputs[r], labels[r]) for r in range(REPLICAS)])
    losses.sum().backward()
    for r, model in enumerate(models):
        alone = model(images[r])
        torch.testing.assert_close(outputs[r], alone, rtol=0, atol=1e-10)
        F.cross_entropy(alone, labels[r]).backward()
        for (name, mine), whole in zip(model.named_parameters(), stacked.parameters(), strict=True):
            torch.testing.assert_close(
                whole.grad[r], mine.grad, rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
            )


@torch.no_grad()
def test_images_without_a_replica_axis_are_shared_by_all():
    stacked, images = isf.stack(vits()), batch()[0][0]
    torch.testing.assert_close(stacked(images), stacked(images.expand(REPLICAS, *images.shape)))


def test_stacking_and_unstacking_is_bit_identical():
    models = vits(pool="mean")
    stacked = isf.stack(models)
    assert stacked.replicas == REPLICAS
    for r in (*range(REPLICAS), -1):
        single, original = isf.unstack(stacked, r), models[r]
        assert single.config == original.config
        assert single.state_dict().keys() == original.state_dict().keys()
        for name, value in original.state_dict().items():
            assert torch.equal(single.state_dict()[name], value) and single.state_dict()[name].dtype == DOUBLE, name


def test_stack_and_unstack_copy_and_keep_the_mode():
    models = [model.eval() for model in vits()]
    stacked = isf.stack(models)
    single = isf.unstack(stacked, 0)
    assert not stacked.training and not single.training
    before = models[0].head.weight.detach().clone()
    with torch.no_grad():
        stacked.head.weight.zero_()
    assert torch.equal(models[0].head.weight, before) and torch.equal(single.head.weight, before)


def test_what_cannot_be_stacked_or_unstacked_is_refused():
    with pytest.raises(ValueError, match="stack needs at least one ViT, all of one shape"):
        isf.stack([*vits(1), *vits(1, mlp=16)])
    with pytest.raises(ValueError, match="stack needs at least one ViT"):
        isf.stack([])
    with pytest.raises(ValueError, match="stack needs at least one ViT"):
        isf.stack([isf.stack(vits(2))])
    with pytest.raises(ValueError, match="replica 3 of a ViT with replicas=3"):
        isf.unstack(isf.stack(vits()), 3)
    with pytest.raises(ValueError, match="replica 0 of a ViT with replicas=None"):
        isf.unstack(vits(1)[0], 0)


def with_gradients(sizes):
    """Single networks with gradients of these sizes, and their stack."""
    models = vits(len(sizes))
    for r, (model, size) in enumerate(zip(models, sizes, strict=True)):
        for i, parameter in enumerate(model.parameters()):
            parameter.grad = size * randn(*parameter.shape, seed=100 * r + i)
    stacked = isf.stack(models)
    for whole, *parts in zip(stacked.parameters(), *(model.parameters() for model in models), strict=True):
        whole.grad = torch.stack([part.grad for part in parts])
    return models, stacked


def test_clipping_takes_each_replica_by_its_own_norm():
    models, stacked = with_gradients([1e-3, 0.5, 100.0])  # the first is below the limit and stays
    norms = isf.clip_grad_norm_(stacked.parameters(), 1.0, replicas=REPLICAS)
    for r, model in enumerate(models):
        before = next(model.parameters()).grad.clone()
        torch.testing.assert_close(norms[r], nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        assert torch.equal(next(model.parameters()).grad, before) == (r == 0)
        for mine, whole in zip(model.parameters(), stacked.parameters(), strict=True):
            torch.testing.assert_close(whole.grad[r], mine.grad, rtol=1e-12, atol=0)


def test_clipping_without_replicas_is_torchs():
    (ours,), (torchs,) = (with_gradients([10.0])[0] for _ in range(2))
    torch.testing.assert_close(
        isf.clip_grad_norm_(ours.parameters(), 1.0), nn.utils.clip_grad_norm_(torchs.parameters(), 1.0)
    )
    for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_clipping_ignores_parameters_without_gradient():
    stacked = isf.stack(vits())
    assert torch.equal(isf.clip_grad_norm_(stacked.parameters(), 1.0, replicas=REPLICAS), torch.zeros(REPLICAS))
    stacked.head.bias.grad = torch.ones(REPLICAS, 3, dtype=DOUBLE)
    norms = isf.clip_grad_norm_(iter(stacked.parameters()), 1.0, replicas=REPLICAS)
    torch.testing.assert_close(norms, torch.full((REPLICAS,), 3**0.5, dtype=DOUBLE))


def train(model, method, seeds, replica=None, steps=5):
    """Five steps of AdamW with clipping; `replica` alone, or all of them at once."""
    handle = isf.attach(model, method, examples=50, seeds=seeds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        images, labels = batch(seed=step)
        if replica is not None:
            images, labels = images[replica], labels[replica]
        optimizer.zero_grad()
        outputs = model(images)
        each = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
        (each.mean(-1) + handle.kl()).sum().backward()
        isf.clip_grad_norm_(model.parameters(), 0.5, replicas=REPLICAS if replica is None else None)
        optimizer.step()
        handle.step()
    return handle


@pytest.mark.parametrize("sampling", ["mask", "local"])
@pytest.mark.parametrize(
    "build",
    [lambda **s: isf.Ising(refresh=2, warmup=1, evidence_weight=10.0, **s), isf.DropConnect, isf.Dropout],
    ids=["ising", "dc", "do"],
)
def test_a_replica_trains_in_a_stack_as_it_does_alone(build, sampling):
    method, seeds = build(sampling=sampling), [5, 1 << 40, 7]
    stacked = isf.stack(vits())
    together = train(stacked, method, seeds)
    for r, model in enumerate(vits()):
        start = model.head.weight.detach().clone()
        alone = train(model, method, seeds[r], replica=r)
        assert not torch.allclose(model.head.weight, start)
        for (name, mine), whole in zip(model.named_parameters(), stacked.parameters(), strict=True):
            torch.testing.assert_close(whole[r], mine, rtol=0, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")
        for name, q in alone.drop_probability().items():
            torch.testing.assert_close(together.drop_probability()[name][r], q, rtol=0, atol=1e-8)
    if isinstance(method, isf.Ising):  # the sweeps have seen evidence, of each replica its own
        q = together.drop_probability()["head"]
        assert q.std() > 1e-3 and not torch.allclose(q[0], q[1])
