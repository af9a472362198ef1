"""Files that other programs run."""

import sys

import pytest
import torch

import isingformer as isf
from isingformer.compress import class_probabilities, compress, export, probability_graph

METHODS = [isf.Ising(delta=0.3, warmup=0, refresh=2), isf.DropConnect(p=0.3), isf.Dropout(p=0.3), isf.Plain()]


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def ran():
    """A function that runs an ONNX file on images."""
    onnxruntime = pytest.importorskip("onnxruntime")

    def run(file, images):
        session = onnxruntime.InferenceSession(file)
        (asked,), (given,) = session.get_inputs(), session.get_outputs()
        assert (asked.name, given.name) == ("images", "probabilities") and isinstance(asked.shape[0], str)
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    return run


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_networks_are_those_of_predict(tiny, batch, attached, method, pool):
    """In float64: T networks side by side are T passes one after the other."""
    model, (x, _) = attached(tiny(pool=pool), method), batch()
    drawn = isf.predict(model, x, samples=5, generator=generator(3)).probs
    assert (probability_graph(model, samples=5, seed=3)(x) - drawn).abs().max() < 1e-12
    if method.name != "plain":
        assert (probability_graph(model, samples=5, seed=4)(x) - drawn).abs().max() > 1e-6


@pytest.mark.parametrize("structures", ["units+channels", "units+residual", "units+slices"])
def test_a_compact_network_draws_the_same_too(trained, digits, structures):
    (tx, _), (x, _) = digits
    how = {"images": tx[:64], "structures": structures.split("+")}
    smaller = compress(trained, macs=0.3, bayesian=True, **how)
    drawn = isf.predict(smaller, x, samples=4, generator=generator(0)).probs
    assert (probability_graph(smaller, samples=4)(x) - drawn).abs().max() < 1e-5


def test_without_samples_it_is_the_expected_network(tiny, batch, attached):
    model, (x, _) = attached(tiny()), batch()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert (probability_graph(model)(x) - model(x).softmax(-1)).abs().max() < 1e-12
    assert isf.attached_to(model) is not None
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("samples", [None, 3])
def test_half_precision_ends_before_the_probabilities(tiny, batch, attached, samples):
    model, x = attached(tiny(torch.float32)).bfloat16(), batch()[0].bfloat16()
    found = probability_graph(model, samples=samples)(x)
    assert found.dtype == torch.float32 and (found.sum(-1) - 1).abs().max() < 1e-6


def test_pixels_are_standardised_inside(tiny):
    model = tiny(torch.float32)
    pixels = torch.randint(256, (3, 1, 4, 4), dtype=torch.uint8)
    mean, sd = torch.tensor([100.0]), torch.tensor([50.0])
    found = probability_graph(model, mean=mean, sd=sd)(pixels)
    torch.testing.assert_close(found, class_probabilities(model, (pixels.float() - 100) / 50))


def test_two_classes_by_one_logit(tiny, batch):
    model, (x, _) = tiny(classes=1), batch()
    torch.testing.assert_close(
        probability_graph(model, likelihood="binary")(x), class_probabilities(model, x, "binary")
    )


@pytest.mark.parametrize("kind", ["one network", "drawn networks", "the full posterior"])
def test_onnxruntime_says_the_same(trained, digits, tmp_path, ran, kind):
    tx = digits[0][0]
    smaller = compress(trained, macs=0.3, images=tx[:64], bayesian=kind == "drawn networks")
    model, samples = {"the full posterior": (trained, 3), "drawn networks": (smaller, 3)}.get(kind, (smaller, None))
    mean, sd = torch.tensor([4.0]), torch.tensor([6.0])
    file = export(model, tmp_path / "new" / "a.onnx", samples=samples, seed=2, mean=mean, sd=sd)
    assert [path.name for path in file.parent.iterdir()] == ["a.onnx"]  # one file holds all
    for n in (1, 7):
        pixels = torch.randint(17, (n, 1, 8, 8), dtype=torch.uint8)
        inputs = (pixels.float() - 4) / 6
        if samples is None:
            expected = class_probabilities(model, inputs)
        else:
            expected = isf.predict(model, inputs, samples=samples, generator=generator(2)).probs
        found = ran(file, pixels)
        assert (found - expected).abs().max() < 1e-4 and (found.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("bayesian", [False, True], ids=["one network", "drawn networks"])
def test_torch_says_the_same(trained, digits, tmp_path, bayesian):
    x, samples = digits[1][0][:5], 3 if bayesian else None
    smaller = compress(trained, macs=0.3, bayesian=bayesian, structures=("units", "residual"))
    file = export(smaller, tmp_path / "a.pt2", format="torch", samples=samples)
    graph = probability_graph(smaller, samples=samples)
    program = torch.export.load(file).module()
    for n in (1, 5):
        assert (program(x[:n]) - graph(x[:n])).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"format": "tflite"}, "format must be one of onnx, torch, got 'tflite'"),
        ({"samples": 0}, "a number of networks from 1 on, or None, got 0"),
        ({"samples": 3}, "drawn from a posterior, and this CompactViT has none"),
        ({"mean": torch.zeros(1)}, "give mean and sd together"),
    ],
    ids=["format", "no network", "no posterior", "no sd"],
)
def test_what_cannot_be_is_refused(trained, tmp_path, how, message):
    with pytest.raises(ValueError, match=message):
        export(compress(trained, macs=0.5), tmp_path / "a.onnx", **how)
    assert list(tmp_path.iterdir()) == []


def test_too_much_for_one_file(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[export.__module__], "MOST_BYTES", 100_000)
    with pytest.raises(ValueError, match="an ONNX file holds 100,000; draw fewer"):
        export(trained, tmp_path / "a.onnx", samples=5)


def test_packages_that_are_missing_are_named(trained, tmp_path, monkeypatch):
    module = sys.modules[export.__module__]
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs onnx and onnxscript; pip install 'isingformer\[onnx\]'"):
        export(trained, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []
