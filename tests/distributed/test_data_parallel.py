"""Two gloo processes under DistributedDataParallel: one model, one q; compared with one process in float64."""

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from ranks import METHODS, attached, batches, network, seen, state, trained

pytestmark = pytest.mark.slow
PRECISION = 1e-9
"""Relative: float64 sums in another order, over some tens of operations a step."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks saw in all scenarios; one start, since starting takes most of the time."""
    return seen("all", tmp_path_factory.mktemp("ranks"))


def of(ranks, scenario):
    return [
        {key.partition("/")[2]: value for key, value in found.items() if key.startswith(f"{scenario}/")}
        for found in ranks
    ]


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        scale = float(wanted[name].abs().max())
        torch.testing.assert_close(found[name], wanted[name], rtol=PRECISION, atol=PRECISION * scale, msg=name)


def alone(name, steps=None, **more):
    model = network()
    method = attached(model, METHODS[name], seeds=5)
    trained(model, model, method, steps or batches(), **more)
    return state(model, method)


@pytest.mark.parametrize("name", METHODS)
def test_with_equal_masks_two_processes_are_one_with_the_whole_batch(ranks, name):
    wanted = in_micro_batches(name) if name == "expand" else alone(name)
    for found in of(ranks, name):
        assert_close(found, wanted)
    if name != "dropconnect":
        moved = attached(network(), METHODS[name]).drop_probability()
        assert all((wanted[f"q {layer}"] - q).abs().max() > 1e-3 for layer, q in moved.items())


def in_micro_batches(name):
    """One process that sees what the first micro-batches of both ranks saw, then the second ones."""
    order = torch.tensor([0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11])
    return alone(name, [(x[order], y[order]) for x, y in batches()], micro=2)


def test_by_default_masks_differ_and_all_else_is_the_same_bit_by_bit(ranks):
    first, second = of(ranks, "own_masks")
    assert torch.equal(first["pass"], first["same pass"])  # torch's seed decides it
    assert not torch.allclose(first["pass"], second["pass"], rtol=0.01)
    for name in first.keys() - {"pass", "same pass"}:
        assert torch.equal(first[name], second[name]), name
    assert not any("noise" in name for name in first)  # a state that one process alone can load
    changed = attached(network(), METHODS["fisher"]).drop_probability()
    assert not torch.allclose(first["q last"], changed["last"], atol=1e-3)


def test_batches_of_different_sizes_weigh_by_their_examples_and_refresh_together(ranks):
    model = network()
    method = attached(model, isf.Ising(warmup=0, sampling="mask", node_rate=0.0), seeds=5)
    sums = {}
    for x, y in batches(2):
        method.noise.advance()
        for one_x, one_y in zip(x, y, strict=True):
            squares_of_one(model, method, one_x, one_y, sums)
    for found in of(ranks, "uneven"):
        assert torch.equal(found["q 0"], found["q 1"])  # 12 of 24 examples: no refresh yet
        assert_close({name: found[f"h {name}"] for name in sums}, {name: s / 24 for name, s in sums.items()})


def squares_of_one(model, method, x, y, sums):
    """Add the squared gradient of one example with respect to the weights that were drawn, by plain autograd."""
    drawn = {}
    for name, part in method.parts.posteriors.items():
        drop = part.drop
        kept = part.noise.uniform(drop.shape, drop, part.layer) >= drop
        noise = part.noise_sd * part.noise.normal(drop.shape, drop, part.layer)
        drawn[name] = (model.get_submodule(name).weight * kept + noise).detach().requires_grad_()

    def layer(name, rows):
        return F.linear(rows, drawn[name], model.get_submodule(name).bias)

    hidden = torch.tanh(layer("first", x))
    logits = layer("last", (hidden + torch.tanh(layer("inner", hidden))).mean(0))
    gradients = torch.autograd.grad(F.cross_entropy(logits, y), list(drawn.values()))
    for name, gradient in zip(drawn, gradients, strict=True):
        sums[name] = sums.get(name, 0) + gradient.square()


def test_apart_each_process_is_as_if_it_were_alone(ranks):
    first, second = of(ranks, "apart")
    assert not torch.allclose(first["q last"], second["q last"], rtol=1e-3)
    assert not torch.allclose(first["m last.weight"], second["m last.weight"], rtol=1e-3)


def test_the_state_of_one_process_goes_on_in_all(ranks):
    for found in of(ranks, "gone_on"):
        assert_close(found, saved_and_gone_on())


def saved_and_gone_on():
    """The same in one process: the optimiser starts afresh after four steps."""
    model = network()
    method = attached(model, METHODS["expand"], seeds=5)
    trained(model, model, method, batches()[:4])
    trained(model, model, method, batches()[4:])
    return state(model, method)
