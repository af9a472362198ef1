"""Removing nodes for good gives what masking them gives."""

import pytest
import torch

from isingformer.compress.remove import remove
from isingformer.compress.shape import shape_of

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
