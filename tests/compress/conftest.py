"""Models with a posterior, selections by chance, and the masked model that removal is compared with."""

import copy

import pytest
import torch

import isingformer as isf
from isingformer.compress.selection import Selection
from isingformer.data import standardise
from isingformer.nn.masked import posteriors
from isingformer.train.batches import standardised
from training import one_step


def _attached(model, method=None, seed=0, steps=4):
    """The model after a few steps, with a q that differs from weight to weight, in eval mode."""
    torch.manual_seed(seed)
    like = model.head.weight
    handle = isf.attach(model, method or isf.Ising(delta=0.3, warmup=0, refresh=2), examples=50)
    x = torch.randn(8, 1, 4, 4, dtype=like.dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        one_step(model, handle, x, torch.randint(3, (8,)), optimizer)
    if isinstance(handle.method, isf.Ising):
        for part in posteriors(model).values():
            part.drop.copy_(torch.rand(part.drop.shape))
    return model.eval()


def _random_selection(shape, kinds, seed=0, share=0.6):
    """About that share of the nodes of these kinds stays, and all others."""
    generator = torch.Generator().manual_seed(seed)
    keep = dict(Selection.everything(shape).keep)
    for kind, size in shape.nodes().items():
        if kind.split(".")[-1] in kinds:
            keep[kind] = torch.rand(size, generator=generator) < share
    keep["residual"][0] = True  # one must
    return Selection(shape, keep)


def _masked_copy(model, selection):
    """The model with q = 1 on the weights of all removed nodes, by the names and rows of `nn/vit.py` alone."""
    masked = copy.deepcopy(model)
    drop = {name: part.drop for name, part in posteriors(masked).items()}
    gone = {kind: ~kept for kind, kept in selection.keep.items()}
    stream = gone["residual"]
    drop["embed"][stream] = 1
    drop["head"][:, stream] = 1
    for i in range(len(masked.blocks)):
        at = f"blocks.{i}."
        qkv = torch.cat([gone[at + "qk"], gone[at + "qk"], gone[at + "value"]])
        for name, rows, columns in (("attn.qkv", qkv, stream), ("mlp.fc1", gone[at + "mlp"], stream)):
            if at + name in drop:
                drop[at + name][rows] = 1
                drop[at + name][:, columns] = 1
        for name in ("attn.proj", "mlp.fc2"):
            if at + name in drop:
                drop[at + name][stream] = 1
    return masked


@pytest.fixture
def attached():
    return _attached


@pytest.fixture
def random_selection():
    return _random_selection


@pytest.fixture
def masked_copy():
    return _masked_copy


@pytest.fixture(scope="session")
def digits():
    """(images, labels) of the digits, standardised: to train on, and to test on."""
    data = isf.load_data("digits")
    mean, sd = standardise(data.train)
    return [(standardised(part.x, mean, sd), part.y) for part in (data.train, data.test)]


@pytest.fixture(scope="session")
def trained(digits):
    """A small ViT that Ising trained on the digits. Tests must not change it."""
    torch.manual_seed(0)
    (x, y), _ = digits
    model = isf.ViT(image_size=8, channels=1, patch=4, width=32, depth=2, heads=4, mlp=48, classes=10)
    handle = isf.attach(model, isf.Ising(delta=0.1, warmup=20, evidence_weight=10.0, node_rate=0.0), examples=len(x))
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    for step in range(240):
        rows = torch.randint(len(x), (64,))
        optimizer.param_groups[0]["lr"] = 4e-3 * (1 - step / 240)
        one_step(model, handle, x[rows], y[rows], optimizer)
    return model.eval()
