"""Whole attentions and MLPs: what is lost without them, how many go, and the network that is left."""

import itertools
import warnings

import pytest
import torch

import isingformer as isf
from isingformer.compress import (
    compress,
    compression,
    count_macs,
    export,
    layers,
    load_compact,
    plan,
    probability_graph,
    save_compact,
)
from isingformer.compress.choose import candidates
from isingformer.compress.compact import Constant
from isingformer.compress.compression import default_structures
from isingformer.compress.layers import Losses, every_sublayer, least_loss
from isingformer.compress.remove import remove
from isingformer.compress.scores import node_costs
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of
from isingformer.nn.masked import posteriors

EVERY = ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp"]
WITH = ("units", "slices", "heads", "layers")


def without(shape, names):
    every = every_sublayer(shape)
    return Selection.everything(shape).without(node for name in names for node in every[name])


def divergence(p, q):
    return float((p * (p.log() - q.log())).sum(-1).mean().detach())


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize(
    ("method", "bayesian"),
    [(None, False), (None, True), (isf.Dropout(p=0.2), False), (isf.Dropout(p=0.2), True)],
    ids=["deterministic", "bayesian", "dropout, deterministic", "dropout, bayesian"],
)
def test_every_set_of_sublayers_can_go(tiny, batch, attached, random_selection, masked_copy, pool, method, bayesian):
    """Beside units and channels by chance, the network equals the one whose weights are masked.

    What they gave is in the biases before them, but by itself where masks are drawn on what is before.
    """
    model, (x, _) = attached(tiny(pool=pool), method), batch()
    by_chance = random_selection(shape_of(model), ("mlp", "qk", "value", "residual"))
    every = every_sublayer(by_chance.shape)
    for count in range(1, 5):
        for gone in itertools.combinations(EVERY, count):
            selection = by_chance.without(node for name in gone for node in every[name])
            compact = remove(model, selection, bayesian=bayesian)
            assert (compact(x) - masked_copy(model, selection)(x)).abs().max() < 1e-10, gone
            assert set(selection.emptied()) >= set(gone)
            alone = {name for name, module in compact.named_modules() if isinstance(module, Constant)}
            assert alone == (set(selection.emptied()) if method and bayesian else set()), gone
            if bayesian:
                more = Selection.everything(compact.shape).without([("residual", 1)])
                again = remove(compact, more)
                assert (again(x) - masked_copy(compact, more)(x)).abs().max() < 1e-10, gone
            assert not set(posteriors(compact)) & {f"{name}.{part}" for name in gone for part in ("qkv", "fc1")}


def test_nothing_of_a_sublayer_that_is_gone_is_called(tiny, batch, attached):
    model, (x, _) = attached(tiny()), batch()
    compact = remove(model, without(shape_of(model), ["blocks.0.mlp", "blocks.1.attn"]))
    called = set()
    for name, module in compact.named_modules():
        module.register_forward_hook(lambda module, args, output, name=name: called.add(name))
    compact(x)
    assert {name for name in called if name.startswith("blocks.0.")} == {
        "blocks.0.norm1", "blocks.0.attn", "blocks.0.attn.qkv", "blocks.0.attn.proj"
    }  # fmt: skip
    assert not called & {"blocks.1.norm1", "blocks.1.attn"} and "blocks.1.mlp.fc1" in called


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_loss_is_that_of_the_network_without(tiny, batch, attached, pool):
    """Closed by hooks or taken out for good; 150 images: more than one chunk. The model stays as it was."""
    model, (x, _) = attached(tiny(pool=pool)), batch(n=150)
    losses, before = Losses(isf.attached_to(model), shape_of(model), x), model(x)
    for gone in (EVERY[:1], EVERY[1:3], EVERY):
        compact = remove(model, without(shape_of(model), gone), images=x)
        by_hand = divergence(before.softmax(-1), compact(x).softmax(-1))
        assert losses.without(gone) == pytest.approx(by_hand, rel=1e-6)
        assert losses.of(compact) == pytest.approx(by_hand, rel=1e-6) and by_hand > 0
    assert losses.without([]) == 0 and torch.equal(model(x), before)
    assert not any(module._forward_hooks for module in model.modules())


