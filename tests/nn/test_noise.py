"""Keyed noise: right distributions, and streams that know nothing of each other, wherever they are asked for."""

import math

import pytest
import torch
from scipy.stats import kstest

from isingformer.nn.noise import KeyedNoise, TorchNoise

LIKE = torch.empty(0, dtype=torch.float64)
ONE_IN_A_MILLION = 1e-6


@pytest.fixture(params=["generator", "hash"], autouse=True)
def code_path(request, monkeypatch):
    """Every test runs on the CPU's generator and on the hash that other devices and compiled programs use."""
    if request.param == "hash":
        monkeypatch.setattr("isingformer.nn.noise._use_cpu_generator", lambda like: False)
    return request.param


def noise(*keys):
    return KeyedNoise(torch.tensor(keys[0] if len(keys) == 1 else keys))


def uniform(source, *shape, layer=0):
    return source.uniform(shape, LIKE, layer)


def normal(source, *shape, layer=0):
    return source.normal(shape, LIKE, layer)


def assert_uncorrelated(a, b):
    """Of two long samples, their values and their distances from the middle: within six standard errors of zero."""
    for x, y in ((a, b), ((a - a.mean()).abs(), (b - b.mean()).abs())):
        together = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1]
        assert abs(together) < 6 / math.sqrt(x.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("key", [0, 1, 2**62 - 1])
def test_entries_of_a_stream_are_uniform_and_normal(key, dtype):
    source, like = noise(key), torch.empty(0, dtype=dtype)
    u, z = source.uniform((100, 500), like, 3), source.normal((100, 500), like, 3)
    assert u.dtype == z.dtype == dtype and u.shape == z.shape == (100, 500)
    assert u.min() >= 0 and u.max() < 1 and z.isfinite().all()
    assert kstest(u.flatten(), "uniform").pvalue > ONE_IN_A_MILLION
    assert kstest(z.flatten(), "norm").pvalue > ONE_IN_A_MILLION
    assert len(u.unique()) > 0.99 * u.numel()  # 24 bits: some coincide


@pytest.mark.parametrize("over", ["keys", "positions", "layers"])
def test_one_entry_is_uniform_and_normal_over_streams(over):
    count = 1000
    if over == "keys":
        source = KeyedNoise(torch.arange(count))
        u, z = uniform(source, count, 1).flatten(), normal(source, count, 1).flatten()
    else:
        source, us, zs = noise(11), [], []
        for i in range(count):
            if over == "positions":
                source.set(i, i)
            us.append(uniform(source, 1, layer=i if over == "layers" else 0))
            zs.append(normal(source, 1, layer=i if over == "layers" else 0))
        u, z = torch.cat(us), torch.cat(zs)
    assert kstest(u, "uniform").pvalue > ONE_IN_A_MILLION
    assert kstest(z, "norm").pvalue > ONE_IN_A_MILLION
    for sample in (u, z):
        assert_uncorrelated(sample[:-1], sample[1:])
    assert_uncorrelated(u, z)


@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize("lag", [1, 2, 3, 256])
def test_neighbouring_entries_are_independent(draw, lag):
    entries = draw(noise(5), 40_000)
    assert_uncorrelated(entries[:-lag], entries[lag:])


@pytest.mark.parametrize("draw", [uniform, normal])
def test_layers_positions_and_keys_are_pairwise_independent(draw):
    streams = []
    for key in (0, 1, 2, 1 << 32, 1 << 40):
        source = noise(key)
        for position in range(4):
            source.set(position, position)
            streams += [draw(source, 2000, layer=layer) for layer in range(4)]
    together = torch.corrcoef(torch.stack(streams)).fill_diagonal_(0)  # 3160 pairs
    assert together.abs().max() < 6.5 / math.sqrt(2000)


def test_streams_that_start_next_to_each_other_are_not_shifts_of_one_another():
    """Words are hashed from start + index: neighbouring starts must not give overlapping streams."""
    words = noise(0)._words(torch.tensor([7, 8], dtype=torch.int32), (5000,)).double()
    for shift in range(3):
        assert_uncorrelated(words[0, shift:], words[1, : 5000 - shift])
        assert not (words[0, shift:] == words[1, : 5000 - shift]).any()


@pytest.mark.parametrize("draw", [uniform, normal])
def test_a_stream_does_not_depend_on_who_else_is_in_the_stack(draw):
    keys = [3, 1 << 50, 2**62 - 5]
    together = noise(*keys)
    for step in range(3):
        whole = draw(together, 3, 4, 5, layer=2)
        for r, key in enumerate(keys):
            single, column = noise(key), KeyedNoise(torch.tensor([key]))
            for _ in range(step):
                single.advance()
                column.advance()
            assert torch.equal(whole[r], draw(single, 4, 5, layer=2))
            assert torch.equal(whole[r], draw(column, 1, 4, 5, layer=2)[0])
        together.advance()


def test_a_pass_repeats_until_the_stream_moves_on():
    source = noise(9)
    first = uniform(source, 50), normal(source, 50)
    assert torch.equal(uniform(source, 50), first[0]) and torch.equal(normal(source, 50), first[1])
    source.advance()
    assert not torch.equal(uniform(source, 50), first[0]) and not torch.equal(normal(source, 50), first[1])
    source.set(0, 0)
    assert torch.equal(uniform(source, 50), first[0]) and torch.equal(normal(source, 50), first[1])


def test_position_is_the_number_of_steps():
    stepped, placed = noise(9), noise(9)
    for _ in range(3):
        stepped.advance()
    placed.set(3, 3)
    assert torch.equal(uniform(stepped, 50), uniform(placed, 50))
    assert torch.equal(normal(stepped, 50), normal(placed, 50))


def test_masks_hold_while_weights_move_and_the_other_way_round():
    source = noise(4, 5)
    source.set(masks=2, weights=7)
    masks, weights = uniform(source, 2, 50), normal(source, 2, 50)
    source.set(masks=2, weights=8)
    assert torch.equal(uniform(source, 2, 50), masks) and not torch.equal(normal(source, 2, 50), weights)
    source.set(masks=3, weights=7)
    assert not torch.equal(uniform(source, 2, 50), masks) and torch.equal(normal(source, 2, 50), weights)
    source.set(masks=torch.tensor([2, 3]), weights=7)  # each replica at a place of its own
    held = uniform(source, 2, 50) == masks
    assert held[0].all() and not held[1].all()


def test_mask_noise_and_weight_noise_of_a_layer_are_independent():
    source = noise(6)
    for layer in range(3):
        assert_uncorrelated(uniform(source, 20_000, layer=layer), normal(source, 20_000, layer=layer))


def test_keyed_noise_leaves_the_default_generator_alone():
    before = torch.get_rng_state()
    source = noise(1, 2)
    uniform(source, 2, 5), normal(source, 2, 5), source.advance()
    assert torch.equal(torch.get_rng_state(), before)


def test_keys_of_the_caller_are_copied():
    keys = torch.tensor([1, 2])
    source = KeyedNoise(keys)
    before = uniform(source, 2, 5)
    keys += 1
    source.set(0, 0)
    assert torch.equal(uniform(source, 2, 5), before)


def test_torch_noise_is_torchs_default_generator():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        found = TorchNoise().uniform((4, 5), LIKE, 0), TorchNoise().normal((4, 5), LIKE, 1)
        torch.manual_seed(3)
        expected = torch.rand(4, 5, dtype=LIKE.dtype), torch.randn(4, 5, dtype=LIKE.dtype)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
