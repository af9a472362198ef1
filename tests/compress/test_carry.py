"""A posterior that survives."""

import copy
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import isingformer as isf
from isingformer.compress import (
    class_probabilities,
    compress,
    compression_report,
    load_compact,
    probability_graph,
    save_compact,
)
from isingformer.compress.remove import remove
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of
from isingformer.curvature.likelihood import Gaussian, Softmax
from isingformer.metrics import nll
from isingformer.nn.masked import posteriors
from training import one_step

ALL = ("mlp", "qk", "value", "residual")


@pytest.mark.parametrize(
    "method",
    [isf.Ising(delta=0.3, warmup=0, refresh=2), isf.DropConnect(p=0.2), isf.Dropout(p=0.2), isf.Plain()],
    ids=lambda method: method.name,
)
def test_its_expected_network_is_the_masked_model(tiny, batch, attached, random_selection, masked_copy, method):
    model, (x, _) = attached(tiny(), method), batch()
    selection = random_selection(shape_of(model), ALL)
    compact = remove(model, selection, bayesian=True)
    reference = masked_copy(model, selection)(x)
    assert (compact(x) - reference).abs().max() < 1e-10
    assert (remove(model, selection)(x) - reference).abs().max() < 1e-10
    handle, old = isf.attached_to(compact), isf.attached_to(model)
    assert (handle.method, handle.steps, handle.examples) == (method.settled(50), old.steps, 50)


def test_q_prior_noise_and_curvature_are_those_of_what_remains(tiny, attached, random_selection):
    model = attached(tiny(), isf.Ising(delta=0.3, warmup=0, refresh=2, laplace_noise=0.1))
    selection = random_selection(shape_of(model), ALL)
    compact = remove(model, selection, bayesian=True)
    old, new = isf.attached_to(model), isf.attached_to(compact)
    h, kept_h = old.curvature(), new.curvature()
    assert any(value.any() for value in kept_h.values())
    for name, part in posteriors(compact).items():
        rows, columns = selection.rows(name), selection.columns(name)
        was = posteriors(model)[name]
        assert torch.equal(part.drop, was.drop[rows][:, columns])
        assert torch.equal(part.prior, was.prior[rows])
        assert (part.noise_sd, part.node_rate) == (was.noise_sd, was.node_rate)
        assert bool(was.variance.any()) and torch.equal(part.variance, was.variance[rows][:, columns])
        assert torch.equal(compact.get_submodule(name).weight, model.get_submodule(name).weight[rows][:, columns])
        torch.testing.assert_close(kept_h[name], h[name][rows][:, columns])


def test_the_rate_of_whole_nodes_is_that_of_before_also_in_narrow_layers(tmp_path, tiny, attached):
    """Of a layer of 12 inputs the method would give one of 3 a quarter of the rate, and q a lower floor."""
    model = attached(tiny(), isf.Ising(delta=0.3, warmup=0, refresh=2, evidence_weight=1.0))
    nodes = [("blocks.0.mlp", n) for n in range(9)]
    compact = remove(model, Selection.everything(shape_of(model)).without(nodes), bayesian=True)
    layer, method = "blocks.0.mlp.fc2", isf.attached_to(compact).method
    rate = posteriors(model)[layer].node_rate
    assert rate == pytest.approx(method.shared_rate(12)) and method.shared_rate(3) < rate / 2
    save_compact(compact, tmp_path)
    for network in (compact, load_compact(tmp_path)):
        part = posteriors(network)[layer]
        assert part.node_rate == rate and float(part.rate) == pytest.approx(rate)
        with torch.no_grad():
            network.get_submodule(layer).weight.mul_(1e4)  # evidence that leaves q at its floor
        isf.attached_to(network).rule.sweep()
        assert float(part.drop.min()) == pytest.approx(rate)
    index = tmp_path / "compact.json"  # as older versions wrote it
    about = json.loads(index.read_text())
    del about["method"]["node_rate"]
    index.write_text(json.dumps(about))
    assert posteriors(load_compact(tmp_path))[layer].node_rate == pytest.approx(method.shared_rate(3))


