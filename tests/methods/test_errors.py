"""Wrong input gets one clear error that says what was given and what to do, and leaves the model as it was."""

import copy
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from training import one_step


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"delta": 0.0}, r"delta must be in \(0, 1\), got 0.0"),
        ({"delta": 1.5}, r"delta must be in \(0, 1\), got 1.5"),
        ({"delta": float("nan")}, "delta must be in"),
        ({"coupling": -1.0}, "coupling must be zero or more, got -1.0"),
        ({"evidence_weight": -2.0}, "evidence_weight must be zero or more, got -2.0"),
        ({"kl_weight": -0.1}, "kl_weight must be zero or more, got -0.1"),
        ({"evidence": "obs"}, "evidence must be 'obd', 'curvature' or 'none', got 'obs'"),
        ({"curvature": "kfac"}, "curvature must be one of .*got 'kfac'"),
        ({"sampling": "node"}, "sampling must be 'mask' or 'local', got 'node'"),
        ({"warmup": 1.5}, "warmup must be a share below 1, or an int for a number of steps, got 1.5"),
        ({"refresh": 0}, "refresh must be a number of steps from 1 on, or 'epoch', got 0"),
        ({"average": 1.0}, r"average must be in \[0, 1\), got 1.0"),
        ({"weight_noise": -0.1}, "weight_noise must be zero or more, got -0.1"),
        ({"weight_noise": 2.0}, "weight_noise must be at most the slab, 1.0, got 2.0"),
        ({"slab": 0.0}, "slab must be more than zero, got 0.0"),
        ({"spike_slab": True, "weight_noise": 0.0}, "needs a spike width"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        isf.Ising(**settings)


@pytest.mark.parametrize("method", [isf.DropConnect, isf.Dropout])
@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_rates(method, p):
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\)"):
        method(p=p)


@pytest.mark.parametrize("number", [np.float32, np.float64, torch.tensor], ids=["float32", "float64", "tensor"])
def test_numbers_of_numpy_and_torch_become_pythons_own(number):
    methods = [
        isf.Ising(delta=number(0.25), coupling=number(2.0), refresh=np.int64(3)),
        isf.Ising(delta=[number(0.25), 0.5]), isf.DropConnect(p=number(0.25)), isf.Dropout(p=(number(0.25), 0.5)),
    ]  # fmt: skip
    rates = [methods[0].delta, *methods[1].delta, methods[2].p, *methods[3].p]
    assert {type(rate) for rate in rates} == {float} and rates == [0.25, 0.25, 0.5, 0.25, 0.25, 0.5]
    for method in methods:
        json.dumps(method.settings())


def test_positional_settings_are_refused():
    with pytest.raises(TypeError):
        isf.Ising(0.1)


@pytest.mark.parametrize(
    "model, kwargs, message",
    [
        (torch.nn.ReLU(), {"examples": 10}, "ReLU has no linear layer to mask"),
        (
            torch.nn.Linear(2, 2),
            {"examples": 0},
            "examples must be the number of training examples, above 0, got 0",
        ),
        (torch.nn.Linear(2, 2), {"examples": float("nan")}, "examples must be"),
        (torch.nn.Linear(2, 2), {"examples": 5, "steps": 0}, "steps must be the number of training steps"),
        (torch.nn.Linear(2, 2), {"examples": 5, "likelihood": "poisson"}, "poisson"),
        (torch.nn.Linear(2, 2), {"examples": 5, "seeds": [1, 2]}, r"seeds must be one int, got \[1, 2\]"),
    ],
)
def test_attach(model, kwargs, message):
    kind = type(model)
    with pytest.raises(ValueError, match=message):
        isf.attach(model, isf.Ising(), **kwargs)
    assert type(model) is kind and not hasattr(model, "posterior")


def test_a_share_of_unknown_steps(tiny):
    model = tiny()
    with pytest.raises(ValueError, match=r"warmup=0.1 is a share of the steps: tell attach how many with steps="):
        isf.attach(model, isf.Ising(warmup=0.1), examples=10)
    assert type(model.head) is torch.nn.Linear


def test_attaching_twice(tiny):
    model = tiny()
    isf.attach(model, isf.Ising(), examples=10)
    with pytest.raises(ValueError, match=r"already carries a method; call its detach\(\) first"):
        isf.attach(model, isf.DropConnect(), examples=10)