class _Sums:
    """Losses that are sums of what each sublayer and unit is said to be worth."""

    def __init__(self, of_layers, of_a_unit):
        self.of_layers, self.of_a_unit = of_layers, of_a_unit

    def without(self, gone):
        return sum(self.of_layers[name] for name in gone)

    def of(self, selection):
        units = sum(int((~selection.keep[f"blocks.{i}.mlp"]).sum()) for i in range(2))
        gone = selection.emptied()
        alone = units - 12 * sum(name.endswith("mlp") for name in gone)
        return self.without(gone) + self.of_a_unit * alone


@pytest.mark.parametrize(
    ("of_a_unit", "gone"), [(1.0, ["blocks.1.mlp"]), (0.01, []), (9.0, ["blocks.0.mlp", "blocks.1.mlp"])], ids=str
)
def test_as_many_go_as_lose_least(tiny, of_a_unit, gone):
    """16 units must go or sublayers in their place; an attention is as good as none by these losses."""
    shape = shape_of(tiny())
    everything = Selection.everything(shape)
    worth = {kind: torch.arange(1.0, size + 1, dtype=torch.float64) for kind, size in shape.nodes().items()}
    ranked = candidates(shape, ("units",), worth, node_costs(shape))

    def fits(some):
        return sum(block.mlp for block in some.result().blocks) <= 8

    losses = _Sums({"blocks.0.attn": 90, "blocks.0.mlp": 7, "blocks.1.attn": 90, "blocks.1.mlp": 2}, of_a_unit)
    found = least_loss(everything, ranked, fits, losses, dict.fromkeys(EVERY, 1.0), made=lambda some: some)
    assert found.emptied() == gone and fits(found)
    assert fits(found) and losses.of(found) == min(
        losses.of(everything.without(nodes).without(n for one in ranked[:k] for n in one.nodes))
        for nodes in ([], every_sublayer(shape)["blocks.1.mlp"], _both_mlps(shape))
        for k in range(25)
        if fits(everything.without(nodes).without(n for one in ranked[:k] for n in one.nodes))
    )


def _both_mlps(shape):
    return [node for name in ("blocks.0.mlp", "blocks.1.mlp") for node in every_sublayer(shape)[name]]


def test_what_saves_more_goes_first(tiny):
    """Of two that lose alike."""
    shape = shape_of(tiny())
    saved = {**dict.fromkeys(EVERY, 1.0), "blocks.0.attn": 3.0}
    losses = _Sums(dict.fromkeys(EVERY, 5.0), 0.0)
    found = least_loss(
        Selection.everything(shape), [], lambda some: bool(some.emptied()), losses, saved, made=lambda some: some
    )
    assert found.emptied() == ["blocks.0.attn"]


def test_where_calls_cost_sublayers_go(trained, digits, monkeypatch):
    """A clock that counts the calls of sublayers more than the products: without layers, much more must go."""
    x = digits[0][0][:200]

    def clock(model, batch):
        return (
            2 * sum(bool(block.value) + bool(block.mlp) for block in shape_of(model).blocks) + count_macs(model) / 1e6
        )

    monkeypatch.setattr(compression, "measured_latency", clock)
    asked = 2 * 3 + count_macs(trained) / 1e6
    losses = Losses(isf.attached_to(trained), shape_of(trained), x)
    chosen = plan(trained, latency_ms=asked, images=x)  # says nothing: sublayers were to go
    with pytest.warns(UserWarning, match="nothing is left of"):
        rest = plan(trained, latency_ms=asked, images=x, structures=WITH[:3])
    assert len(chosen.emptied()) == 1
    assert all(kept.all() for kind, kept in chosen.keep.items() if not kind.startswith(chosen.emptied()[0][:9]))
    assert losses.of(remove(trained, chosen, images=x)) < losses.of(remove(trained, rest, images=x))
    with pytest.raises(
        ValueError, match=r"latency_ms=0\.0001 is less than a pass takes without all that units.*layers"
    ):
        compress(trained, latency_ms=1e-4, images=x)


@pytest.mark.parametrize("score", ["gate", "magnitude"])
def test_shares_are_met_and_lose_no_more_than_without(trained, digits, score):
    x = digits[0][0][:200]
    losses = Losses(isf.attached_to(trained), shape_of(trained), x)
    with_layers = compress(trained, macs=0.25, images=x, structures=WITH, score=score)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of sublayers that were not to go
        rest = compress(trained, macs=0.25, images=x, structures=WITH[:3], score=score)
    assert count_macs(with_layers) <= 0.25 * count_macs(trained)
    assert losses.of(with_layers) <= losses.of(rest)


