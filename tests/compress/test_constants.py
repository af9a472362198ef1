"""What takes the place of removed nodes."""

import pytest
import torch

import isingformer as isf
from isingformer.compress import compression_report, norm_changes
from isingformer.compress.constants import measured_constants, norm_names
from isingformer.compress.remove import remove
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of
from isingformer.nn.masked import in_eval_mode


def inputs_of(model, names, x):
    """What these modules read in one pass."""
    seen = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(lambda m, a, name=name: seen.update({name: a[0].detach()}))
        for name in names
    ]
    with in_eval_mode(model):
        model(x)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_means_over_images(tiny, batch, attached, random_selection, pool):
    """300 images: more than one chunk."""
    model, (x, _) = attached(tiny(pool=pool)), batch(n=300)
    shape, norms = shape_of(model), norm_names(model)
    selection = random_selection(shape, ("residual",))
    gone = ~selection.keep["residual"]
    found = measured_constants(model, x, selection, norms)
    readers = [layer for layer in shape.wiring() if layer != "embed"]
    seen = inputs_of(model, [*readers, *norms], x)
    for layer in readers:
        alone = pool == "class" and layer in ("blocks.1.attn.proj", "blocks.1.mlp.fc1", "blocks.1.mlp.fc2")
        read = seen[layer][:, :1] if alone else seen[layer]  # the head will see nothing of the other tokens
        torch.testing.assert_close(found.reads[layer], read.flatten(0, -2).mean(0))
    for name in norms:
        x_gone = seen[name][..., gone].view(300, -1, int(gone.sum()))
        mean, square = x_gone.mean((0, 2)), x_gone.square().mean((0, 2))
        torch.testing.assert_close(found.norms[name][0][:, 0], mean)
        torch.testing.assert_close(found.norms[name][1][:, 0], square - mean**2)


def test_with_images_the_bias_gets_the_mean(tiny, batch, attached):
    """The average of what fc2 adds is the same before and after, when one unit of the last block goes."""
    model, (x, _) = attached(tiny()), batch(n=20)
    selection = Selection.everything(shape_of(model)).without([("blocks.1.mlp", 3)])
    compact = remove(model, selection, images=x)
    outputs = {}
    for which, network in (("before", model), ("after", compact)):
        hook = network.blocks[1].mlp.register_forward_hook(lambda m, a, out, w=which: outputs.update({w: out.detach()}))
        network(x)
        hook.remove()
    before = outputs["before"][:, :1]  # the class token, which is all that is read
    torch.testing.assert_close(outputs["after"].mean((0, 1)), before.mean((0, 1)))
    assert (outputs["after"] - before).abs().max() > 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_norms_keep_their_mean_statistics_over_images(tiny, batch, attached, seed):
    """At the first norm, whose inputs are as before: the same first and second moment at every token, on average."""
    model, (x, y) = attached(tiny(seed=seed), seed=seed), batch(n=200, seed=seed)
    selection = Selection.everything(shape_of(model)).without([("residual", 1), ("residual", 4), ("residual", 6)])
    compact, kept = remove(model, selection, images=x), selection.keep["residual"]
    before = inputs_of(model, ["blocks.0.norm1"], x)["blocks.0.norm1"]
    mean, var = compact.blocks[0].norm1.statistics(before[..., kept])
    torch.testing.assert_close(mean.mean(0)[:, 0], before.mean((0, 2)))
    torch.testing.assert_close((var + mean**2).mean(0)[:, 0], before.square().mean((0, 2)))
    changes = norm_changes(model, compact, x)
    sd = before.std(-1, correction=0)
    by_hand = [
        (before[..., kept].std(-1, correction=0) / sd - 1).abs().mean(),
        (var[..., 0].sqrt() / sd - 1).abs().mean(),
    ]
    assert changes["blocks.0.norm1"] == pytest.approx([float(value) for value in by_hand])
    report = compression_report(model, compact, x, y, samples=2)
    assert report.norms == changes and "norms' sd off by" in str(report)


def test_models_other_than_compressed_ones_have_no_norms_to_report(tiny, batch, attached):
    model, (x, y) = attached(tiny()), batch()
    compact = remove(model, Selection.everything(shape_of(model)))
    assert compression_report(model, compact, x, y, samples=2).norms == {}
    assert isf.attached_to(compact) is None