def test_a_network_with_nothing_removed_predicts_the_same_draws(tiny, batch, attached):
    model, (x, _) = attached(tiny()), batch()
    compact = remove(model, Selection.everything(shape_of(model)), bayesian=True)
    one, other = (isf.predict(m, x, samples=5, generator=torch.Generator().manual_seed(3)) for m in (model, compact))
    torch.testing.assert_close(one.samples, other.samples)
    assert one.samples.std(0).max() > 1e-3


def test_passes_differ_and_training_goes_on(tiny, batch, attached, random_selection):
    model, (x, y) = attached(tiny()), batch()
    compact = remove(model, random_selection(shape_of(model), ALL), bayesian=True)
    assert isf.predict(compact, x, samples=10).epistemic.max() > 0
    handle = isf.attached_to(compact)
    before, steps = handle.drop_probability(), handle.steps
    compact.train()
    for _ in range(4):
        one_step(compact, handle, x, y)
    assert handle.steps == steps + 4
    assert any((handle.drop_probability()[name] != q).any() for name, q in before.items())


def test_node_masks_come_along(tiny, attached, random_selection):
    model = attached(tiny(), isf.Dropout(p=0.2))
    compact = remove(model, random_selection(shape_of(model), ALL), bayesian=True)
    mask = compact.embedded.posterior
    assert mask.drop.tolist() == pytest.approx([0.2] * compact.shape.width)
    tied = {name: part.tied for name, part in posteriors(compact).items()}
    assert tied == {name: part.tied for name, part in posteriors(model).items() if name in tied}


def test_it_can_be_compressed_again(tiny, batch, attached, random_selection, masked_copy):
    """In two goes: the second against masks on the first, residual channels in both."""
    model, (x, _) = attached(tiny()), batch()
    inside = ("mlp", "qk", "value")
    first = random_selection(shape_of(model), inside, seed=1).without([("residual", 1), ("residual", 5)])
    compact = remove(model, first, bayesian=True)
    second = random_selection(compact.shape, inside, seed=2).without([("residual", 0), ("residual", 3)])
    again = remove(compact, second)
    assert (again.shape.full_width, compact.shape.width, again.shape.width) == (8, 6, 4)
    assert (again(x) - masked_copy(compact, second)(x)).abs().max() < 1e-10


def test_a_block_that_is_a_constant_has_no_posterior(tiny, batch, attached, masked_copy):
    model, (x, _) = attached(tiny()), batch()
    nodes = [(f"blocks.0.{kind}", n) for kind, size in (("value", 8), ("mlp", 12)) for n in range(size)]
    selection = Selection.everything(shape_of(model)).without(nodes)
    compact = remove(model, selection, bayesian=True)
    assert (compact(x) - masked_copy(model, selection)(x)).abs().max() < 1e-10
    assert [name for name in posteriors(compact) if name.startswith("blocks.0")] == []
    assert isf.attached_to(compact).parts.topology.wiring["embed"][0].readers == ("blocks.1.attn.qkv",)
    again = remove(compact, Selection.everything(compact.shape))
    assert (again(x) - compact(x)).abs().max() < 1e-10


