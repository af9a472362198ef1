"""The recursion's rules against Jacobians written out by autograd; whole nets against the exact Gauss-Newton."""

import copy

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import nn

from doubles import DOUBLE, randn
from isingformer.curvature.lm import NoRule, lm_diagonal
from isingformer.curvature.reference import gauss_newton_diagonal


def mlp(*widths, act, seed=0):
    layers = []
    for i in range(len(widths) - 1):
        layers += [nn.Linear(widths[i], widths[i + 1], dtype=DOUBLE), act()]
    net = nn.Sequential(*layers[:-1])
    return reset(net, seed)


def reset(net, seed):
    """Weights of unit gain from a seed, so that no test leans on the global one."""
    with torch.no_grad():
        for i, (name, p) in enumerate(net.named_parameters()):
            noise = randn(*p.shape, seed=1000 * seed + i)
            fan_in = p[0].numel() if p.ndim > 1 else 4
            p.copy_(noise / fan_in**0.5 if "norm" not in name else 1 + 0.3 * noise)
    return net


def lm_and_exact(net, x, likelihood):
    leaves = dict(net.named_parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact = gauss_newton_diagonal(lambda: net(x), leaves, likelihood)
    return lm_diagonal(lambda: net(x), leaves, likelihood), exact


@pytest.mark.parametrize(("likelihood", "width"), [("softmax", 3), ("binary", 1), ("multilabel", 3), ("gaussian", 3)])
@pytest.mark.parametrize("act", [nn.GELU, nn.ReLU, nn.Tanh])
def test_exact_for_the_last_layer(likelihood, width, act):
    lm, exact = lm_and_exact(mlp(4, 5, 5, width, act=act), randn(7, 4, seed=3), likelihood)
    for name in ("4.weight", "4.bias"):
        torch.testing.assert_close(lm[name], exact[name])
    assert not torch.allclose(lm["0.weight"], exact["0.weight"])  # two layers down it is an approximation


@pytest.mark.parametrize("act", [nn.GELU, nn.ReLU, nn.Tanh, nn.SiLU, nn.Sigmoid])
@pytest.mark.parametrize("width", [1, 3])
def test_exact_for_squared_error_with_one_hidden_layer(act, width):
    lm, exact = lm_and_exact(mlp(4, 6, width, act=act), randn(7, 4, seed=3), "gaussian")
    torch.testing.assert_close(lm, exact)


class Block(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class SmallViT(nn.Module):
    def __init__(self, pool, patch=6, tokens=4, width=8, depth=2, classes=3):
        super().__init__()
        self.pool = pool
        self.patch = nn.Linear(patch, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, tokens + 1, width))
        self.blocks = nn.Sequential(*(Block(width, 2, 2 * width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), self.patch(x)], dim=1) + self.position
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0] if self.pool == "cls" else x[:, 1:].mean(1))


def compare(lm, exact):
    """Per leaf: median of lm / exact, and Spearman's rank correlation."""
    table = {}
    for name, h in exact.items():
        seen = h > 1e-12 * h.max()  # key biases shift all scores alike: their exact h is 0
        if seen.sum() > 1:
            ratio = (lm[name] / h)[seen].median().item()
            table[name] = ratio, spearmanr(lm[name][seen], h[seen]).statistic
    return table


def show(title, table):
    print(f"\n{title}\n{'':24}lm / exact  Spearman")
    for name, (ratio, rank) in table.items():
        print(f"{name:24}{ratio:10.2f}{rank:10.2f}")


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_small_vit_end_to_end(pool):
    net = reset(SmallViT(pool).double(), seed=1)
    x = randn(12, 4, 6, seed=2)
    lm, exact = lm_and_exact(net, x, "softmax")
    for name, p in net.named_parameters():
        assert lm[name].shape == p.shape and lm[name].isfinite().all() and (lm[name] >= 0).all(), name
        assert lm[name].sum() > 0, name
    table = compare(lm, exact)
    show(f"small ViT, {pool} pooling", table)
    torch.testing.assert_close(lm["head.weight"], exact["head.weight"])
    for name, (ratio, _) in table.items():
        if name.endswith("weight"):
            assert 0.02 < ratio < 50, (name, ratio)
    weights = [name for name in table if name.endswith("weight") and "norm" not in name]
    everything = [torch.cat([h[name].flatten() for name in weights]) for h in (lm, exact)]
    assert spearmanr(*everything).statistic > 0.5


def test_two_hidden_layers():
    lm, exact = lm_and_exact(mlp(10, 16, 16, 4, act=nn.GELU), randn(20, 10, seed=2), "softmax")
    table = compare(lm, exact)
    show("MLP 10-16-16-4, softmax", table)
    assert all(0.2 < ratio < 5 and rank > 0.4 for ratio, rank in table.values())


def test_stacked_replicas_are_each_their_own():
    x = randn(2, 6, 4, seed=1)
    w, b, v = (randn(*shape, seed=i).requires_grad_() for i, shape in enumerate([(2, 5, 4), (2, 1, 5), (2, 3, 5)]))

    def stacked():
        return torch.bmm(F.gelu(torch.baddbmm(b, x, w.mT)), v.mT)

    together = lm_diagonal(stacked, {"w": w, "b": b, "v": v}, "softmax", replica_axes=1)
    for r in range(2):
        alone = [one[r].detach().clone().requires_grad_() for one in (w, b, v)]
        leaves = dict(zip(("w", "b", "v"), alone, strict=True))

        def one(x=x[r], w=alone[0], b=alone[1], v=alone[2]):
            return F.linear(F.gelu(F.linear(x, w, b[0])), v)

        each = lm_diagonal(one, leaves, "softmax")
        torch.testing.assert_close(each, {name: h[r] for name, h in together.items()})


