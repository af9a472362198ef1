"""`nn.TransformerEncoder` and models built on `nn.MultiheadAttention`, torchvision's ViT among them."""

import warnings

import pytest
import torch
from torch import nn

import isingformer as isf
from families import check_curvature, check_every_layer_is_random, check_life, structure, train
from isingformer.nn.masked import posteriors

WIDTH, HEADS, MLP = 16, 2, 24


class Encoder(nn.Module):
    """Sequences of vectors to classes; entries of zeros alone are padding."""

    def __init__(self, batch_first=True, norm_first=False, padded=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.padded, self.batch_first = padded, batch_first
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, MLP, dropout=0.0, batch_first=batch_first, norm_first=norm_first, **options
        )
        self.embed, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "enable_nested_tensor is True")  # torch's own
            self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        padding = (x == 0).all(-1) if self.padded else None
        x = self.embed(x)
        x = self.encoder(x if self.batch_first else x.transpose(0, 1), src_key_padding_mask=padding)
        return self.head(x.mean(1 if self.batch_first else 0))


class Block(nn.Module):
    """A block as torchvision writes it."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.self_attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, MLP), nn.GELU(), nn.Dropout(0.0), nn.Linear(MLP, WIDTH))

    def forward(self, input):
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = x + input
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    """The layout of torchvision's ViT: a convolution, a class token, blocks on `nn.MultiheadAttention`, heads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image_size = 8
        self.conv_proj = nn.Conv2d(1, WIDTH, 4, 4)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embedding = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.layers = nn.Sequential(Block(), Block())
        self.ln = nn.LayerNorm(WIDTH)
        self.heads = nn.Sequential(nn.Linear(WIDTH, 3))

    def forward(self, x):
        x = self.conv_proj(x).reshape(len(x), WIDTH, -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        return self.heads(self.ln(self.layers(x + self.pos_embedding))[:, 0])


def sequences(n=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, 6, dtype=dtype, generator=generator)
    x[1, 3:] = 0
    return x, torch.randint(3, (n,), generator=generator)


def images(n=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 8, 8, dtype=dtype, generator=generator), torch.randint(3, (n,), generator=generator)


def matrices(name, gradients):
    if name.endswith("in_proj"):
        return gradients[f"{name}_weight"]
    return gradients[f"{name}.weight"].flatten(1)


KINDS = {
    "batch first": {},
    "tokens first": {"batch_first": False},
    "pre-norm": {"norm_first": True},
    "padded": {"padded": True},
    "padded, tokens first": {"padded": True, "batch_first": False},
    "no bias": {"bias": False},
    "gelu": {"activation": "gelu"},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_life_of_an_encoder(kind, tmp_path):
    check_life(lambda: Encoder(**kind), *sequences(), tmp_path)


@pytest.mark.parametrize("sampling", ["mask", "local"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_curvature_of_an_encoder(kind, sampling):
    check_curvature(lambda: Encoder(**kind), *sequences(dtype=torch.float64), matrices, sampling)


def test_life_of_a_torchvision_like_vit(tmp_path):
    check_life(VisionTransformer, *images(), tmp_path)


def test_curvature_of_a_torchvision_like_vit():
    check_curvature(VisionTransformer, *images(dtype=torch.float64), matrices)


class CrossAttention(nn.Module):
    """Queries of their own read the sequence, whose values are half as wide; a packed attention does so too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.narrow, self.head = nn.Linear(6, WIDTH), nn.Linear(6, 8), nn.Linear(WIDTH, 3)
        self.queries = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.packed = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.separate = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, vdim=8)

    def forward(self, x):
        wide = self.embed(x)
        found, _ = self.packed(self.queries.expand(len(x), -1, -1), wide, wide)
        found, _ = self.separate(found, wide, self.narrow(x))
        return self.head(found.mean(1))


def separate_matrices(name, gradients):
    packed = f"{name}_weight"
    return gradients[packed] if packed in gradients else gradients[f"{name}.weight"]


def test_life_of_cross_attention(tmp_path):
    check_life(CrossAttention, *sequences(), tmp_path)


@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_curvature_of_cross_attention(sampling):
    check_curvature(CrossAttention, *sequences(dtype=torch.float64), separate_matrices, sampling)


def test_masking_the_feed_forward_part_alone_closes_the_fused_paths_too(tmp_path):
    model, (x, y) = Encoder(padded=True), sequences()
    before = structure(model)
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10, include="*.linear?")
    train(model, handle, x, y)
    assert len(posteriors(model)) == 4
    check_every_layer_is_random(model, x)
    handle.detach()
    assert structure(model) == before and model.encoder.use_nested_tensor


METHODS = {
    "dropconnect": isf.DropConnect(p=0.3),
    "dropout": isf.Dropout(p=0.3),
    "paper": isf.Ising.paper(0.3),
    "mc-fisher": isf.Ising(curvature="mc-fisher", warmup=0, refresh=2),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_goes_on_and_comes_off(method):
    model, (x, y) = VisionTransformer(), images()
    before, state = structure(model), {name: value.clone() for name, value in model.state_dict().items()}
    isf.attach(model, method, examples=10).detach()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    handle = isf.attach(model, method, examples=10)
    train(model, handle, x, y)
    drawn = isf.predict(model, x, samples=2).samples
    assert not torch.equal(*drawn) and bool(drawn.isfinite().all())
    handle.detach("expected")
    assert structure(model) == before


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_a_compiled_attention_stays_random():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    torch._dynamo.reset()
    model, (x, y) = Net(), sequences()
    handle = isf.attach(model, isf.Ising(delta=0.3, warmup=0, refresh=2), examples=10)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    train(model, handle, x, y, steps=2, forward=compiled)
    assert all(h.max() > 0 for h in handle.curvature().values())
    assert not torch.equal(compiled(x), compiled(x))
    torch._dynamo.reset()


def test_attention_over_the_examples_is_said_aloud():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor is True")
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, MLP), 1)
    with pytest.warns(UserWarning, match=r"layers\.0\.self_attn attends .* first axis .* batch_first=True"):
        isf.attach(encoder, isf.Ising(), examples=10)
