"""A user's own module: which layers carry masks, frozen bases, shared layers, and an example to be watched on."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import isingformer as isf
from families import check_curvature, check_life, structure, train, weight
from isingformer.ising import Reading


class Net(nn.Module):
    """Gated, with a residual and no biases."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((8, 12), (8, 12), (12, 8)))
        self.norm, self.head = nn.RMSNorm(8), nn.Linear(8, 3, bias=False)

    def forward(self, x):
        x = self.first(x)
        y = self.norm(x)
        x = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return self.head(x)


def batch(n=5, dtype=torch.float32, features=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, features, dtype=dtype, generator=generator), torch.randint(3, (n,), generator=generator)


def test_life(tmp_path):
    check_life(Net, *batch(), tmp_path)


def test_curvature():
    check_curvature(Net, *batch(dtype=torch.float64), weight)


def test_who_reads_whom():
    wiring = isf.attach(Net(), isf.Ising(), examples=10).parts.topology.wiring
    width, hidden = slice(0, 8), slice(0, 12)
    assert wiring == {
        "first": (Reading(width, ("gate", "up"), width),),
        "gate": (Reading(hidden, ("down",), hidden),),
        "up": (Reading(hidden, ("down",), hidden),),
        "down": (Reading(width, ("head",), width),),
        "head": (),
    }


@pytest.mark.parametrize(
    "options, names",
    [
        ({"include": "*"}, ["first", "gate", "up", "down", "head"]),
        ({"include": ["gate", "u*"]}, ["gate", "up"]),
        ({"exclude": "head"}, ["first", "gate", "up", "down"]),
        ({"include": ["?????", "down"], "exclude": ["first"]}, ["down"]),
    ],
    ids=["all", "include", "exclude", "both"],
)
def test_patterns_choose_the_layers(options, names, tmp_path):
    model = Net()
    before = structure(model)
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10, **options)
    assert list(handle.parts.layers) == names
    train(model, handle, *batch())
    isf.save(model, tmp_path)
    loaded = isf.attached_to(isf.load(tmp_path, Net()))
    assert loaded.parts.topology == handle.parts.topology
    handle.detach()
    assert structure(model) == before


def test_readers_without_masks_are_left_out():
    wiring = isf.attach(Net(), isf.Ising(), examples=10, exclude=["up", "head"]).parts.topology.wiring
    assert wiring["first"] == (Reading(slice(0, 8), ("gate",), slice(0, 8)),)
    assert wiring["down"] == ()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"include": "frist"}, "include: no layer matches 'frist'; the layers are first, gate, up, down, head"),
        ({"exclude": ["first", "x*"]}, r"exclude: no layer matches 'x\*'"),
        ({"exclude": "*"}, "leaves no layer to mask; the layers are first"),
    ],
    ids=["include", "exclude", "none left"],
)
def test_patterns_that_do_not_fit_are_refused(options, message):
    model = Net()
    with pytest.raises(ValueError, match=message):
        isf.attach(model, isf.Ising(), examples=10, **options)
    assert isf.attached_to(model) is None


class Adapted(nn.Module):
    """A frozen layer with a trainable one of low rank beside it."""

    def __init__(self, inputs, outputs, rank=2):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def adapted():
    torch.manual_seed(0)
    return nn.Sequential(Adapted(6, 8), nn.GELU(), Adapted(8, 8), nn.GELU(), nn.Linear(8, 3))


def test_frozen_bases_are_left_alone_on_request(tmp_path):
    check_life(adapted, *batch(), tmp_path, trainable_only=True)
    handle = isf.attach(adapted(), isf.Ising(), examples=10, trainable_only=True)
    assert list(handle.parts.layers) == ["0.a", "0.b", "2.a", "2.b", "4"]
    assert handle.parts.topology.wiring["0.b"] == (Reading(slice(0, 8), ("2.a",), slice(0, 8)),)
    assert handle.parts.topology.wiring["2.b"] == (Reading(slice(0, 8), ("4",), slice(0, 8)),)


def test_frozen_bases_carry_masks_otherwise_and_keep_their_weights(tmp_path):
    model = adapted()
    before = model[0].base.weight.clone()
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10)
    train(model, handle, *batch())
    assert handle.curvature()["0.base"].max() > 0 and model[0].base.weight.grad is None
    assert torch.equal(handle.detach()[0].base.weight, before)


class Checkpointed(Net):
    def forward(self, x):
        x = self.first(x)
        return self.head(checkpoint(self.middle, x, use_reentrant=False))

    def middle(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def test_gradient_checkpointing_takes_in_the_same_curvature():
    results = []
    for kind in (Net, Checkpointed):
        model = kind()
        handle = isf.attach(model, isf.Ising(delta=0.3, warmup=0, refresh=2), examples=10)
        torch.manual_seed(2)
        train(model, handle, *batch())
        results.append({**handle.curvature(), **dict(model.named_parameters())})
    torch.testing.assert_close(*results)


class TwoInputs(nn.Module):
    """Takes what no guess would find."""

    def __init__(self):
        super().__init__()
        self.words, self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, pairs, scale, *, shift):
        return self.last(self.first(self.words(pairs["one"]) * scale + shift).relu())


def test_an_example_says_what_the_model_takes():
    with pytest.warns(UserWarning, match="who reads words, first, last in TwoInputs .* give attach an example input"):
        isf.attach(TwoInputs(), isf.Ising(), examples=10)
    example = {"pairs": {"one": torch.randn(6, 3)}, "scale": torch.ones(6, 4), "shift": 0.5}
    wiring = isf.attach(TwoInputs(), isf.Ising(), examples=10, example=example).parts.topology.wiring
    assert wiring["words"] == (Reading(slice(0, 4), ("first",), slice(0, 4)),)
    assert wiring["first"] == (Reading(slice(0, 5), ("last",), slice(0, 5)),)


def test_an_example_that_does_not_fit_is_refused():
    model = Net()
    with pytest.raises(ValueError, match=r"does not run on the first entry of the example \(RuntimeError: .*shapes"):
        isf.attach(model, isf.Ising(), examples=10, example=torch.zeros(2, 7))
    assert isf.attached_to(model) is None and not any(module._forward_hooks for module in model.modules())


def test_attaching_leaves_no_trace_of_the_pass_it_watched():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.last(self.drop(self.norm(self.first(x))) + torch.rand(1))

    model = Noisy()
    before, state = torch.get_rng_state(), {name: t.clone() for name, t in model.state_dict().items()}
    isf.attach(model, isf.Ising(), examples=10)
    assert torch.equal(torch.get_rng_state(), before) and model.training
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert torch.backends.mha.get_fastpath_enabled()
