"""Two gloo processes under FSDP2, q and curvature cut up like the weights; compared with one process in float64."""

import pytest
import torch

import isingformer as isf
import sharded_ranks
from isingformer.methods import attached_to
from ranks import METHODS, attached, batches, seen
from sharded_ranks import NAMES, network, settings, state, trained

pytestmark = pytest.mark.slow
PRECISION = 1e-9
"""Relative: float64 sums in another order, over some tens of operations a step."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def ranks(folder):
    """What both ranks saw, by scenario; one start, since starting takes most of the time."""
    return seen("all", folder, sharded_ranks.__file__)


def of(ranks, scenario):
    return [
        {key.partition("/")[2]: value for key, value in found.items() if key.startswith(f"{scenario}/")}
        for found in ranks
    ]


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        scale = float(wanted[name].abs().max()) if wanted[name].numel() else 0.0
        torch.testing.assert_close(found[name], wanted[name], rtol=PRECISION, atol=PRECISION * scale, msg=name)


def alone(name, steps):
    model = network()
    method = attached(model, METHODS[name], seeds=5)
    said = trained(model, method, steps, **settings(name))
    return {**state(model, method), "kl": said, "summary": torch.tensor(list(method.summary().values()))}


@pytest.mark.parametrize("name", NAMES)
def test_with_equal_masks_two_processes_are_one_with_the_whole_batch(ranks, name):
    steps = batches()
    if name == "expand":  # micro-batches: the first ones of both ranks, then the second ones
        order = torch.tensor([0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11])
        steps = [(x[order], y[order]) for x, y in steps]
    wanted = alone(name, steps)
    for found in of(ranks, name):
        assert_close(without_counts(found), without_counts(wanted))
    if name != "dropconnect":
        fresh = attached(network(), METHODS[name]).drop_probability()
        assert all((wanted[f"q {layer}"] - q).abs().max() > 1e-5 for layer, q in fresh.items())


def without_counts(found):
    """Between layers the flat sums hold examples and passes, and two processes make twice as many passes."""
    return {
        name: value for name, value in found.items() if name not in ("saved curvature.sums", "saved curvature.average")
    }


def test_each_process_keeps_its_pieces_alone(ranks):
    first, second = of(ranks, "kept")
    there, *_ = first["numbers"].tolist()
    layers = [name for name in first if name.startswith("piece")]
    for kept in zip(first["numbers"].tolist()[1:], second["numbers"].tolist()[1:], strict=True):
        assert there <= sum(kept) <= there + 2 * 2 * len(layers)  # two counts a layer beside the curvature
        assert max(kept) < 0.6 * there + 2 * len(layers)
    shapes = {name: (tuple(first[name].shape), tuple(second[name].shape)) for name in layers}
    assert shapes["piece first"] == ((4, 3), (3, 3)) and shapes["piece narrow"] == ((1, 7), (0, 7))
    assert shapes["piece block.down"] == ((7, 4), (7, 4))  # columns


def test_what_two_processes_saved_is_the_same_model_in_one(ranks, folder):
    model = isf.load(folder / "saved", network(seed=9))
    x = batches()[0][0]
    probs = isf.predict(model, x, samples=4, generator=torch.Generator().manual_seed(3)).probs
    for found in of(ranks, "saved"):
        assert_close({"o": found["saved output"], "p": found["probs"]}, {"o": model.eval()(x).detach(), "p": probs})
    assert attached_to(model).steps == 4


def test_it_goes_on_from_what_was_saved(ranks):
    model = network()
    method = attached(model, METHODS["expand"], seeds=5)
    trained(model, method, batches()[:4])
    trained(model, method, batches()[4:])
    wanted = without_counts(state(model, method))
    for found in of(ranks, "saved"):
        assert_close({name: found[name] for name in wanted}, wanted)


def test_detached_it_is_the_expected_network_in_the_same_pieces(ranks):
    for found in of(ranks, "saved"):
        assert_close({"output": found["detached"]}, {"output": found["expected"]})


def test_what_cannot_be_sharded_is_refused_in_one_line(ranks):
    for found in of(ranks, "refused"):
        assert {name: bool(said) for name, said in found.items()} == dict.fromkeys(
            ["sharded_first", "not_told", "not_sharded", "the_layer_itself", "needs_all", "explained"], True
        )
