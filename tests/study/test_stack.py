"""A replica is the same alone, in a stack, and in `isingformer.train`."""

import dataclasses
import functools

import pytest
import torch

import isingformer as isf
from isingformer.data import split
from isingformer.study.stack import Stack
from pictures import corners

RECIPE = isf.Recipe(
    epochs=3, batch=8, width=8, depth=2, heads=2, mlp=12, patch=4, train_size=40, validation=0, lr=1e-2,
    augment="flip,crop",
)  # fmt: skip
CPU = torch.device("cpu")
SEEDS = (3, 11, 4, 7, 9)


def stacked(method, seeds, *, dtype=torch.float64, recipe=RECIPE, data=None):
    recipes = [dataclasses.replace(recipe, seed=seed) for seed in seeds]
    return Stack(data or corners(), method, recipes, device=CPU, dtype=dtype)


METHODS = {
    "ising": isf.Ising(refresh=3),
    "ising, mask": isf.Ising(refresh=2, sampling="mask", warmup=0),
    "ising, by node, Laplace": isf.Ising(refresh=3, node_rate=0.1, laplace_noise=0.1),
    "ising, learned": isf.Ising(refresh=3, node_rate=1.0, learn_delta=0.3),
    "ising, contrast": isf.Ising(refresh=3, contrast=3.0, node_rate=0.1, floor=0.1),
    "ising, mc-fisher": isf.Ising(curvature="mc-fisher", refresh=3),
    "paper": isf.Ising.paper(0.1),
    "dropconnect": isf.DropConnect(p=0.2),
    "dropout": isf.Dropout(p=0.2),
    "plain": isf.Plain(),
}


