"""The same trainings on a GPU."""

import dataclasses

import pytest
import torch

import isingformer as isf
from isingformer.train import batches as module
from isingformer.train.batches import Batches
from isingformer.train.device import precision
from pictures import corners

pytestmark = pytest.mark.gpu

RECIPE = isf.Recipe(
    epochs=4, batch=16, width=32, depth=2, heads=2, mlp=32, patch=2, validation=16, augment="flip,crop", lr=1e-2,
    deterministic=True,
)  # fmt: skip


def train(folder, recipe=RECIPE, method=None, **more):
    return isf.train(corners(), method, recipe, out=folder, progress=False, tensorboard=False, device="cuda", **more)


def state(run):
    return {**run.model.state_dict(), **{f"method {k}": v for k, v in isf.attached_to(run.model).state_dict().items()}}


@pytest.mark.parametrize("method", [isf.Ising(refresh=3), isf.Ising(refresh=4, curvature="mc-fisher"), isf.Dropout()])
def test_interrupted_it_ends_bit_by_bit_the_same(tmp_path, method):
    whole = train(tmp_path / "whole", method=method)
    for _ in range(20):
        left = iter([False] * 4 + [True])
        run = train(tmp_path / "pieces", method=method, stop=lambda left=left: next(left))
        if run.finished:
            break
    assert run.finished
    for (name, one), (_, other) in zip(state(whole).items(), state(run).items(), strict=True):
        assert torch.equal(one, other), name


def test_it_learns_in_bfloat16(tmp_path):
    run = train(tmp_path / "a", dataclasses.replace(RECIPE, epochs=20, deterministic=False, augment=""))
    assert run.evaluate(samples=10).scores.accuracy > 0.95
    assert run.model.head.weight.dtype == torch.float32
    with precision("auto", torch.device("cuda"))():
        assert run.model(torch.zeros(1, 1, 8, 8, device="cuda")).dtype == torch.bfloat16


def test_a_nan_is_noticed_before_anything_is_written(tmp_path):
    """The second step of an enormous rate; the queue runs ahead of the report, which still names the step."""
    recipe = dataclasses.replace(RECIPE, lr=1e30, clip=None, lr_warmup=0.0, deterministic=False)
    with pytest.raises(isf.Diverged, match=r"NaN or infinite at step [2-9] of 20 \(batch seed \d+"):
        train(tmp_path / "a", recipe, method=isf.Plain())
    assert not (tmp_path / "a" / "checkpoint.safetensors").exists()


def test_data_that_do_not_fit_stay_on_the_host_and_give_the_same_batches(monkeypatch):
    images, device = corners().train, torch.device("cuda")
    settings = {"batch": 16, "mean": torch.tensor([90.0]), "sd": torch.tensor([70.0]), "augment": ("flip", "crop")}
    there = Batches(images, **settings, seed=0, device=device)
    monkeypatch.setattr(module, "fits", lambda x, device: False)
    here = Batches(images, **settings, seed=0, device=device)
    assert there.x.is_cuda and not here.x.is_cuda
    for step in range(8):
        for one, other in zip(there(step), here(step), strict=True):
            assert one.is_cuda and torch.equal(one, other)


def test_the_callers_generators_are_left_alone(tmp_path):
    torch.cuda.manual_seed(7)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(7)
    train(tmp_path / "a", dataclasses.replace(RECIPE, epochs=1))
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def test_a_run_trained_here_predicts_on_the_cpu_too(tmp_path):
    run = train(tmp_path / "a", dataclasses.replace(RECIPE, epochs=20, augment=""))
    there = isf.Run(tmp_path / "a", device="cuda").predict(corners().test.x, samples=64).to("cpu")
    here = isf.Run(tmp_path / "a", device="cpu").predict(corners().test.x, samples=64)
    assert run.finished and (there.probs - here.probs).abs().max() < 0.25  # two samples of 64 networks
    assert torch.equal(there.classes, here.classes)
