import itertools

import pytest
import torch

from isingformer.explain import anatomy
from isingformer.explain.paths import Shares, shares_of, strongest_paths
from isingformer.explain.traces import trace


def random_shares(networks=3, depth=2, moves=3, tokens=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    starts = torch.rand(networks, tokens, generator=generator).double()
    steps = torch.rand(networks, depth, moves, tokens, tokens, generator=generator).double() ** 4
    ends = torch.rand(networks, tokens, generator=generator).double()
    ends[:, 0] = 0
    return Shares(starts, steps / steps.sum((2, 4), keepdim=True), ends)


@pytest.mark.parametrize("seed", range(3))
def test_one_network_s_best_paths_are_those_of_brute_force(seed):
    shares = random_shares(networks=1, seed=seed)
    products = {}
    for a, b, c in itertools.product(range(4), repeat=3):
        for m, n in itertools.product(range(3), repeat=2):
            products[(a, b, c), (m, n)] = float(
                shares.starts[0, a] * shares.moves[0, 1, m, a, b] * shares.moves[0, 0, n, b, c] * shares.ends[0, c]
            )
    best = sorted(products, key=lambda key: -products[key])[:6]
    found = strongest_paths(shares, count=6)
    assert [(path.tokens, path.moves) for path in found] == best
    assert [path.share for path in found] == pytest.approx([products[key] for key in best])


def test_share_interval_and_survival_over_networks_by_hand():
    moves = torch.zeros(2, 1, 2, 2, 2)  # one block, one head and the skip, class token and one patch
    moves[0, 0, 0, 0, 1] = 0.5  # the class token looks at the patch in the first network
    moves[1, 0, 1, 0, 0] = 1.0  # and keeps to itself in the second
    shares = Shares(torch.tensor([[1.0, 0.0]] * 2), moves, torch.tensor([[0.0, 0.8], [0.0, 0.4]]))
    (path,) = strongest_paths(shares, count=3, level=0.5)
    assert (path.tokens, path.moves, path.survival) == ((0, 1), (0,), 0.5)
    assert (path.share, path.low, path.high) == pytest.approx((0.2, 0.1, 0.3))  # of 0.4 and 0


def test_nothing_that_speaks_for_the_class_has_no_path():
    shares = Shares(torch.zeros(2, 3), torch.zeros(2, 1, 2, 3, 3), torch.ones(2, 3))
    assert strongest_paths(shares) == []


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_shares_of_a_pass(tiny, batch, pool):
    model, (x, _) = tiny(pool=pool), batch(2)
    parts = anatomy(model)
    found = trace(model, parts, x, torch.tensor([0, 1]))
    shares = shares_of(found, x, parts.patch)
    assert shares.moves.shape == (2, 2, 3, 5, 5) and shares.ends.shape == (2, 5)
    totals = shares.moves.sum((2, 4))
    assert ((totals - 1).abs() < 1e-9).logical_or(totals == 0).all()
    assert (shares.ends[:, 0] == 0).all() and (shares.ends <= 1).all()
    skip = shares.moves[:, :, 2]
    assert torch.equal(skip, torch.diag_embed(skip.diagonal(dim1=-2, dim2=-1)))  # it never changes the token
    if pool == "class":
        assert (shares.starts[:, 1:] == 0).all()
    # a token's pixels and its place share what is positive of it
    seen = float((x[0, 0] * found.pulls.here[0, 0])[:2, 2:].sum())  # by the second patch, which is token 2
    pixels, rest = max(0.0, seen), max(0.0, float(found.pulls.embedded[0, 2]) - seen)
    assert float(shares.ends[0, 2]) == pytest.approx(pixels / (pixels + rest) if pixels + rest else 0.0)
