"""Growing T adds to what there is: the same numbers as asking for all at once, and as `explain` and `predict`."""

import pytest
import torch

import isingformer as isf
from isingformer.explain import anatomy
from isingformer.explain.networks import Networks
from isingformer.explore import Growing, Seen
from isingformer.predict import Prediction


def growing(model, x, seed=5, inside=True):
    key = Networks.draw(model, 1, torch.Generator().manual_seed(seed)).key
    return Growing(model, anatomy(model) if inside else None, x, key)


@pytest.fixture
def attached(tiny):
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    return model


@pytest.mark.parametrize("way", [(7,), (1, 2, 3, 7), (5, 7), (9, 2, 7)], ids=str)
def test_however_t_grows_it_is_what_explain_finds_at_once(attached, batch, way):
    x = batch(1)[0]
    one = growing(attached, x[0])
    for samples in way:
        found = one.upto(samples)
    same = isf.explain(attached, x, samples=7, generator=torch.Generator().manual_seed(5))
    assert found.target == int(same.target)
    assert torch.equal(found.prediction.samples, same.prediction.samples)
    assert torch.equal(found.rollout.samples, same.attention.rollout.samples[:, 0])
    assert torch.equal(found.relevance.samples, same.relevance.patches.samples[:, 0])
    predicted = isf.predict(attached, x, samples=7, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found.prediction.samples, predicted.samples)


def test_a_pass_is_made_once(attached, batch, monkeypatch):
    one, made = growing(attached, batch(1)[0][0]), []
    look = Growing._look
    monkeypatch.setattr(Growing, "_look", lambda self, target: (made.append(target), look(self, target))[1])
    for samples in (2, 5, 3, 5):
        one.upto(samples, target=1)
    assert made == [1] * 5
    one.upto(4, target=2)
    assert made == [1] * 5 + [2] * 4


def test_the_class_that_is_traced_follows_the_passes(tiny, batch):
    """Of many images, one at least changes its most probable class as T grows; then it is that of `explain` again."""
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.45), examples=10)
    moved = 0
    for x in batch(5, seed=0)[0]:
        one = growing(model, x)
        targets = [one.upto(samples).target for samples in (1, 2, 6)]
        moved += len(set(targets)) > 1
        same = isf.explain(model, x[None], samples=6, paths=0, generator=torch.Generator().manual_seed(5))
        assert targets[-1] == int(same.target)
        assert torch.equal(one.upto(6).relevance.samples, same.relevance.patches.samples[:, 0])
    assert moved


def test_a_class_may_be_asked_for(attached, batch):
    x = batch(1)[0]
    found = growing(attached, x[0]).upto(3, target=2)
    same = isf.explain(attached, x, samples=3, target=2, generator=torch.Generator().manual_seed(5))
    assert found.target == 2 and torch.equal(found.relevance.samples, same.relevance.patches.samples[:, 0])


@pytest.mark.parametrize("likelihood", ["softmax", "binary"])
def test_without_an_anatomy_there_are_predictions_alone(tiny, batch, likelihood):
    model, x = tiny(classes=1 if likelihood == "binary" else 3), batch(1)[0]
    isf.attach(model, isf.DropConnect(p=0.3), examples=10, likelihood=likelihood)
    one = growing(model, x[0], inside=False)
    one.upto(2)
    found = one.upto(6)
    same = isf.predict(model, x, samples=6, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found.prediction.samples, same.samples)
    assert found.target == int(same.classes) and found.rollout is None and found.relevance is None
    inside = growing(model, x[0]).upto(6)
    torch.testing.assert_close(inside.prediction.samples, same.samples)


@pytest.mark.parametrize("inside", [True, False])
def test_half_precision_leaves_probabilities_wide(tiny, batch, inside):
    model, x = tiny(torch.float32), batch(1)[0].bfloat16()
    isf.attach(model, isf.DropConnect(p=0.05), examples=10)
    found = growing(model.bfloat16(), x[0], inside=inside).upto(8).prediction
    assert found.samples.dtype == torch.float32 and (found.samples.sum(-1) - 1).abs().max() < 1e-6
    assert float(found.epistemic) > 0


def test_a_model_that_is_not_random_says_the_same_under_every_network(tiny, batch):
    model = tiny()
    isf.attach(model, isf.Plain(weight_noise=0.0), examples=10)
    one = growing(model, batch(1)[0][0])
    one.upto(2)
    found = one.upto(5)
    assert len(found.prediction.samples) == 5 and float(found.prediction.epistemic) == pytest.approx(0, abs=1e-9)
    assert (found.relevance.sd == 0).all()


def test_the_course_by_hand():
    """Under 0.2, 0.6, 0.4 the means are 0.2, 0.4, 0.4; the interval of two values at level 0.5 is a quarter in."""
    samples = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]], [[0.6, 0.4]]], dtype=torch.float64)
    seen = Seen(1, Prediction(samples), None, None)
    (t1, *first), (t2, *second), (t3, *third) = seen.course(0.5)
    assert (t1, t2, t3) == (1, 2, 3)
    assert first == pytest.approx([0.2, 0.2, 0.2])
    assert second == pytest.approx([0.4, 0.3, 0.5])
    assert third == pytest.approx([0.4, 0.3, 0.5])
    assert [t for t, *_ in seen.course(0.5, points=2)] == [1, 3]
