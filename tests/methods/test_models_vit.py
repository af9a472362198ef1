"""The ViT classifier of transformers: a convolution for patches, separate query, key and value layers."""

import re

import pytest
import torch

import isingformer as isf
from families import check_checkpointed, check_compiled, check_curvature, check_life, train

transformers = pytest.importorskip("transformers")

PATCHES = "vit.embeddings.patch_embeddings.projection"


def build(attention="sdpa", depth=2, **changes):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=depth, num_attention_heads=2, intermediate_size=24, image_size=8,
        patch_size=4, num_channels=1, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation=attention, initializer_range=0.3, **changes,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def batch(n=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(n, 1, 8, 8, dtype=dtype, generator=generator)
    return images, torch.randint(3, (n,), generator=generator)


def matrices(name, gradients):
    return gradients[f"{name}.weight"].flatten(1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_life(tmp_path, attention):
    check_life(lambda: build(attention), *batch(), tmp_path)


@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_curvature(sampling):
    check_curvature(build, *batch(dtype=torch.float64), matrices, sampling)


def test_without_biases(tmp_path):
    check_life(lambda: build(qkv_bias=False), *batch(), tmp_path)


def readers(topology):
    return {name: [(each.readers, each.head_size) for each in found] for name, found in topology.wiring.items()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_who_reads_whom(attention):
    handle = isf.attach(build(attention), isf.Ising(), examples=10)
    found = readers(handle.parts.topology)
    blocks = [[name for name in found if re.search(rf"\blayers?\.{i}\.", name)] for i in range(2)]
    attentions = [[name for name in own if ".attention." in name] for own in blocks]  # whatever a version calls them
    (fc1, fc2), (last1, last2) = ([name for name in own if ".attention." not in name] for own in blocks)
    inputs = [tuple(own[:3]) for own in attentions]
    assert found[PATCHES] == [(inputs[0], None)]
    for (query, key, value, out), after in zip(attentions, (fc1, last1), strict=True):
        assert found[query] == found[key] == [((out,), 8)] and found[value] == [((out,), None)]
        assert found[out] == [((after,), None)]
    assert found[fc1] == [((fc2,), None)] and found[fc2] == [(inputs[1], None)]
    assert found[last1] == [((last2,), None)] and found[last2] == [(("classifier",), None)]
    assert found["classifier"] == []


def test_a_detached_model_goes_through_its_own_library(tmp_path):
    model, (x, y) = build(), batch()
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10)
    train(model, handle, x, y)
    model.save_pretrained(tmp_path / "attached")
    handle.detach("expected").eval()
    model.save_pretrained(tmp_path / "detached")
    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path / "detached").eval()
    assert torch.equal(loaded(x).logits, model(x).logits)
    means = transformers.ViTForImageClassification.from_pretrained(tmp_path / "attached")
    assert means.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_gradient_checkpointing_sees_the_same_masks(reentrant):
    check_checkpointed(build, *batch(), lambda model: model.gradient_checkpointing_enable({"use_reentrant": reentrant}))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_compiled():
    check_compiled(build(depth=1), *batch())
