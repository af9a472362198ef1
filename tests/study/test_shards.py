"""Parts of a grid: for several machines, and by dataset, method, size, rate and replica."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isingformer.study.plan import Plan, read_plan
from isingformer.study.shards import Shard, parse_shard, shard_of
from plans import plans


@settings(deadline=None, max_examples=100)
@given(plans(), st.integers(1, 200))
def test_shards_are_disjoint_cover_the_grid_and_cost_the_same(plan, n):
    parts = [shard_of(plan, Shard(i, n)) for i in range(1, n + 1)]
    whole = [(cell, replica) for cell in plan.cells() for replica in range(plan.replicas)]
    assert [training for part in parts for training in part] == whole  # in order: a part is whole cells but at its ends
    costs = [sum(plan.cost(cell) for cell, _ in part) for part in parts]
    assert all(abs(cost - sum(costs) / n) <= max(plan.cost(cell) for cell in plan.cells()) for cost in costs)
    assert shard_of(Plan.from_json(plan.to_json()), Shard(n, n)) == parts[-1]


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_shard_in_words(i, more):
    assert parse_shard(f"{i}/{i + more}") == Shard(i, i + more)


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "-1/4", "1/0", "0/0", "a/b", "1/4/2", "1.0/4", "²/4", "1 / 4"])
def test_a_shard_that_is_none(text):
    with pytest.raises(ValueError, match="i from 1 to n, as in 2/4, got") as caught:
        parse_shard(text)
    assert repr(text) in str(caught.value)


def test_some_datasets_and_methods_alone():
    plan = read_plan("paper")
    some = Shard(datasets=("mnist", "cifar10"), methods=("ising",))
    cells = {cell for cell, _ in shard_of(plan, some)}
    assert len(cells) == 12 and {(c.dataset, c.method) for c in cells} == {("mnist", "ising"), ("cifar10", "ising")}
    halves = [shard_of(plan, some._replace(i=i, n=2)) for i in (1, 2)]
    assert halves[0] + halves[1] == shard_of(plan, some)
    with pytest.raises(ValueError, match="'paper' has no method 'isng'; it has dropout, dropconnect, ising"):
        shard_of(plan, Shard(methods=("isng",)))


def test_some_sizes_and_rates_alone():
    plan = read_plan("quick")  # digits, plain among the methods, which has no rate
    cells = {cell for cell, _ in shard_of(plan, Shard(sizes=(500,), rates=(0.5,)))}
    assert cells == {cell for cell in plan.cells() if cell.size == 500 and cell.rate in (0.5, None)}
    assert {cell.rate for cell in cells} == {0.5, None}
    with pytest.raises(ValueError, match="'quick' has no size 501; it has 100, 500"):
        shard_of(plan, Shard(sizes=(501,)))
    with pytest.raises(ValueError, match=r"'quick' has no rate 0\.2; it has 0\.1, 0\.5"):
        shard_of(plan, Shard(rates=(0.2,)))
    paper, some = read_plan("paper"), Shard(sizes=(300, 5000), rates=(0.1,))
    assert {(cell.dataset, cell.size, cell.rate) for cell, _ in shard_of(paper, some)} == {
        ("mnist", 300, 0.1), ("fashion-mnist", 300, 0.1), ("cifar10", 5000, 0.1), ("cifar100", 5000, 0.1)
    }  # fmt: skip
    parts = [shard_of(paper, some._replace(i=i, n=3)) for i in (1, 2, 3)]
    assert parts[0] + parts[1] + parts[2] == shard_of(paper, some)
    with pytest.raises(
        ValueError, match="nothing of the plan 'paper' is of all the datasets, methods, sizes and rates"
    ):
        shard_of(paper, Shard(datasets=("mnist",), sizes=(5000,)))


def test_the_first_replicas_alone():
    plan = read_plan("paper")
    some = Shard(methods=("ising",), replicas=3)
    every = shard_of(plan, Shard(methods=("ising",)))
    assert shard_of(plan, some) == [(cell, replica) for cell, replica in every if replica in (0, 1, 2)]
    assert len(shard_of(plan, some)) == 24 * 3
    parts = [shard_of(plan, some._replace(i=i, n=3)) for i in (1, 2, 3)]
    assert parts[0] + parts[1] + parts[2] == shard_of(plan, some)
    assert shard_of(plan, Shard(replicas=10)) == shard_of(plan, Shard())
    for wrong in (0, 11, 2.0):
        with pytest.raises(ValueError, match=f"from 1 to 10, which is what the plan 'paper' has, got {wrong}"):
            shard_of(plan, Shard(replicas=wrong))


@pytest.mark.parametrize("shard", [(0, 1), (2, 1), (1.0, 2)])
def test_a_shard_out_of_range(shard):
    with pytest.raises(ValueError, match="i from 1 to n"):
        shard_of(read_plan("quick"), Shard(*shard))
