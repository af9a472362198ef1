"""torchvision's own ViT, where torchvision is there and works."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import isingformer as isf
from families import (
    check_checkpointed,
    check_compiled,
    check_curvature,
    check_life,
    check_on_a_gpu,
    installed,
)
from isingformer.ising import Reading

models = installed("torchvision.models")

WIDTH, HEADS = 16, 2


def build(depth=2, **changes):
    torch.manual_seed(0)
    model = models.VisionTransformer(
        image_size=8, patch_size=4, num_layers=depth, num_heads=HEADS, hidden_dim=WIDTH, mlp_dim=24, num_classes=3,
        **changes,
    )  # fmt: skip
    nn.init.normal_(model.heads.head.weight, std=0.3)  # which begins at 0: then no other layer has a gradient
    return model


def batch(n=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, 8, 8, dtype=dtype, generator=generator), torch.randint(3, (n,), generator=generator)


def matrices(name, gradients):
    return gradients[f"{name}_weight" if name.endswith("in_proj") else f"{name}.weight"].flatten(1)


def test_life(tmp_path):
    check_life(build, *batch(), tmp_path)


def test_life_with_a_hidden_layer_in_the_head(tmp_path):
    check_life(lambda: build(representation_size=12), *batch(), tmp_path)


@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_curvature(sampling):
    check_curvature(build, *batch(dtype=torch.float64), matrices, sampling)


def test_who_reads_whom():
    wiring = isf.attach(build(), isf.Ising(), examples=10).parts.topology.wiring
    first, last = (f"encoder.layers.encoder_layer_{i}." for i in range(2))
    width, out = slice(0, WIDTH), (first + "self_attention.out_proj",)
    assert wiring["conv_proj"] == (Reading(width, (first + "self_attention.in_proj",), width),)
    assert wiring[first + "self_attention.in_proj"] == (
        Reading(width, out, width, WIDTH // HEADS),
        Reading(slice(WIDTH, 2 * WIDTH), out, width, WIDTH // HEADS),
        Reading(slice(2 * WIDTH, 3 * WIDTH), out, width),
    )
    assert wiring[out[0]] == (Reading(width, (first + "mlp.0",), width),)
    assert wiring[first + "mlp.3"] == (Reading(width, (last + "self_attention.in_proj",), width),)
    assert wiring[last + "mlp.3"] == (Reading(width, ("heads.head",), width),)
    assert wiring["heads.head"] == () and len(wiring) == 10


def test_gradient_checkpointing_sees_the_same_masks():
    def wrap(model):
        for block in model.encoder.layers:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

    check_checkpointed(build, *batch(), wrap)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_compiled():
    check_compiled(build(depth=1), *batch())


@pytest.mark.gpu
def test_vit_b_16_trains():
    model = models.vit_b_16(weights=None)
    nn.init.normal_(model.heads.head.weight, std=0.02)
    check_on_a_gpu(model, layers=1 + 4 * 12 + 1)
