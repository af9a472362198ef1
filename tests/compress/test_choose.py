"""The ranking, and how far down it a target goes."""

import pytest
import torch

from isingformer.compress.choose import A_SCORE, candidates, checked_structures, least_removal, more_dropped_than_kept
from isingformer.compress.gates import Gates
from isingformer.compress.scores import node_costs
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of


@pytest.fixture
def shape(tiny):
    return shape_of(tiny())


def worth_of(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {kind: torch.rand(size, dtype=torch.float64, generator=generator) for kind, size in shape.nodes().items()}


@pytest.mark.parametrize("structures", [("units",), ("channels",), ("units", "channels", "residual")], ids="+".join)
def test_worth_by_cost_rises(shape, structures):
    worth, cost = worth_of(shape), node_costs(shape)
    ranked = candidates(shape, structures, worth, cost)
    ratios = [one.worth / one.cost for one in ranked]
    assert ratios == sorted(ratios)
    for one in ranked:
        ((kind, number),) = one.nodes
        assert one.worth == float(worth[kind][number]) and one.cost == float(cost[kind][number])


def test_every_node_is_a_candidate_once_but_the_best_residual_channel(shape):
    worth = worth_of(shape)
    ranked = candidates(shape, ("units", "channels", "residual"), worth, node_costs(shape))
    found = [node for one in ranked for node in one.nodes]
    best = ("residual", int(worth["residual"].argmax()))
    assert sorted([*found, best]) == sorted((kind, n) for kind, size in shape.nodes().items() for n in range(size))


def test_heads_go_whole(shape):
    for one in candidates(shape, ("heads",), worth_of(shape), node_costs(shape)):
        left = Selection.everything(shape).without(one.nodes).result()
        assert sorted(len(block.value) for block in left.blocks) == [1, 2]
        assert all(size == 4 for block in left.blocks for size in (*block.qk, *block.value))


def test_slices_keep_heads_even_and_take_the_least(shape):
    worth = worth_of(shape)
    ranked = candidates(shape, ("slices",), worth, node_costs(shape))
    everything = Selection.everything(shape)
    for count in range(len(ranked) + 1):
        left = everything.without(node for one in ranked[:count] for node in one.nodes)
        for i, block in enumerate(left.result().blocks):
            assert len({*block.qk}) <= 1 and len({*block.value}) <= 1
            for kind in ("qk", "value"):
                for head in (slice(0, 4), slice(4, 8)):
                    kept, own = left.keep[f"blocks.{i}.{kind}"][head], worth[f"blocks.{i}.{kind}"][head]
                    assert not kept.any() or kept.all() or own[~kept].max() < own[kept].min()


def test_where_heads_differ_the_wider_lose_first(shape):
    gone = [("blocks.0.qk", 5), ("blocks.0.value", 4), ("blocks.0.value", 6)]
    uneven = Selection.everything(shape).without(gone).result()
    assert uneven.blocks[0].qk == (4, 3) and uneven.blocks[0].value == (4, 2)
    worth = worth_of(uneven)
    ranked = candidates(uneven, ("slices",), worth, node_costs(uneven))
    groups = [one.nodes for one in ranked if one.nodes[0][0].startswith("blocks.0")]
    assert sorted((nodes[0][0], len(nodes)) for nodes in groups) == [
        ("blocks.0.qk", 1), *[("blocks.0.qk", 2)] * 3, *[("blocks.0.value", 1)] * 2, *[("blocks.0.value", 2)] * 2
    ]  # fmt: skip
    wider = {kind: worth[kind][:4].argsort().tolist() for kind in ("blocks.0.qk", "blocks.0.value")}
    alone = {nodes[0] for nodes in groups if len(nodes) == 1}
    assert alone == {
        ("blocks.0.qk", wider["blocks.0.qk"][0]),
        *(("blocks.0.value", n) for n in wider["blocks.0.value"][:2]),
    }


def test_what_gates_say_of_several_nodes_counts(shape):
    """Channels that undo each other are worth nothing together, and a head is worth what it passes on."""
    alone = {kind: torch.ones(size, dtype=torch.float64) for kind, size in shape.nodes().items()}
    pairs = {kind: torch.eye(8, dtype=torch.float64) for kind in alone if kind.endswith(("qk", "value"))}
    pairs["blocks.1.value"][4, 5] = pairs["blocks.1.value"][5, 4] = -1
    ranked = candidates(shape, ("heads",), alone, node_costs(shape), Gates(alone, pairs))
    assert {("blocks.1.value", 4), ("blocks.1.qk", 4)} < set(ranked[0].nodes)
    assert [one.worth for one in ranked] == [2, 4, 4, 4]


def test_a_whole_head_saves_its_softmax(shape):
    worth, cost = worth_of(shape), node_costs(shape, macs=True)
    without, counted = (candidates(shape, ("slices", "heads"), worth, cost, macs=macs) for macs in (False, True))
    extra = {one.nodes: one.cost for one in counted}
    for one in without:
        last, whole = one.nodes[0][0].startswith("blocks.1"), len(one.nodes) == 8
        scores = (5 if last else 25) if whole else 0  # of 5 tokens, or of the one that the head reads
        assert extra[one.nodes] - one.cost == A_SCORE * scores


@pytest.mark.parametrize("aim", [0.9, 0.5, 0.2])
def test_no_more_goes_than_must(shape, aim):
    ranked = candidates(shape, ("units", "channels"), worth_of(shape), node_costs(shape))
    everything = Selection.everything(shape)
    asked = aim * shape.weights()
    left = least_removal(everything, ranked, lambda some: some.result().weights() <= asked)
    counts = [
        everything.without(n for one in ranked[:k] for n in one.nodes).result().weights()
        for k in range(len(ranked) + 1)
    ]
    assert left.result().weights() == next(count for count in counts if count <= asked)


def test_more_dropped_than_kept(shape):
    strength = worth_of(shape)
    q = worth_of(shape, seed=1)
    dropped = {kind: strength[kind] * q[kind] for kind in q}
    ranked = candidates(shape, ("units",), strength, node_costs(shape))
    left = more_dropped_than_kept(Selection.everything(shape), ranked, dropped, strength)
    for i in range(2):
        assert torch.equal(left.keep[f"blocks.{i}.mlp"], q[f"blocks.{i}.mlp"] <= 0.5)
        assert left.keep[f"blocks.{i}.value"].all()


@pytest.mark.parametrize(
    "structures",
    [(), ("neurons",), ("channels", "slices"), "slice"],
    ids=["none", "unknown", "two", "text"],
)
def test_structures_that_cannot_be(structures):
    with pytest.raises(
        ValueError, match=r"compress: (structures must be some of|heads are cut by channels or by slices)"
    ):
        checked_structures(structures)
