"""Vision transformers of other libraries: the smaller network is ours, and equals theirs with masks."""

import copy

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.compress import (
    CompactViT,
    Selection,
    compress,
    compression_report,
    count_macs,
    count_weights,
    load_compact,
    probability_graph,
    recover,
    remove,
    save_compact,
    share_masks,
    sparsify,
)
from isingformer.compress.latency import latency_ms
from isingformer.compress.shape import shape_of
from isingformer.methods.measure import model_outputs
from isingformer.nn.masked import posteriors

SIZE, CLASSES, WIDTH, HEADS, HIDDEN = 8, 3, 16, 2, 24


def of_transformers(**changes):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        **{"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": HIDDEN,
           "image_size": SIZE, "patch_size": 4, "num_channels": 1, "num_labels": CLASSES, "initializer_range": 0.3,
           **changes}
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def imported(name):
    """A library that may be absent, or there and broken."""
    try:
        return pytest.importorskip(name)
    except (ImportError, RuntimeError, AttributeError) as error:
        pytest.skip(f"{name} cannot be imported: {error}")


def of_torchvision(**changes):
    models = imported("torchvision.models.vision_transformer")
    return models.VisionTransformer(
        **{"image_size": SIZE, "patch_size": 4, "num_layers": 2, "num_heads": HEADS, "hidden_dim": WIDTH,
           "mlp_dim": HIDDEN, "num_classes": CLASSES, **changes}
    )  # fmt: skip


def of_timm(**changes):
    models = imported("timm.models.vision_transformer")
    return models.VisionTransformer(
        **{"img_size": SIZE, "patch_size": 4, "depth": 2, "num_heads": HEADS, "embed_dim": WIDTH,
           "mlp_ratio": HIDDEN / WIDTH, "num_classes": CLASSES, **changes}
    )  # fmt: skip


BUILD = {"transformers": of_transformers, "torchvision": of_torchvision, "timm": of_timm}