def test_the_average_is_over_examples():
    net, x = mlp(4, 5, 3, act=nn.GELU), randn(6, 4)
    leaves = dict(net.named_parameters())
    once = lm_diagonal(lambda: net(x), leaves, "softmax")
    twice = lm_diagonal(lambda: net(torch.cat([x, x])), leaves, "softmax")
    torch.testing.assert_close(once, twice)
    tokens = lm_diagonal(lambda: net(x.view(2, 3, 4)), leaves, "softmax", examples=6)
    torch.testing.assert_close(once, tokens)


def test_nothing_is_left_behind():
    net, x = mlp(4, 5, 3, act=nn.GELU), randn(6, 4)
    before = copy.deepcopy(net.state_dict())
    unused = torch.ones(2, dtype=DOUBLE, requires_grad=True)
    with torch.no_grad():  # works inside it, too
        h = lm_diagonal(lambda: net(x), dict(net.named_parameters()) | {"unused": unused}, "softmax")
    assert h["unused"].eq(0).all()
    assert lm_diagonal(lambda: x, {"unused": unused}, "softmax")["unused"].eq(0).all()
    assert all(not part.requires_grad for part in h.values()) and all(p.grad is None for p in net.parameters())
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    w = net[0].weight
    (after,) = torch.autograd.grad(w.mul(3).sum(), w)  # the mode is off again
    assert after.eq(3).all()


@pytest.mark.parametrize("batched", [True, False])
def test_multihead_attention_is_its_pieces(batched):
    module = reset(nn.MultiheadAttention(4, 2, batch_first=True, dtype=DOUBLE), 0).eval()
    x = randn(2, 3, 4) if batched else randn(3, 4)
    leaves = dict(module.named_parameters())

    def pieces():
        q, k, v = F.linear(x, leaves["in_proj_weight"], leaves["in_proj_bias"]).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (2, 2)).transpose(-2, -3) for one in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
        return F.linear(o, leaves["out_proj.weight"], leaves["out_proj.bias"])

    def whole():
        return module(x, x, x, need_weights=False)[0]

    torch.testing.assert_close(whole(), pieces())
    torch.testing.assert_close(lm_diagonal(whole, leaves, "gaussian"), lm_diagonal(pieces, leaves, "gaussian"))


# What it refuses -----------------------------------------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def write_item(x):
    y = torch.zeros_like(x)
    y[0] = x[0]
    return y


REFUSED = {
    "unknown": (lambda x: torch.cumprod(x, 0), r"no rule for torch.cumprod; known: .*gelu.*; .*use curvature='fisher'"),
    "unknown method": (lambda x: x.logsumexp(0, keepdim=True), "no rule for torch.Tensor.logsumexp"),
    "unknown functional": (lambda x: F.group_norm(x, 1), "no rule for torch.nn.functional.group_norm"),
    "in place": (lambda x: (x * 1).add_(1), "torch.Tensor.add_, which writes in place"),
    "augmented": (lambda x: x.clone().__iadd__(x), "which writes in place"),
    "in place by argument": (lambda x: F.relu(x * 1, inplace=True), "relu, which writes in place"),
    "in place by position": (lambda x: F.relu(x * 1, True), "relu, which writes in place"),
    "item": (write_item, "which writes in place"),
    "dropout": (lambda x: F.dropout(x, 0.5, training=True), r"dropout in training.*model.eval\(\)"),
    "attention dropout": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1), "attention with dropout"),
    "einsum sums alone": (lambda x: torch.einsum("ij,kl->ik", x, x), "no rule for torch.einsum"),
    "einsum of three": (lambda x: torch.einsum("ij,jk,kl->il", x, x, x), "no rule for torch.einsum"),
    "float16": (lambda x: x.half().float(), "no rule for float16, in which h underflows .*run the model in bfloat16"),
    "own function": (Double.apply, "no rule for Double, an autograd.Function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_by_name(name):
    f, message = REFUSED[name]
    w = randn(3, 3).requires_grad_()
    with pytest.raises(NoRule, match=message) as caught:
        lm_diagonal(lambda: f(w), {"w": w}, "gaussian")
    assert isinstance(caught.value, ValueError) and "\n" not in str(caught.value)


def test_constants_and_questions_need_no_rule():
    """Operations without a leaf, under no_grad, or that return no tensor with a graph, pass."""
    w, x = randn(3, 4).requires_grad_(), randn(5, 4)

    def outputs():
        scaled = x.cumprod(0) * (w.shape[0] + w.dim() + len(w) + int(w.argmax() >= 0))
        scaled.add_(w.detach().logsumexp(0))
        with torch.no_grad():
            scaled = scaled + w.logsumexp(0)
        return F.linear(scaled, w)

    # the same numbers, by hand
    scaled = x.cumprod(0) * (3 + 2 + 3 + 1) + 2 * w.detach().logsumexp(0)
    expected = (2 * scaled.square()).mean(0).expand(3, 4)
    torch.testing.assert_close(lm_diagonal(outputs, {"w": w}, "gaussian")["w"], expected)


def test_wrong_arguments_are_refused():
    w = randn(3)
    with pytest.raises(ValueError, match=r"leaves \['w'\] do not require gradients"):
        lm_diagonal(lambda: w, {"w": w}, "gaussian")
    w.requires_grad_()
    with pytest.raises(ValueError, match=r"shape \[3\]; expected examples after 1 replica axes"):
        lm_diagonal(lambda: w * 1, {"w": w}, "gaussian", replica_axes=1)
    with pytest.raises(ValueError, match="expected one of softmax"):
        lm_diagonal(lambda: w * 1, {"w": w}, "poisson")
