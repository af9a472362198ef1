"""Who reads whom, found by watching a pass: against the table, against disturbed networks, and where it gives up."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isingformer as isf
from isingformer.ising import Reading
from isingformer.nn.layers import weight_of
from isingformer.topology import find_topology, maskable_layers
from isingformer.topology.patterns import of_attentions, of_vit
from isingformer.topology.readings import wiring_of
from isingformer.topology.trace import trace


def traced(model, *args):
    layers = maskable_layers(model)
    return wiring_of(trace(model, layers, (args, {})), {name: len(weight_of(layer)) for name, layer in layers.items()})


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_our_vit_is_found_as_it_is_known(depth, pool):
    model = isf.ViT(
        image_size=8, channels=1, patch=4, width=8, depth=depth, heads=2, mlp=12, classes=3, pool=pool
    )  # fmt: skip
    if depth == 0 and pool == "class":
        return  # the head reads the class token alone, which no layer writes
    wiring, unresolved = traced(model, torch.zeros(1, 1, 8, 8))
    assert not unresolved and wiring == of_vit(model)


class Written(nn.Module):
    """A layer and its reader, with something between them."""

    def __init__(self, between, rows=8, columns=8):
        super().__init__()
        self.first, self.between, self.last = nn.Linear(4, rows), between, nn.Linear(columns, 2)

    def forward(self, x):
        return self.last(self.between(self.first(x)))


class Do(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def normed(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()


def written_in_place(x):
    y = torch.empty_like(x)
    y.copy_(x)
    y += 1
    return F.relu_(y)


KEPT = {
    "activation": lambda x: F.gelu(x).tanh().abs() ** 2,
    "norm by hand": normed,
    "in place": written_in_place,
    "to another type and back": lambda x: x.double().float(),
    "reshaped and back": lambda x: x.unflatten(-1, (2, 4)).mT.flatten(-2).unflatten(-1, (4, 2)).mT.flatten(-2),
    "mixed over tokens": lambda x: torch.einsum("st,ntc->nsc", torch.ones(3, 3), x),
    "cumulated over tokens": lambda x: x.cumsum(-2),
    "one token": lambda x: x[..., :1, :].repeat_interleave(2, -2),
    "padded": lambda x: F.pad(x, (0, 0, 1, 1)),
    "chosen": lambda x: torch.where(x > 0, x, -x).masked_fill(x > 5, 0.0),
}


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT)
def test_what_keeps_nodes_apart(function):
    wiring, unresolved = traced(Written(Do(function)), torch.randn(1, 3, 4))
    assert wiring["first"] == (Reading(slice(0, 8), ("last",), slice(0, 8)),) and not unresolved


MOVED = {
    "halves swapped": (lambda x: x.roll(4, -1), 8, [(slice(0, 4), slice(4, 8)), (slice(4, 8), slice(0, 4))]),
    "half": (lambda x: x[..., 2:6], 4, [(slice(2, 6), slice(0, 4))]),
    "beside another": (lambda x: torch.cat([torch.ones_like(x), x], -1), 16, [(slice(0, 8), slice(8, 16))]),
    "gated by half": (lambda x: F.glu(x, -1), 4, [(slice(0, 4), slice(0, 4)), (slice(4, 8), slice(0, 4))]),
}


@pytest.mark.parametrize("function, columns, pairs", MOVED.values(), ids=MOVED)
def test_nodes_are_followed_to_other_columns(function, columns, pairs):
    wiring, unresolved = traced(Written(Do(function), columns=columns), torch.randn(1, 3, 4))
    assert wiring["first"] == tuple(Reading(rows, ("last",), at) for rows, at in pairs) and not unresolved


def into_a_part(x):
    y = torch.zeros(*x.shape[:-1], 16)
    y[..., :8] = x
    return y[..., 4:12] + 0


LOST = {
    "softmax": lambda x: x.softmax(-1),
    "sorted": lambda x: x.sort(-1).values,
    "another matrix": lambda x: x @ torch.ones(8, 8),
    "by memory": lambda x: x.clone().as_strided((1, 3, 8), (1, 8, 1)),
    "sum": lambda x: x.sum(-1, keepdim=True).expand(*x.shape),
    "convolution": lambda x: F.conv1d(x.mT, torch.ones(8, 8, 1)).mT,
    "written into a part": into_a_part,
}


@pytest.mark.parametrize("function", LOST.values(), ids=LOST)
def test_what_mixes_nodes_is_given_up(function):
    wiring, unresolved = traced(Written(Do(function)), torch.randn(1, 3, 4))
    assert wiring["first"] == () and unresolved == ["first"]


def test_what_happens_behind_the_last_layer_does_not_matter():
    model = nn.Sequential(nn.Linear(4, 4), Do(torch.tanh), nn.Linear(4, 3), nn.LogSoftmax(-1))
    wiring, unresolved = traced(model, torch.randn(1, 4))
    assert not unresolved and wiring["2"] == ()


def test_a_layer_over_tokens_reads_no_single_node():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.tokens, self.last = nn.Linear(4, 8), nn.Linear(3, 3), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.tokens(self.first(x).mT).mT)

    _, unresolved = traced(Mixer(), torch.randn(1, 3, 4))
    assert "first" in unresolved


def test_a_layer_that_runs_twice_in_a_row_is_in_a_circle():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.inner(self.inner(self.first(x))))

    wiring, unresolved = traced(Twice(), torch.randn(1, 4))
    assert unresolved == ["inner"] and wiring["inner"] == ()
    assert wiring["first"] == (Reading(slice(0, 4), ("inner",), slice(0, 4)),)


def test_shared_keys_and_values_are_given_up_and_queries_are_not():
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(8, width) for width in (8, 4, 4, 8))

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x)))
            k, v = k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    wiring, unresolved = traced(Grouped(), torch.randn(1, 3, 8))
    assert unresolved == ["k", "v"] and wiring["k"] == wiring["v"] == ()
    assert wiring["q"] == (Reading(slice(0, 8), ("out",), slice(0, 8), 4),)


def test_heads_that_lie_side_by_side():
    """Rows as [head][query, key, value][channel], as some language models have them."""

    class Interleaved(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (2, 12)).transpose(1, 2).chunk(3, -1)
            return self.out((q @ k.mT).softmax(-1).matmul(v).transpose(1, 2).flatten(2))

    wiring, unresolved = traced(Interleaved(), torch.randn(1, 3, 8))
    expected = []
    for head in range(2):
        columns = slice(4 * head, 4 * head + 4)
        for part in range(3):
            rows = slice(12 * head + 4 * part, 12 * head + 4 * part + 4)
            expected.append(Reading(rows, ("out",), columns, None if part == 2 else 4))
    assert wiring["qkv"] == tuple(expected) and not unresolved


@pytest.mark.parametrize("separate", [{}, {"kdim": 8, "vdim": 6}], ids=["packed", "separate"])
def test_the_inside_of_an_attention_is_known_where_it_cannot_be_run(separate):
    class Unheard(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, **separate)

        def forward(self, x, y, z):
            return self.attention(x, y, z)[0]

    model = Unheard()
    with pytest.warns(UserWarning, match="who reads attention.out_proj in Unheard"):
        topology = find_topology(model)
    assert topology.wiring == {**of_attentions(model), "attention.out_proj": ()}
    assert sum(r.rows.stop - r.rows.start for parts in topology.wiring.values() for r in parts) == 24


@torch.no_grad()
def test_disturbed_nodes_arrive_in_the_columns_that_were_found():
    """A row's bias is moved: the first layer behind that notices, notices in the columns that read the row."""
    torch.manual_seed(0)
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8, num_labels=2,
                                     pad_token_id=0, initializer_range=0.5)  # fmt: skip
    model = transformers.GPT2ForSequenceClassification(config).double().eval()
    ids = torch.randint(1, 9, (2, 6))
    wiring, _ = traced(model, ids[:1])
    seen = {}
    for name in wiring:
        model.get_submodule(name).register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
    model(ids)
    before = dict(seen)
    for layer in ("transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc"):
        for reading in wiring[layer]:
            for place, row in enumerate(range(reading.rows.start, reading.rows.stop)):
                bias = model.get_parameter(f"{layer}.bias")
                bias[row] += 1
                model(ids)
                bias[row] -= 1
                change = (seen[reading.readers[0]] - before[reading.readers[0]]).abs().flatten(0, -2).amax(0)
                size = reading.head_size or 1
                first = reading.columns.start + place // size * size
                allowed = set(range(first, first + size))
                assert set((change > 1e-9).nonzero().flatten().tolist()) <= allowed
