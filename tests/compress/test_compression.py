"""From a trained model and a target to a smaller network."""

import contextlib
import copy

import pytest
import torch

import isingformer as isf
from isingformer.compress import (
    CompactViT,
    class_probabilities,
    compress,
    compression,
    count_macs,
    count_weights,
    load_compact,
    plan,
    save_compact,
    share_masks,
    sparsify,
)
from isingformer.compress.scores import dropped_share
from isingformer.compress.shape import shape_of
from isingformer.metrics import accuracy
from isingformer.nn.masked import posteriors


@contextlib.contextmanager
def untouched(model):
    """Whatever happens inside, weights, method, mode and hooks are as they were."""
    handle, modules = isf.attached_to(model), list(model.modules())
    state = {**copy.deepcopy(model.state_dict()), **{f"method {n}": t for n, t in handle.state_dict().items()}}
    before = [(type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules]
    try:
        yield
    finally:
        now = {**model.state_dict(), **{f"method {n}": t for n, t in handle.state_dict().items()}}
        assert all(torch.equal(state[name], tensor) for name, tensor in now.items())
        assert isf.attached_to(model) is handle and list(model.modules()) == modules
        assert [(type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules] == before


EVERY_SCORE = ("keep", "evidence", "both", "magnitude", "taylor", "random", "gate")


@pytest.mark.parametrize("score", EVERY_SCORE)
@pytest.mark.parametrize("structures", ["units+channels", "units+slices", "heads+residual"])
def test_targets_are_met(trained, digits, structures, score):
    (x, y), _ = digits
    some = {"images": x[:100], "labels": y[:100]} if score in ("taylor", "gate") else {}
    how = {"structures": structures.split("+"), "score": score, **some}
    smaller = compress(trained, weights=0.8, **how)
    assert type(smaller) is CompactViT and isf.attached_to(smaller) is None
    most = 0.8 * count_weights(trained)
    assert most - 4 * 32 * 8 < count_weights(smaller) <= most  # the largest step is a head: 8 channels of q, k, v, proj
    assert count_macs(compress(trained, macs=0.6, **how)) <= 0.6 * count_macs(trained)


def test_the_posterior_knows_better_than_chance(trained, digits):
    """At a third of the multiply-adds, without any fine-tuning. Chance is the mean of five draws."""
    (tx, _), (x, y) = digits

    def right(**how):
        return accuracy(class_probabilities(compress(trained, macs=0.33, **how), x), y)

    chance = [right(score="random", generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    full = accuracy(class_probabilities(trained, x), y)
    assert full > 0.9
    for how in ({"score": "both"}, {"score": "evidence"}, {"score": "gate", "images": tx[:256]}):
        assert right(**how) > sum(chance) / 5 + 0.1


def test_a_small_target_leaves_constants_and_says_so(trained, digits):
    with pytest.warns(UserWarning, match=r"nothing is left of blocks\.\d\.(attn|mlp)"):
        smaller = compress(trained, weights=0.1)
    assert class_probabilities(smaller, digits[1][0][:4]).isfinite().all()


def test_without_a_target_the_posterior_decides(tiny, attached):
    """q above 1/2 on all weights of two units and one head's values, below elsewhere."""
    model = attached(tiny())
    drop = {name: part.drop for name, part in posteriors(model).items()}
    for q in drop.values():
        q.uniform_(0.05, 0.2)
    for unit in (2, 9):
        drop["blocks.0.mlp.fc1"][unit], drop["blocks.0.mlp.fc2"][:, unit] = 0.9, 0.9
    drop["blocks.1.attn.qkv"][16 + 4 : 16 + 8], drop["blocks.1.attn.proj"][:, 4:8] = 0.8, 0.8
    selection = plan(model)
    gone = {kind: (~kept).nonzero().flatten().tolist() for kind, kept in selection.keep.items() if not kept.all()}
    assert gone == {"blocks.0.mlp": [2, 9], "blocks.1.value": [4, 5, 6, 7], "blocks.1.qk": [4, 5, 6, 7]}
    dropped, strength = dropped_share(isf.attached_to(model), selection.shape)
    share = {kind: dropped[kind] / strength[kind] for kind in dropped}
    assert share["blocks.0.mlp"][2] == pytest.approx(0.9) and share["blocks.0.mlp"][3] < 0.2


def test_without_a_target_a_posterior_that_keeps_all_removes_nothing_and_says_so(trained, digits):
    with pytest.warns(
        UserWarning, match=r"nothing is removed \(mean q 0\.\d\d, 0% of the weights.*; give a target, or"
    ):
        same = compress(trained)
    x = digits[1][0]
    torch.testing.assert_close(same(x), trained(x), rtol=1e-4, atol=1e-4)


def test_latency_goes_down_until_it_fits(trained, monkeypatch):
    """A clock that counts multiply-adds: a real one would depend on the machine."""
    monkeypatch.setattr(compression, "measured_latency", lambda model, batch: batch * count_macs(model) / 1e6)
    asked = 2 * 0.6 * count_macs(trained) / 1e6
    smaller = compress(trained, latency_ms=asked, batch=2)
    assert 0.55 * count_macs(trained) < count_macs(smaller) <= 0.6 * count_macs(trained)
    with pytest.raises(ValueError, match=r"latency_ms=0\.001 is less than a pass takes without all that units"):
        compress(trained, latency_ms=0.001)


def test_bayesian_it_keeps_its_uncertainty(trained, digits):
    x = digits[1][0][:50]
    smaller = compress(trained, macs=0.6, bayesian=True)
    assert isf.predict(smaller, x, samples=5).epistemic.mean() > 0
    torch.testing.assert_close(smaller(x), compress(trained, macs=0.6)(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"weights": 0.0}, r"weights must be the share to keep, in \(0, 1\), got 0\.0"),
        ({"weights": 1.0}, "weights must be the share to keep"),
        ({"macs": -0.5}, "macs must be the share to keep"),
        ({"macs": float("nan")}, "macs must be the share to keep"),
        ({"latency_ms": 0.0}, "latency_ms must be a time above 0"),
        ({"weights": 0.5, "macs": 0.5}, r"give one target, got weights=0\.5, macs=0\.5"),
        ({"weights": 0.001}, r"weights=0\.001 is less than can be kept: .* 0\.\d+ remain"),
        ({"macs": 0.001, "structures": "heads"}, r"macs=0\.001 is less than can be kept: without all that heads"),
        ({"weights": 0.5, "structures": ("neurons",)}, "structures must be some of"),
        ({"weights": 0.5, "score": "luck"}, "score must be one of"),
        (
            {"weights": 0.5, "images": torch.zeros(2, 3, 8, 8)},
            r"images have shape \[2, 3, 8, 8\]; expected \[N, 1, 8, 8\]",
        ),
        ({"weights": 0.5, "labels": torch.zeros(2)}, r"labels have shape \[2\] for no images"),
    ],
    ids=lambda value: "+".join(f"{k}" for k in value) if isinstance(value, dict) else "",
)
def test_the_impossible_is_refused_and_nothing_changes(trained, target, message):
    with pytest.raises(ValueError, match=message) as caught, untouched(trained):
        compress(trained, **target)
    assert "\n" not in str(caught.value)


def test_models_that_cannot_be_compressed(tiny, batch, attached):
    x, _ = batch()
    with pytest.raises(ValueError, match="compress: this ViT carries no method"):
        compress(tiny(), weights=0.5)
    with pytest.raises(ValueError, match="compress: expected a ViT or a CompactViT, got Linear"):
        compress(torch.nn.Linear(3, 3), weights=0.5)
    stacked = isf.stack([tiny(), tiny()])
    isf.attach(stacked, isf.Ising(), examples=10)
    with pytest.raises(ValueError, match="got a stack of 2; take one out with unstack"):
        compress(stacked, weights=0.5)
    fresh = tiny()
    isf.attach(fresh, isf.Ising(warmup=0), examples=10)
    with pytest.raises(ValueError, match="this ViT was never trained"), untouched(fresh):
        compress(fresh, weights=0.5, images=x)
    some = tiny()
    isf.attach(some, isf.DropConnect(), examples=10, exclude="head").step()
    with pytest.raises(ValueError, match="compress: head carries no mask, since attach left it out"), untouched(some):
        compress(some, weights=0.5, score="magnitude")


def test_a_posterior_that_was_fitted_afterwards_will_do(tmp_path, digits):
    """`fit_posterior` counts no step."""
    (x, y), (test_x, test_y) = digits
    torch.manual_seed(0)
    model = isf.ViT(image_size=8, channels=1, patch=4, width=32, depth=2, heads=4, mlp=48, classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    for _ in range(60):
        rows = torch.randint(len(x), (64,))
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    isf.fit_posterior(model.eval(), [(x, y)], isf.Ising(delta=0.1, curvature="mc-fisher"))
    for target in ({"macs": 0.5, "images": x[:100]}, {"weights": 0.5, "score": "both"}):
        smaller = compress(model, bayesian=True, **target)
        assert accuracy(class_probabilities(smaller, test_x), test_y) > 0.5
    save_compact(smaller, tmp_path)
    draws = [
        isf.predict(m, test_x[:20], samples=5, generator=torch.Generator().manual_seed(1)).samples
        for m in (smaller, load_compact(tmp_path))
    ]
    assert torch.equal(*draws) and draws[0].std(0).max() > 1e-3
    half = share_masks(model, 0.5)
    zeros = sum(int((part.weight == 0).sum()) for part in sparsify(model, half).modules() if hasattr(part, "weight"))
    assert zeros >= sum(int((~mask).sum()) for mask in half.values())


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (isf.Ising(warmup=100, refresh=2), "the posterior is still at its prior after 4 steps"),
        (isf.Ising(evidence="none", warmup=0, refresh=2), "the posterior is still at its prior after 4 steps"),
        (isf.DropConnect(p=0.6), "dropconnect has a fixed q, which ranks nothing"),
        (isf.Plain(), "plain has a fixed q"),
    ],
    ids=["in its warm-up", "without evidence", "dropconnect", "plain"],
)
def test_a_posterior_that_says_nothing(tiny, batch, method, message):
    model, (x, y) = tiny(), batch()
    handle = isf.attach(model, method, examples=10)
    for _ in range(4):
        (torch.nn.functional.cross_entropy(model(x), y) + handle.kl()).backward()
        handle.step()
    for target in ({"weights": 0.5}, {}, {"images": x}):
        with pytest.raises(ValueError, match=message):
            compress(model, **target)
    assert count_weights(compress(model, weights=0.5, score="magnitude")) <= count_weights(model) / 2


def test_a_frozen_layer_is_not_cut(tiny, attached):
    model = attached(tiny())
    model.blocks[1].mlp.fc2.weight.requires_grad_(False)
    message = r"blocks\.1\.mlp\.fc2\.weight is frozen \(requires_grad=False\)"
    with pytest.raises(ValueError, match=message), untouched(model):
        compress(model, weights=0.5)
    smaller = compress(model, weights=0.8, structures="channels")
    assert [block.mlp for block in smaller.shape.blocks] == [12, 12]
    with pytest.raises(ValueError, match="is frozen"):
        compress(model, weights=0.8, structures=("channels", "residual"))


def test_every_size_is_on_the_way_from_everything_to_nothing(trained):
    sizes = [count_weights(compress(trained, weights=share)) for share in (0.9, 0.75, 0.6, 0.5)]
    assert sizes == sorted(sizes, reverse=True) and shape_of(trained).weights() > sizes[0]
