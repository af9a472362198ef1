import dataclasses
import math

import pytest
import torch

import isingformer as isf
from isingformer.explain import anatomy, architecture
from isingformer.explain.architecture import head_keep, mask_entropy, pixel_keep, surely_not_zero, unit_keep


@pytest.fixture
def attached(tiny):
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.5), examples=10)
    return model


def drops(model):
    return {name: torch.zeros_like(layer.weight) for name, layer in model.named_modules()
            if isinstance(layer, torch.nn.Linear)}  # fmt: skip


def test_keep_of_heads_by_hand(tiny):
    model = tiny()
    drop = drops(model)
    drop["blocks.0.attn.qkv"][4:8] = 1.0  # the queries of the second head: 4 of its 16 rows and columns
    drop["blocks.1.attn.proj"][:, :4] = 0.5  # the way out of the first
    found = head_keep(anatomy(model), drop)
    assert found.tolist() == [[1.0, 0.75], [1 - 0.5 / 4, 1.0]]


def test_keep_of_units_and_pixels_by_hand(tiny):
    model = tiny()
    drop = drops(model)
    drop["blocks.1.mlp.fc1"][2] = 1.0
    drop["blocks.0.mlp.fc2"][:4, 5] = 1.0  # half of what leaves a unit
    drop["embed"][:2, 3] = 1.0  # two of the eight weights that read a patch's last pixel
    units, pixels = unit_keep(anatomy(model), drop), pixel_keep(anatomy(model), drop)
    assert units.shape == (2, 12) and units[1, 2] == 0.5 and units[0, 5] == 0.75 and units.sum() == 24 - 0.75
    assert pixels.tolist() == [[[1.0, 1.0], [1.0, 0.75]]]


def test_entropy_by_hand():
    assert mask_entropy(torch.tensor([0.0, 0.5, 1.0])).tolist() == pytest.approx([0, math.log(2), 0])
    assert mask_entropy(torch.tensor(0.2)).item() == pytest.approx(-0.2 * math.log(0.2) - 0.8 * math.log(0.8))


def test_the_whole_of_a_model(attached):
    attached.head.posterior.drop.fill_(0.0)
    found = architecture(attached, samples=7, generator=torch.Generator().manual_seed(0))
    weights = found.full.weights
    head = found.layers[-1]
    assert [layer.name for layer in found.layers] == list(anatomy(attached).layers)
    assert (head.name, head.weights, head.keep, head.entropy, head.probable) == ("head", 24, 1.0, 0.0, 1.0)
    assert found.layers[0].surely == 0.0  # a spike at 0 with a mass of 1/2
    assert (found.layers[0].keep, found.layers[0].probable) == (0.5, 0.0)
    assert found.masks == weights and found.entropy == pytest.approx((weights - 24) * math.log(2))
    assert found.probable.weights == 24 and found.probable.heads == 0  # at exactly 1/2 a weight is not kept
    assert len(found.drawn.weights.samples) == 7
    drawn = dataclasses.replace(found, pixels=torch.tensor([[[0.1, 0.2], [0.3, 0.4]]])).image_of_pixels()
    top, bottom = [0.1, 0.2, 0.1, 0.2], [0.3, 0.4, 0.3, 0.4]  # four patches of two by two pixels
    assert torch.equal(drawn, torch.tensor([[top, bottom, top, bottom]]))


def test_node_dropout_has_one_mask_a_node(tiny):
    model = tiny()
    isf.attach(model, isf.Dropout(p=0.5), examples=10)
    found = architecture(model, samples=2)
    nodes = 2 * (8 + 8 + 8 + 12)  # inputs of qkv, proj, fc1, fc2 in both blocks; embedding and head are not masked
    assert found.entropy == pytest.approx(nodes * math.log(2))


def test_masks_that_go_by_node_are_not_counted_by_weight(tiny):
    model = tiny()
    isf.attach(model, isf.Ising(delta=0.1, evidence="none", coupling=0.0, node_rate=0.2, floor=0.1), examples=10)
    found = architecture(model, samples=2)
    inputs = sum(q.shape[1] for q in found.drop.values())  # every q is delta, below the node rate: one number a node
    assert found.masks > 5 * inputs
    assert found.entropy == pytest.approx(inputs * float(mask_entropy(torch.tensor(0.1))), rel=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["point", "noise"])
def test_sure_weights_are_those_whose_interval_leaves_out_zero(noise):
    location = torch.tensor([[-1.0, 1.0, 0.15, -0.15, 0.17], [2.0, -2.0, 0.0, 0.3, -0.3]]).double()
    drop = torch.tensor([[0.0, 0.04, 0.0, 0.0, 0.0], [0.06, 0.04, 0.0, 0.5, 0.06]]).double()
    weights = isf.WeightPosterior(location, drop, noise)
    low, high = weights.interval(0.9)
    found = surely_not_zero(weights, 0.9)
    # Bisection ends within 1e-12 of an atom at 0, on either side of it.
    assert torch.equal(found, (low > 1e-9) | (high < -1e-9))
    assert found.any() and not found.all()


def test_tables_print(attached):
    found = architecture(attached, samples=5)
    text = str(found.layer_table())
    assert "blocks.1.attn.proj" in text and "0.693" in text
    assert [row[0] for row in found.head_table().rows] == ["1", "2"]
    counts = found.count_table(0.8)
    assert counts.header == ("what", "in all", "most probable", "drawn, mean", "10%", "90%")
    low, high = found.drawn.macs.interval(0.8)
    assert counts.rows[2] == ("multiply-adds", found.full.macs, found.probable.macs, float(found.drawn.macs.mean),
                              float(low), float(high))  # fmt: skip


def test_the_posterior_of_weights_by_hand(attached):
    with torch.no_grad():
        for layer in (attached.head, attached.embed):
            layer.weight.zero_()
        attached.head.weight[1, 2] = -3.0
        attached.head.weight[2, 0] = 2.9
        attached.embed.weight[7, 3] = 2.0
    attached.head.posterior.drop.fill_(0.2)
    attached.head.posterior.noise_sd = attached.embed.posterior.noise_sd = 0.0
    attached.embed.posterior.drop.fill_(0.04)  # too little for a central interval of 90% to reach 0
    found = architecture(attached, samples=2)
    rows = {row[0]: row[1:] for row in found.weight_table(0.9).rows}
    assert list(rows) == list(anatomy(attached).layers)
    # sqrt(q (1 - q)) |m| of two of 24 weights, the others are 0; kept with 0.8, so the upper end is the spike
    sd, place, mean, low, high, keep = rows["head"]
    assert (sd, place, keep) == (pytest.approx(0.4 * 5.9 / 24), "3 → 2", pytest.approx(0.8))
    assert (mean, low, high) == pytest.approx((-2.4, -3.0, 0.0), abs=1e-6)
    assert rows["embed"][1:] == ("4 → 8", *(pytest.approx(value, abs=1e-6) for value in (1.92, 2.0, 2.0, 0.96)))
    attached.head.weight.data.zero_()
    assert float(found.weights["head"].location[1, 2]) == -3.0  # what was found stays


def test_a_model_without_a_method_is_refused(tiny):
    with pytest.raises(ValueError, match="carries no method"):
        architecture(tiny())
