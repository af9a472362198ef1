"""T passes to a predictive distribution."""

import math

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.nn.masked import drawing, in_eval_mode
from isingformer.predict import Prediction, activation_bytes


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def trained(tiny, batch):
    model, (x, y) = tiny(), batch(8)
    method = isf.attach(model, isf.Ising(delta=0.3, warmup=0, refresh=2, weight_noise=0.3), examples=20)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(6):
        (F.cross_entropy(model(x), y) + method.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    return model, x


def test_fields_by_hand():
    samples = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]], [[0.7, 0.3]], [[0.3, 0.7]]])  # [T=4, N=1, C=2]
    p = Prediction(samples, weight_draws=2)

    def entropy(*probs):
        return -sum(q * math.log(q) for q in probs)

    total, passes = entropy(0.6, 0.4), [entropy(*s[0].tolist()) for s in samples]
    masks = [entropy(0.7, 0.3), entropy(0.5, 0.5)]
    wanted = {
        "probs": [0.6, 0.4],
        "entropy": total,
        "aleatoric": sum(passes) / 4,
        "epistemic": total - sum(passes) / 4,
        "architecture": total - sum(masks) / 2,
        "weights": sum(masks) / 2 - sum(passes) / 4,
        "classes": 0,
    }
    for name, value in wanted.items():
        torch.testing.assert_close(getattr(p, name)[0], torch.tensor(value), rtol=1e-5, atol=1e-6)
    low, high = p.interval(0.5)
    torch.testing.assert_close(torch.stack([low[0, 0], high[0, 0]]), torch.tensor([0.45, 0.75]))


