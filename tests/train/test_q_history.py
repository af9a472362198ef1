"""How q moved, in the run's folder: at which steps, of which layers, through interruptions."""

import pytest
import torch

import isingformer as isf
from isingformer.methods.history import small_picture
from isingformer.train.q_history import moments
from pictures import corners

RECIPE = isf.Recipe(epochs=4, batch=16, width=8, depth=1, heads=2, mlp=8, patch=4, validation=16)
METHOD = isf.Ising(refresh=1, warmup=2)


def train(folder, method=METHOD, recipe=RECIPE, **more):
    return isf.train(corners(), method, recipe, out=folder, progress=False, tensorboard=False, **more)


class StopAfter:
    def __init__(self, steps):
        self.left = steps

    def __call__(self):
        self.left -= 1
        return self.left == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run") / "a", q_frames=5)


def same(one, other):
    return (
        one.layers == other.layers
        and torch.equal(one.steps, other.steps)
        and torch.equal(one.mean, other.mean)
        and all(torch.equal(one.pictures[name], other.pictures[name]) for name in one.layers)
    )


def test_moments_go_evenly_from_the_beginning_to_the_end():
    assert sorted(moments(100, 5)) == [0, 25, 50, 75, 100]
    assert sorted(moments(7, 4)) == [0, 2, 5, 7]
    assert sorted(moments(3, 20)) == [0, 1, 2, 3]


def test_the_frames_are_q_at_their_moments(trained, tmp_path):
    found = trained.q_history()
    steps = trained.about["plan"]["steps"]
    assert found.steps.tolist() == sorted(moments(steps, 5)) and found.steps[-1] == steps
    last = trained.method.drop_probability()
    assert found.layers == tuple(last)
    for number, (name, q) in enumerate(last.items()):
        assert torch.equal(found.pictures[name][-1], small_picture(q))
        assert found.mean[-1, number] == pytest.approx(float(q.mean()), abs=1e-6)
    assert (found.mean[0] == 0).all() and (found.mean[1] > 0).all()  # before and after the warm-up
    stopped = train(tmp_path / "a", q_frames=5, stop=StopAfter(int(found.steps[2])))
    halfway = isf.train(corners(), METHOD, RECIPE, out=tmp_path / "b", progress=False, q_frames=0, tensorboard=False,
                        stop=StopAfter(int(found.steps[2])))  # fmt: skip
    assert stopped.q_history().steps.tolist() == found.steps[:3].tolist() and halfway.q_history() is None


def test_recording_changes_nothing_of_the_training(trained, tmp_path):
    without = train(tmp_path / "a", q_frames=0)
    for name, tensor in without.model.state_dict().items():
        assert torch.equal(tensor, trained.model.state_dict()[name])
    q = trained.method.drop_probability()
    assert all(torch.equal(q[name], other) for name, other in without.method.drop_probability().items())


def test_killed_after_a_checkpoint_it_ends_with_the_same_frames(trained, tmp_path, monkeypatch):
    """The file is ahead of the checkpoint: what it holds of later steps goes, and is taken again."""
    every, killed = 4, int(trained.q_history().steps[3]) + 1

    class Killed(Exception):
        pass

    def kill():
        kill.left -= 1
        if not kill.left:
            raise Killed
        return False

    kill.left = killed
    with pytest.raises(Killed):
        train(tmp_path / "a", q_frames=5, checkpoint_every=every, stop=kill)
    ahead = isf.Run(tmp_path / "a").q_history()
    assert ahead.steps[-1] > (killed - 1) // every * every  # else this test shows nothing
    seen = []
    whole = isf.methods.Recorder.record
    monkeypatch.setattr(isf.methods.Recorder, "record", lambda self: (seen.append(self.method.steps), whole(self))[1])
    assert same(train(tmp_path / "a", q_frames=5).q_history(), trained.q_history())
    assert seen == [step for step in trained.q_history().steps.tolist() if step >= ahead.steps[-1]]


def test_a_frame_that_the_checkpoint_overtook_is_taken_when_it_goes_on(trained, tmp_path):
    """Killed between the checkpoint of a step and its frame."""
    steps = trained.q_history().steps
    train(tmp_path / "a", q_frames=5, stop=StopAfter(int(steps[2])))
    file = tmp_path / "a" / "q-history.safetensors"
    isf.methods.History.load(file).until(int(steps[2]) - 1).save(file)
    assert same(train(tmp_path / "a", q_frames=5).q_history(), trained.q_history())


def test_early_stopping_has_its_last_frame(tmp_path):
    recipe = isf.Recipe(**{**RECIPE.settings(), "epochs": 40, "patience": 1, "lr": 0.05})
    run = train(tmp_path / "a", recipe=recipe, q_frames=3)
    assert run.about["finished"]["stopped_early"]
    assert run.q_history().steps[-1] == run.about["finished"]["steps"] < run.about["plan"]["steps"]


@pytest.mark.parametrize("damage", [b"", b"no safetensors"])
def test_a_damaged_file_does_not_keep_a_training_from_going_on(tmp_path, damage):
    train(tmp_path / "a", q_frames=5, stop=StopAfter(5))
    file = tmp_path / "a" / "q-history.safetensors"
    file.write_bytes(damage)
    with pytest.raises(ValueError, match=r"q-history.safetensors is damaged .*; or remove it"):
        isf.Run(tmp_path / "a").q_history()
    run = train(tmp_path / "a", q_frames=5)
    assert run.finished and run.q_history().steps.tolist() == [5, 10, 15, 20]


@pytest.mark.parametrize("method", [isf.DropConnect(p=0.1), isf.Plain()], ids=lambda method: method.name)
def test_where_q_stands_still_nothing_is_kept(tmp_path, method):
    recipe = isf.Recipe(**{**RECIPE.settings(), "epochs": 1})
    assert train(tmp_path / "a", method, recipe).q_history() is None


def test_a_new_training_in_the_folder_leaves_nothing_of_the_old(tmp_path):
    recipe = isf.Recipe(**{**RECIPE.settings(), "epochs": 1})
    assert train(tmp_path / "a", recipe=recipe).q_history() is not None
    assert train(tmp_path / "a", isf.Plain(), recipe, overwrite=True).q_history() is None


@pytest.mark.parametrize("frames", [1, -3])
def test_bad_numbers_are_refused(tmp_path, frames):
    with pytest.raises(ValueError, match=f"q_frames must be 2 or more pictures, or 0 for none, got {frames}"):
        train(tmp_path / "a", q_frames=frames)
    assert not (tmp_path / "a").exists()
