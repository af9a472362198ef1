import pytest
import torch

import isingformer as isf
from isingformer.explain.networks import Networks

METHODS = [isf.Ising(delta=0.3), isf.DropConnect(p=0.3), isf.Dropout(p=0.3)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_they_are_the_networks_that_predict_draws(tiny, batch, method):
    model, x = tiny(), batch()[0]
    isf.attach(model, method, examples=10)
    found = Networks.draw(model, 4, torch.Generator().manual_seed(3)).each(lambda: model(x).softmax(-1))
    same = isf.predict(model, x, samples=4, generator=torch.Generator().manual_seed(3)).samples
    assert torch.equal(torch.stack(found), same)
    assert not torch.equal(found[0], found[1])


def test_they_are_the_same_when_asked_again_and_leave_the_model_alone(tiny, batch):
    model, x = tiny().train(), batch()[0]
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    networks = Networks.draw(model, 2)
    first, second = networks.each(lambda: model(x)), networks.each(lambda: model(x))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError):
        networks.each(lambda: (_ for _ in ()).throw(RuntimeError()))
    assert model.training and model.head.posterior.forced is None


def test_where_nothing_is_random_one_look_stands_for_all(tiny):
    model = tiny()
    isf.attach(model, isf.Plain(weight_noise=0.0), examples=10)
    looks = []
    assert Networks.draw(model, 5).each(lambda: looks.append(1)) == [None] * 5 and len(looks) == 1


def test_bad_requests_are_refused(tiny):
    model = tiny()
    with pytest.raises(ValueError, match="carries no method; attach one first"):
        Networks.draw(model, 3)
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    with pytest.raises(ValueError, match="samples must be 1 or more, got 0"):
        Networks.draw(model, 0)