def test_a_class_instead_of_a_method(tiny):
    with pytest.raises(TypeError, match="expected a method such as"):
        isf.attach(tiny(), isf.Ising, examples=10)


def test_a_failure_while_attaching_leaves_the_model_as_it_was(tiny, batch, monkeypatch):
    model, (x, _) = tiny(), batch()
    before = model(x)
    monkeypatch.setattr("isingformer.methods.ising_rule.IsingRule.begin", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        isf.attach(model, isf.Ising(), examples=10)
    assert type(model.head) is torch.nn.Linear and torch.equal(model(x), before)


def test_a_nan_loss_stops_before_the_optimiser_and_leaves_q(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=1), examples=10)
    one_step(model, method, x, y)
    weights, state = copy.deepcopy(model.state_dict()), method.state_dict()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(FloatingPointError, match="NaN or infinite; this batch was left out and q is as it was"):
        (F.cross_entropy(model(x * float("nan")), y) + method.kl()).backward()
        optimizer.step()
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    model.zero_grad()
    one_step(model, method, x, y)  # and training can go on


def test_a_loss_without_kl(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=1), examples=10)
    method.kl()
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"without method.kl\(\) in the loss"):
        method.step()


def test_kl_in_a_backward_of_its_own(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=1), examples=10)
    divergence = method.kl()
    F.cross_entropy(model(x), y).backward()
    divergence.backward()
    with pytest.raises(RuntimeError, match=r"without method.kl\(\) in the loss"):
        method.step()


def test_steps_without_training(tiny):
    method = isf.attach(tiny(), isf.Ising(warmup=0, refresh=1), examples=10)
    with pytest.raises(
        RuntimeError, match=r"no backward pass with method.kl\(\) in its loss reached the masked layers"
    ):
        method.step()


def test_a_state_of_another_model(tiny):
    method = isf.attach(tiny(), isf.Ising(), examples=10)
    before = method.state_dict()
    other = isf.attach(tiny(mlp=16), isf.Ising(), examples=10).state_dict()
    with pytest.raises(ValueError, match="this state is not of ViT with ising"):
        method.load_state_dict(other)
    with pytest.raises(ValueError, match="this state is not of ViT with ising"):
        method.load_state_dict(isf.attach(tiny(), isf.DropConnect(), examples=10).state_dict())
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_detach_with_an_unknown_kind_of_weights(tiny):
    method = isf.attach(tiny(), isf.Ising(), examples=10)
    with pytest.raises(ValueError, match="weights must be 'mean', 'expected' or 'probable', got 'median'"):
        method.detach(weights="median")


def test_kl_annealed_by_hand(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=1), examples=10)
    with pytest.raises(RuntimeError, match=r"method.kl\(\) entered the loss with factor 0"):
        (F.cross_entropy(model(x), y) + 0 * method.kl()).backward()


@pytest.mark.parametrize("settings", [{"kl_weight": 0.0, "contrast": 0.0}, {"evidence_weight": 0.0}])
def test_one_weight_of_zero_leaves_the_other_open(settings):
    with pytest.raises(ValueError, match=r"=0 leaves .* = 1/0 open; give .* too"):
        isf.Ising(**settings)


def test_layers_that_share_a_weight_detach_only_by_their_mean():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    before = model[0].weight.detach().clone()
    method = isf.attach(model, isf.DropConnect(p=0.5), examples=10)
    with pytest.raises(ValueError, match="'0' and '2' share one weight but not one posterior"):
        method.detach(weights="expected")
    method.detach(weights="mean")
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    "method, seeds", [(isf.DropConnect(p=0.5), 7), (isf.Ising(refresh="epoch", contrast=0.0), None)]
)
def test_a_model_that_is_trained_past_its_own_call(method, seeds):
    """Only the call itself moves the noise on and counts examples: without it every pass would be the same."""

    class Encoder(torch.nn.Sequential):
        def encode(self, x):
            return super().forward(x)

    torch.manual_seed(0)
    model = Encoder(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 3))
    handle = isf.attach(model, method, examples=10, seeds=seeds)
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    for call in (model, model):
        (F.cross_entropy(call(x), y) + handle.kl()).backward()
        handle.step()
    (F.cross_entropy(model.encode(x), y) + handle.kl()).backward()
    with pytest.raises(RuntimeError, match=r"this Encoder was not called since the last step.*call model\(x\)"):
        handle.step()
