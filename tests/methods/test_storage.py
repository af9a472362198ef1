"""Saving and loading: safetensors and JSON, whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isingformer as isf
from isingformer.curvature.likelihood import Gaussian, Softmax
from isingformer.methods import attached_to
from isingformer.methods.storage import INDEX


def trained(model, x, y, method=None, **options):
    handle = isf.attach(model, method or isf.Ising(delta=0.2, warmup=0, refresh=2), examples=10, **options)
    for _ in range(4):
        (F.cross_entropy(model(x), y) + handle.kl()).backward()
        handle.step()
    return handle


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_any_model_is_filled_in_by_its_own_class(tmp_path):
    def build():
        return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))

    torch.manual_seed(0)
    model, x, y = build(), torch.randn(5, 4), torch.randint(3, (5,))
    handle = trained(model, x, y)
    isf.save(model.eval(), tmp_path)
    with pytest.raises(ValueError, match=r"holds a Sequential, which only you can build; pass a fresh one"):
        isf.load(tmp_path)
    loaded = isf.load(tmp_path, build())
    assert not loaded.training and torch.equal(loaded(x), model(x))
    assert attached_to(loaded).state_dict().keys() == handle.state_dict().keys()


def test_stated_readers_and_likelihood_come_back(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.first(x).relu())

    model = Own()
    isf.attach(model, isf.Ising(), examples=10, readers={"first": ["last"]}, likelihood=Gaussian(variance=0.3))
    isf.save(model, tmp_path)
    handle = attached_to(isf.load(tmp_path, Own()))
    assert handle.parts.topology.wiring["first"][0].readers == ("last",)
    assert handle.parts.likelihood == Gaussian(variance=0.3)


def test_tied_weights_survive(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.there, self.back = nn.Linear(4, 4), nn.Linear(4, 4)
            self.back.weight = self.there.weight

        def forward(self, x):
            return self.back(self.there(x))

    model = Tied()
    isf.attach(model, isf.DropConnect(), examples=10, readers={"there": ["back"]})
    isf.save(model, tmp_path)
    loaded = isf.load(tmp_path, Tied())
    assert loaded.back.weight is loaded.there.weight and torch.equal(loaded.there.weight, model.there.weight)


def test_a_second_save_replaces_the_first_and_leaves_other_files(tiny, batch, tmp_path):
    model = tiny(torch.float32)
    trained(model, *batch(dtype=torch.float32))
    (tmp_path / "notes.txt").write_text("mine")
    isf.save(model, tmp_path)
    first = files(tmp_path)
    with torch.no_grad():
        model.head.weight.add_(1)
    isf.save(model, tmp_path)
    assert len(files(tmp_path)) == len(first) == 4 and files(tmp_path) != first
    assert torch.equal(isf.load(tmp_path).head.weight, model.head.weight)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_leaves_the_old_one_whole(tiny, batch, tmp_path, monkeypatch):
    model = tiny(torch.float32)
    trained(model, *batch(dtype=torch.float32))
    isf.save(model, tmp_path)
    before, weight = files(tmp_path), model.head.weight.clone()
    with torch.no_grad():
        model.head.weight.add_(1)

    def full_disk(*args, **more):
        raise OSError(28, "No space left on device")

    for target in ("isingformer._files.save_file", "isingformer._files.os.replace"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
            patch.setattr(target, full_disk)
            isf.save(model, tmp_path)
        assert files(tmp_path) == before
        assert torch.equal(isf.load(tmp_path).head.weight, weight)


def test_an_interrupt_after_the_new_index_is_in_place_keeps_what_it_names(tiny, batch, tmp_path, monkeypatch):
    model = tiny(torch.float32)
    trained(model, *batch(dtype=torch.float32))
    isf.save(model, tmp_path)
    with torch.no_grad():
        model.head.weight.add_(1)
    replace = os.replace

    def interrupted(source, target):
        replace(source, target)
        if str(target).endswith(INDEX):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("isingformer._files.os.replace", interrupted)
        isf.save(model, tmp_path)
    assert torch.equal(isf.load(tmp_path).head.weight, model.head.weight)


SAVER = """
import sys, torch, isingformer as isf
model = isf.ViT(image_size=4, channels=1, patch=2, width=64, depth=4, heads=2, mlp=64, classes=3)
isf.attach(model, isf.Ising(), examples=10)
print("ready", flush=True)
while True:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    isf.save(model, sys.argv[1])
"""


def test_killed_at_any_moment_the_folder_still_loads(tmp_path):
    generator = torch.Generator().manual_seed(int(time.time()))
    for _ in range(4):
        saver = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        saver.stdout.readline()
        time.sleep(0.1 + 0.3 * float(torch.rand((), generator=generator)))
        os.kill(saver.pid, signal.SIGKILL)
        saver.wait()
        saver.stdout.close()
        if (tmp_path / INDEX).exists():
            model = isf.load(tmp_path)
            # All weights moved in lockstep: whichever save this is, it is one save.
            shift = model.blocks[0].norm1.weight.detach()
            assert torch.equal(shift, torch.full_like(shift, float(shift[0])))
            torch.testing.assert_close(shift - 1, model.blocks[3].norm2.bias)
    assert (tmp_path / INDEX).exists()


def test_what_cannot_be_loaded_says_why(tiny, batch, tmp_path):
    model = tiny(torch.float32)
    trained(model, *batch(dtype=torch.float32))
    with pytest.raises(FileNotFoundError, match=r"holds no saved model \(isingformer.json is missing\)"):
        isf.load(tmp_path)
    isf.save(model, tmp_path)
    other = tiny(torch.float32, mlp=16)
    with pytest.raises(
        ValueError, match=r"saved from another model: \d+ tensors do not fit, first 'blocks.0.mlp.fc1.bias'"
    ):
        isf.load(tmp_path, other)
    assert attached_to(other) is None
    index = json.loads((tmp_path / INDEX).read_text())
    posterior = tmp_path / index["files"]["posterior"]
    whole = posterior.read_bytes()
    posterior.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        isf.load(tmp_path)
    posterior.unlink()
    with pytest.raises(FileNotFoundError, match="is missing; save it again"):
        isf.load(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({**index, "format": 99}))
    with pytest.raises(ValueError, match="has format 99, this version reads 1"):
        isf.load(tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(ValueError, match=r"^load: .* is damaged \(.*; save it again$"):
        isf.load(tmp_path)
    (tmp_path / INDEX).write_text("[1]")
    with pytest.raises(ValueError, match=r"is damaged \(it holds no table\); save it again$"):
        isf.load(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({**index, "method": {"name": "ising"}, "files": None}))
    with pytest.raises(
        ValueError, match=r"is damaged \(without method.settings, files.model, files.posterior\); save it again$"
    ):
        isf.load(tmp_path)
    del index["examples"]
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"is damaged \(without examples\); save it again$"):
        isf.load(tmp_path)


def test_what_cannot_be_saved_says_why(tiny, tmp_path):
    with pytest.raises(ValueError, match="carries no method; attach one, or save its state_dict"):
        isf.save(tiny(), tmp_path)
    model = tiny()
    isf.attach(model, isf.Ising(), examples=10)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; give a folder"):
        isf.save(model, tmp_path / "file")


def test_float64_weights_come_back_in_float64(tiny, batch, tmp_path):
    model = tiny()
    trained(model, *batch())
    isf.save(model, tmp_path)
    loaded = isf.load(tmp_path)
    assert loaded.head.weight.dtype == torch.float64
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


class Shifted(isf.ViT):
    """A class of the user's own, whose forward a plain ViT does not have."""

    def forward(self, x):
        return super().forward(x) + 1


