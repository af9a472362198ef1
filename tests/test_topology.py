"""Who reads whom: the table of a transformer block, plain stacks, what a user states, and what is refused."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import isingformer as isf
from isingformer.ising import Reading, backward_order
from isingformer.nn.stacked import StackedLinear
from isingformer.topology import find_topology, maskable_layers

WIDTH, HEADS, MLP = 8, 2, 12


def vit(**settings):
    shape = {"image_size": 4, "channels": 1, "patch": 2, "width": WIDTH, "heads": HEADS, "mlp": MLP, "classes": 3}
    return isf.ViT(**{"depth": 2, **shape, **settings})


def readers_of(topology):
    """(layer, row) to what reads it: a set of (reader, column), or of such sets' averages over a head."""
    found = {}
    for name, readings in topology.wiring.items():
        for reading in readings:
            rows = range(10_000)[reading.rows]
            columns = range(10_000)[reading.columns]
            assert len(rows) == len(columns)
            for place, row in enumerate(rows):
                assert (name, row) not in found  # no row twice
                size = reading.head_size or 1
                first = place // size * size
                found[name, row] = {(r, c) for r in reading.readers for c in columns[first : first + size]}
    return found


def table(depth):
    """The same, written down from "who reads whom in a transformer block"."""
    expected = {}
    size = WIDTH // HEADS
    for node in range(WIDTH):
        expected["embed", node] = {("blocks.0.attn.qkv", node)}
    for i in range(depth):
        block, after = f"blocks.{i}.", f"blocks.{i + 1}.attn.qkv" if i + 1 < depth else "head"
        for node in range(WIDTH):
            head = node // size
            channels = {(block + "attn.proj", c) for c in range(head * size, (head + 1) * size)}
            expected[block + "attn.qkv", node] = channels  # query
            expected[block + "attn.qkv", WIDTH + node] = channels  # key
            expected[block + "attn.qkv", 2 * WIDTH + node] = {(block + "attn.proj", node)}  # value
            expected[block + "attn.proj", node] = {(block + "mlp.fc1", node)}
            expected[block + "mlp.fc2", node] = {(after, node)}
        for node in range(MLP):
            expected[block + "mlp.fc1", node] = {(block + "mlp.fc2", node)}
    return expected


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("replicas", [None, 2])
def test_vit_is_wired_as_the_table_says(depth, replicas):
    topology = find_topology(vit(depth=depth, replicas=replicas))
    assert readers_of(topology) == table(depth)
    assert topology.wiring["head"] == ()


def test_vit_names_every_linear_layer_and_where_nodes_are_dropped():
    model = vit()
    topology = find_topology(model)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert set(topology.layers) == set(topology.wiring) == linear
    assert set(topology.node_layers) == linear - {"embed", "head"}
    assert set(topology.embeddings) == {"embedded"}
    for parameter in topology.embeddings["embedded"]:
        assert model.get_parameter(parameter).shape[0] in (WIDTH, 1)


def test_vit_without_blocks_is_read_by_its_head():
    assert readers_of(find_topology(vit(depth=0))) == {("embed", n): {("head", n)} for n in range(WIDTH)}


def test_plain_stack_is_found_through_nesting_activations_norms_and_dropout():
    model = nn.Sequential(
        nn.LayerNorm(4),
        nn.Linear(4, 6),
        nn.Sequential(nn.BatchNorm1d(6), nn.GELU(), nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 5))),
        nn.RMSNorm(5),
        nn.Identity(),
        nn.Linear(5, 2),
        nn.Softplus(),
    )
    topology = find_topology(model)
    assert topology.layers == ("1", "2.2.1", "5")
    expected = {("1", n): {("2.2.1", n)} for n in range(6)} | {("2.2.1", n): {("5", n)} for n in range(5)}
    assert readers_of(topology) == expected
    assert topology.wiring["5"] == ()
    assert topology.node_layers == topology.layers and topology.embeddings == {}
    assert backward_order(topology.wiring) == ["5", "2.2.1", "1"]


def test_a_single_linear_layer_is_a_stack_of_one():
    for model in (nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.ReLU())):
        topology = find_topology(model)
        assert list(topology.wiring.values()) == [()]


@pytest.mark.parametrize(
    "between", [nn.Unflatten(1, (2, 3)), nn.Conv1d(6, 6, 1), nn.Softmax(-1)], ids=["unflatten", "conv1d", "softmax"]
)
def test_a_module_that_may_mix_nodes_breaks_the_chain_aloud(between):
    model = nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 2))
    with pytest.warns(UserWarning, match="who reads 0 in Sequential is not known"):
        topology = find_topology(model)
    assert topology.wiring == {"0": (), "2": ()}


def test_widths_that_do_not_follow_each_other_break_the_chain_aloud():
    with pytest.warns(UserWarning, match="who reads 0 in Sequential"):
        topology = find_topology(nn.Sequential(nn.Linear(4, 6), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)))
    assert readers_of(topology) == {("1", n): {("3", n)} for n in range(2)}


def test_a_module_in_two_places_of_a_stack_counts_in_both():
    mix = nn.Softmax(-1)
    with pytest.warns(UserWarning, match="who reads 0, 2 in Sequential"):
        topology = find_topology(nn.Sequential(nn.Linear(4, 4), mix, nn.Linear(4, 4), mix, nn.Linear(4, 4)))
    assert topology.wiring == {"0": (), "2": (), "4": ()}
    twice = nn.Linear(4, 4)
    with pytest.warns(UserWarning, match="who reads 0 in Sequential"):
        find_topology(nn.Sequential(twice, nn.ReLU(), twice))


