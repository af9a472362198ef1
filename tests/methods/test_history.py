import itertools

import pytest
import torch

import isingformer as isf
from isingformer.methods import History, Recorder
from isingformer.methods.history import small_picture


@pytest.fixture
def method(tiny):
    return isf.attach(tiny(), isf.DropConnect(p=0.25), examples=10)


def moved(recorder, method, steps):
    for step in range(steps):
        method.steps = step + 1
        method.parts.posteriors["head"].drop.fill_(step / 100)
        recorder()
    return recorder.history


def test_every_so_many_steps_a_frame(method):
    found = moved(Recorder(method, every=3), method, 8)
    assert found.steps.tolist() == [1, 4, 7] and len(found) == 3
    assert found.layers[-1] == "head" and found.mean[:, -1].tolist() == pytest.approx([0.0, 0.03, 0.06])
    assert found.mean[:, 0].tolist() == [0.25] * 3


@pytest.mark.parametrize("most", [4, 5])
def test_too_many_frames_are_thinned_out(method, most):
    found = moved(Recorder(method, every=1, most=most), method, 40)
    steps = found.steps.tolist()
    assert len(steps) <= most and steps[0] == 1
    gaps = {b - a for a, b in itertools.pairwise(steps)}
    assert len(gaps) == 1 and gaps.pop() in (8, 16)  # even, and still the whole of the training
    assert steps[-1] >= 40 - 16


def test_small_pictures_are_means_of_cells():
    q = torch.zeros(4, 2)
    q[:2] = 1.0
    q[2, 0] = 0.5
    assert small_picture(q, 2).tolist() == [[255, 255], [64, 0]]  # 0.25 of 255 is 63.75
    assert small_picture(torch.full((3, 5), 0.2)).shape == (3, 5)


def test_it_is_stored_and_read(method, tmp_path):
    found = moved(Recorder(method), method, 25)
    found.save(tmp_path / "history.safetensors")
    same = History.load(tmp_path / "history.safetensors")
    assert same.layers == found.layers and torch.equal(same.steps, found.steps) and torch.equal(same.mean, found.mean)
    assert all(torch.equal(same.pictures[name], picture) for name, picture in found.pictures.items())


def test_bad_requests_are_refused(method, tmp_path):
    with pytest.raises(ValueError, match="every must be 1 or more"):
        Recorder(method, every=0)
    with pytest.raises(ValueError, match="nothing is recorded yet"):
        _ = Recorder(method).history
    isf.save(method.model, tmp_path)
    (file, *_) = tmp_path.glob("model-*.safetensors")
    with pytest.raises(ValueError, match="no history of q"):
        History.load(file)


def test_a_recorder_goes_on_from_an_earlier_one(method, tiny):
    whole = moved(Recorder(method, every=1), method, 6)
    part = whole.until(4)
    assert part.steps.tolist() == [1, 2, 3, 4] and part.mean.shape == (4, len(whole.layers))
    recorder = Recorder(method, every=1, history=part)
    for step in (5, 6):
        method.steps = step
        method.parts.posteriors["head"].drop.fill_((step - 1) / 100)
        recorder()
    assert recorder.last == 6 and torch.equal(recorder.history.mean, whole.mean)
    assert torch.equal(recorder.history.pictures["head"], whole.pictures["head"])
    other = isf.attach(tiny(depth=1), isf.DropConnect(p=0.25), examples=10)
    with pytest.raises(ValueError, match=r"the history is of 10 layers.* the model has 6"):
        Recorder(other, history=whole)


def test_of_a_stack_the_mean_over_replicas(tiny):
    method = isf.attach(tiny(replicas=2), isf.DropConnect(p=(0.2, 0.4)), examples=10)
    found = moved(Recorder(method, every=1), method, 1)
    assert found.mean[0, 0] == pytest.approx(0.3) and set(found.pictures["embed"].flatten().tolist()) == {76}
