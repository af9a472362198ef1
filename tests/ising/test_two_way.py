"""The two-way sweep is the stationary point of the bound; the one-way sweep is not."""

import pytest
import torch

import isingformer as isf
from isingformer.ising import Reading, reference, stationary_sweep, sweep
from isingformer.topology import find_topology

DOUBLE = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def with_evidence(means, wiring, seed=0):
    pull = {name: -3 * randn(*mean.shape, seed=seed + 50 + i).abs() for i, (name, mean) in enumerate(means.items())}
    return means, pull, wiring


def plain_stack(*widths, seed=0):
    """Means, evidence and wiring of layers 0, 1, ...; layer i maps widths[i] to widths[i + 1]."""
    means = {str(i): randn(widths[i + 1], widths[i], seed=seed + i) for i in range(len(widths) - 1)}
    wiring = {
        str(i): (Reading(slice(0, width), (str(i + 1),), slice(0, width)),) for i, width in enumerate(widths[1:-1])
    }
    return with_evidence(means, {**wiring, str(len(widths) - 2): ()}, seed)


def tiny_vit(seed=0):
    """The same of a ViT of one block: queries and keys follow their head."""
    model = isf.ViT(image_size=2, channels=1, patch=1, width=4, depth=1, heads=2, mlp=3, classes=2)
    topology = find_topology(model)
    shapes = {name: model.get_submodule(name).weight.shape for name in topology.layers}
    means = {name: randn(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
    return with_evidence(means, topology.wiring, seed)


def slope_of_bound(network, drop, **settings):
    """The largest derivative of the bound with respect to any q."""
    leaves = {name: q.clone().requires_grad_() for name, q in drop.items()}
    reference.bound(*network, leaves, **settings).backward()
    return max(float(leaf.grad.abs().max()) for leaf in leaves.values())


def largest_difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("network", [plain_stack(3, 4, 2), tiny_vit()], ids=["stack", "vit"])
def test_two_way_is_the_minimiser_of_the_bound(network, centred):
    settings = {"delta": 0.3, "coupling": 1.5, "centred": centred}
    expected = reference.stationary_by_descent(*network, **settings)
    found = stationary_sweep(*network, **settings).drop
    assert largest_difference(found, expected) < 1e-5
    assert largest_difference(sweep(*network, **settings).drop, expected) > 1e-3


@pytest.mark.parametrize("network", [plain_stack(8, 32, 4, 3), tiny_vit(seed=9)], ids=["stack", "vit"])
def test_bound_is_flat_at_the_two_way_sweep_and_not_at_the_one_way_sweep(network):
    settings = {"delta": 0.3, "coupling": 1.0}
    assert slope_of_bound(network, stationary_sweep(*network, **settings).drop, **settings) < 1e-4
    assert slope_of_bound(network, sweep(*network, **settings).drop, **settings) > 0.05


def test_prior_belongs_to_the_stationary_q():
    means, pull, wiring = plain_stack(3, 4, 2)
    found = stationary_sweep(means, pull, wiring, delta=0.3, coupling=1.5)
    share = (means["1"].square() * found.drop["1"]).sum(0) / means["1"].square().sum(0)
    expected = 1.5 * (share - 0.3) + torch.logit(torch.tensor(0.3, dtype=DOUBLE))
    torch.testing.assert_close(found.prior["0"].squeeze(-1), expected)
    torch.testing.assert_close(torch.logit(found.drop["0"]), found.prior["0"] + pull["0"], rtol=0, atol=1e-4)


def test_directions_differ_where_many_inputs_meet_few_nodes():
    """The upward term sums over a node's inputs: it grows with the fan-in of the layer below."""
    settings = {"delta": 0.3, "coupling": 1.0}
    moved = []
    for fan_in in (2, 32):
        network = plain_stack(fan_in, 4, 3)
        moved.append(largest_difference(stationary_sweep(*network, **settings).drop, sweep(*network, **settings).drop))
    assert moved[1] > 2 * moved[0]
    assert moved[1] > 0.05


def test_without_coupling_there_is_one_answer():
    network = tiny_vit()
    settings = {"delta": 0.2, "coupling": 0.0}
    one, two = sweep(*network, **settings), stationary_sweep(*network, **settings)
    assert largest_difference(one.drop, two.drop) < 1e-6
    assert largest_difference(one.prior, two.prior) < 1e-12


def test_start_does_not_matter():
    network = plain_stack(6, 5, 4)
    settings = {"delta": 0.3, "coupling": 1.0}
    found = stationary_sweep(*network, **settings).drop
    start = {name: torch.full_like(q, 0.9) for name, q in found.items()}
    assert largest_difference(stationary_sweep(*network, **settings, start=start).drop, found) < 1e-5


def test_every_replica_has_its_own_stationary_point():
    alone = [plain_stack(6, 5, 4, seed=20 * r) for r in range(2)]
    wiring = alone[0][2]
    means, pull = ({name: torch.stack([network[k][name] for network in alone]) for name in wiring} for k in (0, 1))
    settings = {"delta": 0.3, "coupling": 1.0}
    together = stationary_sweep(means, pull, wiring, **settings).drop
    for r, network in enumerate(alone):
        single = stationary_sweep(*network, **settings).drop
        assert largest_difference({name: q[r] for name, q in together.items()}, single) < 1e-5


def test_weights_of_zero_are_never_nan():
    means, pull, wiring = plain_stack(4, 3, 2)
    means["1"][:, 0] = 0.0
    found = stationary_sweep(means, pull, wiring, delta=0.3, coupling=2.0)
    assert all(q.isfinite().all() for q in [*found.drop.values(), *found.prior.values()])


def test_no_stationary_point_in_reach_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr("isingformer.ising.two_way.ITERATIONS", 1)
    means, _, wiring = plain_stack(8, 2, 2)
    ones, equal = ({name: torch.full_like(m, value) for name, m in means.items()} for value in (1.0, -1.0))
    with pytest.raises(ArithmeticError, match=r"coupling 20\.0; use a smaller coupling or two_way=False"):
        stationary_sweep(ones, equal, wiring, delta=0.5, coupling=20.0, centred=False)
