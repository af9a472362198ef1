"""A ViT laid out as timm's: one linear layer for queries, keys and values, layer scale, a convolution for patches.

timm's own models too, where timm is there: it does not import without a torchvision that works.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isingformer as isf
from families import check_checkpointed, check_compiled, check_curvature, check_life, check_on_a_gpu, installed
from isingformer.ising import Reading

WIDTH, HEADS, MLP = 16, 2, 24


class PatchEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(1, WIDTH, 4, 4)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, fused, qkv_bias=False):
        super().__init__()
        self.fused = fused
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=qkv_bias)
        self.q_norm, self.k_norm = nn.LayerNorm(WIDTH // HEADS), nn.LayerNorm(WIDTH // HEADS)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        n, tokens, width = x.shape
        qkv = self.qkv(x).reshape(n, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = (q * (width // HEADS) ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(n, tokens, width))


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x):
        return x * self.gamma


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, MLP), nn.GELU(), nn.Linear(MLP, WIDTH)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(WIDTH), Attention(fused), LayerScale()
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(WIDTH), Mlp(), LayerScale()

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    default_cfg = {"input_size": (1, 8, 8)}  # noqa: RUF012

    def __init__(self, fused=True):
        super().__init__()
        torch.manual_seed(0)
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.blocks = nn.Sequential(Block(fused), Block(fused))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def batch(n=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 8, 8, dtype=dtype, generator=generator), torch.randint(3, (n,), generator=generator)


def matrices(name, gradients):
    return gradients[f"{name}.weight"].flatten(1)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by hand"])
def test_life(fused, tmp_path):
    check_life(lambda: VisionTransformer(fused), *batch(), tmp_path)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by hand"])
def test_curvature(fused):
    check_curvature(lambda: VisionTransformer(fused), *batch(dtype=torch.float64), matrices)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by hand"])
def test_who_reads_whom(fused):
    wiring = isf.attach(VisionTransformer(fused), isf.Ising(), examples=10).parts.topology.wiring
    width, size = slice(0, WIDTH), WIDTH // HEADS
    assert wiring["patch_embed.proj"] == (Reading(width, ("blocks.0.attn.qkv",), width),)
    proj = ("blocks.0.attn.proj",)
    assert wiring["blocks.0.attn.qkv"] == (
        Reading(width, proj, width, size),
        Reading(slice(WIDTH, 2 * WIDTH), proj, width, size),
        Reading(slice(2 * WIDTH, 3 * WIDTH), proj, width),
    )
    assert wiring["blocks.0.attn.proj"] == (Reading(width, ("blocks.0.mlp.fc1",), width),)
    assert wiring["blocks.0.mlp.fc2"] == (Reading(width, ("blocks.1.attn.qkv",), width),)
    assert wiring["blocks.1.mlp.fc2"] == (Reading(width, ("head",), width),)
    assert wiring["head"] == ()


KINDS = {
    "plain": {},
    "layer scale and norms of queries and keys": {"init_values": 0.5, "qk_norm": True},
    "mean over patches": {"global_pool": "avg"},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "mlp and attention side by side": {"block_fn": "ParallelScalingBlock"},
}


@pytest.fixture(scope="module")
def timm():
    return installed("timm")


def small(timm, depth=2, **changes):
    torch.manual_seed(0)
    if "block_fn" in changes:
        changes["block_fn"] = getattr(timm.models.vision_transformer, changes["block_fn"])
    model = timm.models.VisionTransformer(
        img_size=8, patch_size=4, in_chans=1, num_classes=3, embed_dim=WIDTH, depth=depth, num_heads=HEADS,
        mlp_ratio=MLP / WIDTH, **changes,
    )  # fmt: skip
    return model.requires_grad_()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_life_of_timms_own(timm, kind, tmp_path):
    check_life(lambda: small(timm, **kind), *batch(), tmp_path)


def test_curvature_of_timms_own(timm):
    check_curvature(lambda: small(timm), *batch(dtype=torch.float64), matrices)


def test_who_reads_whom_in_timms_own(timm):
    ours = isf.attach(VisionTransformer(), isf.Ising(), examples=10).parts.topology.wiring
    assert isf.attach(small(timm), isf.Ising(), examples=10).parts.topology.wiring == ours


def test_gradient_checkpointing_of_timms_own(timm):
    check_checkpointed(lambda: small(timm), *batch(), lambda model: model.set_grad_checkpointing())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_timms_own_compiled(timm):
    check_compiled(small(timm, depth=1), *batch())


@pytest.mark.gpu
def test_timms_vit_base_trains(timm):
    check_on_a_gpu(timm.create_model("vit_base_patch16_224", pretrained=False), layers=1 + 4 * 12 + 1)
