"""Counting weights and multiply-adds."""

import dataclasses
import json

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import isingformer as isf
from isingformer.compress import CompactViT, Shape, count_macs, count_weights
from isingformer.compress.shape import BlockShape, shape_of

TINY = {"image_size": 4, "channels": 1, "patch": 2, "width": 4, "depth": 1, "heads": 1, "mlp": 4, "classes": 2}
UNEVEN = Shape(
    image_size=4, channels=1, patch=2, width=5, classes=3, pool="class", full_width=8, head_size=4,
    blocks=(BlockShape((3, 0), (2, 4), 7), BlockShape((), (), 6), BlockShape((2, 2), (2, 2), 0)),
)  # fmt: skip


def test_a_vit_by_hand(tiny):
    """5 tokens (1 and 2 x 2 patches of 4 pixels), width 8, 2 blocks, 2 heads of 4, 12 hidden units, 3 classes."""
    model = tiny()
    block = 8 * 24 + 8 * 8 + 8 * 12 + 12 * 8
    assert count_weights(model) == 4 * 8 + 2 * block + 8 * 3
    assert count_macs(model) == 4 * (4 * 8) + 2 * (5 * block + 2 * 5 * 5 * 8) + 8 * 3


def test_an_uneven_network_by_hand():
    """A head without query-key channels takes a mean; a constant attention or MLP costs nothing.

    Of the last block, 5 keys and values but 1 query, and with it 1 use of `proj`, since the head reads one token.
    """
    first = (5 * (2 * 3 + 6) + 6 * 5) + (5 * 7 + 7 * 5)
    second = 5 * 6 + 6 * 5
    third = 5 * 12 + 4 * 5
    assert UNEVEN.weights() == 4 * 5 + first + second + third + 5 * 3
    assert UNEVEN.macs() == 4 * 20 + 5 * (first + second) + 25 * (3 + 2) + (1 * 4 + 5 * 8 + 4) * 5 + 5 * (2 * 4) + 15
    whole = dataclasses.replace(UNEVEN, every_token=True)
    assert whole.macs() == 4 * 20 + 5 * (first + second + third) + 25 * (3 + 2) + 25 * (2 * 4) + 15


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_they_agree_with_torch(tiny, pool):
    """torch's counter has two operations for a multiply-add."""
    uneven = dataclasses.replace(UNEVEN, pool=pool)
    shapes = (uneven, dataclasses.replace(uneven, every_token=True), shape_of(tiny(pool=pool)).compact())
    for model in (tiny(torch.float32, pool=pool), *(CompactViT(**shape.config()) for shape in shapes)):
        matrices = [m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear)]
        assert count_weights(model) == sum(matrices)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it overlooks fused kernels
            model(torch.zeros(1, 1, 4, 4))
        assert counter.get_total_flops() == 2 * count_macs(model)


def test_a_shape_goes_through_json():
    assert Shape.from_config(json.loads(json.dumps(UNEVEN.config()))) == UNEVEN


def test_an_attached_model_has_the_same_shape(tiny):
    model = tiny()
    before = shape_of(model)
    isf.attach(model, isf.Plain(), examples=10)
    assert shape_of(model) == before


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (torch.nn.Linear(2, 2), "expected a ViT or a CompactViT, got Linear"),
        (
            isf.ViT(image_size=4, channels=1, patch=2, width=4, depth=1, heads=1, mlp=4, classes=2, replicas=3),
            "stack of 3",
        ),
    ],
    ids=["another model", "a stack"],
)
def test_other_models_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        count_macs(model)