@pytest.mark.parametrize("name", METHODS)
def test_alone_and_in_a_stack_of_five_it_is_the_same(name):
    together = stacked(METHODS[name], SEEDS)
    together.train()
    images = corners().test
    predicted = together.predict(images, 4).samples
    for place in (0, 3):
        alone = stacked(METHODS[name], SEEDS[place : place + 1])
        alone.train()
        for (key, one), whole in zip(
            alone.model.state_dict().items(), together.model.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(one[0], whole[place], rtol=1e-8, atol=1e-8, msg=key)
        for key, q in alone.method.drop_probability().items():
            torch.testing.assert_close(q[0], together.method.drop_probability()[key][place], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(alone.predict(images, 4).samples[:, 0], predicted[:, place], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(alone.nll[0], together.nll[place], rtol=1e-8, atol=1e-8)


def test_replicas_differ_from_each_other():
    found = stacked(isf.Ising(refresh=3), SEEDS[:2])
    found.train()
    weight = found.model.head.weight
    assert (weight[0] - weight[1]).abs().max() > 1e-3
    p = found.predict(corners().test, 3).samples
    assert (p[:, 0] - p[:, 1]).abs().max() > 1e-3 and (p[0] - p[1]).abs().max() > 1e-4


def test_without_noise_it_is_the_training_of_isingformer_train(tmp_path):
    """Same sample, mean and sd, initial weights, order, augmentation, schedule, decay and clipping."""
    method = isf.Plain()
    found = stacked(method, (3, 11), dtype=torch.float32)
    found.train()
    for place, seed in enumerate((3, 11)):
        recipe = dataclasses.replace(RECIPE, seed=seed)
        run = isf.train(corners(), method, recipe, out=tmp_path / str(seed), progress=False, tensorboard=False)
        for (key, one), whole in zip(run.model.state_dict().items(), found.model.state_dict().values(), strict=True):
            if not key.endswith("attn.qkv.bias"):  # of the keys' its gradient is 0, so that Adam follows rounding
                torch.testing.assert_close(one, whole[place], rtol=1e-3, atol=1e-4, msg=key)
        p = run.predict(corners().test.x, samples=1).probs
        torch.testing.assert_close(p, found.predict(corners().test, 1).probs[place], rtol=1e-3, atol=1e-4)


def test_a_replica_sees_its_own_sample_and_every_image_once_an_epoch():
    found = stacked(isf.Plain(), SEEDS[:2])
    for place, seed in enumerate(SEEDS[:2]):
        sample, _ = split(corners().train, train=40, validation=0, seed=seed)
        assert torch.equal(found.x[found.rows[place]], sample.x)
        for epoch in range(2):
            assert sorted(found._order(epoch)[place].tolist()) == sorted(found.rows[place].tolist())
    assert not torch.equal(found._order(0), found._order(1))


def test_progress_is_told_after_every_step():
    found, told = stacked(isf.Plain(), SEEDS[:2]), []
    found.train(told.append)
    assert told == list(range(1, found.steps + 1)) and found.steps == 15


def test_a_replica_that_diverges_leaves_the_others_alone():
    alone, found = stacked(isf.Plain(), SEEDS[1:2]), stacked(isf.Plain(), SEEDS[:2])
    with torch.no_grad():
        found.model.head.weight[0, 0, 0] = float("nan")
    alone.train()
    found.train()
    assert found.diverged == [0] and alone.diverged == []
    torch.testing.assert_close(found.model.head.weight[1], alone.model.head.weight[0], rtol=1e-8, atol=1e-8)


def test_the_callers_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    found = stacked(isf.Ising(curvature="mc-fisher", refresh=3), SEEDS[:2])
    found.train()
    found.predict(corners().test, 2)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_captured_and_compiled_it_is_the_eager_training(name, compiled, monkeypatch):
    """Recorded steps read each batch and rate, measure and sweep when eager steps do, and count what they count."""
    monkeypatch.setattr("isingformer.study.stack.WORTH_COMPILING", 0 if compiled else 10**9)
    recipes = [dataclasses.replace(RECIPE, seed=seed, epochs=4, precision="float32") for seed in SEEDS[:2]]
    fast, slow = (
        Stack(corners(), METHODS[name], recipes, device=torch.device("cuda"), dtype=torch.float64, fast=fast)
        for fast in (True, False)
    )
    assert fast.captured and fast.compiled is compiled and not slow.captured
    fast.train(lambda _: torch.cuda.empty_cache())  # what a graph reads must not have been let go
    slow.train()
    for (key, one), other in zip(fast.model.state_dict().items(), slow.model.state_dict().values(), strict=True):
        if not key.endswith("attn.qkv.bias"):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    for key, q in fast.method.drop_probability().items():
        torch.testing.assert_close(q, slow.method.drop_probability()[key], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(fast.nll, slow.nll, rtol=1e-6, atol=1e-7)
    found = [stack.predict(corners().test, 4).samples for stack in (fast, slow)]
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)


RATED = {
    "ising": lambda rate: isf.Ising(delta=rate, refresh=3),
    "paper": isf.Ising.paper,
    "dropconnect": lambda rate: isf.DropConnect(p=rate),
    "dropout": lambda rate: isf.Dropout(p=rate),
}


@pytest.mark.parametrize("name", RATED)
def test_replicas_of_several_rates_in_one_stack_are_those_of_stacks_of_their_own(name):
    together = stacked(RATED[name]((0.1, 0.5, 0.1)), (3, 3, 11))
    together.train()
    predicted = together.predict(corners().test, 4).samples
    for rate, seeds, places in ((0.1, (3, 11), [0, 2]), (0.5, (3,), [1])):
        apart = stacked(RATED[name](rate), seeds)
        apart.train()
        for key, q in apart.method.drop_probability().items():
            torch.testing.assert_close(q, together.method.drop_probability()[key][places], rtol=1e-8, atol=1e-8)
        for (key, one), whole in zip(
            apart.model.state_dict().items(), together.model.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(one, whole[places], rtol=1e-8, atol=1e-8, msg=key)
        torch.testing.assert_close(apart.predict(corners().test, 4).samples, predicted[:, places], rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # of the compiler's
@pytest.mark.parametrize("name", ["ising", "dropout"])
def test_compiled_parts_compute_the_same(name, monkeypatch):
    """Compiled code has paths of its own: weights' gradients, noise that is hashed. No code is generated here."""
    monkeypatch.setattr("isingformer.nn.noise._use_cpu_generator", lambda like: False)
    compiled, eager = (stacked(METHODS[name], SEEDS[:2]) for _ in range(2))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    for block in compiled.model.blocks:
        monkeypatch.setattr(block, "compile", functools.partial(block.compile, backend="aot_eager"))
    compiled.model.compile_parts()
    for found in (compiled, eager):
        found.train()
    for (key, one), other in zip(compiled.model.state_dict().items(), eager.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8, msg=key)
    for key, q in compiled.method.drop_probability().items():
        torch.testing.assert_close(q, eager.method.drop_probability()[key], rtol=1e-8, atol=1e-8)
    found = [one.predict(corners().test, 3).samples for one in (compiled, eager)]
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", [isf.Ising(refresh=2, delta=0.5, contrast=3.0), isf.Dropout(p=(0.6, 0.2))])
def test_the_most_probable_network_has_zeros_where_q_is_above_a_half(method):
    """By the unstacked network whose weights are set by hand, m (1 - q) elsewhere; q is as it was afterwards."""
    together = stacked(method, SEEDS[:2])
    together.train()
    images = corners().test
    before = {name: q.clone() for name, q in together.method.drop_probability().items()}
    found = together.probable(images)
    assert all(torch.equal(q, before[name]) for name, q in together.method.drop_probability().items())
    x = together._images(images)
    zeros = 0
    for place in range(2):
        alone = isf.ViT(**together.network).double()
        alone.load_state_dict({key: value[place] for key, value in together.model.state_dict().items()})
        with torch.no_grad():
            for name, q in before.items():
                weight = alone.get_parameter(f"{name}.weight")
                weight *= torch.where(q[place] > 0.5, 0.0, 1 - q[place])
                zeros += int((weight == 0).sum())
            masks = together.method.parts.node_masks
            gone = masks["embedded"].drop[place] if masks else torch.zeros(8)
            kept = torch.where(gone > 0.5, 0.0, 1 - gone)
            alone.embedded.register_forward_hook(lambda module, args, output, kept=kept: output * kept)
            torch.testing.assert_close(found[place], alone.eval()(x[place]).softmax(-1), rtol=1e-9, atol=1e-9)
    assert zeros > 20