def test_layers_alone(trained, digits):
    x = digits[0][0][:100]
    chosen = plan(trained, weights=0.6, images=x, structures="layers")
    for kind, kept in chosen.keep.items():
        assert kept.all() or not kept.any(), kind
    every = [without(chosen.shape, gone) for n in range(5) for gone in itertools.combinations(EVERY, n)]
    least = min(some.result().weights() for some in every)
    assert least < chosen.result().weights() <= 0.6 * chosen.shape.weights()
    with pytest.raises(ValueError, match=r"weights=0\.01 is less than can be kept: without all that layers can give"):
        compress(trained, weights=0.01, images=x, structures="layers")


def test_a_network_that_sees_nothing_is_told_of(trained, digits):
    x = digits[0][0][:50]
    with pytest.warns(UserWarning, match="compress: no attention is left, so that the class token sees nothing"):
        blind = compress(trained, weights=0.1, images=x, structures="layers")
    assert (blind(x) - blind(x[:1])).abs().max() < 1e-5


def test_without_a_target_a_sublayer_that_is_dropped_goes(tiny, attached):
    """By m^2 q over all its weights, though single units are kept."""
    model = attached(tiny())
    drop = {name: part.drop for name, part in posteriors(model).items()}
    for q in drop.values():
        q.fill_(0.2)
    for name in ("blocks.1.mlp.fc1", "blocks.1.mlp.fc2"):
        drop[name].fill_(0.7)
    assert plan(model, structures="layers").emptied() == ["blocks.1.mlp"]


@pytest.fixture(scope="module")
def fewer(trained, digits):
    """A network that kept its posterior and lost an attention and an MLP."""
    selection = without(shape_of(trained), ["blocks.0.mlp", "blocks.1.attn"])
    return remove(trained, selection, images=digits[0][0][:100], bayesian=True)


def test_it_is_saved_drawn_and_exported(fewer, digits, tmp_path):
    x = digits[1][0][:5]
    save_compact(fewer, tmp_path / "a")
    loaded = load_compact(tmp_path / "a")
    drawn = isf.predict(fewer, x, samples=3, generator=torch.Generator().manual_seed(0))
    assert drawn.epistemic.max() > 0 and torch.equal(loaded(x), fewer(x))
    assert (probability_graph(loaded, samples=3)(x) - drawn.probs).abs().max() < 1e-5
    program = torch.export.load(export(loaded, tmp_path / "a.pt2", format="torch", samples=3)).module()
    for n in (1, 5):
        assert (program(x[:n]) - drawn.probs[:n]).abs().max() < 1e-5


def test_onnx_says_the_same(fewer, digits, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    x = digits[1][0][:5]
    session = onnxruntime.InferenceSession(export(fewer, tmp_path / "a.onnx"))
    (found,) = session.run(None, {"images": x.numpy()})
    assert (torch.from_numpy(found) - fewer(x).softmax(-1)).abs().max() < 1e-5


def test_what_is_left_can_lose_more(fewer, digits):
    """Sublayers that are gone are no candidates."""
    assert list(every_sublayer(fewer.shape)) == ["blocks.0.attn", "blocks.1.mlp"]
    again = compress(fewer, macs=0.5, images=digits[0][0][:100], structures=WITH)
    assert count_macs(again) <= 0.5 * count_macs(fewer)


def test_when_they_may_go_and_what_they_need(tiny, trained, batch):
    assert default_structures(latency_ms=1.0) == WITH
    assert "layers" not in {*default_structures(macs=0.5), *default_structures(latency_ms=1.0, layers=False)}
    with pytest.raises(ValueError, match="compress: 'layers' go by what is lost on images; give images"):
        compress(trained, macs=0.5, structures=WITH)
    model, (x, _) = tiny(), batch()
    isf.attach(model, isf.Ising(), examples=10, likelihood="gaussian")
    with pytest.raises(ValueError, match="probabilities of classes, and 'gaussian' has none"):
        Losses(isf.attached_to(model), shape_of(model), x)
    assert layers.IMAGES >= layers.CHUNK
