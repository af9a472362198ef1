"""The one-way sweep against the table of the method, written out weight by weight."""

import itertools
import math

import pytest
import torch

import isingformer as isf
from isingformer.ising import Reading, backward_order, reference, sweep
from isingformer.ising.sweep import neighbours, outgoing
from isingformer.topology import find_topology

DOUBLE = torch.float64
SHAPE = {"depth": 2, "width": 4, "heads": 2, "mlp": 5}


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def useful(means, seed=50):
    """Random evidence, negative as for weights that carry something."""
    return {name: -3 * randn(*mean.shape, seed=seed + i).abs() for i, (name, mean) in enumerate(means.items())}


def nothing(means):
    return {name: torch.zeros_like(mean) for name, mean in means.items()}


def vit(seed=0):
    """Means and wiring of a ViT of two blocks."""
    model = isf.ViT(image_size=4, channels=1, patch=2, classes=3, **SHAPE)
    topology = find_topology(model)
    shapes = {name: model.get_submodule(name).weight.shape for name in topology.layers}
    return {name: randn(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}, topology.wiring


def plain_stack(*widths, seed=0):
    """Means and wiring of layers 0, 1, ... one after the other; layer i maps widths[i] to widths[i + 1]."""
    names = [str(i) for i in range(len(widths) - 1)]
    means = {name: randn(widths[i + 1], widths[i], seed=seed + i) for i, name in enumerate(names)}
    wiring = {name: whole(widths[i + 1], str(i + 1)) for i, name in enumerate(names[:-1])}
    return means, {**wiring, names[-1]: ()}


def whole(nodes, *readers):
    return (Reading(slice(0, nodes), readers, slice(0, nodes)),)


def by_the_table(means, pull, *, delta, coupling, centred, depth, width, heads, mlp):
    """Q of a pre-norm ViT straight from "who reads whom", in Python floats: no wiring, no tensors' tricks."""
    m = {name: mean.tolist() for name, mean in means.items()}
    q = {}

    def read_by(reader, node):
        dropped = sum(m[reader][k][node] ** 2 * q[reader][k][node] for k in range(len(m[reader])))
        return dropped / sum(m[reader][k][node] ** 2 for k in range(len(m[reader])))

    def settle(name, term_of_row):
        q[name] = []
        for row in range(len(m[name])):
            term = term_of_row(row)
            q[name].append([])
            for column in range(len(m[name][row])):
                field = coupling * (term - delta if centred else term)
                field += float(pull[name][row, column]) + math.log(delta / (1 - delta))
                q[name][row].append(1 / (1 + math.exp(-field)))

    settle("head", lambda row: delta if centred else 0.0)
    for i in reversed(range(depth)):
        block, after = f"blocks.{i}.", "head" if i == depth - 1 else f"blocks.{i + 1}.attn.qkv"
        settle(block + "mlp.fc2", lambda row, after=after: read_by(after, row))
        settle(block + "mlp.fc1", lambda row, block=block: read_by(block + "mlp.fc2", row))
        settle(block + "attn.proj", lambda row, block=block: read_by(block + "mlp.fc1", row))

        def of_qkv(row, proj=block + "attn.proj"):
            part, channel = divmod(row, width)  # part 0 query, 1 key, 2 value
            if part == 2:
                return read_by(proj, channel)
            size = width // heads
            head = channel // size
            return sum(read_by(proj, c) for c in range(head * size, (head + 1) * size)) / size

        settle(block + "attn.qkv", of_qkv)
    settle("embed", lambda row: read_by("blocks.0.attn.qkv", row))
    return {name: torch.tensor(value, dtype=DOUBLE) for name, value in q.items()}


SETTINGS = [
    {"delta": delta, "coupling": coupling, "centred": centred}
    for delta, coupling, centred in itertools.product((0.1, 0.5), (0.0, 1.0, 2.0), (True, False))
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_vit_follows_the_table(settings):
    means, wiring = vit()
    pull = useful(means)
    expected = by_the_table(means, pull, **settings, **SHAPE)
    found = sweep(means, pull, wiring, **settings).drop
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS[2::3], ids=str)
def test_fast_sweep_is_the_reference_by_loops(settings):
    means, wiring = vit(seed=7)
    pull = useful(means)
    expected = reference.sweep_by_loops(means, pull, wiring, **settings)
    torch.testing.assert_close(sweep(means, pull, wiring, **settings).drop, expected, rtol=0, atol=1e-12)


def test_prior_is_the_field_without_evidence():
    means, wiring = vit()
    pull = useful(means)
    found = sweep(means, pull, wiring, delta=0.2, coupling=1.5)
    for name, mean in means.items():
        assert found.prior[name].shape == (len(mean), 1)
        torch.testing.assert_close(torch.logit(found.drop[name]), found.prior[name] + pull[name])


@pytest.mark.parametrize("coupling", [0.0, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("delta", [0.05, 0.3, 0.9])
def test_centred_network_without_evidence_rests_at_delta(delta, coupling):
    means, wiring = vit()
    for q in sweep(means, nothing(means), wiring, delta=delta, coupling=coupling).drop.values():
        torch.testing.assert_close(q, torch.full_like(q, delta))


def test_printed_field_ratchets_up_from_layer_to_layer():
    means, wiring = plain_stack(*[3] * 13)
    found = sweep(means, nothing(means), wiring, delta=0.5, coupling=2.0, centred=False).drop
    assert max(float(q.max() - q.min()) for q in found.values()) < 1e-12  # no evidence: one q a layer
    levels = [float(found[str(i)][0, 0]) for i in reversed(range(len(found)))]
    assert [round(q, 2) for q in levels[:3]] == [0.50, 0.73, 0.81]
    assert levels == sorted(levels)
    assert round(levels[-1], 3) == 0.844


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_a_share_between_the_least_and_the_most_dropped(seed):
    means, wiring = vit(seed)
    drop = {name: torch.sigmoid(4 * randn(*mean.shape, seed=seed)) for name, mean in means.items()}
    columns = {name: outgoing(means[name], drop[name]) for name in means}
    for name, readings in wiring.items():
        share = neighbours(readings, columns, means[name])
        assert share.shape == (len(means[name]), 1)
        if readings:
            of_readers = drop[readings[0].readers[0]]
            least, most = of_readers.min(), of_readers.max()
            assert ((share >= least) & (share <= most)).all()
            assert len(share.unique()) > 1  # nodes differ


def test_readers_without_weight_give_no_neighbours_and_no_nan():
    means, wiring = plain_stack(3, 4, 2)
    means["1"].zero_()
    pull = useful(means)
    found = sweep(means, pull, wiring, delta=0.1, coupling=2.0, centred=False).drop
    torch.testing.assert_close(found["0"], torch.sigmoid(pull["0"] + math.log(1 / 9)))
    means["1"][:, 1] = 1.0  # one node is read again, the others still are not
    share = neighbours(wiring["0"], {"1": outgoing(means["1"], found["1"])}, means["0"]).flatten()
    torch.testing.assert_close(share, torch.tensor([0, float(found["1"][:, 1].mean()), 0, 0], dtype=DOUBLE))


def test_rows_that_nothing_reads_have_no_neighbours():
    means = {"a": randn(5, 3), "b": randn(2, 2, seed=1)}
    wiring = {"a": (Reading(slice(1, 3), ("b",), slice(0, 2)),), "b": ()}
    prior = sweep(means, nothing(means), wiring, delta=0.5, coupling=2.0, centred=False).prior["a"].flatten()
    torch.testing.assert_close(prior, torch.tensor([0, 1, 1, 0, 0], dtype=DOUBLE))


def test_weights_of_any_scale_count_by_their_share():
    means = {"a": randn(4, 3).float(), "b": torch.full((2, 4), 1e-18)}
    prior = sweep(means, nothing(means), {"a": whole(4, "b"), "b": ()}, delta=0.5, coupling=1.0, centred=False).prior
    torch.testing.assert_close(prior["a"], torch.full((4, 1), 0.5))


def test_a_reader_cut_in_two_by_rows_says_the_same():
    means = {"a": randn(4, 3), "b": randn(6, 4, seed=1)}
    pull = useful(means)
    settings = {"delta": 0.3, "coupling": 2.0}
    one = sweep(means, pull, {"a": whole(4, "b"), "b": ()}, **settings).drop
    cut = {"a": means["a"], "top": means["b"][:2], "bottom": means["b"][2:]}
    pull_of_cut = {"a": pull["a"], "top": pull["b"][:2], "bottom": pull["b"][2:]}
    two = sweep(cut, pull_of_cut, {"a": whole(4, "top", "bottom"), "top": (), "bottom": ()}, **settings).drop
    torch.testing.assert_close(two["a"], one["a"])
    torch.testing.assert_close(torch.cat([two["top"], two["bottom"]]), one["b"])


def test_every_replica_is_swept_by_itself():
    alone = [vit(seed=30 * r) for r in range(3)]
    wiring = alone[0][1]
    pulls = [useful(means, seed=500 + 30 * r) for r, (means, _) in enumerate(alone)]
    together = sweep(
        {name: torch.stack([means[name] for means, _ in alone]) for name in wiring},
        {name: torch.stack([pull[name] for pull in pulls]) for name in wiring},
        wiring,
        delta=0.3,
        coupling=2.0,
    )
    for r, (means, _) in enumerate(alone):
        single = sweep(means, pulls[r], wiring, delta=0.3, coupling=2.0)
        for name in wiring:
            torch.testing.assert_close(together.drop[name][r], single.drop[name], rtol=0, atol=1e-12)
            torch.testing.assert_close(together.prior[name][r], single.prior[name], rtol=0, atol=1e-12)


def test_delta_may_differ_between_replicas():
    means, wiring = plain_stack(3, 4, 2)
    twice = {name: torch.stack([mean, mean]) for name, mean in means.items()}
    delta = torch.tensor([0.1, 0.4], dtype=DOUBLE).view(2, 1, 1)
    found = sweep(twice, nothing(twice), wiring, delta=delta, coupling=2.0).drop
    for r, one in enumerate((0.1, 0.4)):
        single = sweep(means, nothing(means), wiring, delta=one, coupling=2.0).drop
        torch.testing.assert_close({name: q[r] for name, q in found.items()}, single)


def test_sweep_keeps_its_inputs_and_needs_no_gradient():
    means, wiring = plain_stack(3, 4, 2)
    pull = useful(means)
    before = {name: (means[name].clone(), pull[name].clone()) for name in means}
    found = sweep({name: mean.requires_grad_() for name, mean in means.items()}, pull, wiring, delta=0.1, coupling=1.0)
    assert not any(q.requires_grad for q in found.drop.values())
    assert all(torch.equal(means[n], m) and torch.equal(pull[n], p) for n, (m, p) in before.items())


def test_readers_come_before_those_they_read_whatever_the_order_stated():
    wiring = {"a": whole(2, "b", "d"), "c": whole(2, "d"), "b": whole(2, "c"), "d": ()}
    assert backward_order(wiring) == ["d", "c", "b", "a"]


def test_a_network_may_be_thousands_of_layers_deep():
    _, wiring = plain_stack(*[1] * 3001)
    assert backward_order(wiring) == [str(i) for i in reversed(range(3000))]


@pytest.mark.parametrize(
    "wiring",
    [
        {"a": whole(2, "a")},
        {"a": whole(2, "b"), "b": whole(2, "a")},
        {"x": whole(2, "a"), "a": whole(2, "b"), "b": whole(2, "c"), "c": whole(2, "a")},
    ],
)
def test_a_circle_of_readers_is_refused(wiring):
    means = {name: randn(2, 2) for name in wiring}
    with pytest.raises(ValueError, match="in a circle"):
        sweep(means, nothing(means), wiring, delta=0.1, coupling=1.0)


def test_an_unknown_reader_is_refused_by_name():
    with pytest.raises(ValueError, match="'a' is said to be read by 'ghost'"):
        backward_order({"a": whole(2, "ghost")})