@pytest.mark.parametrize(
    "method",
    [None, isf.Ising(delta=0.3, warmup=0, refresh=2), isf.Dropout(p=0.2)],
    ids=lambda method: getattr(method, "name", "deterministic"),
)
def test_it_is_saved_and_loaded(tmp_path, tiny, batch, attached, random_selection, method):
    model, (x, _) = attached(tiny(), method), batch()
    compact = remove(model, random_selection(shape_of(model), ALL), bayesian=method is not None)
    save_compact(remove(model, Selection.everything(shape_of(model))), tmp_path)  # replaced
    save_compact(compact, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    loaded = load_compact(tmp_path)
    assert loaded.config == compact.config and not loaded.training
    assert torch.equal(loaded(x), compact(x))
    if method is not None:
        one, other = isf.attached_to(compact), isf.attached_to(loaded)
        assert {n: p.noise_sd for n, p in posteriors(compact).items()} == {
            n: p.noise_sd for n, p in posteriors(loaded).items()
        }
        for name, tensor in one.state_dict().items():
            assert torch.equal(other.state_dict()[name], tensor), name
        draws = [isf.predict(m, x, samples=3, generator=torch.Generator().manual_seed(0)) for m in (compact, loaded)]
        assert torch.equal(draws[0].samples, draws[1].samples)


@dataclass(frozen=True)
class Tempered(Softmax):
    """A likelihood object of the user's own: other probabilities by the same outputs."""

    name: ClassVar[str] = "tempered"

    def probabilities(self, outputs):
        return super().probabilities(outputs / 3)


@dataclass(frozen=True)
class Namesake(Tempered):
    name: ClassVar[str] = "softmax"


@pytest.mark.parametrize("own", [Tempered(), Namesake()], ids=lambda own: type(own).__name__)
def test_a_likelihood_of_ones_own_goes_all_the_way(tmp_path, tiny, batch, own):
    model, (x, y) = tiny(), batch()
    handle = isf.attach(model, isf.DropConnect(p=0.3), examples=50, likelihood=own)
    one_step(model, handle, x, y)
    smaller = compress(model.eval(), weights=0.7, score="magnitude", bayesian=True)
    drawn = isf.predict(smaller, x, samples=3, generator=torch.Generator().manual_seed(2)).probs
    assert (probability_graph(smaller, samples=3, seed=2)(x) - drawn).abs().max() < 1e-12
    plain = compress(model, weights=0.7, score="magnitude")
    once = (plain(x) / 3).softmax(-1)
    assert (class_probabilities(plain, x, own) - once).abs().max() < 1e-12
    assert compression_report(model, plain, x, y, samples=2).after.nll == pytest.approx(nll(once, y))
    save_compact(smaller, tmp_path)
    with pytest.raises(ValueError, match=rf"load_compact: .* of yours, '{own.name}'; pass it: load_compact\(folder"):
        load_compact(tmp_path)
    with pytest.raises(ValueError, match="got 'gaussian'; give the same one"):
        load_compact(tmp_path, likelihood=Gaussian())
    loaded = load_compact(tmp_path, likelihood=own)
    again = isf.predict(loaded, x, samples=3, generator=torch.Generator().manual_seed(2)).probs
    assert torch.equal(again, drawn)


def test_what_cannot_be_saved_or_loaded(tmp_path, tiny):
    with pytest.raises(ValueError, match="expected a CompactViT, got ViT"):
        save_compact(tiny(), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"compact\.json is missing\); save it again$"):
        load_compact(tmp_path)
    (tmp_path / "compact.json").write_text("{")
    with pytest.raises(ValueError, match=r"compact.json is damaged \(.*; save it again$"):
        load_compact(tmp_path)
    (tmp_path / "compact.json").write_text('{"format": 99, "isingformer": "9.9"}')
    with pytest.raises(ValueError, match=r"has format 99, this version reads 1; use isingformer 9\.9"):
        load_compact(tmp_path)
    (tmp_path / "compact.json").write_text('{"format": 1, "isingformer": "0.1.0", "config": {}, "method": null}')
    with pytest.raises(ValueError, match=r"compact.json is damaged \(without file, training\); save it again$"):
        load_compact(tmp_path)


def test_the_model_before_is_untouched(tiny, batch, attached, random_selection):
    model, (x, _) = attached(tiny()), batch()
    before = copy.deepcopy(model.state_dict())
    method = isf.attached_to(model).state_dict()
    remove(model, random_selection(shape_of(model), ALL), images=x, bayesian=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(method[name], tensor) for name, tensor in isf.attached_to(model).state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.blocks.modules())
