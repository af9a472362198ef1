"""The scale of h where a layer counts other examples than the model: flattened tokens, repeated calls."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isingformer as isf
from isingformer.methods.posthoc import fit_posterior

N, TOKENS = 8, 5
STILL = {"sampling": "mask", "refresh": 1, "warmup": 0, "delta": 1e-9, "node_rate": 0.0, "weight_noise": 0.0,
         "measure_every": 1, "contrast": 0.0}  # fmt: skip
"""Nothing is dropped, so that every pass is the same network."""


class Tokens(nn.Module):
    """Two layers over tokens, whose mean is classified; the first may see them flattened into the batch."""

    def __init__(self, flat=False, repeats=1):
        super().__init__()
        torch.manual_seed(0)
        self.flat, self.repeats = flat, repeats
        self.first, self.middle, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        n, t, _ = x.shape
        h = self.first(x.flatten(0, 1) if self.flat else x).tanh().view(n, t, -1)
        for _ in range(self.repeats):
            h = self.middle(h).tanh()
        return self.head(h.mean(1))


class TokenLogits(Tokens):
    """A prediction for every token, all on one axis."""

    def __init__(self):
        super().__init__()
        del self.middle

    def forward(self, x):
        return self.head(self.first(x).tanh()).flatten(0, 1)


def data(targets=N):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, TOKENS, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(3, (targets,), generator=generator)


def measured(model, curvature, *, terms=None, steps=1, warns=False, y=None):
    x, given = data()
    y = given if y is None else y
    method = isf.Ising(curvature=curvature, **STILL)
    if warns:
        with pytest.warns(UserWarning, match="examples and tokens on one axis"):
            handle = isf.attach(model.double(), method, examples=100, example=x)
    else:
        handle = isf.attach(model.double(), method, examples=100, example=x)
    for _ in range(steps):
        (F.cross_entropy(model(x), y) + handle.kl(terms=terms)).backward()
        handle.step()
    return handle.curvature()


def test_a_layer_that_gets_tokens_as_examples_is_measured_as_expand_does():
    found, wanted = measured(Tokens(flat=True), "fisher", warns=True), measured(Tokens(), "expand")
    torch.testing.assert_close(found["first"], wanted["first"])
    torch.testing.assert_close(found["head"], wanted["head"])


def test_the_same_by_an_extra_pass():
    torch.manual_seed(0)
    found = measured(Tokens(flat=True), "mc-fisher", warns=True, steps=30)
    torch.manual_seed(0)
    wanted = measured(Tokens(), "mc-fisher", steps=30)
    torch.testing.assert_close(found["head"], wanted["head"])
    assert 0.5 < found["first"].sum() / wanted["first"].sum() < 2  # expand against exact, not five times it


def test_the_same_for_a_trained_model():
    x, y = data()
    with pytest.warns(UserWarning, match="examples and tokens on one axis"):
        found = fit_posterior(Tokens(flat=True).double(), [(x, y)], isf.Ising(**STILL), example=x).curvature()
    torch.testing.assert_close(found["first"], measured(Tokens(), "expand")["first"])


def test_where_every_layer_does_the_warning_says_what_to_tell():
    class Flat(nn.Sequential):
        def forward(self, x):
            return super().forward(x.flatten(0, 1)).view(len(x), -1, 3).mean(1)

    torch.manual_seed(0)
    x, y = data()
    model = Flat(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with pytest.warns(UserWarning, match=r"no other layer to count examples by, say how many .*kl\(terms"):
        handle = isf.attach(model, isf.Ising(**STILL), examples=100, example=x)
    for p in model.parameters():
        p.grad = None
    (F.cross_entropy(model(x), y) + handle.kl(terms=N)).backward()
    handle.step()
    rows, outputs = x.flatten(0, 1), []
    hidden = model[0](rows).tanh().detach()
    for row in range(len(rows)):  # every token's own gradient of the last layer, by hand
        out = model(x)
        probs = out.softmax(-1).detach()
        d = (probs[row // TOKENS] - F.one_hot(y[row // TOKENS], 3)) / TOKENS
        outputs.append(torch.outer(d, hidden[row]).square())
    torch.testing.assert_close(handle.curvature()["2"], torch.stack(outputs).sum(0) / N, rtol=1e-5, atol=1e-9)


@pytest.mark.filterwarnings("ignore:who reads middle in Tokens is not known")
def test_squares_of_a_layer_that_is_called_twice_add_up():
    class Apart(Tokens):
        def __init__(self):
            super().__init__()
            self.again = nn.Linear(6, 6)
            self.again.load_state_dict(self.middle.state_dict())

        def forward(self, x):
            return self.head(self.again(self.middle(self.first(x).tanh()).tanh()).tanh().mean(1))

    found, apart = measured(Tokens(repeats=2), "fisher"), measured(Apart(), "fisher")
    torch.testing.assert_close(found["middle"], apart["middle"] + apart["again"])
    torch.testing.assert_close(found["first"], apart["first"])


def test_outputs_for_tokens_may_be_flattened_too():
    _, y = data(N * TOKENS)
    torch.manual_seed(0)
    found = measured(TokenLogits(), "mc-fisher", y=y, terms=N * TOKENS, steps=60)

    class Unflattened(TokenLogits):
        def forward(self, x):
            return super().forward(x).unflatten(0, (-1, TOKENS))

    x = data()[0]
    model = Unflattened().double()
    handle = isf.attach(model, isf.Ising(curvature="mc-fisher", **STILL), examples=100, example=x)
    torch.manual_seed(0)
    for _ in range(60):
        (F.cross_entropy(model(x).movedim(-1, 1), y.view(N, TOKENS)) + handle.kl(terms=N * TOKENS)).backward()
        handle.step()
    assert 0.7 < found["first"].sum() / handle.curvature()["first"].sum() < 1.4  # not 25, tokens squared
