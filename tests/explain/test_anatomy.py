import pytest
import torch
from torch import nn

import isingformer as isf
from isingformer.explain import anatomy


def test_the_parts_of_our_vit(tiny):
    model = tiny()
    parts = anatomy(model)
    assert (parts.heads, parts.width, parts.hidden, parts.channels, parts.patch) == (2, 8, 12, 1, 2)
    assert (parts.grid, parts.patches, parts.tokens, parts.pool) == ((2, 2), 4, 5, "class")
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert list(parts.layers) == linear  # all of them, in the order of the flow
    assert parts.blocks[1].key.layer == "blocks.1.attn.qkv" and parts.blocks[1].key.rows == slice(8, 16)
    through = [parts.tokens_through(name) for name in ("embed", "blocks.0.mlp.fc1", "head")]
    assert through == [4, 5, 1]


def test_tokens_have_names(tiny):
    parts = anatomy(tiny())
    assert [parts.token_name(t) for t in range(5)] == ["class", "(1, 1)", "(1, 2)", "(2, 1)", "(2, 2)"]


def test_channels_by_head(tiny):
    x = torch.arange(16.0).view(1, 2, 8)
    assert anatomy(tiny()).by_head(x)[0, 1].tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda tiny: nn.Linear(2, 2),
            "which are isf.ViT, ViTForImageClassification .* VisionTransformer of torchvision, got Linear",
        ),
        (lambda tiny: tiny(replicas=3), "got 3 stacked ones"),
        (lambda tiny: tiny(depth=0), "got depth 0"),
    ],
    ids=["another model", "stacked", "no block"],
)
def test_what_it_cannot_read_is_refused(tiny, make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        anatomy(make(tiny))


def test_the_grid_of_a_larger_image():
    model = isf.ViT(image_size=6, channels=3, patch=2, width=4, depth=1, heads=1, mlp=4, classes=2)
    assert anatomy(model).grid == (3, 3) and anatomy(model).channels == 3
