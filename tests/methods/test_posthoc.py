"""A posterior for a trained model: its weights untouched, its curvature exact, its settings chosen by likelihood."""

import copy

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import isingformer as isf
from families import structure
from isingformer.methods import attached_to
from isingformer.methods.posthoc import fit_posterior


@pytest.fixture(scope="module")
def digits():
    """(training, validation, test) as lists of batches, each 8 x 8 images and labels."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    parts = [slice(first, first + 300) for first in (0, 300, 600)]
    return [list(zip(x[at].split(50), y[at].split(50), strict=True)) for at in parts]


@pytest.fixture(scope="module")
def trained(digits):
    """A plain network that has learned its 300 images by heart."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 4, 4), nn.GELU(), nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(30):
        for x, y in digits[0]:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval()


def whole(batches):
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def nll(model, batches):
    x, y = whole(batches)
    probs = isf.predict(model, x, samples=30, generator=torch.Generator().manual_seed(0)).probs
    return float(F.nll_loss(probs.log(), y))


@pytest.mark.filterwarnings("ignore:who reads 0 in Sequential")  # a flattened map of patches: no node has one column
def test_weights_and_structure_stay_and_passes_differ(digits, trained, tmp_path):
    model = copy.deepcopy(trained)
    before, kinds = copy.deepcopy(model.state_dict()), structure(model)
    handle = fit_posterior(model, digits[0], isf.Ising(delta=0.2, curvature="mc-fisher"))
    assert handle is attached_to(model) and handle.examples == 300 and not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(h.max() > 0 for h in handle.curvature().values())
    x, y = whole(digits[2])
    prediction = isf.predict(model, x, samples=20)
    assert not torch.equal(prediction.samples[0], prediction.samples[1])
    assert float((prediction.probs.argmax(-1) == y).float().mean()) > 0.8
    isf.save(model, tmp_path)
    again = isf.load(tmp_path, copy.deepcopy(trained))
    for name, q in handle.drop_probability().items():
        assert torch.equal(attached_to(again).drop_probability()[name], q)
    handle.detach()
    assert structure(model) == kinds
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:who reads 0 in Sequential")
def test_fisher_is_the_mean_over_all_examples_of_the_loader(digits, trained):
    batches = [(x[:n].double(), y[:n]) for n, (x, y) in zip((7, 7, 3), digits[0], strict=False)]
    plain = copy.deepcopy(trained).double()
    handle = fit_posterior(copy.deepcopy(plain), batches, isf.Ising(delta=0.3, evidence_weight=10.0, node_rate=0.0))
    assert handle.examples == 17
    wanted = dict.fromkeys(handle.curvature(), 0.0)
    for x, y in batches:
        for i in range(len(y)):
            plain.zero_grad()
            F.cross_entropy(plain(x[i : i + 1]), y[i : i + 1]).backward()
            for name in wanted:
                wanted[name] = wanted[name] + plain.get_parameter(f"{name}.weight").grad.flatten(1).square() / 17
    for name, h in handle.curvature().items():
        torch.testing.assert_close(h, wanted[name], rtol=1e-9, atol=1e-9 * float(wanted[name].max()))
    # Of the last layer, which nothing reads, the field is a formula.
    mean = plain.get_parameter("5.weight").detach()
    field = torch.logit(torch.tensor(0.3)) - 10 * 17 * wanted["5"] * mean**2 / 2
    torch.testing.assert_close(handle.drop_probability()["5"], torch.sigmoid(field))


@pytest.mark.filterwarnings("ignore:who reads 0 in Sequential")
def test_the_settings_of_the_best_likelihood_are_chosen(digits, trained):
    model = copy.deepcopy(trained)
    deltas, weights = (0.02, 0.6), (0.1, 10.0)
    handle = fit_posterior(
        model, digits[0], isf.Ising(curvature="mc-fisher", node_rate=0.0), validation=digits[1], deltas=deltas,
        evidence_weights=weights, samples=30,
    )  # fmt: skip
    chosen = (handle.method.delta, handle.method.evidence_weight)
    found = nll(model, digits[1])
    handle.detach()
    others = {}
    for delta in deltas:
        for weight in weights:
            torch.manual_seed(0)
            one = isf.Ising(curvature="mc-fisher", delta=delta, evidence_weight=weight, node_rate=0.0)
            other = copy.deepcopy(trained)
            fit_posterior(other, digits[0], one)
            others[delta, weight] = nll(other, digits[1])
    # The mean over 30 networks is known to a few percent; the settings differ by far more.
    assert chosen == min(others, key=others.get) and found < 0.7 * max(others.values())


