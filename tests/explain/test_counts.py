import pytest
import torch

import isingformer as isf
from isingformer.explain import anatomy
from isingformer.explain.counts import count, drawn_counts, drawn_masks, probable_masks
from isingformer.explain.networks import Networks


def full(model):
    return {name: torch.ones_like(layer.weight, dtype=torch.bool) for name, layer in model.named_modules()
            if isinstance(layer, torch.nn.Linear)}  # fmt: skip


# tiny: 4 patches of 4 pixels, 5 tokens, width 8, 2 heads of 4 channels, 12 units, 2 blocks, 3 classes
BLOCK = 24 * 8 + 8 * 8 + 12 * 8 + 8 * 12
WEIGHTS = 8 * 4 + 2 * BLOCK + 3 * 8
ATTENTION = 2 * 5**2 * (8 + 8)  # both blocks: scores and mixing, 8 channels each
MACS = 4 * 8 * 4 + 5 * 2 * BLOCK + 3 * 8 + ATTENTION


def test_nothing_dropped(tiny):
    model = tiny()
    found = count(anatomy(model), full(model))
    assert (found.weights, found.heads, found.macs) == (WEIGHTS, 4, MACS)


def test_a_head_that_nothing_leaves_is_not_active(tiny):
    model = tiny()
    kept = full(model)
    kept["blocks.0.attn.proj"][:, 4:] = False  # the columns of the second head
    found = count(anatomy(model), kept)
    assert found.heads == 3 and found.weights == WEIGHTS - 8 * 4
    assert found.macs == MACS - 5 * 8 * 4 - 5**2 * (4 + 4)  # its scores are not needed either


def test_a_channel_without_queries_costs_no_scores(tiny):
    model = tiny()
    kept = full(model)
    kept["blocks.1.attn.qkv"][0] = False
    found = count(anatomy(model), kept)
    assert found.heads == 4 and found.macs == MACS - 5 * 8 - 5**2


def test_the_most_probable_architecture_keeps_what_is_likelier_kept(tiny):
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    model.head.posterior.drop[0, :5] = torch.tensor([0.49, 0.5, 0.51, 0.9, 0.0])
    assert probable_masks(model)["head"][0, :5].tolist() == [True, False, False, False, True]
    assert count(anatomy(model), probable_masks(model)).weights == WEIGHTS - 3


@pytest.mark.parametrize("method", [isf.DropConnect(p=0.4, weight_noise=0.0), isf.Dropout(p=0.4, weight_noise=0.0)],
                         ids=lambda method: method.name)  # fmt: skip
def test_drawn_masks_are_those_of_the_passes(tiny, method):
    model = tiny()
    isf.attach(model, method, examples=10)
    networks = Networks.draw(model, 3)
    drawn = networks.each(lambda: model.blocks[0].mlp.fc1.posterior.draw(model.blocks[0].mlp.fc1.weight).detach())
    for t, weight in enumerate(drawn):
        mask = drawn_masks(networks, t)["blocks.0.mlp.fc1"]
        assert torch.equal(weight, model.blocks[0].mlp.fc1.weight * mask) and not mask.all()


def test_drawn_weights_have_the_posterior_s_mean_and_sd(tiny):
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.4), examples=10)
    found = drawn_counts(Networks.draw(model, 400), anatomy(model)).weights
    mean, sd = 0.6 * WEIGHTS, (0.4 * 0.6 * WEIGHTS) ** 0.5
    assert abs(float(found.mean) - mean) < 5 * sd / 400**0.5
    assert abs(float(found.sd) / sd - 1) < 5 / 800**0.5  # the relative error of an sd is 1 / sqrt(2 T)


def test_nothing_is_uncertain_where_nothing_is_dropped(tiny):
    model = tiny()
    isf.attach(model, isf.Plain(), examples=10)
    found = drawn_counts(Networks.draw(model, 3), anatomy(model))
    assert found.weights.samples.tolist() == [WEIGHTS] * 3 and found.macs.samples.tolist() == [MACS] * 3
