"""Vision transformers of other libraries: with the same weights and masks, the same explanations as of our own."""

import pytest
import torch
from torch import nn

import isingformer as isf
from families import train
from isingformer.explain import anatomy, explain
from isingformer.explain.networks import Networks
from isingformer.explain.traces import trace
from isingformer.nn.masked import posteriors

WIDTH, HEADS, MLP, SIDE, PATCH, CLASSES = 8, 2, 12, 4, 2, 3


def hugging_face(attention="sdpa", **changes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            **{
                "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": MLP,
                "image_size": SIDE, "patch_size": PATCH, "num_channels": 1, "num_labels": CLASSES,
                "layer_norm_eps": 1e-5, "attn_implementation": attention, "initializer_range": 0.3, **changes,
            }
        )
    )  # fmt: skip


class EncoderBlock(nn.Module):
    """Laid out as torchvision's, which is not needed for it."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.hidden_dim = HEADS, WIDTH
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.self_attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, MLP), nn.GELU(), nn.Dropout(0.0), nn.Linear(MLP, WIDTH))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    __module__ = "torchvision.models.vision_transformer"

    def __init__(self):
        super().__init__()
        self.image_size, self.mlp_dim = SIDE, MLP
        self.conv_proj = nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, 1 + (SIDE // PATCH) ** 2, WIDTH))
        self.encoder.layers = nn.Sequential()
        for i in range(2):
            self.encoder.layers.add_module(f"encoder_layer_{i}", EncoderBlock())
        self.encoder.ln = nn.LayerNorm(WIDTH)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(WIDTH, CLASSES))

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.encoder.pos_embedding
        return self.heads(self.encoder.ln(self.encoder.layers(x))[:, 0])


BUILDS = {"transformers": hugging_face, "torchvision": VisionTransformer}


def parts_of(ours, other):
    """Pairs of our layer and its rows with the other model's layer and its rows, all of both."""
    for mine, theirs in zip(ours.blocks, other.blocks, strict=True):
        for name in ("query", "key", "value"):
            yield getattr(mine, name).layer, getattr(mine, name).rows, *vars(getattr(theirs, name)).values()
        for name in ("proj", "fc1", "fc2"):
            yield getattr(mine, name), slice(None), getattr(theirs, name), slice(None)
    yield ours.embed, slice(None), other.embed, slice(None)
    yield ours.classifier, slice(None), other.classifier, slice(None)


@torch.no_grad()
def copy_weights(ours, other):
    """Everything that our ViT holds, into a model of another library."""
    here, there = anatomy(ours), anatomy(other)
    state = dict(other.named_parameters())

    def of(layer, kind):
        dotted = state.get(f"{layer}.{kind}")
        return state[f"{layer}_{kind}"] if dotted is None else dotted

    for mine, rows, theirs, their_rows in parts_of(here, there):
        for kind in ("weight", "bias"):
            own = ours.get_submodule(mine).get_parameter(kind)[rows]
            target = of(theirs, kind)
            target[their_rows].copy_(own.view(target[their_rows].shape))
    norms = [(a, b) for m, t in zip(here.blocks, there.blocks, strict=True) for a, b in
             ((m.first, t.first), (m.middle, t.middle))]  # fmt: skip
    for mine, theirs in [*norms, (here.norm, there.norm)]:
        other.get_submodule(theirs).load_state_dict(ours.get_submodule(mine).state_dict())
    token = next(p for name, p in state.items() if name.endswith(("cls_token", "class_token")))
    position = next(p for name, p in state.items() if name.endswith(("position_embeddings", "pos_embedding")))
    token.copy_(ours.class_token)
    position.copy_(ours.position)


@pytest.fixture(params=list(BUILDS))
def pair(request, tiny):
    """Our ViT and another library's with the same weights, each with the same masks: q is 0 or 1, so all draws agree.

    What is drawn at random cannot be the same: the layers are other ones.
    """
    ours, other = tiny(depth=2), BUILDS[request.param]().double()
    with torch.no_grad():
        for module in ours.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(0.3 * torch.randn_like(module.weight))
    copy_weights(ours, other)
    for model in (ours, other):
        isf.attach(model, isf.DropConnect(p=0.2, weight_noise=0.0), examples=10)
    mine, theirs = posteriors(ours), posteriors(other)
    torch.manual_seed(3)
    for part in mine.values():
        part.drop.copy_(torch.rand_like(part.drop) < 0.2)
    for layer, rows, name, its in parts_of(anatomy(ours), anatomy(other)):
        theirs[name].drop[its] = mine[layer].drop[rows]
    return ours, other


