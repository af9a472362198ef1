"""Removing nodes for good gives what masking them gives."""

import json

import pytest
import torch

from isingformer.compress import load_compact, recover, save_compact
from isingformer.compress.remove import remove
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of
from isingformer.compress.sparse import plain_copy

ALL = ("mlp", "qk", "value", "residual")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize(
    "kinds", [("mlp",), ("qk",), ("value",), ("mlp", "qk", "value"), ("residual",), ALL], ids="+".join
)
def test_it_equals_the_masked_model(tiny, batch, attached, random_selection, masked_copy, kinds, pool, seed):
    model = attached(tiny(seed=seed, pool=pool), seed=seed)
    selection = random_selection(shape_of(model), kinds, seed=seed)
    x, _ = batch(seed=seed)
    compact = remove(model, selection)
    reference = masked_copy(model, selection)
    assert (reference(x) - model(x)).abs().max() > 1e-3  # the masks do something
    assert (compact(x) - reference(x)).abs().max() < 1e-10
    assert compact.shape.weights() == sum(p.numel() for n, p in compact.named_parameters() if _matrix(n))


@pytest.mark.parametrize("bayesian", [False, True], ids=["deterministic", "bayesian"])
def test_what_is_frozen_stays_frozen_and_where_it_is(tmp_path, tiny, batch, attached, bayesian):
    model, (x, y) = attached(tiny()), batch()
    frozen = {"embed.weight", "position", "blocks.0.norm1.weight", "blocks.1.mlp.fc2.bias", "norm.bias"}
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    nodes = [(f"blocks.{i}.mlp", n) for i in range(2) for n in range(i, 5)]
    smaller = remove(model, Selection.everything(shape_of(model)).without(nodes), bayesian=bayesian)
    save_compact(smaller, tmp_path)
    for network in (smaller, load_compact(tmp_path), plain_copy(model, model.state_dict())):
        assert {name for name, p in network.named_parameters() if not p.requires_grad} == frozen
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        recover(network, x, y, steps=2, lr=1e-2)
        moved = {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}
        assert frozen.isdisjoint(moved) and {"head.weight", "blocks.0.mlp.fc1.weight", "norm.weight"} <= moved


def test_of_a_block_that_goes_nothing_is_left_to_freeze(tmp_path, tiny, attached):
    """And older folders, which say nothing of it, load with everything trainable."""
    model = attached(tiny())
    for name in ("blocks.0.norm2.weight", "blocks.0.mlp.fc1.weight", "class_token"):
        model.get_parameter(name).requires_grad_(False)
    nodes = [("blocks.0.mlp", n) for n in range(12)]
    save_compact(remove(model, Selection.everything(shape_of(model)).without(nodes)), tmp_path)
    assert [n for n, p in load_compact(tmp_path).named_parameters() if not p.requires_grad] == ["class_token"]
    index = tmp_path / "compact.json"
    about = json.loads(index.read_text())
    del about["frozen"]
    index.write_text(json.dumps(about))
    assert all(parameter.requires_grad for parameter in load_compact(tmp_path).parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_widths_of_any_kind_run_on_a_gpu(tiny, batch, attached, random_selection, pool, dtype):
    """Views that begin anywhere must not reach kernels that want multiples of 16 bytes."""
    for seed in range(8):
        model = attached(tiny(seed=seed, pool=pool), seed=seed)
        x, _ = batch(seed=seed)
        compact = remove(model, random_selection(shape_of(model), ("mlp", "qk", "value"), seed=seed)).eval()
        expected = compact(x)
        found = compact.to("cuda", dtype)(x.to("cuda", dtype))
        torch.cuda.synchronize()
        torch.testing.assert_close(found.cpu().to(expected.dtype), expected, rtol=0.05, atol=0.05)


def _matrix(name):
    return name.endswith("weight") and "norm" not in name
