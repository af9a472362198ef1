"""Masks that go together: their entropy against all outcomes, one by one."""

import itertools
import math

import pytest
import torch

from isingformer.nn.nodes import joint_entropy, split


def enumerated(q, rate):
    """The entropy of one node's masks, q ``[out]``: every outcome's probability, over the ranges of u_j."""
    a, b = split(q.double(), rate)
    ends = sorted({0.0, 1.0, *a.tolist()})
    found = 0.0
    for dropped in itertools.product([True, False], repeat=len(q)):
        p = 0.0
        for low, high in itertools.pairwise(ends):
            chance = high - low
            for mine, its_a, its_b in zip(dropped, a.tolist(), b.tolist(), strict=True):
                drop = 1.0 if (low + high) / 2 < its_a else its_b
                chance *= drop if mine else 1 - drop
            p += chance
        found -= p * math.log(p) if p > 0 else 0.0
    return found


NODES = {
    "all by node": [0.1, 0.1, 0.1],
    "above the rate": [0.3, 0.5, 0.9],
    "at the floor and above": [0.25, 0.25, 0.6],
    "below, between and above": [0.05, 0.2, 0.7],
    "sure ones": [0.0, 1.0, 0.4],
    "one surely dropped": [1.0, 0.1, 0.2],
}


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("q", NODES.values(), ids=NODES)
def test_joint_entropy_is_that_of_all_outcomes(q, rate):
    q = torch.tensor(q, dtype=torch.float64)
    assert float(joint_entropy(q[:, None], rate)) == pytest.approx(enumerated(q, rate), abs=1e-12)


def test_nodes_and_replicas_add_up():
    q = torch.rand(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = joint_entropy(q, 0.4)
    assert found.shape == (2,)
    for replica in range(2):
        own = sum(enumerated(q[replica, :, node], 0.4) for node in range(5))
        assert float(found[replica]) == pytest.approx(own, abs=1e-12)
