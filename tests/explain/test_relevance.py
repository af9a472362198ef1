import pytest
import torch

import isingformer as isf
from isingformer.explain import anatomy, explain
from isingformer.explain.relevance import (
    edge_relevance,
    head_relevance,
    patch_relevance,
    relevance_of,
    relevance_spread,
    skip_relevance,
    unit_relevance,
)
from isingformer.explain.traces import Way, log_odds, trace


def test_patches_by_hand():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    gradient = torch.ones(1, 1, 4, 4)
    gradient[..., 2:, 2:] = -2
    # sums of the four 2 x 2 corners: 10, 18, 42, 50
    assert patch_relevance(x, gradient, 2).tolist() == [[10, 18, 42, -100]]
    assert patch_relevance(x, gradient, 2, baseline=1.0).tolist() == [[6, 14, 38, -92]]


def test_a_baseline_goes_to_the_device_of_the_images():
    x = torch.zeros(1, 1, 4, 4, device="meta")
    assert patch_relevance(x, x, 2, baseline=torch.ones(1, 4, 4, dtype=torch.float64)).dtype == torch.float32


def test_heads_units_edges_and_skips_by_hand():
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 1, 2, 2)
    gradient = torch.tensor([[1.0, 0.0], [0.0, -1.0]]).view(1, 1, 1, 2, 2)
    assert head_relevance(z, gradient).item() == 1 - 4
    assert unit_relevance(z[:, :, 0], gradient[:, :, 0]).tolist() == [[[1, -4]]]
    assert skip_relevance(z[:, :, 0], gradient[:, :, 0]).tolist() == [[[1, -4]]]
    attention = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).view(1, 1, 1, 2, 2)
    # query 0 takes channel 0 of the values, 1 and 3, by halves; query 1 takes minus channel 1 of the first, 2
    assert edge_relevance(attention, z, gradient)[0, 0, 0].tolist() == [[0.5, 1.5], [-2.0, 0.0]]


def test_edges_add_up_to_their_head(tiny, batch):
    model, (x, _) = tiny(), batch(3)
    found = trace(model, anatomy(model), x, torch.tensor([0, 1, 2]))
    edges = edge_relevance(found.attention, found.values, found.pulls.mixed)
    torch.testing.assert_close(edges.sum((-2, -1)), head_relevance(found.mixed, found.pulls.mixed))


def test_patches_add_up_to_what_the_image_changes(tiny, batch):
    """Integrated gradients are complete: an error of order 1 / steps^2."""
    model, (x, _) = tiny(), batch(3)
    parts, target, baseline = anatomy(model), torch.tensor([0, 1, 2]), -0.4
    change = log_odds(model(x), target) - log_odds(model(torch.full_like(x, baseline)), target)
    found = trace(model, parts, x, target, Way(baseline, 300))
    torch.testing.assert_close(
        relevance_of(found, x, parts.patch, baseline)[0].sum(-1), change.detach(), atol=1e-3, rtol=1e-3
    )


def test_a_head_without_weights_has_no_relevance(tiny, batch):
    model, (x, _) = tiny(), batch(1)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[20:24] = 0  # the values of the second head
        model.blocks[0].attn.qkv.bias[20:24] = 0
        model.blocks[1].mlp.fc2.weight[:, 3] = 0
    parts = anatomy(model)
    _, heads, units = relevance_of(trace(model, parts, x, torch.tensor([0])), x, parts.patch)
    assert heads[0, 0, 1] == 0 and heads[0, 0, 0] != 0
    assert units[0, 1, 3] == 0 and units[0, 1, 2] != 0


def test_spread_and_sure_sides():
    def passes(a, b):
        return torch.tensor([[a, b]]), torch.zeros(1, 1, 1), torch.zeros(1, 1, 2)

    found = relevance_spread([passes(1.0, -1.0), passes(3.0, 2.0)])
    assert found.patches.mean.tolist() == [[2.0, 0.5]]
    assert found.regions().tolist() == [[1, 0]]


def test_the_method_does_not_learn_from_it(tiny, batch):
    model, (x, _) = tiny(), batch(1)
    method = isf.attach(model, isf.Ising(delta=0.2), examples=10)
    before = method.drop_probability()
    explain(model, x, samples=2)
    assert all(torch.equal(q, before[name]) for name, q in method.drop_probability().items())
    assert method.steps == 0 and all(p.grad is None for p in model.parameters())
    with pytest.raises(AssertionError, match="without a class"):
        relevance_of(trace(model, anatomy(model), x), x, 2)
