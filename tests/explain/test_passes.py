import pytest
import torch

import isingformer as isf
from isingformer.explain import anatomy, explain
from isingformer.explain.attention import rollout, to_patches
from isingformer.explain.networks import Networks
from isingformer.explain.paths import Path
from isingformer.explain.traces import trace


@pytest.fixture
def attached(tiny):
    model = tiny(depth=2)
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    return model


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def test_the_prediction_is_that_of_predict(attached, batch):
    x = batch(3)[0]
    found = explain(attached, x, samples=6, generator=seeded())
    same = isf.predict(attached, x, samples=6, generator=seeded())
    torch.testing.assert_close(found.prediction.samples, same.samples)
    assert torch.equal(found.target, same.classes) and len(found) == 3


def test_every_array_is_there(attached, batch):
    found = explain(attached, batch(3)[0], samples=4)
    assert found.attention.heads.samples.shape == (4, 3, 2, 2, 4)
    assert found.attention.rollout.samples.shape == (4, 3, 4)
    assert found.attention.entropy.samples.shape == (4, 3, 2, 2)
    assert found.relevance.patches.samples.shape == (4, 3, 4)
    assert found.relevance.heads.samples.shape == (4, 3, 2, 2)
    assert found.relevance.units.samples.shape == (4, 3, 2, 12)
    assert len(found.paths) == 3 and len(found.architecture.drawn.weights.samples) == 4


def test_attention_is_that_of_the_drawn_networks(attached, batch):
    x, parts = batch(2)[0], anatomy(attached)
    found = explain(attached, x, samples=3, generator=seeded()).attention.rollout.samples
    maps = Networks.draw(attached, 3, seeded()).each(lambda: trace(attached, parts, x).attention)
    torch.testing.assert_close(found, torch.stack([to_patches(rollout(a), "class") for a in maps]))


def test_images_are_explained_each_by_itself(attached, batch):
    x = batch(3)[0]
    together = explain(attached, x, samples=3, target=[0, 1, 2], generator=seeded())
    alone = explain(attached, x[1:2], samples=3, target=1, generator=seeded())
    torch.testing.assert_close(together.relevance.patches.samples[:, 1:2], alone.relevance.patches.samples)
    torch.testing.assert_close(together.attention.heads.samples[:, 1:2], alone.attention.heads.samples)
    assert [(p.tokens, p.moves) for p in together.paths[1]] == [(p.tokens, p.moves) for p in alone.paths[0]]


def test_where_the_expected_network_says_another_class_the_passes_decide(tiny, batch):
    """A mask that is nearly always dropped still counts in the mean of a weight: the two can differ."""
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.45), examples=10)
    x = torch.cat([batch(40, seed=seed)[0] for seed in range(3)])
    found = explain(model, x, samples=5, paths=0, generator=seeded())
    same = isf.predict(model, x, samples=5, generator=seeded())
    assert torch.equal(found.target, same.classes)
    with torch.no_grad():
        assert not torch.equal(model.eval()(x).argmax(-1), same.classes)  # else this test shows nothing
    again = explain(model, x, samples=5, paths=0, target=same.classes, generator=seeded())
    assert torch.equal(found.relevance.patches.samples, again.relevance.patches.samples)


def test_a_single_network_that_is_not_random(tiny, batch):
    model = tiny()
    isf.attach(model, isf.Plain(weight_noise=0.0), examples=10)
    found = explain(model, batch(1)[0], samples=4)
    assert (found.relevance.patches.sd == 0).all() and (found.attention.rollout.sd == 0).all()


def test_mode_and_gradients_are_left(attached, batch):
    attached.train()
    explain(attached, batch(1)[0], samples=2)
    assert attached.training and all(p.grad is None for p in attached.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in attached.modules())


def test_a_binary_model_has_two_classes(tiny, batch):
    model = tiny(classes=1)
    isf.attach(model, isf.DropConnect(p=0.3), examples=10, likelihood="binary")
    found = explain(model, batch(2)[0], samples=3, generator=seeded())
    same = isf.predict(model, batch(2)[0], samples=3, generator=seeded())
    torch.testing.assert_close(found.prediction.samples, same.samples)