class Residual(nn.Sequential):
    """Looks like a stack and is none: what comes in is read behind it too."""

    def forward(self, x):
        return x + super().forward(x)


def test_a_stack_with_a_forward_of_its_own_is_not_taken_for_a_plain_one():
    inner = Residual(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    topology = find_topology(nn.Sequential(nn.Linear(3, 4), inner, nn.Linear(4, 2)))
    expected = {("0", n): {("1.0", n)} for n in range(4)} | {("1.0", n): {("1.2", n)} for n in range(4)}
    assert readers_of(topology) == expected | {("1.2", n): {("2", n)} for n in range(4)}


class Own(nn.Module):
    """A model that reads one tensor twice."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.left(hidden).sum(-1, keepdim=True) + self.right(hidden)


class Unheard(Own):
    """A model that no guess of its inputs fits."""

    def forward(self, x, y):
        return super().forward(x) + y


def test_an_unknown_model_warns_once_and_names_its_layers():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        topology = find_topology(Unheard())
    (warning,) = caught
    for word in ("first", "left", "right", "Unheard", "readers=", "example"):
        assert word in str(warning.message)
    assert topology.wiring == {"first": (), "left": (), "right": ()}


def test_attach_warns_once_from_the_users_own_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        isf.attach(Unheard(), isf.Ising(), examples=10)
    (warning,) = caught
    assert warning.filename == __file__


def test_stated_readers_are_taken_at_their_word():
    topology = find_topology(Own(), {"first": ["left", "right"]})
    assert topology.wiring == {
        "first": (Reading(slice(0, 4), ("left", "right"), slice(0, 4)),),
        "left": (),
        "right": (),
    }
    assert find_topology(Own(), {}).wiring == {"first": (), "left": (), "right": ()}  # stated: nobody reads anything


def test_stated_readers_overrule_what_is_known():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert readers_of(find_topology(model, {"0": ["2"]})) == {("0", n): {("2", n)} for n in range(4)}


@pytest.mark.parametrize(
    ("readers", "message"),
    [
        ({"frist": ["left"]}, r"readers names \['frist'\].*'first', 'left', 'right'"),
        ({"first": ["lfet"]}, "'first' is said to be read by 'lfet'; the linear layers are .*'left'"),
        ({"first": ["left"], "left": ["right"]}, "'left' writes 5 nodes but 'right' reads 4"),
    ],
)
def test_statements_that_do_not_fit_are_refused(readers, message):
    with pytest.raises(ValueError, match=message):
        find_topology(Own(), readers)


def test_a_stated_circle_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="in a circle"):
        find_topology(model, {"0": ["1"], "1": ["0"]})


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(ValueError, match="Sequential has no linear layer to mask"):
        find_topology(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()))


def test_a_shared_layer_is_masked_once_and_subclasses_are_left_alone():
    class Special(nn.Linear):
        pass

    layer = nn.Linear(3, 3)
    model = nn.ModuleDict({"one": layer, "again": layer, "special": Special(3, 3)})
    assert list(maskable_layers(model)) == ["one"]


@torch.no_grad()
def test_readers_of_a_vit_are_the_layers_its_nodes_reach():
    """A node's output, pushed through the real network, moves what its readers see in that column and no other."""
    model = vit(depth=1).double()
    seen = {}
    for name in ("blocks.0.attn.proj", "blocks.0.mlp.fc2"):
        model.get_submodule(name).register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
    images = torch.randn(2, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model(images)
    before = dict(seen)
    for layer, row, reader in (("attn.qkv", 2 * WIDTH + 5, "attn.proj"), ("mlp.fc1", 7, "mlp.fc2")):
        bias = model.get_parameter(f"blocks.0.{layer}.bias")
        bias[row] += 1
        model(images)
        bias[row] -= 1
        moved = (seen[f"blocks.0.{reader}"] - before[f"blocks.0.{reader}"]).abs().amax((0, 1)) > 1e-9
        ((_, column),) = table(1)[f"blocks.0.{layer}", row]
        assert moved.nonzero().flatten().tolist() == [column]


@pytest.mark.filterwarnings("error")
def test_a_vit_with_another_head_is_run_and_found(tiny):
    model = tiny()
    model.head = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)).double()
    found, known = find_topology(model), find_topology(tiny())
    last = "blocks.1.mlp.fc2"
    assert {name: found.wiring[name] for name in known.layers if name not in (last, "head")} == {
        name: known.wiring[name] for name in known.layers if name not in (last, "head")
    }
    assert [reading.readers for reading in found.wiring[last]] == [("head.0",)]
    assert [reading.readers for reading in found.wiring["head.0"]] == [("head.2",)] and found.wiring["head.2"] == ()


def test_a_stacked_vit_with_another_head_says_so(tiny):
    model = tiny(replicas=2)
    model.head = nn.Sequential(StackedLinear(2, 8, 6), nn.GELU(), StackedLinear(2, 6, 3))
    with pytest.warns(UserWarning, match="head.0, head.2 in ViT is not known"):
        find_topology(model)


def test_nodes_of_embeddings_are_dropped_where_the_embedding_is_masked(tiny):
    assert find_topology(tiny(), include="head").embeddings == {}
    assert list(find_topology(tiny(), exclude="head").embeddings) == ["embedded"]


def test_layers_whose_weight_is_made_anew_at_every_call_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    prune.l1_unstructured(model[0], "weight", 0.5)
    parametrizations.spectral_norm(model[2])
    assert find_topology(model).layers == ("4",)
    with pytest.raises(ValueError, match="Linear has no linear layer to mask"):
        find_topology(prune.l1_unstructured(nn.Linear(2, 2), "weight", 0.5))