def test_named_inputs_and_other_curvatures():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, features):
            return self.last(self.first(features).relu())

    torch.manual_seed(0)
    batches = [{"features": torch.randn(5, 4), "labels": torch.randint(3, (5,))} for _ in range(2)]
    for curvature in ("fisher", "lm", "mc-fisher", "hutchinson"):
        handle = fit_posterior(Named(), batches, isf.Ising(curvature=curvature, warmup=0.1))
        assert all(h.abs().max() > 0 for h in handle.curvature().values()), curvature
    rest = fit_posterior(Named(), batches, isf.Ising(delta=0.2, evidence="none")).drop_probability()
    torch.testing.assert_close(rest["last"], torch.full((3, 6), 0.2))


BATCHES = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))]


@pytest.mark.parametrize(
    "batches, method, options, message",
    [
        (BATCHES, isf.DropConnect(), {}, "expected Ising"),
        (BATCHES, isf.Ising(), {"deltas": [0.1, 0.2]}, "2 settings to choose from but no validation data"),
        (BATCHES, isf.Ising(), {"deltas": []}, "deltas is empty"),
        (BATCHES, isf.Ising(), {"samples": 0}, "samples must be 1 or more, got 0"),
        ([{"x": torch.zeros(2, 4)}], isf.Ising(), {}, "a batch has x; expected labels among them"),
        ([torch.zeros(2, 4)], isf.Ising(), {}, "expected batches .* got Tensor"),
        ([(torch.full((2, 4), float("nan")), BATCHES[0][1])], isf.Ising(), {}, "curvature of '0' is NaN or infinite"),
    ],
    ids=["method", "validation", "empty", "samples", "labels", "batch", "nan"],
)
def test_what_cannot_be_fitted_says_why_and_leaves_the_model_plain(batches, method, options, message):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises((ValueError, TypeError, FloatingPointError), match=message):
        fit_posterior(model, batches, method, **options)
    assert attached_to(model) is None and type(model[0]) is nn.Linear


@pytest.mark.filterwarnings("ignore:who reads 0 in Sequential")
@pytest.mark.parametrize("ramp", [100, 0.3])
def test_a_ramp_is_for_training_and_does_not_hold_q_back(digits, trained, ramp):
    plain, ramped = (
        fit_posterior(copy.deepcopy(trained), digits[0], isf.Ising(delta=0.3, **how)).drop_probability()
        for how in ({}, {"ramp": ramp})
    )
    assert all(torch.equal(q, ramped[name]) and bool((q > 0).all()) for name, q in plain.items())


@pytest.mark.filterwarnings("ignore:who reads 0 in Sequential")
def test_validation_may_be_an_iterator_but_not_one_that_is_used_up(digits, trained):
    method, choices = isf.Ising(curvature="mc-fisher", contrast=0.0), [0.02, 0.9, 0.5]
    chosen = [
        fit_posterior(copy.deepcopy(trained), digits[0], method, validation=given, deltas=choices, samples=3).method
        for given in (digits[1], iter(digits[1]))
    ]
    assert chosen[0].delta == chosen[1].delta == 0.02
    with pytest.raises(ValueError, match="validation gave no batches to choose by"):
        fit_posterior(copy.deepcopy(trained), digits[0], method, validation=iter(()), deltas=choices)


class PerToken(nn.Module):
    """Classes of every token."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


@pytest.mark.parametrize("curvature", ["fisher", "mc-fisher", "hutchinson"])
def test_n_counts_the_terms_of_the_likelihood_and_the_loader_is_gone_through_once(curvature):
    torch.manual_seed(0)
    batches = [(torch.randint(7, (n, 10)), torch.randint(4, (n, 10))) for n in (16, 4)]
    method = isf.Ising(delta=0.2, evidence_weight=1.0, curvature=curvature)
    handle = fit_posterior(PerToken(), iter(batches), method)
    assert handle.examples == 200
    assert fit_posterior(PerToken(), iter(batches), method, examples=5).examples == 5


@pytest.mark.filterwarnings("ignore:who reads 0 in Sequential")
def test_a_loader_without_examples(digits, trained):
    for loader in ([], iter(())):
        with pytest.raises(ValueError, match="the loader gave no examples; give one that does"):
            fit_posterior(copy.deepcopy(trained), loader, isf.Ising(delta=0.3, evidence_weight=1.0))
    assert attached_to(trained) is None
