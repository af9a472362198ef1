"""Copies of a model in the middle of its training: deep ones, as weight averaging makes, and written ones."""

import copy
import io

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import isingformer as isf
from training import one_step


class NoCopy:
    """As an event of a GPU, which says so itself."""

    def __reduce__(self):
        raise TypeError("cannot pickle")


@pytest.fixture
def under_way(tiny, batch):
    """A model, its method and its batch, after a refresh, with an answer of the GPU still to come."""
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10)
    for _ in range(3):
        one_step(model, method, x, y)
    method.rule._news._arrived = NoCopy()
    return model, x, y


def written(model):
    """Through a file of torch's."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("how", [copy.deepcopy, written, lambda model: AveragedModel(model).module])
def test_a_copy_is_the_same_model_and_trains_on(under_way, how):
    model, x, y = under_way
    twin = how(model)
    method = isf.attached_to(twin)
    assert method is not isf.attached_to(model) and method.parts.model is twin
    assert torch.equal(twin.eval()(x), model.eval()(x))
    before = method.drop_probability()["head"].clone()
    twin.train()
    for _ in range(2):
        one_step(twin, method, 3 * x, y)
    assert not torch.equal(method.drop_probability()["head"], before)  # its own passes were measured


@pytest.mark.gpu
@pytest.mark.parametrize("how", [copy.deepcopy, written, lambda model: AveragedModel(model).module])
def test_on_a_gpu_whose_answer_is_still_to_come_too(tiny, batch, how):
    model, (x, y) = tiny().cuda(), batch()
    x, y = x.cuda(), y.cuda()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10)
    for _ in range(3):
        one_step(model, method, x, y)
    twin = how(model)
    assert torch.equal(twin.eval()(x), model.eval()(x))
    twin.train()
    before = isf.attached_to(twin).drop_probability()["head"].clone()
    for _ in range(2):
        one_step(twin, isf.attached_to(twin), 3 * x, y)
    assert not torch.equal(isf.attached_to(twin).drop_probability()["head"], before)