def test_tables_say_what_the_arrays_hold(attached, batch):
    found = explain(attached, batch(2)[0], samples=5, level=0.8)
    rows = found.image_table(1, classes="abc").rows
    mean, (low, high) = found.prediction.probs[1], found.prediction.interval(0.8)
    assert sorted(rows) == [(c, float(mean[k]), float(low[1, k]), float(high[1, k])) for k, c in enumerate("abc")]
    assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)
    best = found.carrier_table(0, count=3)
    everything = torch.cat([found.relevance.heads.mean[0].flatten(), found.relevance.units.mean[0].flatten()])
    strongest = everything.abs().sort(descending=True).values[:3]
    assert [abs(row[1]) for row in best.rows] == pytest.approx(strongest.tolist())
    assert best.header[2:] == ("10%", "90%") and len(found.path_table(0).rows) == len(found.paths[0])


def test_the_name_of_a_carrier_is_its_place(attached, batch):
    found = explain(attached, batch(1)[0], samples=3)
    for name, mean, *_ in found.carrier_table(0).rows:
        block, part = name.split(", ")
        word, number = part.split(" ")
        spread = found.relevance.heads if word == "head" else found.relevance.units
        assert mean == pytest.approx(float(spread.mean[0, int(block.split(" ")[1]) - 1, int(number) - 1]))


def test_a_path_in_words(attached, batch):
    found = explain(attached, batch(1)[0], samples=2)
    path = Path(tokens=(0, 3, 3), moves=(1, 2), share=0.1, low=0.0, high=0.2, survival=0.5)
    assert found.path_name(path) == "class ← block 2 head 2 (2, 1)"  # the first block by the skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(1, 1, 6, 6)}, r"shape \[1, 4, 4\], \[N, ...\], got a tensor of shape \[1, 1, 6, 6\]"),
        ({"x": torch.zeros(0, 1, 4, 4)}, "at least one image"),
        ({"x": "image.png"}, "got str"),
        ({"target": 3}, r"classes 0 ... 2, got \[3, 3\]"),
        ({"target": [0]}, r"one class or 2, one an image, got \[1\]"),
        ({"level": 1.0}, "level must be in"),
        ({"steps": 0}, "steps must be 1 or more"),
        ({"samples": 0}, "samples must be 1 or more"),
    ],
    ids=["size", "none", "no tensor", "class", "classes", "level", "steps", "samples"],
)
def test_bad_requests_are_refused(attached, batch, given, message):
    with pytest.raises(ValueError, match=message):
        explain(attached, **{"x": batch(2)[0], "samples": 2, **given})


def test_wrong_numbers_of_names_are_refused(attached, batch):
    found = explain(attached, batch(2)[0], samples=2)
    with pytest.raises(ValueError, match="classes must be 3 names, as the model has, got 2"):
        found.image_table(0, classes=["a", "b"])
    with pytest.raises(ValueError, match="names must be 2, one an image, got 1"):
        found.html(names=["a"])
    with pytest.raises(ValueError, match="image must be 0 to 1, got 2"):
        found.plot(2)


@pytest.mark.parametrize("way", ["bfloat16", "autocast"])
def test_half_precision_leaves_the_figures_wide(tiny, batch, way):
    """Mutual information is less than a step of bfloat16 where networks nearly agree; maps are no coarser either."""
    model, x = tiny(torch.float32), batch(3)[0].float()
    isf.attach(model, isf.DropConnect(p=0.05), examples=10)
    if way == "bfloat16":
        model, x = model.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        found = explain(model, x, samples=8, generator=seeded())
        same = isf.predict(model, x, samples=8, generator=seeded())
    assert (found.prediction.epistemic > 0).all()
    torch.testing.assert_close(found.prediction.samples, same.samples, atol=0.02, rtol=0)  # logits of 8 bits each
    assert (found.prediction.samples.sum(-1) - 1).abs().max() < 1e-6
    maps = [getattr(found.attention, name) for name in ("heads", "rollout", "raw", "entropy")]
    maps += [getattr(found.relevance, name) for name in ("patches", "heads", "units")]
    assert {one.samples.dtype for one in maps} == {torch.float32}
    assert (found.attention.rollout.samples.sum(-1) - 1).abs().max() < 1e-6