def trained(library, method=None, steps=4, **changes):
    """A model after a few steps in double precision, with a q that differs from weight to weight, in eval mode."""
    torch.manual_seed(0)
    model = BUILD[library](**changes).double()
    with torch.no_grad():
        for parameter in model.parameters():  # libraries begin with heads and biases of zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    channels = shape_of(model).channels
    handle = isf.attach(
        model, method or isf.Ising(delta=0.3, warmup=0, refresh=2), examples=50,
        example=torch.zeros(1, channels, SIZE, SIZE, dtype=torch.float64),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        x, y = torch.randn(6, channels, SIZE, SIZE, dtype=torch.float64), torch.randint(CLASSES, (6,))
        (F.cross_entropy(model_outputs(model(x)), y) + handle.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
    if isinstance(handle.method, isf.Ising):
        for part in posteriors(model).values():
            part.drop.copy_(torch.rand(part.drop.shape))
    return model.eval(), torch.randn(7, channels, SIZE, SIZE, dtype=torch.float64)


def rows_of(library, model, block):
    """By what they write, q of the rows of a block's layers, found by the names of that library alone."""
    layers = {name: part.drop for name, part in posteriors(model).items()}
    if library == "transformers":
        mine = [q for name, q in layers.items() if f".{block}." in name]  # query, key, value, output, two of the MLP
        return {"query": mine[0], "key": mine[1], "value": mine[2], "mlp": mine[4]}
    if library == "torchvision":
        at = f"encoder.layers.encoder_layer_{block}."
        qkv, mlp = layers[at + "self_attention.in_proj"], layers[at + "mlp.0"]
    else:
        qkv, mlp = layers[f"blocks.{block}.attn.qkv"], layers[f"blocks.{block}.mlp.fc1"]
    return dict(zip(("query", "key", "value"), qkv.chunk(3), strict=True)) | {"mlp": mlp}


def masked(library, model, selection):
    """The model itself with q = 1 on every weight that writes a removed node."""
    model = copy.deepcopy(model)
    for block in range(2):
        q = rows_of(library, model, block)
        q["mlp"][~selection.keep[f"blocks.{block}.mlp"]] = 1
        for name in ("query", "key"):
            q[name][~selection.keep[f"blocks.{block}.qk"]] = 1
        q["value"][~selection.keep[f"blocks.{block}.value"]] = 1
    return model


KINDS = {"units": ("mlp",), "channels": ("qk", "value"), "all": ("mlp", "qk", "value")}


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("library", BUILD)
def test_what_remains_equals_the_masked_model(library, kinds, random_selection):
    model, x = trained(library)
    selection = random_selection(shape_of(model), KINDS[kinds])
    reference = model_outputs(masked(library, model, selection)(x))
    for bayesian in (False, True):
        smaller = remove(model, selection, bayesian=bayesian)
        assert type(smaller) is CompactViT and count_weights(smaller) < count_weights(model)
        assert (smaller(x) - reference).abs().max() < 1e-10


@pytest.mark.parametrize("library", BUILD)
def test_heads_go_whole(library):
    model, x = trained(library)
    everything = Selection.everything(shape_of(model))
    gone = [(f"blocks.1.{kind}", channel) for kind in ("qk", "value") for channel in range(WIDTH // HEADS)]
    selection = everything.without(gone)
    smaller = remove(model, selection)
    assert [len(block.value) for block in smaller.shape.blocks] == [2, 1]
    assert (smaller(x) - model_outputs(masked(library, model, selection)(x))).abs().max() < 1e-10


@pytest.mark.parametrize(
    "changes", [{"qkv_bias": False}, {"layer_norm_eps": 0.1}, {"num_channels": 3, "patch_size": 2}], ids=str
)
def test_variants_that_can_be_held(changes):
    model, x = trained("transformers", **changes)
    smaller = compress(model, weights=0.7, images=x)
    labels = torch.zeros(len(x), dtype=torch.long)
    report = compression_report(model, smaller, x, labels, samples=2)
    for side, network in ((report.before, model), (report.after, smaller)):
        assert side.parameters == sum(p.numel() for p in network.parameters())
    assert smaller.shape.eps == changes.get("layer_norm_eps", 1e-12)
    assert (probability_graph(model)(x) - model_outputs(model(x)).softmax(-1)).abs().max() < 1e-10


def test_the_posterior_comes_along():
    model, x = trained("transformers")
    smaller = compress(model, macs=0.6, images=x, bayesian=True)
    old, new = isf.attached_to(model), isf.attached_to(smaller)
    assert (new.method, new.steps, new.examples) == (old.method, old.steps, old.examples)
    assert isf.predict(smaller, x, samples=6).epistemic.max() > 0
    before = {name: q.clone() for name, q in new.drop_probability().items()}
    recover(smaller, x, torch.randint(CLASSES, (7,)), steps=4, teacher=model, samples=2)
    assert any((q != before[name]).any() for name, q in new.drop_probability().items())


def test_q_prior_and_curvature_are_row_by_row_the_same(random_selection):
    model, _ = trained("transformers")
    selection = random_selection(shape_of(model), ("mlp", "qk", "value"))
    new = isf.attached_to(remove(model, selection, bayesian=True))
    old = isf.attached_to(model)
    names = list(old.parts.posteriors)
    query, key, value = names[1:4]
    for what in ("drop_probability", "curvature"):
        given, found = getattr(old, what)(), getattr(new, what)()
        fused = torch.cat([given[query], given[key], given[value]])
        torch.testing.assert_close(found["blocks.0.attn.qkv"], fused[selection.rows("blocks.0.attn.qkv")])
        torch.testing.assert_close(found["embed"], given[names[0]])
        assert found["head"].any()
    parts = new.parts.posteriors
    assert parts["blocks.1.mlp.fc2"].noise_sd == old.parts.posteriors[names[12]].noise_sd


@pytest.mark.parametrize("method", [isf.Dropout(p=0.2), isf.DropConnect(p=0.2)], ids=lambda method: method.name)
def test_other_methods(method, random_selection, tmp_path):
    model, x = trained("transformers", method)
    smaller = compress(model, weights=0.6, images=x, bayesian=True)
    selection = random_selection(shape_of(model), ("mlp",))
    reference = model_outputs(masked("transformers", model, selection)(x))
    assert (remove(model, selection, bayesian=True)(x) - reference).abs().max() < 1e-10
    save_compact(smaller, tmp_path)
    loaded = load_compact(tmp_path)
    assert torch.equal(loaded(x), smaller(x))
    tied = [{name: part.tied for name, part in posteriors(network).items()} for network in (smaller, loaded)]
    assert tied[0] == tied[1] and all(tied[0].values()) is (method.name == "dropout")


def test_what_is_frozen_stays_frozen(random_selection):
    model, _ = trained("transformers")
    model.vit.embeddings.requires_grad_(False)
    model.vit.layernorm.requires_grad_(False)
    smaller = remove(model, random_selection(shape_of(model), ("mlp",)))
    frozen = {name for name, p in smaller.named_parameters() if not p.requires_grad}
    assert frozen == {"embed.weight", "embed.bias", "class_token", "position", "norm.weight", "norm.bias"}


def test_it_is_saved_and_reported(tmp_path):
    model, x = trained("transformers")
    model, x = model.float(), x.float()
    smaller = compress(model, macs=0.5, images=x)
    assert count_macs(smaller) <= 0.5 * count_macs(model)
    save_compact(smaller, tmp_path / "saved")
    assert torch.equal(load_compact(tmp_path / "saved")(x), smaller(x))
    assert (probability_graph(smaller)(x) - smaller(x).softmax(-1)).abs().max() < 1e-5
    report = compression_report(model, smaller, x, torch.zeros(7, dtype=torch.long), samples=2, latency_batch=1)
    assert report.before.macs == count_macs(model) and report.after.macs == count_macs(smaller)
    assert latency_ms(model, passes=1) > 0
    sparse = sparsify(model, share_masks(model, 0.5))
    assert type(sparse) is CompactViT and 0.4 < float((sparse.blocks[0].mlp.fc1.weight == 0).float().mean()) < 0.6


def test_the_model_is_untouched():
    model, x = trained("transformers")
    before, method = copy.deepcopy(model.state_dict()), isf.attached_to(model).state_dict()
    model.train()
    compress(model, macs=0.5, images=x, bayesian=True)
    assert model.training and isf.attached_to(model).attached
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(method[name], tensor) for name, tensor in isf.attached_to(model).state_dict().items())


@pytest.mark.parametrize(
    ("library", "changes", "message"),
    [
        ("transformers", {"hidden_act": "relu"}, r"this ViTForImageClassification has hidden_act='relu'"),
        ("torchvision", {"representation_size": 5}, "more than a linear layer for a head"),
        ("timm", {"global_pool": "avg"}, "global_pool='avg' instead of 'token'"),
        ("timm", {"init_values": 0.1}, r"blocks\.0\.ls1, a LayerScale"),
        ("timm", {"qk_norm": True}, r"blocks\.0\.attn\.q_norm, a "),
    ],
    ids=["activation", "head", "pool", "layer scale", "query norm"],
)
def test_what_a_smaller_network_cannot_hold(library, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        count_macs(BUILD[library](**changes))
    assert "\n" not in str(caught.value)


def test_a_model_that_computes_something_else_is_noticed():
    model, _ = trained("transformers")
    model.classifier.register_forward_hook(lambda layer, args, output: output * 2)
    with pytest.raises(ValueError, match=r"compress: .* is not in its list of layers \(outputs are off by"):
        compress(model, macs=0.5)


def test_frozen_layers_layers_left_out_and_untrained_models():
    model, _ = trained("transformers")
    name = next(name for name in posteriors(model) if name.endswith("fc1") or "intermediate" in name)
    model.get_submodule(name).weight.requires_grad_(False)
    with pytest.raises(ValueError, match=rf"compress: {name}\.weight is frozen"):
        compress(model, macs=0.5)
    other = of_transformers()
    isf.attach(other, isf.Ising(), examples=10)
    with pytest.raises(ValueError, match="this ViTForImageClassification was never trained"):
        compress(other, macs=0.5)
    some = of_transformers()
    handle = isf.attach(some, isf.DropConnect(), examples=10, exclude="classifier")
    handle.step()
    with pytest.raises(ValueError, match="compress: classifier carries no mask, since attach left it out"):
        compress(some, macs=0.5, score="magnitude")
    with pytest.raises(ValueError, match="compress: this ViTForImageClassification carries no method"):
        compress(of_transformers(), macs=0.5)
