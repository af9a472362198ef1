"""Zeros instead of smaller matrices."""

import copy

import pytest
import torch

import isingformer as isf
from isingformer.compress import probable_masks, share_masks, sparsify, to_semi_structured, two_of_four_masks
from isingformer.compress.sparse import is_two_of_four
from isingformer.nn.masked import posteriors


def expected_weights(model):
    return {n: model.get_submodule(n).weight.detach() * (1 - p.drop) for n, p in posteriors(model).items()}


def test_the_most_probable_weights(tiny, batch, attached):
    """Against the model with q = 1 where it was above 1/2."""
    model, (x, _) = attached(tiny()), batch()
    masks = probable_masks(model)
    reference = copy.deepcopy(model)
    for name, part in posteriors(reference).items():
        assert torch.equal(masks[name], part.drop <= 0.5)
        part.drop[part.drop > 0.5] = 1
    sparse = sparsify(model, masks)
    assert type(sparse) is isf.ViT and isf.attached_to(sparse) is None
    assert (sparse(x) - reference(x)).abs().max() < 1e-10


@pytest.mark.parametrize("score", ["keep", "evidence", "both", "magnitude", "taylor", "random"])
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_a_share_of_all_weights_stays(tiny, batch, attached, score, share):
    model, (x, y) = attached(tiny()), batch()
    masks = share_masks(model, share, score=score, images=x, labels=y)
    total = sum(mask.numel() for mask in masks.values())
    assert sum(int(mask.sum()) for mask in masks.values()) == round(share * total)


def test_one_weight_at_least_stays(tiny, batch, attached):
    model, (x, _) = attached(tiny()), batch()
    assert sum(int(mask.sum()) for mask in share_masks(model, 1e-9).values()) == 1
    by_row = share_masks(model, 1e-9, score="wanda", images=x)
    assert all(bool((mask.sum(1) == 1).all()) for mask in by_row.values())


def test_the_best_stay_over_all_layers(tiny, attached):
    model = attached(tiny())
    masks = share_masks(model, 0.4, score="keep")
    kept = torch.cat([1 - part.drop[masks[name]] for name, part in posteriors(model).items()])
    gone = torch.cat([1 - part.drop[~masks[name]] for name, part in posteriors(model).items()])
    assert kept.min() > gone.max()


def test_wanda_compares_in_each_row(tiny, batch, attached):
    """|w| times the norm of the input, the norms taken from a plain copy of the expected network."""
    model, (x, _) = attached(tiny()), batch(n=300)
    masks = share_masks(model, 0.5, score="wanda", images=x)
    seen = {}
    hooks = [
        model.get_submodule(n).register_forward_pre_hook(lambda m, a, n=n: seen.update({n: a[0].detach()}))
        for n in masks
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    for name, w in expected_weights(model).items():
        worth = w.abs() * torch.linalg.vector_norm(seen[name].flatten(0, -2), dim=0)
        for row, mask in zip(worth, masks[name], strict=True):
            assert int(mask.sum()) == round(0.5 * len(row))
            assert row[mask].min() > row[~mask].max()


def test_two_of_four_by_keep_probability(tiny, attached):
    model = attached(tiny())
    masks = two_of_four_masks(model)
    assert set(masks) == set(posteriors(model))  # 4, 8 and 12 columns
    for name, part in posteriors(model).items():
        kept, mask = (1 - part.drop).reshape(-1, 4), masks[name].reshape(-1, 4)
        assert mask.sum(1).unique().tolist() == [2]
        for four, stays in zip(kept, mask, strict=True):
            assert four[stays].min() > four[~stays].max()
    sparse = sparsify(model, masks)
    assert all(is_two_of_four(m.weight) for m in sparse.modules() if isinstance(m, torch.nn.Linear))
    assert not is_two_of_four(model.head.weight)


def test_columns_that_are_no_fours_stay_out(tiny, attached):
    assert "blocks.0.mlp.fc2" not in two_of_four_masks(attached(tiny(mlp=10)))


def test_the_model_is_untouched_and_masks_must_fit(tiny, batch, attached):
    model, (x, _) = attached(tiny()), batch()
    before = model(x).detach()
    sparsify(model, two_of_four_masks(model))
    assert torch.equal(model(x), before)
    with pytest.raises(ValueError, match=r"a mask of shape \[2, 2\] for 'head' fits no layer"):
        sparsify(model, {"head": torch.ones(2, 2, dtype=torch.bool)})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"share": 0.0}, r"share must be the share of weights to keep, in \(0, 1\), got 0\.0"),
        ({"share": 1.0}, "share must be the share of weights to keep"),
        ({"share": 0.5, "score": "wanda"}, "score='wanda' needs images"),
        ({"share": 0.5, "score": "size"}, "score must be one of"),
    ],
    ids=["none", "all", "no images", "unknown"],
)
def test_what_cannot_be_is_refused(tiny, attached, how, message):
    with pytest.raises(ValueError, match=message):
        share_masks(attached(tiny()), **how)


def test_a_fixed_posterior_has_no_probable_network(tiny, attached):
    with pytest.raises(ValueError, match="dropout has a fixed q"):
        probable_masks(attached(tiny(), isf.Dropout()))


def test_semi_structured_weights_are_for_gpus(tiny, attached):
    model = attached(tiny())
    with pytest.raises(ValueError, match="the weights are float64 on cpu; 2:4 products exist on CUDA devices alone"):
        to_semi_structured(sparsify(model, two_of_four_masks(model)))


@pytest.mark.gpu
def test_semi_structured_weights_compute_the_same(attached):
    torch.manual_seed(0)
    shape = {"image_size": 4, "channels": 1, "patch": 2, "width": 128, "depth": 1, "heads": 4, "mlp": 256, "classes": 3}
    model = attached(isf.ViT(**shape))
    sparse = sparsify(model, two_of_four_masks(model)).to("cuda", torch.float16)
    x = torch.randn(32, 1, 4, 4, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        dense = sparse(x)
    packed = to_semi_structured(sparse)
    inside = [packed.blocks[0].attn.qkv, packed.blocks[0].attn.proj, packed.blocks[0].mlp.fc1, packed.blocks[0].mlp.fc2]
    assert all(isinstance(layer.weight, torch.sparse.SparseSemiStructuredTensor) for layer in inside)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), dense, rtol=1e-2, atol=1e-2)