def test_certain_passes_have_no_nan():
    p = Prediction(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    torch.testing.assert_close(p.entropy, torch.tensor([math.log(2)]))
    assert p.aleatoric == 0 and p.epistemic == p.entropy


def test_probs_are_a_distribution_and_epistemic_splits(trained):
    model, x = trained
    p = isf.predict(model, x, samples=60, weight_draws=6)
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(p.epistemic, p.architecture + p.weights, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(p.entropy, p.aleatoric + p.epistemic)
    assert (p.architecture > 0).all() and (p.weights > 0).all()


def test_passes_of_one_architecture_share_their_masks(tiny, batch):
    model, (x, _) = tiny(), batch()
    isf.attach(model, isf.DropConnect(p=0.4, weight_noise=0.0), examples=10)  # masks are all there is
    samples = isf.predict(model, x, samples=12, weight_draws=3).samples.unflatten(0, (4, 3))
    assert torch.equal(samples, samples[:, :1].expand_as(samples))
    assert not torch.equal(samples[0], samples[1])
    isf.methods.attached_to(model).detach()
    isf.attach(model, isf.DropConnect(p=0.0, weight_noise=0.5), examples=10)  # weights are all there is
    p = isf.predict(model, x, samples=12, weight_draws=3)
    assert len({tuple(pass_.flatten().tolist()) for pass_ in p.samples}) == 12


def test_the_same_networks_whatever_the_chunks(trained):
    model, x = trained
    whole = isf.predict(model, x, samples=5, generator=seeded())
    for options in ({"batch_size": 3}, {"batch_size": 1}, {"memory": 1}):
        torch.testing.assert_close(
            isf.predict(model, x, samples=5, generator=seeded(), **options).samples, whole.samples
        )
    assert not torch.equal(isf.predict(model, x, samples=5, generator=seeded(1)).samples, whole.samples)


def test_every_pass_is_one_network_for_all_images(trained):
    model, x = trained
    same = x[:1].expand(6, -1, -1, -1)
    p = isf.predict(model, same, samples=4)
    torch.testing.assert_close(p.samples, p.samples[:, :1].expand_as(p.samples))
    local = isf.predict(model, same, samples=4, sampling="local")
    assert not torch.allclose(local.samples, local.samples[:, :1].expand_as(local.samples))


def test_agrees_with_drawing_by_hand(trained):
    model, x = trained
    p = isf.predict(model, x, samples=1000)
    torch.manual_seed(0)
    with torch.no_grad(), in_eval_mode(model), drawing(model, "mask"):
        by_hand = torch.stack([model(x).softmax(-1) for _ in range(1000)])
    error = by_hand.std(0) * (2 / 1000) ** 0.5
    assert ((p.probs - by_hand.mean(0)).abs() < 5 * error).all()


def test_mode_and_generator_are_left_alone(trained):
    model, x = trained
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    isf.predict(model, x, samples=2, generator=seeded())
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_without_a_generator_the_default_one_decides(trained):
    model, x = trained
    torch.manual_seed(3)
    one = isf.predict(model, x, samples=2).samples
    torch.manual_seed(3)
    again = isf.predict(model, x, samples=2).samples
    assert torch.equal(one, again)
    assert not torch.equal(isf.predict(model, x, samples=2).samples, one)


def test_identical_passes_of_a_stochastic_method_are_an_error(tiny, batch):
    model, (x, _) = tiny(), batch()
    isf.attach(model, isf.Ising(warmup=0), examples=10)
    fixed = model(x)
    model.forward = lambda images: fixed[: len(images)]  # a fused path that never asks the layers
    with pytest.raises(RuntimeError, match="3 passes with 'mask' sampling gave identical outputs"):
        isf.predict(model, x, samples=3, batch_size=8)


def test_identical_passes_are_fine_where_nothing_is_random(tiny, batch):
    model, (x, _) = tiny(), batch()
    isf.attach(model, isf.Ising(warmup=5, weight_noise=0.0), examples=10)
    p = isf.predict(model, x, samples=3)
    assert torch.equal(p.samples[0], p.samples[2]) and (p.epistemic < 1e-12).all()


def test_binary_and_multilabel_outputs():
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    binary = torch.nn.Linear(4, 1)
    isf.attach(binary, isf.DropConnect(p=0.3), examples=10, likelihood="binary")
    p = isf.predict(binary, x, samples=6)
    assert p.probs.shape == (5, 2)
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(5))
    labels = torch.nn.Linear(4, 3)
    isf.attach(labels, isf.DropConnect(p=0.3), examples=10, likelihood="multilabel")
    p = isf.predict(labels, x, samples=6)
    assert p.probs.shape == p.entropy.shape == p.epistemic.shape == (5, 3)
    assert (p.entropy <= math.log(2) + 1e-6).all()
    with pytest.raises(ValueError, match="no single class"):
        _ = p.classes


def test_stacked_replicas_predict_side_by_side(tiny, batch):
    x, _ = batch(5)
    stacked = isf.stack([tiny(seed=0), tiny(seed=1)])
    isf.attach(stacked, isf.DropConnect(p=0.3), examples=10)
    p = isf.predict(stacked, x, samples=3, batch_size=2, generator=seeded())
    assert p.samples.shape == (3, 2, 5, 3) and p.entropy.shape == (2, 5)
    own = isf.predict(stacked, x.expand(2, 5, 1, 4, 4), samples=3, generator=seeded())
    torch.testing.assert_close(own.samples, p.samples)


def test_memory_bound_covers_every_layers_output(tiny, batch):
    model, (x, _) = tiny(), batch(1)
    # logits, norm and head alone: 5 tokens x 8 x 8 bytes and 3 x 8 bytes twice (head and whole model)
    assert activation_bytes(model, x) > 5 * 8 * 8 * 10


@pytest.mark.parametrize(
    "options, message",
    [
        ({"samples": 0}, "samples=0 must be a positive multiple"),
        ({"samples": 10, "weight_draws": 3}, "samples=10 must be a positive multiple of weight_draws=3"),
    ],
)
def test_bad_options(trained, options, message):
    model, x = trained
    with pytest.raises(ValueError, match=message):
        isf.predict(model, x, **options)


def test_bad_inputs(trained, tiny):
    model, x = trained
    with pytest.raises(ValueError, match="x must be a tensor with at least one input, got list"):
        isf.predict(model, [1, 2])
    with pytest.raises(ValueError, match=r"got a tensor of shape \(0, 1, 4, 4\)"):
        isf.predict(model, x[:0])
    with pytest.raises(ValueError, match="carries no method; attach one first"):
        isf.predict(tiny(), x)
    with pytest.raises(ValueError, match="carries no method; attach one first"), isf.sampled(tiny()):
        pass
    p = isf.predict(model, x, samples=2)
    with pytest.raises(ValueError, match=r"nested sampling: predict\(..., weight_draws=5\)"):
        _ = p.architecture
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 90"):
        p.interval(90)


def test_uncertainties_of_a_model_in_bfloat16_have_the_digits_of_float32(trained):
    """A step of bfloat16 is 0.016 near an entropy of 2.3, as large as what is looked for."""
    model, x = trained
    wide = isf.predict(model.float(), x.float(), samples=20, generator=seeded())
    narrow = isf.predict(model.bfloat16(), x.bfloat16(), samples=20, generator=seeded())
    assert narrow.samples.dtype == torch.float32
    torch.testing.assert_close(narrow.epistemic, wide.epistemic, rtol=0.1, atol=2e-3)
    assert len(narrow.epistemic.unique()) == len(x)


@pytest.mark.parametrize("examples", [1, 3])
def test_binary_outputs_without_a_last_axis_keep_their_examples(examples):
    class Single(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.map(x).squeeze(-1)

    torch.manual_seed(0)
    model = Single()
    isf.attach(model, isf.DropConnect(p=0.5), examples=10, likelihood="binary")
    p = isf.predict(model, torch.randn(examples, 4), samples=6)
    assert p.samples.shape == (6, examples, 2) and p.probs.shape == (examples, 2)


def test_the_stream_of_a_seeded_training_goes_on_as_if_nothing_had_been_predicted(tiny, batch):
    model, (x, _) = tiny(), batch(8)
    method = isf.attach(model, isf.Ising(delta=0.3, warmup=0), examples=20, seeds=3)
    model(x)
    isf.predict(model, x, samples=3, batch_size=2)
    assert int(method.noise.position) == 1
    with isf.sampled(model.eval()):
        model(x)
    assert int(method.noise.position) == 2


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_equal_passes_have_no_epistemic_uncertainty_and_others_keep_theirs(classes):
    probs = torch.randn(500, classes, generator=seeded()).mul(3).softmax(-1)
    assert (Prediction(probs.expand(333, -1, -1).contiguous()).epistemic == 0).all()
    apart = torch.stack([probs, (probs.log() + 0.01 * torch.randn(probs.shape, generator=seeded(1))).softmax(-1)])
    exact = Prediction(apart.double()).epistemic
    found = Prediction(apart).epistemic
    seen = exact > 1e-5
    assert seen.sum() > 20 and (found[seen] > 0).all()