def test_the_same_weights_and_masks_are_explained_alike(pair, batch):
    ours, other = pair
    x = batch(3)[0]
    mine, theirs = (explain(model, x, samples=2, target=[0, 1, 2]) for model in (ours, other))
    torch.testing.assert_close(theirs.prediction.samples, mine.prediction.samples)
    for name in ("heads", "rollout", "raw", "entropy"):
        found, wanted = (getattr(one.attention, name).samples for one in (theirs, mine))
        torch.testing.assert_close(found, wanted)
    for name in ("patches", "heads", "units"):
        found, wanted = (getattr(one.relevance, name).samples for one in (theirs, mine))
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(theirs.paths, mine.paths, strict=True):
        assert [(p.tokens, p.moves) for p in found] == [(p.tokens, p.moves) for p in wanted]
        assert [p.share for p in found] == pytest.approx([p.share for p in wanted])
    found, wanted = theirs.architecture, mine.architecture
    for name in ("heads", "units", "pixels"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    assert (found.full, found.probable) == (wanted.full, wanted.probable)
    assert torch.equal(found.drawn.macs.samples, wanted.drawn.macs.samples)
    assert found.probable.weights < found.full.weights


def test_the_page_and_the_figures_can_be_made(pair, batch, tmp_path):
    _, other = pair
    found = explain(other, batch(1)[0], samples=2)
    history = isf.Recorder(isf.attached_to(other))
    history()
    page = found.write_page(tmp_path / "page.html", history=history.history).read_text(encoding="utf-8")
    last = anatomy(other).blocks[1]
    assert all(name in page for name in (last.query.layer, last.fc2, 'id="training"'))
    assert found.plot(0).axes and found.architecture.plot().axes


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_what_the_library_itself_reports(attention):
    """`output_attentions` of the eager implementation, under the same drawn networks."""
    eager, model = hugging_face("eager").eval(), hugging_face(attention).eval()
    model.load_state_dict(eager.state_dict())
    for one in (eager, model):
        isf.attach(one, isf.DropConnect(p=0.3), examples=10)
    parts, x = anatomy(model), torch.randn(3, 1, SIDE, SIDE)
    key = torch.Generator().manual_seed(7)
    found = Networks.draw(model, 3, key).each(lambda: trace(model, parts, x, torch.tensor([0, 1, 2])).attention)
    key.manual_seed(7)
    with torch.no_grad():
        reported = Networks.draw(eager, 3, key).each(lambda: eager(x, output_attentions=True).attentions)
    assert not torch.equal(found[0], found[1])
    for ours, theirs in zip(found, reported, strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs, 1))


def test_bottlenecks_have_the_layers_of_the_model():
    model = hugging_face()
    method = isf.attach(
        model, isf.Ising(delta=0.2, coupling=2.0, warmup=0, refresh=2, evidence_weight=10.0), examples=10
    )
    train(model, method, torch.randn(4, 1, SIDE, SIDE), torch.tensor([0, 1, 2, 0]))
    found = isf.bottlenecks(model)
    assert {one.layer for one in found.layers} == set(anatomy(model).layers)
    assert any(one.widest > 1e-3 for one in found.layers)


def test_layers_without_a_posterior_are_always_kept():
    model, x = hugging_face(), torch.randn(2, 1, SIDE, SIDE)
    isf.attach(model, isf.DropConnect(p=0.25), examples=10, include=["*.mlp.*"])
    found = explain(model, x, samples=3)
    parts, masked = found.parts, set(found.architecture.masked)
    assert masked == {name for block in parts.blocks for name in (block.fc1, block.fc2)}
    for one in found.architecture.layers:
        inside = one.name in masked
        assert one.keep == pytest.approx(0.75 if inside else 1.0) and (one.entropy > 0) is inside
    weights = {one.name: one.weights for one in found.architecture.layers}
    rest = sum(count for name, count in weights.items() if name not in masked)
    drawn = found.architecture.drawn.weights.samples
    assert (drawn > rest).all() and (drawn < sum(weights.values())).all()
    recorder = isf.Recorder(isf.attached_to(model))
    recorder()
    assert 'id="training"' in found.html(history=recorder.history)


def test_attention_that_cannot_be_seen_is_refused(batch):
    model = VisionTransformer().double()
    isf.attach(model, isf.DropConnect(p=0.2), examples=10, exclude=["*self_attention*"])
    with pytest.raises(ValueError, match="in_proj carries no posterior, and torch computes it inside"):
        explain(model, batch(1)[0], samples=2)


def test_attention_of_another_kind_is_refused(tiny, batch):
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.2), examples=10)
    model.blocks[1].attn.proj.register_forward_pre_hook(lambda module, args: (args[0] * 1.2,))
    with pytest.raises(ValueError, match=r"expected attention that is softmax.* differs from it by up to \d+%"):
        explain(model, batch(1)[0], samples=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "got depth 0"),
        ({"num_labels": 0}, "expected a model with a classifier, got num_labels 0"),
        ({"image_size": 5}, r"square patches that fill the image, got 2 x 2 of \(5, 5\)"),
    ],
    ids=["no block", "no classes", "a remainder"],
)
def test_what_cannot_be_read_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        anatomy(hugging_face(**changes))