def test_a_subclass_of_ours_is_the_users_to_build(tiny, batch, tmp_path):
    x, y = batch()
    model = Shifted(**tiny().config).double()
    trained(model, x, y)
    isf.save(model.eval(), tmp_path)
    with pytest.raises(ValueError, match=r"holds a Shifted, which only you can build"):
        isf.load(tmp_path)
    assert torch.equal(isf.load(tmp_path, Shifted(**model.config).double())(x), model(x))


def test_a_likelihood_of_ones_own_is_not_taken_for_ours_by_its_name(tmp_path):
    class Sharper(Softmax):
        def probabilities(self, outputs):
            return super().probabilities(2 * outputs)

    model, own = nn.Linear(3, 2), Sharper()
    isf.attach(model, isf.Ising(), examples=10, likelihood=own)
    isf.save(model, tmp_path)
    with pytest.raises(ValueError, match=r"saved with a likelihood object of yours, 'softmax'; pass it"):
        isf.load(tmp_path, nn.Linear(3, 2))
    assert attached_to(isf.load(tmp_path, nn.Linear(3, 2), likelihood=own)).parts.likelihood is own
    index = json.loads((tmp_path / INDEX).read_text())
    del index["own_likelihood"]  # as older versions wrote it
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert attached_to(isf.load(tmp_path, nn.Linear(3, 2))).parts.likelihood == Softmax()


def test_a_likelihood_of_ones_own_is_given_again(tmp_path):
    class Poisson(Gaussian):
        name = "poisson"

    def build():
        return nn.Linear(3, 2)

    model, own = build(), Poisson()
    isf.attach(model, isf.Ising(), examples=10, likelihood=own)
    isf.save(model, tmp_path)
    with pytest.raises(ValueError, match=r"saved with a likelihood object of yours, 'poisson'; pass it"):
        isf.load(tmp_path, build())
    with pytest.raises(ValueError, match=r"saved with the likelihood 'poisson', got 'gaussian'"):
        isf.load(tmp_path, build(), likelihood=Gaussian())
    assert attached_to(isf.load(tmp_path, build(), likelihood=own)).parts.likelihood is own
