"""From a run to a smaller one, in Python; the command's own tests are in `tests/cli/test_compress.py`."""

import json
import sys

import pytest
import torch

import isingformer as isf
from isingformer.compress import CompactRun, class_probabilities, compress_run, load_compact, open_run
from isingformer.compress.run import training_images
from isingformer.compress.storage import prepared

RECIPE = {"width": 16, "depth": 2, "heads": 2, "mlp": 16, "patch": 4, "epochs": 3}


@pytest.fixture(scope="module")
def two_classes():
    """The ones and the sevens."""
    data = isf.load_data("digits")

    def of(images):
        rows = (images.y == 1) | (images.y == 7)
        return isf.Images(images.x[rows], (images.y[rows] == 7).long())

    return isf.Dataset("ones and sevens", of(data.train), of(data.test), ("1", "7"))


@pytest.fixture(scope="module")
def binary(two_classes, tmp_path_factory):
    recipe = isf.Recipe(likelihood="binary", train_size=150, validation=40, **RECIPE)
    out = tmp_path_factory.mktemp("runs") / "a"
    return isf.train(two_classes, isf.Ising(warmup=0), recipe, out=out, progress=False, tensorboard=False)


@pytest.mark.parametrize("bayesian", [False, True], ids=["deterministic", "bayesian"])
def test_two_classes_by_one_logit(binary, two_classes, tmp_path, bayesian):
    made = compress_run(binary, tmp_path / "b", macs=0.4, bayesian=bayesian, epochs=1, export_as="torch", samples=3)
    run = open_run(tmp_path / "b", dataset=two_classes)
    assert type(run) is CompactRun and run.bayesian is bayesian
    found = run.predict(two_classes.test.x, samples=3).probs
    assert found.shape == (len(two_classes.test), 2)
    program = torch.export.load(made.exported).module()
    assert (program(two_classes.test.x) - found).abs().max() < 1e-5
    if not bayesian:
        once = class_probabilities(load_compact(tmp_path / "b"), binary.inputs(two_classes.test.x), "binary")
        torch.testing.assert_close(found, once)
    assert made.report.after.accuracy == pytest.approx(run.evaluate(samples=3).scores.accuracy)


def test_a_compressed_run_opened_as_a_run_says_how_to_open_it(binary, two_classes, tmp_path):
    compress_run(binary, tmp_path / "b", macs=0.5, samples=2)
    with pytest.raises(ValueError, match=rf"compressed network; open it with .*open_run\('{tmp_path / 'b'}'\)"):
        isf.Run(tmp_path / "b").predict(two_classes.test.x)


def test_training_images_are_those_of_the_training(binary, two_classes):
    """As many as the recipe says, none of them held out, in the mean that the run was standardised with."""
    sample, held_out = training_images(binary), binary.validation()
    assert len(sample) == 150
    assert sample.x.double().mean() == pytest.approx(binary.about["data"]["mean"][0], rel=1e-5)
    pixels = {image.numpy().tobytes() for image in held_out.x}
    assert not pixels & {image.numpy().tobytes() for image in sample.x}


def test_a_latency_takes_heads_of_one_width_and_whole_sublayers(binary, tmp_path):
    made = compress_run(binary, tmp_path / "b", latency_ms=1e3, samples=2)
    assert made.as_dict()["structures"] == ["units", "slices", "heads", "layers"]
    assert any("nothing is removed" in note for note in made.notes)
    assert json.loads((tmp_path / "b" / "run.json").read_text())["compressed"]["latency_ms"] == 1e3


def test_one_structure_may_be_a_word(binary, tmp_path):
    made = compress_run(binary, tmp_path / "b", macs=0.8, structures="layers", samples=2)
    assert made.as_dict()["structures"] == ["layers"]
    assert json.loads((tmp_path / "b" / "run.json").read_text())["compressed"]["structures"] == ["layers"]


@pytest.mark.parametrize("name", ["write_tensors", "write_json"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_to_replace_a_run_leaves_it_as_it_was(binary, two_classes, tmp_path, monkeypatch, name, error):
    """Its tensors, index, graph and run.json, whatever the moment: it opens as before."""

    def fails(*args):
        raise error("no space")

    how = {"samples": 2, "export_as": "torch"}
    compress_run(binary, tmp_path / "b", macs=0.8, **how)
    before = {file.name: file.read_bytes() for file in (tmp_path / "b").iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[prepared.__module__], name, fails)
        with pytest.raises(error, match="no space"):
            compress_run(binary, tmp_path / "b", macs=0.4, overwrite=True, **how)
    assert {file.name: file.read_bytes() for file in (tmp_path / "b").iterdir()} == before
    assert open_run(tmp_path / "b", dataset=two_classes).predict(two_classes.test.x, samples=2).probs.isfinite().all()
    compress_run(binary, tmp_path / "b", macs=0.4, overwrite=True, samples=2)
    there = {file.name.split("-")[0] for file in (tmp_path / "b").iterdir()}
    assert there == {"run.json", "compact.json", "compact", "compression.json"}  # the old graph went too


def test_nothing_is_written_where_something_fails(binary, tmp_path, monkeypatch):
    def fails(*args, **how):
        raise RuntimeError("no")

    monkeypatch.setattr(sys.modules[compress_run.__module__], "compression_report", fails)
    with pytest.raises(RuntimeError, match="no"):
        compress_run(binary, tmp_path / "b", macs=0.5, samples=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["compact-*", "compact.json"])
def test_a_compressed_run_without_its_network_says_to_compress_again(binary, two_classes, tmp_path, name):
    compress_run(binary, tmp_path / "b", macs=0.5, samples=2)
    (file,) = (tmp_path / "b").glob(name)
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(ValueError, match=rf"{file} is damaged .*; compress again with --overwrite$"):
        open_run(tmp_path / "b", dataset=two_classes).predict(two_classes.test.x, samples=2)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"is missing\)?; compress again with --overwrite$"):
        open_run(tmp_path / "b", dataset=two_classes).predict(two_classes.test.x, samples=2)
    compress_run(binary, tmp_path / "b", macs=0.5, samples=2, overwrite=True)
    assert open_run(tmp_path / "b", dataset=two_classes).predict(two_classes.test.x, samples=2)
